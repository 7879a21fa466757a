"""Where kernels run, a GPU or the simulator, and the array library that goes with each."""

import atexit
import os
import shutil
import tempfile
import types
from functools import lru_cache

import numpy as np

from .errors import Advice, BackendError, InputError, keyword
from .settings import setting

ENVIRONMENT_VARIABLE = "KERNELSCOPE_BACKEND"
BACKENDS = ("gpu", "simulator")
# CuPy's own values of `backend=` name a compiler; here they leave the choice of machine open.
CUPY_COMPILERS = ("nvrtc", "nvcc")
CUPY_CACHE = "CUPY_CACHE_DIR"  # CuPy's own variable; without it:
CUPY_FOLDER = os.path.join("~", ".cupy", "kernel_cache")


@lru_cache(maxsize=1)
def gpu_count() -> int:
    """The number of GPUs CuPy sees; 0 without CuPy, without a driver, or without a device."""
    make_room_for_cupy()
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount()
    except Exception:  # CuPy raises ImportError, CUDARuntimeError, OSError: all mean "none"
        return 0


@lru_cache(maxsize=1)
def make_room_for_cupy() -> None:
    """Let `import cupy` succeed: it makes a folder in HOME, and fails where it cannot.

    There CUPY_CACHE_DIR becomes a temporary folder, which goes when Python ends.
    """
    if os.environ.get(CUPY_CACHE):
        return
    folder = os.path.expanduser(CUPY_FOLDER)
    try:
        os.makedirs(folder, exist_ok=True)
        if os.path.isabs(folder) and os.access(folder, os.W_OK):
            return
    except OSError:
        pass
    os.environ[CUPY_CACHE] = tempfile.mkdtemp(prefix="cupy-")
    atexit.register(shutil.rmtree, os.environ[CUPY_CACHE], ignore_errors=True)


def resolve_backend(backend: str | None = None) -> str:
    """ "gpu" or "simulator": the argument, else KERNELSCOPE_BACKEND, else a GPU if CuPy sees one.

    None, "nvrtc" and "nvcc" (which CuPy code passes) leave the choice open.
    Raises ValueError for an unknown name and BackendError for "gpu" where there is none.
    """
    given = backend is not None and backend not in CUPY_COMPILERS
    chosen = backend if given else setting(ENVIRONMENT_VARIABLE) or None
    if chosen is None:
        return "gpu" if gpu_count() else "simulator"
    if chosen == "simulator" or (chosen == "gpu" and gpu_count()):
        return chosen
    variable = f"the environment variable {ENVIRONMENT_VARIABLE}"
    origin = Advice("backend", "--backend") if given else variable
    if chosen not in BACKENDS:
        raise InputError(f'{origin} is {chosen!r}; it must be "gpu" or "simulator"')
    raise BackendError(
        origin
        + ' asks for "gpu", but CuPy sees no GPU on this machine; use '
        + keyword("backend", "simulator")
        + ", or leave the choice open"
    )


def array_module(backend: str | None = None) -> types.ModuleType:
    """`cupy` for the GPU, `numpy` for the simulator."""
    if resolve_backend(backend) == "gpu":
        import cupy

        return cupy
    return np


def asnumpy(array) -> np.ndarray:
    """The array on the host: a copy of a CuPy array, a NumPy array as it is."""
    return array.get() if is_device_array(array) else np.asarray(array)


def is_device_array(value) -> bool:
    """Whether the value lives in GPU memory (a CuPy array, or what speaks its interface).

    The interface is looked for on the type: asking a CPU tensor of PyTorch for it raises.
    """
    if not hasattr(type(value), "__cuda_array_interface__"):
        return False
    if type(value).__module__.partition(".")[0] == "cupy":
        return True  # its interface has no word for some dtypes, bfloat16 among them
    try:
        return value.__cuda_array_interface__ is not None
    except (AttributeError, RuntimeError):
        return False


class ArrayModule(types.ModuleType):
    """`xp`: NumPy or CuPy, whichever the chosen backend works on, looked up at each use."""

    def __getattr__(self, name: str):
        return getattr(array_module(), name)

    def __dir__(self) -> list[str]:
        return dir(array_module())

    def __repr__(self) -> str:
        return f"<xp: {array_module().__name__}>"


xp = ArrayModule("xp", "NumPy on the simulator, CuPy on a GPU.")
