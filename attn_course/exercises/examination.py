"""Examine a kernel: compile it, run every case of its exercise, and say which property fails.

Everything runs on the simulator: each case as the optimised build with counters and, unless its
setup says otherwise, as the debug build under the sanitizer. A loop without an end is told within
some seconds.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from kernelscope import (
    ArgumentError,
    CompileError,
    Counters,
    Kernel,
    LaunchError,
    RawModule,
    Sanitizer,
    SimulatorError,
    allow_shared,
    call_budget,
    observe,
)
from kernelscope.errors import (
    CompilerFailedError,
    KernelNotFoundError,
    MemoryFault,
    OutOfTime,
    ParseError,
)
from kernelscope.triton import TextKernel
from kernelscope.watch import Finding, InFlight

from attn_course.reference.comparison import compare

from .exercise import Exercise
from .judgement import PROPERTIES, Failure, Judgement
from .setups import PRODUCTS_UNDER_COPIES, SHARED_BYTES, Setup

# Kind of a finding -> the property that it breaks.
BROKEN_BY = {
    "out-of-bounds": "in bounds",
    "misaligned": "in bounds",
    "read-only": "in bounds",
    "divergent-barrier": "barriers",
    "race": "no race",
    "uninitialised-read": "initialised",
    "bad-launch": "compiles",
}
# Counters shown after a pass, where either kernel has any.
SHOWN = """
    instructions global_load_sectors global_store_sectors shared_load_wavefronts
    shared_store_wavefronts atomic_requests barriers
""".split()
# A launch with counters that takes longer must end in this time without counters, many times
# faster; so a machine that is slow fails no kernel that ends. Seconds of the processor, these two.
LAUNCH_SECONDS = 5.0
SANITIZER_SECONDS = 60.0  # of a launch under the sanitizer, for a kernel that has ended before
# Without the macro of -G: else the sanitizer's build could be another text than the one counted.
ONE_TEXT = ("-U__CUDACC_DEBUG__",)
_ORDER = list(PROPERTIES)
_known_totals: dict[tuple[str, str], dict[str, int]] = {}  # exercise, text -> its counters
NOT_LAUNCHED = (ArgumentError, CompileError, LaunchError, ParseError)


def judge(exercise: Exercise, source: str) -> Judgement:
    """Examine the text of a kernel file against an exercise.

    The examination ends with the first case that fails: cases are listed from the smallest. Raises
    CompilerFailedError, CompilerMissingError where the compiler gives no verdict.
    """
    about = {"exercise": exercise.name, "language": exercise.language, "source": source}
    about["of"] = len(exercise.setups)
    if exercise.is_stub(source):
        return Judgement(**about, waiting=True)
    kernel = compiled_or_failure(exercise, source)
    if isinstance(kernel, Failure):
        return Judgement(**about, failures=(kernel,))
    passed, totals = [], {}
    for setup in exercise.setups_for(source):
        failures, totals = examine(kernel, setup)
        if failures:
            return Judgement(**about, cases=tuple(passed), failures=failures)
        passed.append(setup.label)
    _known_totals[exercise.name, source] = totals  # of the last case, which is the largest
    return Judgement(
        **about,
        solution="" if exercise.points else exercise.solution,
        cases=tuple(passed),
        counters=_beside(exercise, totals),
        totals=totals,
    )


def compiled(exercise: Exercise, source: str) -> Kernel | TextKernel:
    """Return the exercise's kernel in a learner's text, for the simulator."""
    if exercise.language == "triton":
        return TextKernel(source, exercise.kernel, f"{exercise.name}.py")
    module = RawModule(code=source, backend="simulator", strict=True, options=ONE_TEXT)
    module.program()  # compiling takes none of the launches' time
    return module.get_function(exercise.kernel)


def compiled_or_failure(exercise: Exercise, source: str) -> Kernel | TextKernel | Failure:
    """Return the kernel in a learner's text, or why there is none. Raises what `judge` does."""
    try:
        return compiled(exercise, source)
    except CompilerFailedError:
        raise
    except (CompileError, KernelNotFoundError, ParseError) as error:
        return Failure("compiles", str(error), line=getattr(error, "line", 0))


def examine(
    kernel: Kernel, setup: Setup, *, sanitized: bool = True
) -> tuple[tuple[Failure, ...], dict[str, int]]:
    """Return the failures of one case in the order of PROPERTIES, and its counters.

    The method is judged wherever the kernel ends; goals are judged where all else holds.
    sanitized: run the debug build under the sanitizer too.
    """
    counts, arguments, totals = LaunchCounts(setup), setup.fresh(), {}
    try:
        try:
            launch(kernel, setup, arguments, *counts.observers, seconds=LAUNCH_SECONDS)
        except OutOfTime:
            launch(kernel, setup, setup.fresh(), seconds=LAUNCH_SECONDS)
            counts, arguments = LaunchCounts(setup), setup.fresh()
            launch(kernel, setup, arguments, *counts.observers)
        totals = counts.totals(kernel)
        found = _sanitized(kernel, setup) if sanitized and setup.sanitized else []
        found += compared(setup, arguments)
    except MemoryFault as fault:
        block = fault.threads[0][0] if fault.threads else (0, 0, 0)
        failure = Failure("in bounds", str(fault), setup.label, fault.line, block)
        known = _sanitized(kernel, setup, ended=True) if sanitized else []  # it knows more
        found = known or [failure]
    except CompilerFailedError:
        raise
    except NOT_LAUNCHED as error:
        found = [Failure("compiles", str(error), setup.label)]
    except OutOfTime as error:
        found = [_unfinished(error, setup)]
    except SimulatorError as error:
        found = [_unfinished(error, setup)]
        found += _sanitized(kernel, setup, ended=True) if sanitized else []
    sound = not found
    if totals:
        found += _missed(setup, setup.method, counts.counters, totals, method=True)
    if sound:
        found += _missed(setup, setup.goals, counts.counters, totals)
    found.sort(key=lambda failure: _ORDER.index(failure.property))
    return tuple(found), totals


