"""Folders of CUDA's headers: pip wheels, a toolkit, and CuPy's own copy of the C++ library."""

import importlib.metadata
import importlib.util
import os
import re
from functools import lru_cache
from pathlib import Path

from ..backend import make_room_for_cupy

# Headers under the names of the host's, and what nvcc declares before a source's first line. They
# are given to sources that do not compile without them, which CuPy's own RawModule refuses.
NVCC_HEADERS = str(Path(__file__).resolve().parent.parent / "headers")
NVCC_OPTIONS = (f"-I{NVCC_HEADERS}", "--pre-include=kernelscope_nvcc.h")


@lru_cache(maxsize=1)
def cuda_major() -> int:
    """The CUDA major version: NVRTC's, else that of the installed CuPy, else 12."""
    make_room_for_cupy()
    try:
        from cupy.cuda import nvrtc

        return nvrtc.getVersion()[0]
    except (ImportError, OSError, RuntimeError):
        return _major_of_cupy()


def _major_of_cupy() -> int:
    for distribution in importlib.metadata.distributions():
        match = re.match(r"cupy-cuda(\d\d)", (distribution.metadata["Name"] or "").lower())
        if match:
            return int(match.group(1))
    return 12


def package_name(stem: str, major: int) -> str:
    """The pip name of a CUDA wheel: `-cu12` belongs to CUDA 12; CUDA 13 dropped the ending."""
    return f"{stem}-cu{major}" if major < 13 else stem


def _cupy_folders() -> list[Path]:
    """CuPy's headers: libcu++ (which <cuda_fp16.h> includes), Thrust, CUB and its own."""
    specification = importlib.util.find_spec("cupy")
    if specification is None or not specification.submodule_search_locations:
        return []
    include = Path(specification.submodule_search_locations[0], "_core", "include")
    cccl = include / "cupy" / "_cccl"
    return [cccl / "cub", cccl / "thrust", cccl / "libcudacxx", include]


def _wheel_folders(major: int) -> list[Path]:
    """`nvidia/*/include`: one folder a component up to CUDA 12, one `cu13` for all of CUDA 13.

    Both can be installed side by side (PyTorch brings its own), so only those of CuPy's own
    major version are taken: headers of one version and a compiler of another do not mix.
    """
    specification = importlib.util.find_spec("nvidia")
    roots = specification.submodule_search_locations if specification else ()
    if major >= 13:
        patterns = [f"cu{major}/include", "*/include"]
    else:
        patterns = ["cuda_*/include", "*/include"]
    found = [
        path for pattern in patterns for root in roots for path in sorted(Path(root).glob(pattern))
    ]
    other_major = re.compile(r"cu\d+$")
    return [
        path
        for path in found
        if not other_major.match(path.parent.name) or path.parent.name == f"cu{major}"
    ]


def _toolkit_folders() -> list[Path]:
    roots = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    conda = os.environ.get("CONDA_PREFIX")
    targets = [Path(conda, "targets", "x86_64-linux", "include")] if conda else []
    return [Path(root, "include") for root in roots if root] + targets


@lru_cache(maxsize=8)
def _system_folders(environment: tuple) -> tuple[str, ...]:
    candidates = [*_cupy_folders(), *_wheel_folders(cuda_major()), *_toolkit_folders()]
    return tuple(dict.fromkeys(str(path) for path in candidates if path.is_dir()))


def include_folders(source_folder: str | None = None) -> tuple[str, ...]:
    """Folders to search for headers: beside the source, CuPy's, the wheels', a toolkit's."""
    environment = tuple(os.environ.get(k) for k in ("CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX"))
    own = (str(source_folder),) if source_folder else ()
    return own + _system_folders(environment)


def include_options(source_folder: str | None = None) -> tuple[str, ...]:
    """The same folders as compiler options: ("-I/...", ...); `cupy.RawModule` takes them too."""
    return tuple(f"-I{folder}" for folder in include_folders(source_folder))


@lru_cache(maxsize=16)
def real_folders(folders: tuple[str, ...]) -> tuple[str, ...]:
    """Folders, and those in which their entries are where an installer linked them.

    Some installers fill site-packages with links into a cache.
    """
    found: dict[str, None] = {}
    for folder in folders:
        found[os.path.realpath(folder)] = None
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink():
                    target = os.path.realpath(entry.path)
                    inside = target if os.path.isdir(target) else os.path.dirname(target)
                    found[inside] = None
    return tuple(found)
