"""Arrays of other libraries (PyTorch, JAX, Numba) as NumPy's or CuPy's, and back.

Nothing is copied here, and nothing is imported: who passes a tensor has imported PyTorch.
"""

import sys
from contextlib import contextmanager, nullcontext
from functools import lru_cache, wraps
from inspect import signature

import numpy as np

from .. import backend as backends
from ..errors import BackendError, InputError, InputTypeError
from ..ptx.c_types import dtype_of

_BITS = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}  # not in DLPack
_ON_HOST = (1, 3)  # of DLPack's device types: CPU, pinned memory
_UNSHARED = (AttributeError, BufferError, KeyError, RuntimeError, TypeError, ValueError)


@lru_cache(maxsize=64)
def is_cupys(kind: type) -> bool:
    """Return whether the type or a base of it is CuPy's, without importing CuPy."""
    packages = {base.__module__.split(".")[0] for base in kind.__mro__}
    return bool(packages & {"cupy", "cupy_backends"})


@lru_cache(maxsize=256)
def is_foreign(kind: type) -> bool:
    """Return whether a type is an array of another library than NumPy and CuPy."""
    if issubclass(kind, np.ndarray) or is_cupys(kind):
        return False
    return hasattr(kind, "__dlpack__") or hasattr(kind, "__cuda_array_interface__")


@lru_cache(maxsize=256)
def tensor_library(kind: type):
    """Return PyTorch where a type is a tensor of it, else None."""
    if not hasattr(kind, "detach"):
        return None
    owner = [base for base in kind.__mro__ if "detach" in vars(base)][-1]  # not a mixin behind it
    return sys.modules[owner.__module__.partition(".")[0]]


def is_on_gpu(value) -> bool:
    """Return whether a foreign array is in the memory of a GPU."""
    if tensor_library(type(value)) is not None:
        return value.device.type == "cuda"
    if not hasattr(value, "__dlpack_device__"):
        return hasattr(value, "__cuda_array_interface__")
    return value.__dlpack_device__()[0] not in _ON_HOST


def native(name: str, value):
    """Return the array of NumPy or CuPy on the memory of a foreign array.

    Raises InputTypeError, by the argument's name, where its memory cannot be shared.
    """
    on_gpu = is_on_gpu(value)
    try:
        library = tensor_library(type(value))
        if library is not None:
            return _of_tensor(library, value.detach(), on_gpu)
        return _on_gpu(value) if on_gpu else _on_host(value)
    except _UNSHARED as error:
        owner, remedy = ("CuPy", "cupy.asarray") if on_gpu else ("NumPy", "numpy.asarray")
        raise InputTypeError(
            f"{name}: {owner} cannot share this array's memory ({error}): pass {remedy}({name}), "
            f"a {owner} array, in place of {type(value).__module__}.{type(value).__name__}"
        ) from None


def _of_tensor(torch, tensor, on_gpu: bool):
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype in _BITS:
        tensor = tensor.view(getattr(torch, _BITS[dtype]))
    array = _on_gpu(tensor) if on_gpu else tensor.numpy()
    return array.view(dtype_of(dtype)) if dtype in _BITS else array


def _on_gpu(value):
    import cupy

    if hasattr(value, "__dlpack__"):
        return cupy.from_dlpack(value)
    return cupy.asarray(value)


def _on_host(value) -> np.ndarray:
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError):
        if str(getattr(value, "dtype", "")) not in _BITS:
            raise
        return np.asarray(value)  # NumPy's DLPack has no such dtype, and ml_dtypes has


def like(array, value):
    """Return an array of NumPy or CuPy as one of a foreign array's library, on the same memory
    unless the library copies, as JAX does where it is not aligned.

    A library with DLPack but no namespace of the array API standard gets the array as it is.
    """
    library = tensor_library(type(value))
    if library is None and hasattr(value, "__array_namespace__"):
        library = value.__array_namespace__()
    if library is None:
        numba = type(value).__module__.partition(".")[0].startswith("numba")
        return sys.modules["numba"].cuda.as_cuda_array(array) if numba else array
    return in_library(library, array)


def in_library(library, array):
    """Return an array of NumPy or CuPy as one of a library such as `torch`, on the same memory
    unless the library copies. Dtypes that DLPack lacks (bfloat16, float8) go by way of their bits.
    """
    dtype = array.dtype.name
    if dtype in _BITS:
        return library.from_dlpack(array.view(_BITS[dtype])).view(getattr(library, dtype))
    return library.from_dlpack(array)


def check_no_gradient(name: str, value) -> None:
    """Refuse a tensor that PyTorch would record an operation for. Raises InputTypeError."""
    torch = tensor_library(type(value))
    if torch is not None and value.requires_grad and torch.is_grad_enabled():
        raise InputTypeError(
            f"{name} requires grad, and kernels record nothing for a backward pass: "
            f"pass {name}.detach(), or call inside torch.no_grad()"
        )


# -- PyTorch's current stream ----------------------------------------------------------------------
def stream_of(values):
    """Return PyTorch's current stream as CuPy's, where one of the values is a tensor on a GPU."""
    for value in values:
        torch = tensor_library(type(value))
        if torch is not None and value.device.type == "cuda":
            return stream_at(_stream_getter(torch)(value.device.index))
    return None


class _CudaStream:
    """A stream by CUDA's protocol for them, https://nvidia.github.io/cuda-python/cuda-core."""

    def __init__(self, pointer: int):
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


