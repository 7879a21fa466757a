"""Calls of Numba kernels: compile one for its arguments, launch it."""

from dataclasses import dataclass

import numpy as np

from ..compile import Compiled
from ..errors import KernelAssertion
from ..module import PtxModule, SimulatorKernel, allow_shared
from .arguments import flattened, types_of
from .compiler import (
    checked,
    compile_kernel,
    definition_line,
    file_of,
    other_files,
    place_of,
    signature_for,
    text_of,
)
from .own_arrays import declared_arrays, with_names
from .words import WORDS

_MODULES = "_kernelscope_modules"  # attribute of a dispatcher: types -> its NumbaModule
_LARGE_SHARED = "Give it the size 0, cuda.shared.array(0, dtype), and pass shared_mem=BYTES"


class NumbaModule(PtxModule):
    """A kernel compiled for argument types; its two builds are made when they are first needed."""

    large_shared_advice = _LARGE_SHARED
    words = WORDS

    def __init__(self, dispatcher, kinds: tuple, names: tuple[str, ...]):
        function = dispatcher.py_func
        self.dispatcher, self.kinds, self._builds = dispatcher, kinds, {}
        self.entry, file = function.__name__, file_of(function)
        super().__init__(
            self.ptx(),
            text_of(file),
            file,
            headers=other_files(self.ptx(), file),
            names={self.entry: tuple((name, name) for name in names)},
            line=definition_line(function),
        )

    def build(self, build: str):
        """Numba's kernel, the PTX and the shared arrays of a build."""
        if build not in self._builds:
            made, ptx, functions = compile_kernel(self.dispatcher, self.kinds, build)
            ptx, arrays = with_names(
                ptx.replace(made.entry_name, self.entry), functions, self.entry
            )
            self._builds[build] = made, ptx, arrays
        return self._builds[build]

    def compiled(self, build: str = "optimised") -> Compiled:
        """The PTX of a build."""
        return Compiled(self.build(build)[1])

    def _program(self, build: str):
        program = super()._program(build)
        local = list(declared_arrays(self.dispatcher.py_func, "local"))
        program.local_arrays = {self.entry: local[0]} if len(local) == 1 else {}
        program.arrays = self.build(build)[2].values()
        program.hidden_types = ("array(", "UniTuple(")  # how Numba keeps an array: seven numbers
        return program

    def _make_kernel(self, name: str) -> "NumbaKernel":
        return NumbaKernel(self, name, super()._make_kernel(name).entry)


class NumbaKernel(SimulatorKernel):
    """A kernel that takes Numba's arguments: arrays of any strides, numbers and tuples."""

    def bind(self, args) -> list:
        """Return the PTX's parameters, several for an array."""
        module = self.module
        where = place_of(module.dispatcher.py_func)
        return [one for _, one in flattened(module.dispatcher, module.kinds, tuple(args), where)]

    def _build_for(self, observers) -> str:
        """The debug build has names of variables; the other one tells local arrays apart."""
        return "debug" if any(one.shows_variables for one in observers) else "optimised"

    def __call__(self, grid, block, args, shared_mem: int = 0, stream=None) -> None:
        """Run the kernel; with `debug=True`, raise KernelAssertion for an exception in it."""
        state = {}
        if self.module.dispatcher.targetoptions.get("debug"):
            names = ("errcode", *(f"{what}{axis}" for what in ("ctaid", "tid") for axis in "xyz"))
            every = self.module.program().variables
            state = {name: every[f"{self.name}__{name}__"].view(np.int32) for name in names}
            state["errcode"][:] = 0
        super().__call__(grid, block, args, shared_mem, stream)
        if state and state["errcode"][0]:
            self._raise({name: int(value[0]) for name, value in state.items()})

    def _raise(self, state: dict[str, int]) -> None:
        made = self.module.build("optimised")[0]
        kind, values, place = made.call_helper.get_exception(state["errcode"])
        said = f": {values[0]}" if values else ""
        block, thread = (
            tuple(state[f"{what}{axis}"] for axis in "xyz") for what in ("ctaid", "tid")
        )
        line = place[2] if place else 0
        text = self.module.program().text_of(place[1].rsplit("/", 1)[-1], line) if place else ""
        where = f" on line {line}{text}" if line else ""
        raise KernelAssertion(
            f"{self.name}: {kind.__name__}{said}, raised{where}, block {block}, thread {thread}",
            line,
        ) from kind(*values or ())


@dataclass(frozen=True)
class NumbaCall:
    """A Numba kernel that is compiled for its arguments; `call(grid, block)` launches it.

    kernel: of the engine, with CuPy's call and attributes; values: the arguments.
    """

    kernel: NumbaKernel
    values: tuple

    @property
    def ptx(self) -> str:
        """The PTX text that runs."""
        return self.kernel.module.ptx()

    def __call__(self, grid, block, shared_mem: int = 0) -> "NumbaCall":
        """Launch the kernel and return the call.

        grid, block: an int or one to three of them; shared_mem: dynamic shared memory in bytes.
        Observers of `kernelscope.observe` see the launch. Raises LaunchError, SimulatorError.
        """
        sizes = [tuple(one) if isinstance(one, list) else one for one in (grid, block)]
        sizes = [(one,) if isinstance(one, int | np.integer) else one for one in sizes]
        allow_shared(self.kernel, shared_mem)
        self.kernel(*sizes, self.values, shared_mem=shared_mem)
        return self


def run(kernel, grid, block, /, *args, shared_mem: int = 0) -> NumbaCall:
    """Run a Numba kernel on the simulator: `kernel[grid, block, 0, shared_mem](*args)`.

    Args:
        kernel: a function with `@cuda.jit`.
        grid, block: an int or a tuple of one to three.
        args: NumPy arrays of any strides, into which the kernel writes, numbers, tuples of these.
        shared_mem: dynamic shared memory of a block in bytes.

    Returns the call. Observers see the launch as any other; those that look at the debug build
    (Sanitizer, Tracer) get one with the names of variables.
    Raises ArgumentError, InputError, CompileError, LaunchError; KernelAssertion for an exception in
    a kernel with `debug=True`; CompilerMissingError without numba-cuda.
    """
    return compile(kernel, *args)(grid, block, shared_mem)


def compile(kernel, /, *args) -> NumbaCall:
    """Compile a Numba kernel for its arguments and return the call; see `run`."""
    dispatcher = checked(kernel)
    where = place_of(dispatcher.py_func)
    kinds = signature_for(dispatcher, types_of(dispatcher, args, where))
    known = vars(dispatcher).setdefault(_MODULES, {})
    if kinds not in known:
        names = tuple(name for name, _ in flattened(dispatcher, kinds, args, where))
        known[kinds] = NumbaModule(dispatcher, kinds, names)
    return NumbaCall(known[kinds].get_function(dispatcher.__name__), args)