def launch(
    kernel: Kernel,
    setup: Setup,
    arguments: dict[str, object],
    *observers,
    seconds: float | None = None,
) -> None:
    """Run one case, with the arguments that `setup.fresh` returned, under some observers.

    seconds: the longest that it may take, of the processor. Raises as the kernel does.
    """
    allow_shared(kernel, setup.shared_bytes)
    with call_budget(seconds), observe(*observers):
        kernel(setup.grid, setup.block, tuple(arguments.values()), shared_mem=setup.shared_bytes)


def _sanitized(kernel, setup: Setup, *, ended: bool = False) -> list[Failure]:
    """Run the case under the sanitizer and return one failure for each of its errors.

    ended: an error has ended the optimised build, and is known.
    """
    arguments, found = setup.fresh(), []
    watch = Sanitizer(setup.unwritten)
    kernel.module.program(watch.build)
    seconds = LAUNCH_SECONDS if ended else SANITIZER_SECONDS
    try:
        launch(kernel, setup, arguments, watch, seconds=seconds)
    except OutOfTime as error:
        found = [] if ended else [_unfinished(error, setup)]
    except CompilerFailedError:
        raise
    except SimulatorError:
        pass  # the optimised build says what ended it; the findings until then count
    except NOT_LAUNCHED as error:
        return [Failure("compiles", str(error), setup.label)]
    errors = [finding for finding in watch.findings if finding.severity == "error"]
    return [*found, *(_failure(finding, setup.label) for finding in errors)]


def _unfinished(error: SimulatorError, setup: Setup) -> Failure:
    return Failure("finishes", str(error), setup.label, error.line, (0, 0, 0))


def _failure(finding: Finding, label: str) -> Failure:
    called = f"\ncalled from {finding.called}" if finding.called else ""
    message = f"{finding.message} {called}\nremedy: {finding.remedy}".replace(" \n", "\n")
    block = finding.threads[0][0] if finding.threads else (0, 0, 0)
    return Failure(BROKEN_BY[finding.kind], message, label, finding.line, block)


def compared(setup: Setup, arguments: Mapping[str, object]) -> Iterator[Failure]:
    """Yield a failure for each output that is wrong, and each input that a launch has changed.

    arguments: of the launch, after it, on the host.
    """
    for name, value in setup.arguments.items():
        if not isinstance(value, np.ndarray):
            continue
        found = arguments[name]
        if name not in setup.expected:
            if not np.array_equal(found, value, equal_nan=value.dtype.kind in "fc"):
                yield Failure(
                    "agrees", f"{name} is an input, and the kernel changed it", setup.label
                )
            continue
        result = compare(
            found, setup.expected[name], relative=setup.relative, absolute=setup.absolute, name=name
        )
        if not result:
            yield Failure("agrees", result.message, setup.label, 0, (0, 0, 0))


class LaunchCounts:
    """What counts one launch: all that a goal may bound."""

    def __init__(self, setup: Setup):
        self.counters = Counters()
        self.flights = InFlight(copies_only=True, product_opcodes=("fma", "mul"))
        self.shared_bytes = setup.shared_bytes
        bounded = {goal.counter for goal in (*setup.method, *setup.goals)}
        follows = PRODUCTS_UNDER_COPIES in bounded
        self.observers = (self.counters, *((self.flights,) if follows else ()))

    def totals(self, kernel: Kernel) -> dict[str, int]:
        return {
            **self.counters.totals,
            SHARED_BYTES: kernel.shared_size_bytes + self.shared_bytes,
            PRODUCTS_UNDER_COPIES: self.flights.products_under_way,
        }


def _missed(setup, goals, counters: Counters, totals, *, method: bool = False) -> Iterator[Failure]:
    """Yield a failure for each goal that is missed, at the line that counts most above it."""
    for goal in goals:
        if not (message := goal.missed(totals)):
            continue
        kernels = iter(counters.by_kernel.values())
        there = {
            number: sum(counts.get(name, 0) for name in goal.counters)
            for number, counts in (next(kernels).lines if goal.too_many(totals) else {}).items()
            if number
        }
        line = max(there, key=there.get, default=0)
        if there.get(line, 0):
            message += f"\n{there[line]:,} of them arise on line {line}"
        else:
            line = 0
        where = {"label": setup.label, "line": line, "block": (0, 0, 0)}
        yield Failure("counters", message, **where, counter=goal.counter, method=method)


def _beside(exercise: Exercise, totals) -> dict[str, tuple[int, int, str]]:
    """Return the counters of the largest case beside the reference's and the goals."""
    setup = exercise.setups[-1]
    theirs = largest_totals(exercise, exercise.solution)
    found = {
        goal.counter: (goal.counted(totals), goal.counted(theirs), goal.bound)
        for goal in (*setup.method, *setup.goals)
    }
    for name in SHOWN:
        if name not in found and (totals[name] or theirs[name]):
            found[name] = totals[name], theirs[name], ""
    return found


def largest_totals(exercise: Exercise, text: str) -> dict[str, int]:
    """Return the counts of a solution in the largest case; a process counts it once."""
    if (key := (exercise.name, text)) not in _known_totals:
        setup, kernel = exercise.setups[-1], compiled(exercise, text)
        counts = LaunchCounts(setup)
        launch(kernel, setup, setup.fresh(), *counts.observers)
        _known_totals[key] = counts.totals(kernel)
    return _known_totals[key]
