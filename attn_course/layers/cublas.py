"""Products by cuBLASLt: the fastest of its algorithms, bias and residual added at their end.

CuPy has no binding of cuBLASLt, so its C interface is called through ctypes. Names, numbers and
structures are those of cublasLt.h
(https://docs.nvidia.com/cuda/cublas/index.html#using-the-cublaslt-api). nvmath-python 1.0.0 was
tried on an H200: in CUDA graphs 1.00 to 1.07 times this time, for one small product, of 392 x 96 x
288 numbers, 1.6 times; 29 to 55 us a call from Python, here 8 to 32; a captured plan could not be
freed.
"""

import ctypes
import os
from ctypes import c_float, c_int, c_size_t, c_uint64, c_void_p
from functools import lru_cache, partial
from itertools import pairwise
from math import gcd

from kernelscope import BackendError, capture_graph

FLOAT32 = 0  # CUDA_R_32F
COMPUTE = {"fp32": 68, "tf32": 77}  # CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32
TRANSPOSE = (3, 4)  # CUBLASLT_MATMUL_DESC_TRANSA, TRANSB: of the first and the second matrix
EPILOGUE, BIAS_POINTER = 7, 8  # CUBLASLT_MATMUL_DESC_*
ADD_BIAS = 4  # CUBLASLT_EPILOGUE_BIAS
MOST_WORKSPACE, ALIGNMENT_OF_A = 1, 5  # CUBLASLT_MATMUL_PREF_*; B, C and D follow A
WORKSPACE = 32 << 20  # bytes, what NVIDIA recommends for Hopper
ALGORITHMS = 64  # at most, that are timed
TIMED_CALLS = 10  # in a graph: launched one by one, small products would take a launch's time
LIBRARIES = ("libcublasLt.so.13", "libcublasLt.so.12")


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    try:
        from cupy_backends.cuda.libs import cublas  # noqa: F401  (loads cuBLASLt beside it)
    except ImportError as error:
        raise BackendError(
            "cuBLAS is not installed, which multiplies matrices on the GPU: pip install "
            "'attn-course[gpu]' (from the project's folder: pip install -e '.[gpu]'), or use "
            f'backend="simulator"; CuPy says: {error}'
        ) from error
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue
    raise BackendError(f"cuBLAS is here, but none of {', '.join(LIBRARIES)} came with it")


def _call(function: str, *arguments) -> None:
    """Call a function of cuBLASLt. RuntimeError: it returns a status other than success."""
    status = getattr(_library(), function)(*arguments)
    if status:
        raise RuntimeError(f"{function} failed with status {status} of cublasStatus_t")


@lru_cache(maxsize=16)
def _handle(device: int) -> c_void_p:
    """The handle of a device, made once and kept."""
    handle = c_void_p()
    _call("cublasLtCreate", ctypes.byref(handle))
    return handle


def _made(function: str, *arguments) -> c_void_p:
    made = c_void_p()
    _call(function, ctypes.byref(made), *arguments)
    return made


def _set(function: str, what: c_void_p, attribute: int, value) -> None:
    _call(function, what, c_int(attribute), ctypes.byref(value), c_size_t(ctypes.sizeof(value)))


def _layout(rows: int, columns: int) -> c_void_p:
    """A column-major matrix of float32 without gaps."""
    extents = c_uint64(rows), c_uint64(columns), ctypes.c_int64(rows)
    return _made("cublasLtMatrixLayoutCreate", c_int(FLOAT32), *extents)


def _pointer(array) -> c_void_p:
    return c_void_p(array.data.ptr)


def _aligned(array) -> int:
    """The largest power of two up to 256 that divides an array's address."""
    return gcd(array.data.ptr, 256)


