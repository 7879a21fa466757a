"""How many instructions of the tensor cores an mma or wmma.mma becomes."""

import re

_SHAPE = re.compile(r"m(\d+)n(\d+)k\d+$")
_FLOAT8 = {"e4m3", "e5m2"}
_SUMS = 128  # of one machine instruction: 16 rows, 8 columns


def tensor_instructions(parts: list[str]) -> int:
    """Return the machine instructions of sm_90 that the parts of an opcode stand for.

    One computes 16 x 8 sums or fewer: wmma.m16n16k16 is two. Products of 8-bit floats are split
    along k in two, since mma has no unit for them on sm_90. (Seen in the machine code of ptxas
    13.0.)
    """
    if parts[0] not in ("mma", "wmma") or parts[0] == "wmma" and parts[1] != "mma":
        return 0
    shape = next(filter(None, map(_SHAPE.match, parts)), None)
    if shape is None:
        return 1
    m, n = map(int, shape.groups())
    return max(1, m * n // _SUMS) * (2 if _FLOAT8 & set(parts) else 1)
