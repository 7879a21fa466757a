"""A call: steps of the ladder made ready for a problem, and the arrays on which they run.

Everything that launches kernels of the ladder builds a :class:`Call`. Building it picks the
geometry, compiles the kernels and checks the arguments; ``run()`` launches, as often as wanted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import itemgetter
from pathlib import Path

import numpy as np
from kernelscope import Kernel, RawModule, TensorMap, allow_shared, array_module, resolve_backend
from kernelscope.compile import file_stamp, with_headers
from kernelscope.errors import InputError

from .choose import current_device, simulated_gpu
from .headers import checked_options
from .problem import COUNTERS, MAX_GRID_YZ, Geometry, Problem
from .steps import Step, launched

# Arrays that may be absent: the kernel gets a null pointer.
OPTIONAL = ("bias", "dbias", "lse", "lengths", "page_table")
MAX_ROWS = 2**31 - 1  # the row count is an int in the kernels


@dataclass(slots=True)
class StepLaunch:
    """One launch of a kernel, whatever its arrays: a step, its geometry, its other arguments.

    Attributes:
        step: the file, the order of its arguments, and what it writes.
        geometry: grid, block, dynamic shared memory, constants.
        kernel: the compiled kernel.
        numbers: the arguments that are no arrays, by parameter name; see :func:`numbers_of`.
        heads: the heads of q on which it works; None: all.
        again: runs it again, on arrays of the same dtypes and shapes; None before the first run.
        changing: the names of the arrays that `again` takes.
    """

    step: Step
    geometry: Geometry
    kernel: Kernel
    numbers: dict[str, object]
    heads: slice | None = None
    again: Callable | None = None
    changing: tuple[str, ...] = ()

    def arguments(self, arrays: Mapping[str, object]) -> tuple:
        """Return the kernel's arguments in its order, for arrays by name."""
        return itemgetter(*self.step.arguments)({**self.numbers, **self._own(arrays)})

    def _own(self, arrays: Mapping[str, object]) -> Mapping[str, object]:
        """The arrays as this launch takes them: its heads of them, and tensor maps."""
        if self.heads is not None:
            arrays = {name: _part(array, self.heads) for name, array in arrays.items()}
        return {**arrays, **self._maps(arrays)} if self.step.maps else arrays

    def _maps(self, arrays: Mapping[str, object]) -> dict[str, object]:
        """Tensor maps of the arrays that the kernel takes as such; attention.plan() has them once.

        A swizzle of 128 bytes exchanges 16-byte chunks within rows of 64 columns of 16 bits.
        """
        constants = self.step.constants() | self.geometry.constants
        return {
            name: TensorMap(
                arrays[name].reshape(-1, *arrays[name].shape[-2:]),
                (1, constants.get(rows, rows), 128 // arrays[name].dtype.itemsize),
                swizzle=128,
            ).image
            for name, rows in self.step.maps.items()
        }

    def bind(self, arrays: Mapping[str, object]) -> None:
        """Check the arguments; put the numbers into the parameters' types. Raises ArgumentError."""
        bound = zip(self.step.arguments, self.kernel.bind(self.arguments(arrays)), strict=True)
        self.numbers = {name: value for name, value in bound if name not in arrays}

    def run(self, arrays: Mapping[str, object], stream: int | None = None) -> None:
        """Run the launch; the first run checks it. Raises ArgumentError or LaunchError.

        stream: the address of the CUDA stream of later runs; None: CuPy's current one.
        """
        if self.again is not None:
            own = self._own(arrays)
            self.again([own[name] for name in self.changing], stream)
            return
        self.bind(arrays)
        geometry, values = self.geometry, self.arguments(arrays)
        launch = geometry.grid, geometry.block, values, geometry.shared_bytes
        self.kernel(*launch)
        places = {name: i for i, name in enumerate(self.step.arguments) if name in arrays}
        self.changing = tuple(places)
        self.again = self.kernel.repeat(*launch, tuple(places.values()))


def scratch_arrays(shapes: Mapping[str, tuple[int, ...]], problem: Problem, xp) -> dict:
    """Return arrays that kernels fill, by name; counters of blocks start, and end, as zeros."""
    return {
        name: (xp.zeros if name in COUNTERS else xp.empty)(shape, problem.dtype_of(name))
        for name, shape in shapes.items()
    }


@dataclass(slots=True)
class Call:
    """Launches in the order in which they run, and the arrays that they read and write.

    Attributes:
        problem: the extents.
        scale: of the scores.
        backend: "gpu" or "simulator".
        launches: one a step; several where the heads of a step do not fit into one grid.
        arrays: by their names in the kernels: q, k, v, s, p, out, bias, lse.
        scratch: name -> shape of the arrays that the call makes for itself.
        method: as attention() names it; empty for steps.
        reason: why "auto" picked the method; else empty.
    """

    problem: Problem
    scale: float
    backend: str
    launches: tuple[StepLaunch, ...]
    arrays: dict[str, object]
    scratch: dict[str, tuple[int, ...]]
    method: str = ""
    reason: str = ""

    @property
    def tolerance(self) -> float:
        """The relative error to float64 that the steps are allowed with inputs of this dtype."""
        return max(launch.step.tolerance(self.problem.dtype) for launch in self.launches)

    @property
    def takes_addresses(self) -> bool:
        """Whether the launches can be made on the arrays' addresses in their place."""
        return not any(launch.step.maps or launch.heads for launch in self.launches)

    def run(self) -> dict[str, object]:
        """Launch the kernels and return the arrays. The first run checks every launch."""
        return self.run_on(self.arrays)

    def run_on(self, arrays: dict[str, object], stream: int | None = None) -> dict[str, object]:
        """Launch on other arrays with the dtypes, shapes and order of the first; return them.

        stream: as of StepLaunch.run().
        """
        for launch in self.launches:
            launch.run(arrays, stream)
        return arrays

    def up_to_last(self) -> Callable[[], None]:
        """Run all launches but the last one; return what runs that one alone."""
        *before, last = self.launches
        for launch in before:
            launch.run(self.arrays)
        return partial(last.run, self.arrays)

    def add_scratch(self, arrays: dict[str, object]) -> None:
        """Add to the arrays those that the call makes for itself."""
        if self.scratch:
            arrays |= scratch_arrays(self.scratch, self.problem, array_module(self.backend))
        if "s" in arrays and "p" not in arrays:
            arrays["p"] = arrays["s"]  # the softmax replaces the scores in place


def call_steps(
    steps: Sequence[Step],
    arrays: Mapping[str, object],
    scale: float,
    *,
    problem: Problem | None = None,
    backend: str | None = None,
    options: Sequence[str] = (),
) -> Call:
    """Make steps ready to run on arrays.

    Args:
        steps: rows of the ladder, in the order in which they run.
        arrays: what the steps read, by name: q (BH, n, d), k and v (BH, m, d), scores s (BH, n, m)
            and softmax weights p (BH, n, m), of the backend's array module; float32, but q, k, v
            and out of a dtype that the steps take. Scores and the output out (BH, n, d) are made
            here where the steps need them and they are not given; so are the weights, which replace
            s in place. bias and lse may be absent.
        scale: of the scores.
        problem: the extents, where q and k do not have them all.
        options: compiler options for every step, such as ("-DTILE=16",); each ``-DNAME`` is a
            constant of one of them at least.

    Raises:
        ValueError: extents that a kernel does not take, or an option that no step has.
        CompileError. ArgumentError: an array that a kernel cannot read. BackendError: a GPU is
        asked for where there is none.
    """
    backend, steps = resolve_backend(backend), launched(steps)
    if problem is None:
        (bh, n, d), m = arrays["q"].shape, arrays["k"].shape[1]
        problem = Problem(bh, n, m, d, dtype=arrays["q"].dtype.name)
    constants = {name: value for step in steps for name, value in step.constants().items()}
    options = checked_options(options, constants)
    slices = _slices(steps, problem)
    heads = problem if len(slices) == 1 else replace(problem, bh=MAX_GRID_YZ)
    used = {name for step in steps for name in step.arguments}
    made = {"out": problem.shape("out"), "s": heads.shape("s")}
    for step in steps:
        if step.scratch:
            geometry = step.launch(problem, options, current_device(backend))
            made |= step.scratch(geometry, problem)
    scratch = {n: shape for n, shape in made.items() if n in used and n not in arrays}
    call = Call(problem, float(scale), backend, (), dict(arrays), scratch)
    call.add_scratch(call.arrays)
    call.launches = tuple(_launch(step, call, part, options) for part in slices for step in steps)
    return call


def run_steps(steps: Sequence[Step], arrays: Mapping[str, object], scale: float, **how) -> dict:
    """Run steps once and return all arrays, inputs and results; see call_steps()."""
    return call_steps(steps, arrays, scale, **how).run()


def numbers_of(problem: Problem, scale: float) -> dict[str, object]:
    """Return the arguments that are no arrays: integers, the float32 scale, None for OPTIONAL."""
    return problem.scalars() | {"scale": np.float32(scale)} | dict.fromkeys(OPTIONAL)


def compiled(
    path: Path, options: Sequence[str] = (), *, entry: str, backend: str | None = None
) -> Kernel:
    """Return the kernel ``entry`` of a file, compiled once for equal options and backend."""
    edited = file_stamp(path)  # an edited file or header is another kernel
    backend = resolve_backend(backend)
    return _module(path, edited, _with_arch(options, backend), backend).get_function(entry)


def _with_arch(options: Sequence[str], backend: str) -> tuple[str, ...]:
    """The options, and the architecture of a GPU that the simulator stands for."""
    device = simulated_gpu(backend)
    if device is None or any("arch" in option for option in options):
        return tuple(options)
    return (*options, "-arch=sm_{}{}".format(*device.capability))


@lru_cache(maxsize=64)
def _module(path: Path, edited: tuple, options: tuple[str, ...], backend: str) -> RawModule:
    return RawModule(path=str(path), options=options, backend=backend, strict=True)


@lru_cache(maxsize=128)
def _module_of_text(text: str, options: tuple[str, ...], backend: str) -> RawModule:
    return RawModule(code=text, options=options, backend=backend, strict=True)


def kernel_of(
    step: Step, entry: str, options: Sequence[str] = (), backend: str | None = None
) -> Kernel:
    """Return a kernel of a step's file, or of its text, compiled with these options."""
    options = (*step.flags, *options)
    if step.text is None:
        return compiled(step.path, options, entry=entry, backend=backend)
    text, backend = with_headers(step.text, step.path.parent), resolve_backend(backend)
    return _module_of_text(text, _with_arch(options, backend), backend).get_function(entry)


def step_launch(
    step: Step,
    extents: Problem,
    arrays: Mapping[str, object],
    numbers: Mapping[str, object],
    options: Sequence[str],
    backend: str,
    heads: slice | None = None,
) -> StepLaunch:
    """Return the launch of a step on arrays, with leave to use its shared memory.

    extents: a Problem, or what else the step's geometry takes.  numbers, heads: as of StepLaunch.
    """
    geometry = step.launch(extents, options, current_device(backend))
    kernel = kernel_of(step, geometry.entry, geometry.options(options), backend)
    allow_shared(kernel, geometry.shared_bytes)
    launch = StepLaunch(step, geometry, kernel, numbers, heads)
    launch.bind(arrays)
    return launch


def _slices(steps: Sequence[Step], problem: Problem) -> list[slice | None]:
    """The heads of each launch: kernels that put heads on grid z take MAX_GRID_YZ of them."""
    on_z = any({"heads", "kv_heads", "rows"}.isdisjoint(step.arguments) for step in steps)
    if not on_z or problem.bh <= MAX_GRID_YZ:
        return [None]
    starts = range(0, problem.bh, MAX_GRID_YZ)
    return [slice(start, min(start + MAX_GRID_YZ, problem.bh)) for start in starts]


def _part(array, heads: slice):
    """Some heads of an array (BH, L, D) or (B, H, L, D); scratch for one launch as it is."""
    flat = array.reshape(-1, *array.shape[-2:])
    return flat[heads] if len(flat) >= heads.stop else flat


def _launch(step: Step, call: Call, heads: slice | None, options: tuple[str, ...]) -> StepLaunch:
    """One step of a call, its arguments checked and bound to the kernel's parameters."""
    problem = call.problem
    if heads is not None:
        problem = replace(problem, bh=heads.stop - heads.start, heads=1, kv_heads=1)
    if problem.bh * problem.n > MAX_ROWS:
        raise InputError(
            f"{problem.bh} heads of {problem.n} queries: the kernels count {MAX_ROWS} rows at most"
        )
    numbers = numbers_of(problem, call.scale)
    return step_launch(step, problem, call.arrays, numbers, options, call.backend, heads)
