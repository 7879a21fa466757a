"""A kernel with CuPy's call and attributes, on a GPU or on the simulator."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np
from kernelscope.backend import BackendError
from kernelscope.budget import call_budget
from kernelscope.events import FaultEvent, active_observers

from ..errors import Interrupted, LaunchError, SimulatorError, in_words
from .arguments import bind
from .interop import stream_at, stream_of
from .limits import (
    DEFAULT_SHARED_BYTES,
    Limits,
    check_geometry,
    check_shared,
    check_total_shared,
    simulated_limits,
)
from .repeats import Repeat, can_repeat
from .signature import Entry, Parameter


def _of_module(name: str) -> property:
    return property(lambda self: getattr(self.module, name), doc=f"The module's `{name}`.")


class ModuleFacts:
    """Attributes of a kernel that belong to its `module`, under CuPy's names."""

    code = _of_module("code")
    options = _of_module("options")
    file_path = _of_module("file_path")
    translate_cucomplex = _of_module("translate_cucomplex")
    enable_cooperative_groups = _of_module("enable_cooperative_groups")
    name_expressions = _of_module("name_expressions")
    strict = _of_module("strict")

    def compile(self, log_stream=None) -> None:
        """Compile now instead of at the first use; warnings go to `log_stream`."""
        self.module.compile(log_stream)


class Kernel(ModuleFacts):
    """`kernel(grid, block, args, shared_mem=0)`, with CuPy's attributes; see the two subclasses.

    `name` is the argument of get_function; `entry` describes the parameters (None for a cubin,
    whose arguments cannot be checked).
    """

    backend = ""

    def __init__(self, module, name: str, entry: Entry | None):
        self.module = module
        self.name = self.__name__ = name
        self.entry = entry

    def __repr__(self) -> str:
        return f"<kernel {self.name} of {self.module.name} on the {self.backend}>"

    def __call__(self, grid, block, args, shared_mem: int = 0, stream=None) -> None:
        """Run the kernel.

        grid, block: tuples of one to three ints; args: a tuple with one value per parameter;
        shared_mem: dynamic shared memory in bytes; stream: a CuPy stream (the simulator has none
        and is done when the call returns); None: PyTorch's current stream where an argument is a
        tensor on a GPU, else CuPy's. Arrays may be of any library with DLPack or
        __cuda_array_interface__, and are not copied.
        Raises ArgumentError or LaunchError for a wrong call, before anything runs. What a wrong
        argument is depends on the module's `strict`; see RawModule.
        """
        observers = active_observers()
        self._check_observers(observers)
        values = self.bind(args)
        try:
            grid, block, shared_mem = self._check_launch(grid, block, shared_mem)
        except LaunchError as error:
            if self._report(error, observers):
                return
            raise
        if stream is None and self.backend == "gpu":
            stream = stream_of(args)
        self._launch(grid, block, values, shared_mem, stream, observers)

    def bind(self, args) -> list:
        """Return the arguments as a launch takes them: checked, numbers in the parameters' types.

        Raises ArgumentError naming the parameter and the remedy; warns with ArgumentWarning where
        a module that is not strict passes other numbers than meant.
        """
        if self.entry is None:
            return list(args)
        return bind(self.name, self.entry, args, self.backend, self.module.strict)

    def repeat(self, grid, block, values: Sequence, shared_mem: int, arrays: Sequence[int]):
        """Return a function that runs a launch again that a call has checked, without the checks.

        values: as :meth:`bind` returned them.  arrays: the places of those that change. The
        function takes what these are in a run, of the same type, dtype and contiguity, and a
        stream's address or None. On the simulator it is a call. On a GPU it is for the current
        device, and takes addresses too, unless a struct is large or a block waits for all others.
        """
        fixed = [None if place in arrays else value for place, value in enumerate(values)]

        def call(others: Sequence, stream: int | None = None) -> None:
            there = dict(zip(arrays, others, strict=True))
            given = tuple(there.get(place, value) for place, value in enumerate(fixed))
            self(grid, block, given, shared_mem, stream and stream_at(stream))

        return call

    def _check_launch(self, grid, block, shared_mem):
        limits = self._limits()
        required = self.entry.required_block if self.entry else None
        cluster = self.entry.cluster if self.entry else (1, 1, 1)
        grid, block = check_geometry(
            self.name, grid, block, limits, self.max_threads_per_block, required, cluster
        )
        if not self.fits_without_opt_in(shared_mem):
            static, most = self.shared_size_bytes, self.max_dynamic_shared_size_bytes
            shared_mem = check_shared(self.name, shared_mem, static, most, limits)
        return grid, block, shared_mem

    def fits_without_opt_in(self, shared_mem: int) -> bool:
        """Return whether a launch may have so much dynamic shared memory, as far as is known
        without compiling anything.
        """
        return shared_mem == 0

    def _report(self, error: LaunchError, observers) -> bool:
        """Tell the observers of an illegal launch; True when one of them wants to go on."""
        for observer in observers:
            observer.fault(FaultEvent(error.kind, str(error), None, self.entry.line))
        return any(observer.keeps_going for observer in observers)

    def _check_dynamic_size(self, size: int) -> int:
        """A new max_dynamic_shared_size_bytes, refused when no launch could ever have it."""
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 0:
            raise LaunchError(
                f"{self.name}: max_dynamic_shared_size_bytes is {size!r}; "
                "it must be a number of bytes >= 0"
            )
        check_total_shared(self.name, int(size), self.shared_size_bytes, self._limits())
        return int(size)

    @property
    def attributes(self) -> dict[str, int]:
        """CuPy's dictionary of kernel attributes; -1 where there is no such thing."""
        names = """
            max_threads_per_block shared_size_bytes const_size_bytes local_size_bytes num_regs
            ptx_version binary_version cache_mode_ca max_dynamic_shared_size_bytes
            preferred_shared_memory_carveout
        """
        return {name: getattr(self, name) for name in names.split()}


