"""What lesson 06 watches: the instructions that combine values, and a warp's exchange step by step.

Everything here comes from the simulator's events; nothing is timed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attn_course.engine.events import InstructionEvent, Launch, Observer, observe
from attn_course.engine.watch.counters.counters import Counters
from attn_course.engine.watch.tracer.recording import Recording
from attn_course.ladder.call import run_steps
from attn_course.ladder.headers import kernel_path
from attn_course.ladder.steps import step

WARP = 32
# What a tally counts, by the first part of the PTX opcode. atom gives the old value back, red
# does not; both add to memory in one go.
KINDS = {
    "shuffles": ("shfl",),
    "atomics": ("atom", "red"),
    "barriers": ("bar", "barrier"),
    "exponentials": ("ex2",),
}


class Tally(Observer):
    """Counts the instructions of KINDS, and those of the warp that executes most.

    with observe(Tally()) as tally:
        kernel(grid, block, args)
    tally.warps["shuffles"]      # executed, once for each warp with an active lane
    tally.lanes["atomics"]       # the same, once for each active lane
    tally.longest_warp           # instructions of the busiest warp, added up over launches
    """

    def __init__(self):
        super().__init__()
        self.warps: Counter[str] = Counter()
        self.lanes: Counter[str] = Counter()
        self.longest_warp = 0
        self._by_warp = np.zeros(0, np.int64)  # instructions of each warp of the launch
        self._kinds = {first: kind for kind, firsts in KINDS.items() for first in firsts}

    def launch_started(self, launch: Launch) -> None:
        blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
        self._by_warp = np.zeros(blocks * launch.warps, np.int64)

    def instruction(self, event: InstructionEvent) -> None:
        warps = event.active_warps
        self._by_warp[warps + (event.machine.first_lane >> 5)] += 1
        kind = self._kinds.get(event.instruction.opcode.split(".")[0])
        if kind:
            self.warps[kind] += warps.size
            self.lanes[kind] += event.lanes.size

    def launch_finished(self, launch: Launch) -> None:
        self.longest_warp += int(self._by_warp.max(initial=0))


@dataclass(frozen=True)
class Counted:
    """One run of steps on the simulator: what it wrote, its counters, its tally."""

    buffers: Mapping[str, np.ndarray]
    seen: Counters
    tally: Tally

    def on_lines(self, kernel: str, first: str, last: str, name: str) -> int:
        """A counter added up over the lines from the one that holds `first` to that with `last`."""
        lines = kernel_path(kernel).read_text(encoding="utf-8").splitlines()
        start = next(at for at, text in enumerate(lines, 1) if first in text)
        end = next(at for at, text in enumerate(lines, 1) if at >= start and last in text)
        return sum(
            self.seen.by_line[at][name] for at in range(start, end + 1) if at in self.seen.by_line
        )


def count(
    numbers: Sequence[int], buffers: Mapping[str, np.ndarray], scale: float = 1.0, **given
) -> Counted:
    """Run steps of the ladder on the simulator and count.

    numbers: of the steps; buffers: as for run_steps, q (BH, n, d), k and v (BH, m, d), scores s
    (BH, n, m); what the steps write is copied first. given: problem and options, as there.
    """
    mine = {name: array.copy() if name in "sp" else array for name, array in buffers.items()}
    with observe(Counters(), Tally()) as (seen, tally):
        found = run_steps(
            [step(number) for number in numbers], mine, scale, backend="simulator", **given
        )
    return Counted(found, seen, tally)


# -- a warp's exchange -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Exchange:
    """What the lanes of a warp hold before a butterfly and after each of its steps.

    offsets: (steps,) distance of the partner; values: (steps + 1, 32).
    """

    offsets: tuple[int, ...]
    values: np.ndarray

    @property
    def holders(self) -> tuple[int, ...]:
        """After each step, how many lanes hold what all hold at the end."""
        return tuple(int((row == self.values[-1]).sum()) for row in self.values)


def exchange(recording: Recording, function: str) -> Exchange:
    """The butterfly of the first call of `function` ("warp_max" or "warp_sum") in a trace.

    Raises:
        ValueError: the trace has no such call.
    """
    offsets: list[int] = []
    rows: list[np.ndarray] = []
    now = np.full(WARP, np.nan, np.float32)
    for frame in recording.frames:
        if frame["function"] != function:
            if offsets:
                break  # the first call is over
            continue
        changed = frame["variables"]
        if value := changed.get(f"{function}.value"):  # names only the lanes that changed
            mine = [at for at, thread in enumerate(value["threads"]) if thread < WARP]
            now[[value["threads"][at] for at in mine]] = [float(value["values"][at]) for at in mine]
        if offset := changed.get(f"{function}.offset"):  # a step is over, or the first begins
            rows.append(now.copy())
            offsets += [one for one in offset["values"][:1] if one]
    if not offsets or len(rows) <= len(offsets) or np.isnan(rows[0]).any():
        raise ValueError(f"the trace of {recording.kernel} has no whole call of {function}")
    return Exchange(tuple(offsets), np.array(rows[: len(offsets) + 1]))


def known_after(offsets: Sequence[int], lane: int) -> list[set[int]]:
    """The lanes whose values have reached a lane, before and after each step of a butterfly."""
    known = [{one} for one in range(WARP)]
    found = [known[lane]]
    for offset in offsets:
        known = [known[one] | known[one ^ offset] for one in range(WARP)]
        found.append(known[lane])
    return found


# -- floats as integers ----------------------------------------------------------------------------
def float_bits(values) -> np.ndarray:
    """float32 -> the int32 with the same bits, as __float_as_int gives it."""
    return np.asarray(values, np.float32).view(np.int32)


def ordered(values) -> np.ndarray:
    """float32 -> an int32 that orders as the float does: kernel 07's `ordered`."""
    bits = float_bits(values)
    return np.where(bits >= 0, bits, bits ^ np.int32(0x7FFFFFFF))


def relative_error(found, exact) -> float:
    """Norm of the difference over the norm of what is exact, in float64."""
    exact = np.asarray(exact, np.float64)
    return float(np.linalg.norm(np.asarray(found, np.float64) - exact) / np.linalg.norm(exact))