class Product:
    """out = a b + residual + bias on a GPU, on fixed arrays; ``run()`` launches it.

    Args:
        a: (m, k).  b: (k, n).  out: (m, n) CuPy arrays of float32, C-contiguous; a and b may be
            transposes of such arrays.
        bias: (n,) or None.  residual: (m, n) or None; may be
            out, then filled after this call, which times products into out.
        compute: "fp32", or "tf32": factors are rounded to 11 bits.
        workspace: WORKSPACE bytes that products on the same stream may share.

    Raises:
        BackendError: no cuBLASLt. RuntimeError: it takes no such product.
    """

    def __init__(self, a, b, out, *, bias=None, residual=None, compute="fp32", workspace):
        import cupy

        (m, k), n = a.shape, b.shape[1]
        self.keeps = (a, b, out, bias, residual, workspace)
        self._cupy, handle = cupy, _handle(cupy.cuda.runtime.getDevice())
        self._how = _made("cublasLtMatmulDescCreate", c_int(COMPUTE[compute]), c_int(FLOAT32))
        if bias is not None:
            _set("cublasLtMatmulDescSetAttribute", self._how, EPILOGUE, c_int(ADD_BIAS))
            _set("cublasLtMatmulDescSetAttribute", self._how, BIAS_POINTER, _pointer(bias))
        # To cuBLAS, which reads column-major, these arrays are their transposes: out^T = b^T a^T.
        turned = tuple(not array.flags.c_contiguous for array in (b, a))
        for attribute, turn in zip(TRANSPOSE, turned, strict=True):
            _set("cublasLtMatmulDescSetAttribute", self._how, attribute, c_int(turn))
        first = _layout(*((k, n) if turned[0] else (n, k)))
        second = _layout(*((m, k) if turned[1] else (k, m)))
        self._layouts = first, second, third = first, second, _layout(n, m)
        added, beta = (out, 0.0) if residual is None else (residual, 1.0)
        self._problem = handle, self._how, first, second, third, third
        self._arguments = (
            *(handle, self._how, ctypes.byref(c_float(1.0))),
            *(_pointer(b), first, _pointer(a), second),
            *(ctypes.byref(c_float(beta)), _pointer(added), third, _pointer(out), third),
        )
        self._workspace = _pointer(workspace), c_size_t(workspace.nbytes)
        alignments = [_aligned(array) for array in (b, a, added, out)]
        of_bias = 0 if bias is None else _aligned(bias)
        key = (handle.value, m, k, n, *turned, compute, residual is None, of_bias, *alignments)
        if key not in _fastest:
            _fastest[key] = self._search(alignments)
        self._algorithm = _fastest[key]

    def run(self) -> None:
        """Launch the product on CuPy's current stream."""
        self._launch(self._algorithm)

    def _launch(self, algorithm) -> None:
        stream = c_void_p(self._cupy.cuda.get_current_stream().ptr)
        chosen = ctypes.byref(algorithm)
        _call("cublasLtMatmul", *self._arguments, chosen, *self._workspace, stream)

    def _search(self, alignments: list[int]):
        """Time the algorithms that cuBLASLt proposes on these arrays; return the fastest."""
        wanted = _made("cublasLtMatmulPreferenceCreate")
        space = c_uint64(WORKSPACE)
        _set("cublasLtMatmulPreferenceSetAttribute", wanted, MOST_WORKSPACE, space)
        for number, alignment in enumerate(alignments):
            value = ctypes.c_uint32(alignment)
            _set("cublasLtMatmulPreferenceSetAttribute", wanted, ALIGNMENT_OF_A + number, value)
        found, count = (_Found * ALGORITHMS)(), c_int()
        proposals = c_int(ALGORITHMS), found, ctypes.byref(count)
        _call("cublasLtMatmulAlgoGetHeuristic", *self._problem, wanted, *proposals)
        _call("cublasLtMatmulPreferenceDestroy", wanted)
        usable = [one.algorithm for one in found[: count.value] if one.state == 0]
        if not usable:
            raise RuntimeError("cuBLASLt has no algorithm for this product")
        times = {number: self._time(algorithm) for number, algorithm in enumerate(usable)}
        return usable[min(times, key=times.get)]

    def _time(self, algorithm) -> float:
        """The shortest of some replays of a graph of launches, in milliseconds."""
        replay = capture_graph(partial(self._launch, algorithm), TIMED_CALLS)
        events = [self._cupy.cuda.Event() for _ in range(4)]
        events[0].record()
        for event in events[1:]:
            replay()
            event.record()
        events[-1].synchronize()
        elapsed = self._cupy.cuda.get_elapsed_time
        return min(elapsed(*pair) for pair in pairwise(events))

    def __del__(self):
        if not hasattr(self, "_layouts"):
            return
        for layout in self._layouts:
            _library().cublasLtMatrixLayoutDestroy(layout)
        _library().cublasLtMatmulDescDestroy(self._how)


_fastest: dict[tuple, object] = {}  # kind of product -> algorithm
