"""Checks of the arrays of a call: each refusal names the argument and the remedy."""

import reprlib

import numpy as np
from kernelscope.errors import InputError, InputTypeError

from attn_course.reference.dtypes import DTYPES

LAYOUTS = ("HND", "NHD")  # of a page of k and v: heads, keys (N), columns


def check_arrays(q, k, v, xp=np, *, paged: bool = False, kv_layout: str = "HND") -> None:
    """Refuse what the kernels cannot read, naming the argument and the remedy.

    paged: the first extent of k and v counts pages.  kv_layout: one of LAYOUTS.

    Raises:
        TypeError: not an array of ``xp``, of no dtype in DTYPES, or of several.
        ValueError: not four-dimensional, empty, not C-contiguous, or shapes that do not match; no
        such layout.
    """
    if kv_layout not in LAYOUTS:
        raise InputError(f"kv_layout is {kv_layout!r}: choose one of {', '.join(LAYOUTS)}")
    heads, keys = (1 + kv_layout.index(letter) for letter in "HN")
    for name, array in zip("qkv", (q, k, v), strict=True):
        _check_array(name, array, xp, tuple(DTYPES))
    for name, array in (("k", k), ("v", v)):
        if array.dtype != q.dtype:
            raise InputTypeError(
                f"{name} is {array.dtype}, q {q.dtype}: pass {name}.astype(q.dtype), "
                f"or q.astype({name}.dtype)"
            )
        if (array.shape[0] != q.shape[0] and not paged) or array.shape[3] != q.shape[3]:
            raise InputError(
                f"{name} has shape {array.shape}, q {q.shape}: batch and head dimension must be "
                "equal; cut or pad the arrays to match"
            )
        if q.shape[1] % array.shape[heads]:
            raise InputError(
                f"{name} has shape {array.shape}, q {q.shape}: the heads of q must be a multiple "
                f"of those of {name}; repeat or cut the heads"
            )
    for axis, of_k, of_v in ((heads, "heads", ""), (keys, "keys", " values"), (0, "pages", "")):
        if (mine := k.shape[axis]) != (other := v.shape[axis]):
            raise InputError(f"k has {mine} {of_k}, v {other}{of_v}: make them equal")


def check_flags(**flags) -> None:
    """Refuse what is neither True nor False, nor 0 or 1. Raises TypeError."""
    for name, value in flags.items():
        if not isinstance(value, (int, np.bool_, np.integer)) or value not in (0, 1):
            raise InputTypeError(f"{name} is {reprlib.repr(value)}: pass True or False")


def check_cache(lengths, page_table, batch: int, page: int, xp=np) -> None:
    """Refuse lengths and a page table that the kernels cannot read; None is neither.

    batch: sequences.  page: keys of a page. Whether numbers are in range is known without waiting
    for a GPU only of those in host memory; check_range() looks at them in each call.

    Raises:
        TypeError, ValueError: as :func:`check_floats`, of int32; a shape that does not fit; pages
        that are no multiple of 16 keys.
    """
    for name, array in (("lengths", lengths), ("page_table", page_table)):
        if array is None:
            continue
        check_floats(name, array, xp, ("int32",))
        if array.shape[:1] != (batch,) or array.ndim != 1 + (name == "page_table"):
            form = f"({batch},): one" if array is lengths else f"({batch}, pages): a row"
            raise InputError(f"{name} has shape {array.shape}, not {form} a sequence")
    if page_table is not None and page % 16:
        raise InputError(f"a page of k has {page} keys, not a multiple of 16: use larger pages")


def check_range(lengths, table, problem, pages: int) -> None:
    """Refuse lengths in host memory outside 0 to m, and numbers of used pages that k does not have.

    Entries of the table past the pages that a length needs may be anything.
    """
    if isinstance(lengths, np.ndarray):
        for at in np.flatnonzero((lengths < 0) | (lengths > problem.m))[:1]:
            raise InputError(
                f"lengths[{at}] is {lengths[at]}; the cache has room for {problem.m} keys a "
                "sequence: pass lengths from 0 to that, or more pages"
            )
    if isinstance(table, np.ndarray):
        most = problem.m if lengths is None else lengths[:, None]
        used = np.arange(table.shape[1]) * problem.page < most
        for b, i in np.argwhere(used & ((table < 0) | (table >= pages)))[:1]:
            raise InputError(f"page_table[{b}][{i}] is {table[b, i]}; k has pages 0 to {pages - 1}")


