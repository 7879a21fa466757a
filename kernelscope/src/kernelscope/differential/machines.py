"""The two sides of the comparison: a GPU and the simulator."""

import datetime
import os
import platform
import tempfile
import zlib
from pathlib import Path

import numpy as np
from kernelscope.compile import compile_ptx
from kernelscope.differential.identity import checkout_commit, gpu_identity
from kernelscope.events import Observer, observe
from kernelscope.machine import Program
from kernelscope.machine.launch import launch
from kernelscope.module import RawModule

PACKAGE = Path(__file__).resolve().parents[1]
PROJECT = PACKAGE.parents[1]


class NotRun(Exception):
    """An item met a GPU that an earlier one's error has made useless to this process."""


class Machine:
    """Runs kernels on copies of NumPy arrays and hands the copies back.

    CUDA C goes through our RawModule, PTX through CuPy's or straight to the simulator.

    debug: the simulator runs the debug build of CUDA C; warp_order: it runs warps in random order.
    """

    def __init__(self, backend: str, debug: bool = False, warp_order: int | None = None):
        self.backend, self.debug, self.warp_order = backend, debug, warp_order
        self.lost = False  # after a sticky CUDA error, which every later call would repeat
        self._folder = None  # of PTX files, which their modules read again when they need to

    def load(self, code: str, options=()) -> RawModule:
        """A module of CUDA C."""
        self._check()
        return RawModule(code=code, options=tuple(options), backend=self.backend)

    def load_kernels(self, source: str, options) -> Program:
        """A module of CUDA C whose arguments the caller lays out; for the simulator alone."""
        build = "debug" if self.debug else "optimised"
        compiled = compile_ptx(source, "kernel.cu", tuple(options), "compute_80", build)
        return Program(compiled.ptx, source=source, build=build, options=tuple(options))

    def load_cubin(self, cubin: bytes):
        """A module of machine code (cupy.RawModule)."""
        return self._from_file(cubin, ".cubin")

    def load_ptx(self, text: str):
        """A module of PTX text (cupy.RawModule or Program); assembled now, so that errors show."""
        if self.backend == "simulator":
            return Program(text, build="debug" if self.debug else "optimised")
        return self._from_file(text.encode(), ".ptx")

    def _from_file(self, data: bytes, suffix: str):
        """The cupy.RawModule of a file of these bytes, loaded."""
        import cupy

        self._check()
        self._folder = self._folder or tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / f"{zlib.crc32(data):08x}{suffix}"
        path.write_bytes(data)
        module = cupy.RawModule(path=str(path))
        module.compile()
        return module

    def run(self, module, entry, grid, block, arguments, shared_mem=0):
        """Launch on copies of the arrays among `arguments`; returns these as NumPy arrays.

        Raises NotRun where an earlier launch's error is one that the GPU's context keeps.
        """
        self._check()
        if self.backend == "gpu":
            try:
                kernel = module.get_function(entry)
                return self._run_gpu(kernel, grid, block, arguments, shared_mem)
            except Exception:
                self.lost = self.is_broken()
                raise
        copies = [a.copy() if is_array(a) else a for a in arguments]
        if isinstance(module, Program):
            images = [a if is_array(a) else a.tobytes() for a in copies]
            sizes = [(*extents, 1, 1)[:3] for extents in (grid, block)]
            options = {"shared_bytes": shared_mem, "warp_order": self.warp_order}
            launch(module, entry, *sizes, images, **options)
            return [copy for copy in copies if is_array(copy)]
        kernel = module.get_function(entry)
        kernel.warp_order = self.warp_order
        with observe(*([_DebugBuild()] if self.debug else [])):
            kernel(grid, block, tuple(copies), shared_mem=shared_mem)
        return [copy for copy in copies if is_array(copy)]

    def _check(self) -> None:
        if self.lost:
            raise NotRun("an earlier error is the GPU's last word in this process")

    @staticmethod
    def is_broken() -> bool:
        """Whether the GPU's context has an error that it keeps."""
        import cupy

        try:
            cupy.cuda.runtime.deviceSynchronize()
        except cupy.cuda.runtime.CUDARuntimeError:
            return True
        return False

    @staticmethod
    def _run_gpu(kernel, grid, block, arguments, shared_mem):
        import cupy

        copies = [_on_gpu(cupy, a) for a in arguments]
        kernel(grid, block, tuple(copies), shared_mem=shared_mem)
        return [copy.get() for copy in copies if isinstance(copy, cupy.ndarray)]


class _DebugBuild(Observer):
    """Listens to nothing; asks for the debug build."""

    def __init__(self):
        super().__init__()
        self.build = "debug"


def _on_gpu(cupy, value):
    """An argument as CuPy takes it: a structure is an array without an axis."""
    if is_array(value):
        return cupy.asarray(value)
    return np.array(value) if isinstance(value, np.void) else value


def is_array(value) -> bool:
    return isinstance(value, np.ndarray)


def describe(backend: str) -> dict:
    """Where and with what a run was made: gpu, driver, cuda (runtime), nvrtc, date, commit ..."""
    import cupy

    facts = {
        **(
            gpu_identity() if backend == "gpu" else dict.fromkeys(("gpu", "driver", "cuda"), "none")
        ),
        "date": datetime.date.today().isoformat(),
        "commit": checkout_commit(PROJECT if (PROJECT / "pyproject.toml").is_file() else None),
        "nvrtc": "{}.{}".format(*cupy.cuda.nvrtc.getVersion()),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cupy": cupy.__version__,
        "cpu_cores": len(os.sched_getaffinity(0)),
    }
    if backend == "gpu":
        properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
        facts["compute_capability"] = f"{properties['major']}.{properties['minor']}"
    return facts


def target() -> str:
    """Return the assembler's target: the architecture of the GPU, at most sm_90."""
    import cupy

    try:
        return f"sm_{min(90, int(cupy.cuda.Device(0).compute_capability))}"
    except cupy.cuda.runtime.CUDARuntimeError:
        return "sm_90"
