"""The bonus of a problem: the kernel on a GPU, timed in turns with the reference solution.

A GPU runs the kernel without the limits of the simulator; grade unknown source there only inside a
sandbox of the machine.
"""

from dataclasses import dataclass
from functools import partial

from kernelscope import RawModule, SimulatorError, asnumpy, gpu_count
from kernelscope.contest import Timing, capture, contest

from attn_course.exercises.examination import compared, launch
from attn_course.exercises.exercise import Exercise
from attn_course.exercises.setups import Setup

ALLOWED = 1.05  # times the reference's median
YOURS, REFERENCE = "yours", "reference"


@dataclass(frozen=True)
class Bonus:
    """The bonus that an answer earns, with a sentence on why."""

    problem: str
    earned: int
    possible: int
    reason: str

    def __repr__(self) -> str:
        return f"bonus: {self.earned} of {self.possible} points: {self.reason}"


def timed(problem: Exercise, text: str) -> Bonus:
    """Run an answer on a GPU, compare it with float64, and time it against the reference."""
    if not problem.bonus:
        return Bonus(problem.name, 0, 0, "this problem has none")
    if not gpu_count():  # before the setup: its arrays are large
        reason = "skipped, CuPy sees no GPU; no other points depend on one"
        return Bonus(problem.name, 0, problem.bonus, reason)
    if problem.is_stub(text):
        return Bonus(problem.name, 0, problem.bonus, "the cell still holds the stub")
    setup = problem.bonus_setup
    try:
        launches = {
            YOURS: _launch(problem, text, setup),
            REFERENCE: _launch(problem, problem.solution, setup),
        }
    except (SimulatorError, RuntimeError, ValueError, TypeError) as error:
        return Bonus(problem.name, 0, problem.bonus, f"it does not run on the GPU: {error}")
    for run, check in launches.values():
        run()
        if message := check():
            return Bonus(problem.name, 0, problem.bonus, message)
    replays = {name: capture(run) for name, (run, _) in launches.items()}
    found = contest(replays)
    return awarded(problem, setup, found.timings[YOURS], found.timings[REFERENCE])


def awarded(problem: Exercise, setup: Setup, yours: Timing, reference: Timing) -> Bonus:
    """Return the bonus for two timings: all of it up to ALLOWED times the reference's median."""
    limit = ALLOWED * reference.median_us
    earned = problem.bonus if yours.median_us <= limit else 0
    reason = (
        f"{yours.median_us:.1f} us at {setup.label}; the goal is at most {limit:.1f} us, "
        f"{ALLOWED:g} times the reference solution"
    )
    return Bonus(problem.name, earned, problem.bonus, reason)


def _launch(problem: Exercise, text: str, setup: Setup):
    """Return a function that launches a kernel on the GPU, and one that checks its output."""
    import cupy

    kernel = RawModule(code=text, backend="gpu").get_function(problem.kernel)
    arguments = {
        name: cupy.asarray(value) if getattr(value, "shape", ()) else value
        for name, value in setup.fresh().items()
    }
    launched = partial(launch, kernel, setup, arguments)

    def check() -> str:
        host = {name: asnumpy(value) for name, value in arguments.items()}
        return next((failure.message for failure in compared(setup, host)), "")

    return launched, check