class SimulatorKernel(Kernel):
    """A kernel on the CPU: NumPy arrays are read and written in place.

    `num_regs` counts the PTX's virtual registers, since ptxas has not allocated real ones.
    `warp_order` may be set to run warps in another order than their own (see machine.launch).
    """

    backend = "simulator"
    cache_mode_ca = 0
    preferred_shared_memory_carveout = -1

    def __init__(self, module, name: str, entry: Entry):
        super().__init__(module, name, entry)
        self.warp_order = None
        self._max_dynamic = None
        self._simulated_limits = simulated_limits(module.arch)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Tell errors in the words of the source's language."""
        try:
            yield
        except (LaunchError, SimulatorError) as error:
            if self.module.words:
                error.args = (in_words(error.args[0], self.module.words), *error.args[1:])
            raise

    def _check_launch(self, grid, block, shared_mem):
        with self._in_words():
            return super()._check_launch(grid, block, shared_mem)

    def _limits(self) -> Limits:
        return self._simulated_limits

    def _check_observers(self, observers) -> None:
        """The simulator takes every observer."""

    def fits_without_opt_in(self, shared_mem: int) -> bool:
        """Return whether a launch may have so much dynamic shared memory, as far as is known
        without the optimised build.
        """
        if self._max_dynamic is not None or not isinstance(shared_mem, int) or shared_mem < 0:
            return False
        return shared_mem + self.module.declared_shared_bytes <= DEFAULT_SHARED_BYTES

    @cached_property
    def _resources(self):
        return self.module.program().resources(self.entry.name)

    @property
    def max_threads_per_block(self) -> int:
        """The most threads a block may have: 1024, or fewer by __launch_bounds__."""
        return min(self._simulated_limits.threads, self.entry.max_threads or 1024)

    @property
    def shared_size_bytes(self) -> int:
        """Static shared memory in bytes a block."""
        return self._resources.shared_bytes

    @property
    def local_size_bytes(self) -> int:
        """Local memory in bytes a thread (the stack that the PTX declares; spills are ptxas's)."""
        return self._resources.local_bytes

    @property
    def num_regs(self) -> int:
        """Virtual registers of the PTX."""
        return self._resources.registers

    @property
    def const_size_bytes(self) -> int:
        """Bytes of the module's __constant__ variables."""
        variables = self.module.program().module.variables.values()
        return sum(variable.size for variable in variables if variable.space == "const")

    @property
    def ptx_version(self) -> int:
        """The version the PTX asks for, 10 * major + minor."""
        major, minor = self.module.program().module.version.split(".")
        return 10 * int(major) + int(minor)

    @property
    def binary_version(self) -> int:
        """The architecture simulated, 10 * major + minor."""
        return int("".join(filter(str.isdigit, self.module.arch)))

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """The most dynamic shared memory a launch may ask for, in bytes. Can be set."""
        if self._max_dynamic is None:
            return max(0, DEFAULT_SHARED_BYTES - self.shared_size_bytes)
        return self._max_dynamic

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        self._max_dynamic = self._check_dynamic_size(size)

    def _launch(self, grid, block, values, shared_mem, stream, observers) -> None:
        from ..machine.launch import launch  # only here: the simulator takes a while to import

        build = self._build_for(observers)
        parameters = self.entry.parameters
        arguments = [_image(*pair) for pair in zip(values, parameters, strict=True)]
        names = tuple(parameter.name for parameter in parameters)
        with self._in_words(), call_budget():
            launch(
                self._program(build),
                self.entry.name,
                grid,
                block,
                arguments,
                shared_bytes=shared_mem,
                observers=observers,
                names=names,
                warp_order=self.warp_order,
            )

    def _build_for(self, observers) -> str:
        """The build that the observers want to see."""
        return "debug" if any(o.build == "debug" for o in observers) else "optimised"

    def _program(self, build: str):
        try:
            return self.module.program(build)
        except KeyboardInterrupt:
            text = f"{self.name} was interrupted before its launch, while it was being compiled"
            raise Interrupted(text) from None


