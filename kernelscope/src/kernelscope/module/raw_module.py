"""`RawModule` with CuPy's own signature, on a GPU or on the simulator."""

import os
import re
import threading
import warnings
from collections.abc import Mapping
from functools import cached_property

from kernelscope.backend import BackendError, resolve_backend
from kernelscope.budget import call_budget
from kernelscope.compile import (
    BUILDS,
    Compiled,
    CompileError,
    compile_ptx,
    default_arch,
    headers_of,
    read_text,
    requested_arch,
    unset_uses,
)
from kernelscope.events import active_observers

from ..errors import (
    Advice,
    InputError,
    InputTypeError,
    KernelNotFoundError,
    PortabilityWarning,
    did_you_mean,
    levels_to_caller,
)
from ..project import find_file, is_strict
from ..ptx.demangle import demangle
from ..ptx.dwarf import Reader
from ..ptx.parser import parse
from ..ptx.syntax import Function, Module
from .cupy_side import CupyModules, newer_arch, translated_cucomplex
from .declared import declared_entry, has_large_headers
from .kernel import GpuKernel, Kernel, SimulatorKernel
from .limits import DEFAULT_SHARED_BYTES
from .signature import Entry, read_entry

_MAKING = threading.RLock()  # threads make one program after the other
_TEMPLATE_KERNEL = re.compile(
    r"\btemplate\s*<([^;{}]{0,200})>[^;{}]{0,100}\b__global__\b[^;{}]{0,200}?"
    r"\b(?!__launch_bounds__|__cluster_dims__)(\w+)\s*\("
)


def instance_advice(name: str) -> Advice:
    """How to ask for an instance of a template kernel, such as "g<float>"."""
    return Advice(f"pass name_expressions=({name!r},) to RawModule", f"give --kernel {name!r}")


