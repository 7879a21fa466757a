"""The simulator's 128 bytes of a tensor map, field by field.

A kernel may fill zeroed bytes with `tensormap.replace`: each field has a place of its own. Zero
stands for one axis, bytes, no swizzle and zeros outside, which Triton does not set; in the other
fields it says that nothing has set them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import InputError

MAP_BYTES = 128
MAGIC = 0x70614D726F736E54  # "TnsorMap"; kernels that fill zeroed bytes leave zero there
MOST_AXES = 5
ALIGNED = 16  # bytes: of addresses, strides and rows of a box
MOST_BOX, MOST_STEP = 256, 8  # elements
MOST_EXTENT, MOST_STRIDE = 1 << 32, 1 << 40  # elements, bytes
SWIZZLES = (0, 32, 64, 128)  # bytes; the place of each is CUtensorMapSwizzle
FILLS = ("zero", "nan")  # the place of each is CUtensorMapFloatOOBfill
# Element type -> (CUtensorMapDataType, bytes).
ELEMENTS = {
    "uint8": (0, 1),
    "uint16": (1, 2),
    "uint32": (2, 4),
    "int32": (3, 4),
    "uint64": (4, 8),
    "int64": (5, 8),
    "float16": (6, 2),
    "float32": (7, 4),
    "float64": (8, 8),
    "bfloat16": (9, 2),
    "float32_ftz": (10, 4),
    "tfloat32": (11, 4),
    "tfloat32_ftz": (12, 4),
}
KINDS = tuple(ELEMENTS)
# Axes from the innermost one on. rank: axes less 1; kind: the place in KINDS; swizzle: bytes.
MAP_FIELDS = np.dtype(
    {
        "names": "magic address strides sizes box step rank kind swizzle fill none".split(),
        "formats": ["u8", "u8", ("u8", 4), ("u8", 5), ("u4", 5), ("u2", 5), "u2", *["u1"] * 4],
        "offsets": [0, 8, 16, 48, 88, 108, 118, 120, 121, 122, 123],
        "itemsize": MAP_BYTES,
    }
)


@dataclass(frozen=True)
class Replaced:
    """A field of `tensormap.replace`.

    field: of MAP_FIELDS; kind: the PTX type of the value; places: numbers of the axes that it takes
    (0: none); values: what the values of a literal stand for, None: any value.
    """

    field: str
    kind: str = "b32"
    places: int = 0
    values: tuple[int, ...] | None = None


_PTX_KINDS = (*KINDS[:8], "float32_ftz", "float64", "bfloat16", *KINDS[11:])  # by their number
REPLACED = {
    "global_address": Replaced("address", "b64"),
    "rank": Replaced("rank"),
    "box_dim": Replaced("box", places=5),
    "global_dim": Replaced("sizes", places=5),
    "global_stride": Replaced("strides", "b64", places=4),
    "element_stride": Replaced("step", places=5),
    "elemtype": Replaced("kind", values=tuple(KINDS.index(one) for one in _PTX_KINDS)),
    "swizzle_mode": Replaced("swizzle", values=SWIZZLES),
    "fill_mode": Replaced("fill", values=(0, 1)),
    "interleave_layout": Replaced("none", values=(0,)),
    "swizzle_atomicity": Replaced("none", values=(0,)),
}


def unpacked(image: bytes) -> np.void:
    """The fields of 128 bytes, an item of MAP_FIELDS.

    Raises InputError for bytes that the copy engine cannot use, which says "that ..." of the map.
    """
    (found,) = np.frombuffer(image, MAP_FIELDS)
    if found["magic"] not in (0, MAGIC) or not any(image) or _is_no_map(found):
        raise InputError(
            "that kernelscope.TensorMap has not made. Pass a TensorMap as a parameter `const "
            "__grid_constant__ Map map` of 128 bytes aligned to 64, and name its address"
        )
    missing = ", ".join(_missing(found))
    if missing:
        raise InputError(
            f"that lacks {missing}. Set each field with tensormap.replace, and all before the map "
            "is copied to where it is used"
        )
    problem = next(_problems(found), "")
    if problem:
        raise InputError(f"that the copy engine cannot use: {problem}")
    return found


def _is_no_map(found: np.void) -> bool:
    """Has a field a value that neither TensorMap nor a kernel can have given it?"""
    modes = found["kind"] >= len(KINDS) or found["fill"] >= len(FILLS) or found["none"] != 0
    return modes or found["swizzle"] not in SWIZZLES or (found["sizes"] > MOST_EXTENT).any()


def _missing(found: np.void) -> Iterator[str]:
    """The names of fields without a value, as PTX has them."""
    if not found["address"]:
        yield "global_address"
    axes = int(found["rank"]) + 1 if found["rank"] < MOST_AXES else 0
    for name in ("box_dim", "global_dim", "global_stride", "element_stride"):
        first = int(name == "element_stride")  # which the innermost axis has no use for
        last = axes - (name == "global_stride")
        for axis in range(first, last):
            if not found[REPLACED[name].field][axis]:
                yield f"{name} {axis}"


def _problems(found: np.void) -> Iterator[str]:
    """What is wrong with fields that all have a value."""
    axes, name = int(found["rank"]) + 1, KINDS[found["kind"]]
    if axes > MOST_AXES:
        yield f"its rank is {axes - 1}, of {axes} axes; it has 1 to {MOST_AXES}"
        return
    box, step, strides = found["box"][:axes], found["step"][1:axes], found["strides"][: axes - 1]
    row, swizzle = int(box[0]) * ELEMENTS[name][1], int(found["swizzle"])
    if found["address"] % ALIGNED:
        yield f"its global_address is {found['address']:#x}, no multiple of {ALIGNED}"
    if (box > MOST_BOX).any():
        yield f"its box_dim are {box.tolist()}; each must be 1 to {MOST_BOX}"
    if (step > MOST_STEP).any():
        yield f"its element_stride are {step.tolist()}; each must be 1 to {MOST_STEP}"
    if (strides % ALIGNED != 0).any() or (strides >= MOST_STRIDE).any():
        yield f"its global_stride are {strides.tolist()} bytes, not all multiples of {ALIGNED}"
    if row % ALIGNED:
        yield f"a row of its box has {row} bytes, no multiple of {ALIGNED}"
    if swizzle and row > swizzle:
        yield f"a row of its box has {row} bytes and its swizzle_mode {swizzle}"
    if found["fill"] and "float" not in name:
        yield f"its fill_mode is NaN and its elemtype {name}"