def _image(value, parameter: Parameter) -> np.ndarray | bytes:
    """Return an argument for the simulator: the array itself, or the bytes of a value."""
    if value is None:
        return bytes(parameter.size)
    if isinstance(value, np.ndarray) and not parameter.is_struct:
        return value
    return value.tobytes()


class GpuKernel(Kernel):
    """A kernel on the GPU through CuPy; `raw` is the `cupy.RawKernel` behind it."""

    backend = "gpu"

    def __init__(self, module, name: str, entry: Entry | None, raw):
        super().__init__(module, name, entry)
        self.raw = raw
        self._limits_of_device: dict[int, Limits] = {}
        self._constants: dict[tuple[int, str], int] = {}

    def _limits(self) -> Limits:
        import cupy

        device = cupy.cuda.runtime.getDevice()
        if device not in self._limits_of_device:
            self._limits_of_device[device] = device_limits(device)
        return self._limits_of_device[device]

    def _check_observers(self, observers) -> None:
        if observers:
            names = ", ".join(type(observer).__name__ for observer in observers)
            raise BackendError(
                f"{self.name} runs on the GPU, where observers ({names}) see nothing; "
                'make the module with backend="simulator" and give it NumPy arrays'
            )

    def _constant(self, name: str) -> int:
        """An attribute that never changes for a device, asked of the driver once."""
        import cupy

        key = (cupy.cuda.runtime.getDevice(), name)
        if key not in self._constants:
            self._constants[key] = getattr(self.raw, name)
        return self._constants[key]

    @property
    def max_threads_per_block(self) -> int:
        """The most threads a block may have, by __launch_bounds__ and registers."""
        return self._constant("max_threads_per_block")

    @property
    def shared_size_bytes(self) -> int:
        """Static shared memory in bytes a block."""
        return self._constant("shared_size_bytes")

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """The most dynamic shared memory a launch may ask for, in bytes. Can be set."""
        return self.raw.max_dynamic_shared_size_bytes

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        self.raw.max_dynamic_shared_size_bytes = self._check_dynamic_size(size)

    @property
    def preferred_shared_memory_carveout(self) -> int:
        """The share of L1 preferred as shared memory, in percent; -1 is the driver's choice."""
        return self.raw.preferred_shared_memory_carveout

    @preferred_shared_memory_carveout.setter
    def preferred_shared_memory_carveout(self, percent: int) -> None:
        self.raw.preferred_shared_memory_carveout = percent

    @property
    def attributes(self) -> dict[str, int]:
        """CuPy's dictionary of kernel attributes."""
        return self.raw.attributes

    def __getattr__(self, name: str):
        # num_regs, local_size_bytes, const_size_bytes, ptx_version, ...: CuPy's own.
        if name.startswith("_") or name == "raw":
            raise AttributeError(name)
        return getattr(self.raw, name)

    def repeat(self, grid, block, values: Sequence, shared_mem: int, arrays: Sequence[int]):
        """Return a launch whose parameters stay in memory; see Kernel.repeat."""
        if not can_repeat(self, values, arrays):
            return super().repeat(grid, block, values, shared_mem, arrays)
        return Repeat(self, grid, block, values, shared_mem, arrays)

    def _launch(self, grid, block, values, shared_mem, stream, observers) -> None:
        keywords = {} if stream is None else {"stream": stream}
        self.raw(grid, block, tuple(values), shared_mem=shared_mem, **keywords)


def allow_shared(kernel: Kernel, size: int) -> Kernel:
    """Ask for leave to use `size` bytes of dynamic shared memory a block, and return the kernel.

    A launch has 48 KB unasked. Raises LaunchError for more than any block can have.
    """
    if size > kernel.max_dynamic_shared_size_bytes:
        kernel.max_dynamic_shared_size_bytes = size
    return kernel


def device_limits(device: int) -> Limits:
    """The limits of a GPU as its driver reports them."""
    import cupy

    attributes = cupy.cuda.Device(device).attributes
    name = cupy.cuda.runtime.getDeviceProperties(device)["name"]
    return Limits(
        name.decode() if isinstance(name, bytes) else str(name),
        attributes["MaxSharedMemoryPerBlockOptin"],
        attributes["MaxThreadsPerBlock"],
        tuple(attributes[f"MaxBlockDim{axis}"] for axis in "XYZ"),
        tuple(attributes[f"MaxGridDim{axis}"] for axis in "XYZ"),
    )
