"""Lesson 06: counts of the instructions that combine values, and a warp's exchange in a trace."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from kernelscope import Counters, InstructionEvent, Observer, observe
from kernelscope.errors import InputError
from kernelscope.watch import Recording

from attn_course.ladder.call import run_steps
from attn_course.ladder.steps import step

from .show import line_numbers

WARP = 32
# What the PTX opcodes of counted instructions begin with. atom returns the old value, red does not;
# both update memory in one operation.
KINDS = {
    "shuffles": ("shfl.",),
    "atomics": ("atom.", "red."),
    "barriers": ("bar.", "barrier."),
    "cluster waits": ("barrier.cluster.wait",),
}


class Tally(Observer):
    """Counts the instructions of KINDS: warps once for each warp with an active lane, lanes once
    for each active lane.

    with observe(Tally()) as tally:
        kernel(grid, block, args)
    tally.warps["shuffles"], tally.lanes["atomics"]
    """

    def __init__(self):
        super().__init__()
        self.warps: Counter[str] = Counter()
        self.lanes: Counter[str] = Counter()

    def instruction(self, event: InstructionEvent) -> None:
        for kind, first in KINDS.items():
            if event.instruction.opcode.startswith(first):
                self.warps[kind] += event.active_warps.size
                self.lanes[kind] += event.lanes.size


@dataclass(frozen=True)
class Counted:
    """One run of steps on the simulator: buffers after it, counters, tally."""

    buffers: Mapping[str, np.ndarray]
    seen: Counters
    tally: Tally

    def on_lines(self, kernel: str, first: str, last: str, name: str) -> int:
        """Return a counter's sum over the kernel's lines from `first` to `last`, given as text."""
        by_line = self.seen.by_line
        return sum(by_line[at][name] for at in line_numbers(kernel, first, last) if at in by_line)


def count(
    numbers: Sequence[int], buffers: Mapping[str, np.ndarray], scale: float = 1.0, **given
) -> Counted:
    """Run steps of the ladder on the simulator and count.

    numbers: of the steps; buffers: as for run_steps, q (BH, n, d), k and v (BH, m, d), scores s
    (BH, n, m), which is copied before a step writes it. given: problem and options, as there.
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
    """The values of a warp's lanes before a butterfly and after each of its steps.

    offsets: (steps,) distance of the partner; values: (steps + 1, 32).
    """

    offsets: tuple[int, ...]
    values: np.ndarray


def exchange(recording: Recording, function: str) -> Exchange:
    """Return the butterfly of the first call of `function`, "warp_max" or "warp_sum", in a trace.

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
            offsets += [one for one in offset["values"][:1] if one and one < WARP]
    if not offsets or len(rows) <= len(offsets) or np.isnan(rows[0]).any():
        raise InputError(f"the trace of {recording.kernel} has no whole call of {function}")
    return Exchange(tuple(offsets), np.array(rows[: len(offsets) + 1]))