def check_bias(bias, q, k, xp=np) -> tuple[int, int]:
    """Return the floats from one element of the batch, and from one head, to the next in the bias.

    Raises:
        TypeError, ValueError: as :func:`check_arrays`; a shape that does not fit.
    """
    if bias is None:
        return (0, 0)
    _check_array("bias", bias, xp, ("float32",), dimensions=(2, 3, 4))
    (batch, heads, n), m = q.shape[:3], k.shape[2]
    extents = (1,) * (4 - bias.ndim) + bias.shape
    if extents[0] not in (1, batch) or extents[1] not in (1, heads) or extents[2:] != (n, m):
        raise InputError(
            f"bias has shape {bias.shape}, the scores {(batch, heads, n, m)}: its last two extents "
            "must be those, batch and heads those or 1; for others pass a copy of "
            f"{xp.__name__}.broadcast_to(bias, {(batch, heads, n, m)})"
        )
    return (extents[1] * n * m if extents[0] > 1 else 0, n * m if extents[1] > 1 else 0)


def check_output(out, inputs: dict, xp=np) -> None:
    """Refuse an output array that the kernels cannot write.

    inputs: the arrays that they read, by name, q among them.

    Raises:
        TypeError, ValueError: as check_arrays(); not the shape of q; memory shared with an input.
    """
    q = inputs["q"]
    _check_array("out", out, xp, (q.dtype.name,))
    if out.shape != q.shape:
        raise InputError(f"out has shape {out.shape}, q {q.shape}: they must be equal")
    check_overlap(out, inputs, xp)


def check_overlap(out, inputs: dict, xp=np) -> None:
    """Raise ValueError where the output shares memory with an input."""
    start = start_of(out)
    for name, array in inputs.items():
        first = start_of(array)
        if start < first + array.nbytes and first < start + out.nbytes:
            raise InputError(
                f"out shares memory with {name}: the kernels would overwrite what they still "
                f"read; pass an array of its own, such as {xp.__name__}.empty_like(q)"
            )


def start_of(array) -> int:
    """Return the address of a NumPy or CuPy array's first element."""
    on_host = isinstance(array, np.ndarray)  # whose `data` has no bfloat16
    return array.__array_interface__["data"][0] if on_host else array.data.ptr


def _check_array(name, array, xp, dtypes, dimensions=(4,)):
    check_floats(name, array, xp, dtypes)
    if array.ndim not in dimensions:
        form = "(B, H, L, D)" if dimensions == (4,) else "(n, m), (H, n, m) or (B, H, n, m)"
        raise InputError(f"{name} has shape {array.shape}, not {form}: reshape it")


def check_floats(name: str, array, xp=np, dtypes=("float32",)) -> None:
    """Refuse an array that no kernel reads, of whatever shape.

    dtypes: names of those that are read.

    Raises:
        TypeError: not an array of ``xp``, or of another dtype.
        ValueError: empty, not C-contiguous, or not aligned to its elements.
    """
    if not isinstance(array, xp.ndarray):
        convert = "cupy.asnumpy" if hasattr(array, "get") else f"{xp.__name__}.asarray"
        raise InputTypeError(
            f"{name} is {type(array).__module__}.{type(array).__name__}, this backend takes "
            f"{xp.__name__} arrays: pass {convert}({name})"
        )
    if isinstance(array, np.ma.MaskedArray):
        raise InputTypeError(
            f"{name} is a masked array, and kernels know no mask: pass {name}.filled(value)"
        )
    if array.dtype.name not in dtypes or not array.dtype.isnative:
        others = f" (nor {' or '.join(dtypes[1:])})" if len(dtypes) > 1 else ""
        module = "ml_dtypes" if dtypes[0] == "bfloat16" else "numpy"
        raise InputTypeError(
            f"{name} is {array.dtype}, not {dtypes[0]}{others}: "
            f"pass {name}.astype({module}.{dtypes[0]})"
        )
    if 0 in array.shape:
        raise InputError(f"{name} has shape {array.shape}: every extent must be at least 1")
    if not array.flags.c_contiguous:
        raise InputError(
            f"{name} is not C-contiguous: pass {xp.__name__}.ascontiguousarray({name})"
        )
    if not getattr(array.flags, "aligned", True):
        raise InputError(f"{name} is not aligned to its elements: pass {name}.copy()")
