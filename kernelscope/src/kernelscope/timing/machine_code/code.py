"""Machine instructions, and the segments of a kernel that they make up."""

from collections.abc import Iterable
from dataclasses import dataclass, field

NO_SCOREBOARD = 7


@dataclass(slots=True)
class Code:
    """One machine instruction.

    name: the opcode's first part; parts: the others; guarded: by a predicate; line: of the source,
    0 where it is of none; stall: clocks until the warp's next instruction; sets, frees: scoreboard
    of its result, and of its operands, 7 for none; waits: bit mask of scoreboards; target: label.
    """

    name: str
    parts: tuple[str, ...]
    operands: str
    guarded: bool
    line: int
    stall: int
    sets: int
    frees: int
    waits: int
    target: str
    again: int = 0  # clocks more until its registers are read: three of one bank
    origin: int = -1  # number of the PTX instruction that it is made of, -1 for none
    called: bool = False  # belongs to a function that is called there
    alone: bool = False  # a fence behind which no store to global memory may be under way

    @property
    def issue(self) -> int:
        """Clocks that it keeps a scheduler from issuing."""
        return 1 + self.again

    @property
    def spent(self) -> int:
        """Clocks until the warp's next instruction."""
        return max(self.stall, self.issue)


@dataclass(slots=True)
class Segment:
    """Instructions that run one after another: a basic block, cut behind barriers of the block.

    follows: numbers of the segments that may come next, the one that falls through first.
    """

    code: list[Code]
    follows: list[int] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class MachineCode:
    """A kernel as ptxas made it, with the functions that it calls in the place of each call.

    registers: of a thread; calls: functions that it calls whose code is not among the segments.
    """

    registers: int
    segments: tuple[Segment, ...]
    calls: tuple[str, ...] = ()


def codes(segments: tuple[Segment, ...]) -> Iterable[tuple[int, Code]]:
    """Every instruction with the number of its segment."""
    for at, segment in enumerate(segments):
        for code in segment.code:
            yield at, code
