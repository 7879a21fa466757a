"""setmaxnreg that only some warps of a warp group execute."""

import numpy as np
from kernelscope.events import InstructionEvent, MachineView

from ..findings import Naming

_WARPS = 4  # of a group


class GroupGatherings:
    """How often each warp of a chunk has executed setmaxnreg, and where last."""

    def __init__(self, machine: MachineView, naming: Naming):
        self.machine, self.naming = machine, naming
        warps = machine.block_count * machine.warps_per_block
        self.count, self.line = np.zeros((2, warps), np.int64)

    def meet(self, event: InstructionEvent, line: int) -> None:
        warps = event.active_warps
        self.count[warps] += 1
        self.line[warps] = line

    def finish(self) -> None:
        """The chunk ends: all warps of a group have come to as many of them."""
        each = self.machine.warps_per_block
        for block in range(self.machine.block_count):
            for first in range(0, each, _WARPS):
                group = block * each + np.arange(first, min(first + _WARPS, each))
                count = self.count[group]
                if (count != count[0]).any():
                    here, missing = group[np.argmax(count)], group[count < count.max()]
                    self.report(int(here), missing)

    def report(self, here: int, missing: np.ndarray) -> None:
        lanes = np.array([32 * here]) + self.machine.first_lane
        each = self.machine.warps_per_block
        names = ", ".join(str(one % each) for one in missing.tolist())
        said = (
            f"the warp of {self.naming.who(lanes[0])} executes setmaxnreg, and warp {names} of its "
            "warp group does not: the four warps have to execute the same one"
        )
        remedy = (
            "let the branch depend on threadIdx.x / 128 alone, so that whole warp groups take it"
        )
        line = int(self.line[here])
        self.naming.report("divergent-barrier", line, said, lanes, remedy=remedy)