class RawModule:
    """CUDA C source whose kernels can be called, as with `cupy.RawModule`.

    Args:
        code: CUDA C source text. Give exactly one of `code` and `path`.
        path: a .cu file, or a .ptx (both backends) or .cubin file (GPU only). A relative path is
            looked for from the current folder, then beside the folders of `add_kernel_folder`.
        options: NVRTC options such as ("-DTILE=32",).
        backend: "gpu", "simulator", or None for the environment variable KERNELSCOPE_BACKEND,
            else a GPU if CuPy sees one, else the simulator. CuPy's "nvrtc" and "nvcc" mean None.
        name_expressions: template kernels to instantiate, such as ("scale<float>",).
        translate_cucomplex: whether <cuComplex.h> means Thrust's complex numbers, as in CuPy.
        enable_cooperative_groups, jitify: CuPy's own, for the GPU; the simulator needs neither.
        strict: whether a call refuses arguments that are not of the parameters' own types and
            layout: a Python float for `float`, np.int64 for `int`, an int32 array for `unsigned*`,
            a transposed array. None: as `add_kernel_folder` says of the file's folder, else False.

    Without strict checks arguments follow CuPy's rules, so that a program written for CuPy runs
    unchanged. A Python number has 8 bytes and the kernel reads as many as its parameter has; an
    array of any dtype and strides is passed as the memory it is; an integer for a pointer is a
    device address. An ArgumentWarning names the argument where the kernel then reads other numbers
    than those given, or another order of elements.

    The attribute `backend` is "gpu" or "simulator". Compilation happens at the first use.
    Raises ValueError, FileNotFoundError or BackendError here, CompileError at the first use.
    """

    managed_shared = False  # see SourceModule
    words: Mapping[str, str] = {}  # see SourceModule
    large_shared_advice = "Declare it extern __shared__ and " + Advice(
        "set kernel.max_dynamic_shared_size_bytes", "give --shared-mem BYTES"
    )

    def __init__(
        self,
        code: str | None = None,
        *,
        path=None,
        options=(),
        backend=None,
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        name_expressions=None,
        jitify=None,
        strict: bool | None = None,
    ):
        if (code is None) == (path is None):
            raise InputTypeError("RawModule takes either code= (source text) or path= (a file)")
        if not isinstance(code, str | None):
            raise InputTypeError(f"code is of type {type(code).__name__}; it must be a string")
        self.options = _checked_strings("options", options, "('-DTILE=32',)")
        self.name_expressions = _checked_strings(
            "name_expressions", name_expressions or (), "('scale<float>',)"
        )
        self.backend = resolve_backend(backend)
        self.path = find_file(path) if path is not None else None
        self.file_path = None if path is None else os.fspath(path)
        if strict is None:
            strict = self.path is not None and is_strict(self.path)
        self.strict = bool(strict)
        self.translate_cucomplex = translate_cucomplex
        self.enable_cooperative_groups = enable_cooperative_groups
        self.name = "kernel.cu" if path is None else os.fspath(path)
        self.kind = self.path.suffix.lower() if self.path else ".cu"
        self.code = None if code is None else code.removeprefix("\ufeff")
        if self.path and self.kind not in (".ptx", ".cubin"):
            self.kind, self.code = ".cu", read_text(self.path)
        self._cupy_options = {
            "backend": backend if backend in ("nvrtc", "nvcc") else "nvrtc",
            "translate_cucomplex": translate_cucomplex,
            "enable_cooperative_groups": enable_cooperative_groups,
        } | ({} if jitify is None else {"jitify": jitify})
        self._noted = False  # whether a warning has named what is of nvcc
        self.for_debug = False  # whether only observers that ask for the debug build will watch
        self._describes_debug = False  # whether the debug build has been taken for describing
        self._programs: dict[str, object] = {}
        self._kernels: dict[str, Kernel] = {}
        if self.name_expressions and self.kind != ".cu":
            raise InputError("name_expressions need CUDA C source, not a compiled file")
        if self.backend == "simulator" and self.kind == ".cubin":
            raise BackendError(f"{self.name} is machine code; the simulator runs .cu and .ptx")

    def __repr__(self) -> str:
        return f"<RawModule {self.name} on the {self.backend}>"

    # -- compilation -------------------------------------------------------------------------

    @cached_property
    def arch(self) -> str:
        """The architecture of the PTX, such as "compute_90".

        The -arch of the options, else what a comment `// kernelscope: sm_90` of the source names
        (see `add_arch_comment`), else compute_80; on a GPU the GPU's own architecture if that is
        newer.
        """
        if self.kind == ".ptx":
            return self._ptx_module.target.replace("sm_", "compute_") or "compute_80"
        requested = requested_arch(self.options)
        if requested:
            return requested.replace("sm_", "compute_")
        least = default_arch(self.code or "")
        return newer_arch(least) if self.backend == "gpu" else least

    def compiled(self, build: str = "optimised") -> Compiled:
        """The PTX of a build with its mangled names and the compiler's warnings."""
        if build not in BUILDS:
            raise InputError(f"build is {build!r}; it must be 'optimised' or 'debug'")
        if self.kind == ".cubin":
            raise BackendError(f"{self.name} is machine code and has no PTX")
        if self.kind == ".ptx":
            return Compiled(read_text(self.path))
        with call_budget():
            compiled = compile_ptx(
                self.compiled_code,
                self.name,
                self.options,
                self.arch,
                build,
                self.name_expressions,
                self.folder,
            )
        if compiled.lacked and not self._noted:
            self._noted = True
            text = (
                f"{compiled.lacked_at}: {compiled.lacked} is of nvcc, and kernelscope gives it on "
                f"the simulator and on a GPU. cupy.RawModule itself refuses this source"
            )
            warnings.warn(text, PortabilityWarning, stacklevel=levels_to_caller())
        return compiled

    @property
    def folder(self) -> str | None:
        """Where the file is, whose neighbours it may include."""
        return str(self.path.parent) if self.path else None

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """(name, text) of the files that the source includes, for messages."""
        return headers_of(self.code or "", self.folder, self.options)

    @property
    def compiled_code(self) -> str:
        """The source text that NVRTC gets: `code`, less what translate_cucomplex replaces."""
        if self.translate_cucomplex:
            return translated_cucomplex(self.code, self.name)
        return self.code

    def compile(self, log_stream=None) -> None:
        """Compile now instead of at the first use; warnings go to `log_stream`."""
        compiled = self.compiled()
        if log_stream is not None:
            log_stream.write(compiled.log)

    def ptx(self, build: str = "optimised") -> str:
        """The PTX text of a build: "optimised" (what runs) or "debug" (`-G`)."""
        return self.compiled(build).ptx

    def program(self, build: str = "optimised"):
        """The simulator's Program of a build, parsed once. Works on either backend."""
        with _MAKING:
            return self._program(build)

    def _program(self, build: str):
        if build not in self._programs:
            from kernelscope.machine import Program

            with call_budget():
                compiled = self.compiled(build)
                self._programs[build] = Program(
                    compiled.ptx,
                    source=self.code or "",
                    source_name=self.name,
                    build=build,
                    options=self.options,
                    headers=self.headers,
                    unset_uses=unset_uses(compiled.log, self.code or "", self.name),
                    memory=next((one.memory for one in self._programs.values()), None),
                    managed_shared=self.managed_shared,
                )
                self._programs[build].words = self.words
        return self._programs[build]

    # -- kernels -----------------------------------------------------------------------------

    @cached_property
    def _described(self) -> Compiled:
        """The build whose PTX describes the kernels: the debug build, which knows their C types.

        NVRTC makes it in a small part of the time of the optimised build, which stands in where
        the code has no debug build; then no C type is known. It also stands in where large headers
        take most of the time of either build, unless the debug build is asked for anyway.
        """
        with call_budget():  # one limit of time for both
            if self._has_large_headers and not self._is_watched_in_debug():
                return self.compiled()
            try:
                found = self.compiled("debug")
            except CompileError:
                return self.compiled()
            self._describes_debug = True
            return found

    @cached_property
    def _has_large_headers(self) -> bool:
        on_simulator = self.backend == "simulator"
        return on_simulator and self.kind == ".cu" and has_large_headers(self.code)

    def _is_watched_in_debug(self) -> bool:
        """Whether the debug build will run, as far as is known now."""
        return self.for_debug or any(one.build == "debug" for one in active_observers())

    @cached_property
    def _ptx_module(self) -> Module:
        """What is described; of a debug build that will run, the whole of it, which is read once.

        Else it has no bodies.
        """
        program = self._described_program
        return program.module if program else parse(self._described.ptx, bodies=False)

    @cached_property
    def _debug_reader(self) -> Reader | None:
        if self._described_program:
            return self._described_program.dwarf
        return Reader(self._ptx_module) if ".debug_info" in self._ptx_module.sections else None

    @cached_property
    def _described_program(self):
        """The program of the described build where that will run; else None."""
        if self._described is None or not self._describes_debug or self.backend == "gpu":
            return None
        return self.program("debug") if self._is_watched_in_debug() else None

    @cached_property
    def _entries(self) -> tuple[str, ...]:
        functions = self._ptx_module.functions.values()
        return tuple(function.name for function in functions if function.is_entry)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names for get_function."""
        lowered = self._described.lowered_names
        return tuple(name for name in self._entries if name not in lowered.values()) + tuple(
            name for name, mangled in lowered.items() if mangled in self._entries
        )

    def get_function(self, name: str) -> Kernel:
        """The kernel of this name, or of this name expression.

        Raises KernelNotFoundError listing the module's kernels, CompileError.
        """
        if not isinstance(name, str):
            raise InputTypeError(f"name is {name!r}; it must be the name of a kernel, a string")
        if name not in self._kernels:
            with _MAKING, call_budget():
                if name not in self._kernels:
                    self._kernels[name] = self._make_kernel(name)
        return self._kernels[name]

    def _make_kernel(self, name: str) -> Kernel:
        if self.kind == ".cubin":
            return GpuKernel(self, name, None, self._cupy.function(name))
        mangled = self._described.lowered_names.get(name, name)
        if mangled not in self._entries:
            raise KernelNotFoundError(self._not_found(name))
        self._check_definitions()
        function = self._ptx_module.functions[mangled]
        entry = self._entry(name, function)
        if self.backend == "gpu":
            return GpuKernel(self, name, entry, self._cupy.function(name))
        kernel = SimulatorKernel(self, name, entry)
        if not kernel.fits_without_opt_in(0) and kernel.shared_size_bytes > DEFAULT_SHARED_BYTES:
            raise CompileError(
                f"{self.name}: {name} has {kernel.shared_size_bytes} bytes of static shared "
                f"memory; ptxas accepts at most {DEFAULT_SHARED_BYTES} (48 KB). "
                + self.large_shared_advice
            )
        return kernel

    def _entry(self, name: str, function: Function) -> Entry:
        """The description of a kernel, in a debug build where nothing else tells its C types."""
        reader = self._debug_reader
        if reader is None and self._has_large_headers:
            entry = declared_entry(self, demangle(name), function)
            if entry is not None:
                return entry
            reader = self._slow_debug_reader
        return read_entry(function, reader, self.name)

    @cached_property
    def _slow_debug_reader(self) -> Reader | None:
        """The debug information where large headers make it slow to get; None without a build."""
        try:
            return Reader(parse(self.compiled("debug").ptx, bodies=False))
        except CompileError:
            return None

    @cached_property
    def declared_shared_bytes(self) -> int:
        """Bytes of all static shared memory that the described build declares, with its padding.

        No kernel of the optimised build has more: what that leaves out is never used.
        """
        functions = self._ptx_module.functions.values()
        own = [v for function in functions for v in function.variables.values()]
        shared = [v for v in (*self._ptx_module.variables.values(), *own) if v.space == "shared"]
        return sum(v.size + max(v.align, 1) for v in shared)

    def _check_definitions(self) -> None:
        """Raise CompileError for a variable that is declared extern and never defined."""
        variables = self._ptx_module.variables.values()
        missing = [demangle(one.name) for one in variables if not one.defined]
        if missing:
            raise CompileError(
                f"{self.name}: {missing[0]} is declared extern and has no definition. A module is "
                f"linked with no other: define {missing[0]} in this source"
            )

    @property
    def template_kernels(self) -> dict[str, str]:
        """Name -> an instance, such as "g<float, 32>", of the source's templates of kernels."""
        found = {}
        for parameters, name in _TEMPLATE_KERNEL.findall(self.code or ""):
            kinds = (one.split()[:1] for one in parameters.split(","))
            values = ("float" if kind in (["typename"], ["class"]) else "32" for kind in kinds)
            found[name] = f"{name}<{', '.join(values)}>"
        return found

    def _not_found(self, name: str) -> Advice:
        bare, shown = name.partition("<")[0].strip(), [*map(demangle, self.kernels)]
        known = Advice(*(", ".join(names) or "none" for names in (self.kernels, shown)))
        templates = self.template_kernels
        near = did_you_mean(name, () if bare in templates else shown)
        message = f"{self.name} has no kernel {name!r}{near}; it has: " + known + "."
        if bare == name and bare in map(demangle, self._entries):
            return message + (
                f' C++ has changed its name: write extern "C" __global__ void {name}(...), or pass '
                f"name_expressions=({name!r},) to RawModule"
            )
        if bare in templates:
            example = name if "<" in name else templates[bare]
            return message + " It is a template: " + instance_advice(example)
        return message

    # -- variables ---------------------------------------------------------------------------

    def get_global(self, name: str):
        """A __device__ or __constant__ variable.

        On the GPU a `cupy.cuda.MemoryPointer`, on the simulator the variable's bytes as a NumPy
        array of uint8 (writing to it writes the variable). Either way
        `xp.ndarray(shape, dtype, module.get_global(name))` is a view of the variable.
        Raises KernelNotFoundError.
        """
        if self.kind == ".cubin":
            return self._cupy.variable(name)
        on_gpu = self.backend == "gpu"
        mangled = self._described.lowered_names.get(name, name)
        variables = self._ptx_module.variables if on_gpu else self.program().variables
        if mangled not in variables:
            known = ", ".join(variables) or "none"
            raise KernelNotFoundError(f"{self.name} has no variable {name!r}; it has: {known}")
        return self._cupy.variable(name) if on_gpu else variables[mangled]

    # -- the GPU -----------------------------------------------------------------------------

    @property
    def module(self):
        """CuPy's module below: on the GPU a `cupy.cuda.Module`, on the simulator a LoadedModule."""
        return self._cupy.plain.module if self.backend == "gpu" else LoadedModule(self)

    @cached_property
    def _cupy(self) -> CupyModules:
        return CupyModules(self)


class LoadedModule:
    """A module under the names of its PTX, as `cupy.cuda.Module` has them."""

    def __init__(self, module: RawModule):
        self._module = module

    def get_function(self, name: str) -> Kernel:
        """The kernel of this name in the PTX (mangled, for a kernel that is not extern "C")."""
        return self._module.get_function(name)

    def get_global_var(self, name: str):
        """The variable of this name in the PTX, as RawModule.get_global gives it."""
        return self._module.get_global(name)


def _checked_strings(what: str, values, example: str) -> tuple[str, ...]:
    if not isinstance(values, list | tuple) or not all(isinstance(v, str) for v in values):
        raise InputTypeError(
            f"{what} is {values!r}; it must be a tuple of strings such as {example}"
        )
    for value in values:
        if "\0" in value or value != value.encode("utf-8", "replace").decode("utf-8"):
            raise InputError(f"{what} has {value!r}, which is no text for a compiler")
    return tuple(values)