@lru_cache(maxsize=64)
def stream_at(pointer: int):
    """Return CuPy's object for a CUDA stream by its address."""
    from cupy import cuda

    if not hasattr(cuda.Stream, "from_external"):  # CuPy 14.0
        return cuda.ExternalStream(pointer)
    return cuda.Stream.from_external(_CudaStream(pointer))


def stream_address(value) -> int | None:
    """Return the address of PyTorch's current stream where the value is a tensor on the GPU on
    which CuPy works, else None."""
    torch = tensor_library(type(value))
    if torch is None or value.device.type != "cuda":
        return None
    import cupy

    index = value.device.index
    if cupy.cuda.runtime.getDevice() != index:
        return None
    return _stream_getter(torch)(index)


@lru_cache(maxsize=4)
def _stream_getter(torch):
    """Return a function from a device's index to the address of PyTorch's current stream there.

    Triton's launcher uses the same one; it makes no Stream object.
    """
    raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    return raw or (lambda index: torch.cuda.current_stream(index).cuda_stream)


def on_stream_of(value):
    """Return a context in which CuPy works on a tensor's device and PyTorch's current stream."""
    stream = stream_of((value,))
    if stream is None:
        return nullcontext()
    import cupy

    if cupy.cuda.runtime.getDevice() == value.device.index:
        return stream
    return _on_device(value.device.index, stream)


@contextmanager
def _on_device(device: int, stream):
    import cupy

    with cupy.cuda.Device(device), stream:
        yield


# -- a call ----------------------------------------------------------------------------------------
class Interchange:
    """The foreign arrays of one call as NumPy or CuPy has them, and its results as the caller's.

    first: the array whose library, device and stream are the call's.

    Attributes:
        backend: "gpu" or "simulator", by the memory that the first array is in.
    """

    def __init__(self, first):
        self.first = first
        self.backend = "gpu" if is_on_gpu(first) else "simulator"
        self._taken = {}  # id of an array -> the array and what the caller passed

    def take(self, name: str, value):
        """Return what a kernel can take in the place of an argument, whatever it is.

        Raises InputError, InputTypeError: a tensor that requires grad, is not contiguous or is on
        another machine than the first.
        """
        if not is_foreign(type(value)):
            return value
        check_no_gradient(name, value)
        if is_on_gpu(value) != (self.backend == "gpu"):
            here, there = ("GPU", "CPU") if self.backend == "gpu" else ("CPU", "GPU")
            raise InputError(f"{name} is on the {there}, the first array on the {here}: move one")
        if tensor_library(type(value)) is not None and not value.is_contiguous():
            raise InputError(f"{name} is not contiguous: pass {name}.contiguous()")
        array = native(name, value)
        self._taken[id(array)] = array, value
        return array

    def give(self, result):
        """Return a result, or a tuple of them, as arrays of the caller's library."""
        if isinstance(result, tuple):
            return tuple(map(self.give, result))
        if result is None or id(result) in self._taken:
            return result if result is None else self._taken[id(result)][1]
        return like(result, self.first)

    def check_backend(self, backend: str | None) -> str:
        """Return the call's backend.

        Raises InputError where another one is asked for, BackendError without CuPy for a GPU.
        """
        if backend not in (None, self.backend):
            raise InputError(
                f"backend is {backend!r}, and the arrays are in the memory of the "
                f"{'GPU' if self.backend == 'gpu' else 'CPU'}: leave it out, or move them"
            )
        if self.backend == "gpu" and not backends.gpu_count():
            raise BackendError(
                "the arrays are in the memory of a GPU, and CuPy, which launches the kernels, sees "
                "none: install CuPy for its CUDA version, or pass arrays in the memory of the CPU"
            )
        return self.backend

    def on_stream(self):
        """Return the context in which the call runs: the first array's device and stream."""
        return on_stream_of(self.first)

    def prepared(self, plan):
        """Return a plan whose outputs are the caller's and which runs on the stream that is the
        caller's at each call.

        Of other libraries than PyTorch the outputs are made again after each run, since they may be
        copies: JAX copies memory that is not aligned as its own.
        """
        outputs = {name: getattr(plan, name) for name in {"out", "lse"} & vars(plan).keys()}
        run, again = plan.run, tensor_library(type(self.first)) is None

        def give_outputs():
            for name, array in outputs.items():
                setattr(plan, name, self.give(array))

        def on_the_callers_stream():
            with self.on_stream():
                run()
            if again:
                give_outputs()

        give_outputs()
        plan.run = on_the_callers_stream
        return plan


def takes_foreign(function):
    """Let a function or a method whose first argument is an array take foreign ones as well.

    It has a parameter `backend`, or its object has an attribute. What it returns becomes the
    caller's: an array, a tuple of them, or a plan with `run` and `out`.
    """
    parameters = list(signature(function).parameters)
    first = int(parameters[0] == "self")

    @wraps(function)
    def call(*arguments, **named):
        leading = arguments[first] if len(arguments) > first else named.get(parameters[first])
        if not is_foreign(type(leading)):
            return function(*arguments, **named)
        bound = signature(call).bind(*arguments, **named)
        exchange, given = Interchange(leading), bound.arguments
        backend = exchange.check_backend(given["self"].backend if first else given.get("backend"))
        with exchange.on_stream():
            for name, value in given.items():
                given[name] = exchange.take(name, value)
            more = {} if first else {"backend": backend}
            found = function(*bound.args, **{**bound.kwargs, **more})
        return exchange.prepared(found) if hasattr(found, "run") else exchange.give(found)

    return call
