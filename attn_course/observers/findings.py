"""Findings: what the sanitizer reports, merged so that one mistake is one entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..events import Buffer, Launch

KINDS = (
    "out-of-bounds", "misaligned", "uninitialised-read", "race", "divergent-barrier", "bad-launch",
)  # fmt: skip
REMEDIES = {
    "out-of-bounds": "guard the access with a bounds check, or mend the index",
    "misaligned": "use an address that is a multiple of the access size, or a narrower type",
    "uninitialised-read": "write the element before it is read",
    "race": "put a barrier between the two accesses, or make them atomic",
    "divergent-barrier": "move the barrier out of the branch, so that every thread of the block "
    "reaches the same one",
    "bad-launch": "change the launch, or the kernel's constants, to what the device allows",
}
MAX_THREADS = 8  # threads named by one finding

Thread = tuple[tuple[int, int, int], tuple[int, int, int]]  # ((block x, y, z), (thread x, y, z))


@dataclass(frozen=True)
class Finding:
    """One mistake at one place.

    Attributes:
        kind: one of KINDS.
        line: line of the kernel's own file; 0 where the compiler gives none.
        message: a sentence for a learner.
        threads: up to 8 of the threads concerned, each ((block x, y, z), (thread x, y, z)).
        array: the array's name in the source, or "".
        index: element of the array, an int, a tuple where its shape is known, or None.
        severity: "error", or "warning" where the result does not depend on it.
        line_text: the source line.
        valid_range: the elements the array has, in words.
        remedy: what usually mends it.
        count: how often it was seen, in accesses of single threads; a barrier's in blocks.
        other_line: line of the earlier access of a race; 0 elsewhere.
    """

    kind: str
    line: int
    message: str
    threads: tuple[Thread, ...] = ()
    array: str = ""
    index: object = None
    severity: str = "error"
    line_text: str = ""
    valid_range: str = ""
    remedy: str = ""
    count: int = 1
    other_line: int = 0

    def __str__(self) -> str:
        text = [f"{self.severity}: {self.kind}, line {self.line}: {self.line_text}".rstrip(": ")]
        text.append(f"  {self.message}" + (f" ({self.count} times)" if self.count > 1 else ""))
        text.append(f"  remedy: {self.remedy}")
        return "\n".join(text)


class Findings:
    """The findings of a run in the order of their first sight, equal ones counted together."""

    def __init__(self):
        self._found: dict[tuple, Finding] = {}
        self.source_lines: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)

    def has(self, key: tuple, count: int) -> bool:
        """Count `count` more of a finding that is there already; False when it is not."""
        known = self._found.get(key)
        if known is None:
            return False
        self._found[key] = replace(known, count=known.count + count)
        return True

    def add(self, finding: Finding) -> None:
        """Add a finding, or count it where the same kind, line and array was found before."""
        key = key_of(finding.kind, finding.line, finding.array, finding.severity)
        if self.has(key, finding.count):
            return
        inside = 0 < finding.line <= len(self.source_lines) and finding.kind != "bad-launch"
        text = self.source_lines[finding.line - 1].strip() if inside else ""
        self._found[key] = replace(
            finding,
            line_text=finding.line_text or text,
            remedy=finding.remedy or REMEDIES.get(finding.kind, ""),
        )


def key_of(kind: str, line: int, array: str, severity: str = "error") -> tuple:
    """What makes two findings the same."""
    return kind, line, array, severity


class Naming:
    """Names of arrays and threads of one launch."""

    def __init__(self, launch: Launch):
        self.launch = launch
        self.per_block = 32 * launch.warps
        self.buffers = {
            space: [b for b in launch.buffers if b.space == space and b.size]
            for space in ("global", "shared")
        }

    def buffer(self, space: str, address: int) -> Buffer | None:
        """The smallest buffer of the space that holds the byte address."""
        holding = [
            b for b in self.buffers.get(space, ()) if b.start <= address < b.start + b.size
        ]
        return min(holding, key=lambda b: b.size, default=None)

    def element(self, space: str, address: int, size: int) -> tuple[str, object, str]:
        """(array name, index, valid range) of the byte address; `size` is the access's width."""
        buffer = self.buffer(space, address)
        if buffer is None:
            return f"{space} memory", address, ""
        item = buffer.dtype.itemsize if buffer.dtype is not None else min(size, 4)
        flat, count = (address - buffer.start) // item, max(buffer.size // item, 1)
        shape = tuple(buffer.shape)
        if len(shape) > 1 and int(np.prod(shape)) == count:
            index = tuple(int(i) for i in np.unravel_index(flat, shape))
            return buffer.name, index, f"{buffer.name} has shape {shape}"
        return buffer.name, flat, f"elements 0 to {count - 1} of {buffer.name}"

    def thread(self, lane: int) -> Thread:
        """The thread of a lane, counted through the whole grid."""
        block, thread = divmod(int(lane), self.per_block)
        return _unravel(block, self.launch.grid), _unravel(thread, self.launch.block)

    def threads(self, lanes) -> tuple[Thread, ...]:
        return tuple(self.thread(lane) for lane in np.unique(lanes)[:MAX_THREADS])


def subscript(array: str, index: object) -> str:
    """tile, (3, 5) -> 'tile[3][5]'."""
    if index is None:
        return array
    parts = index if isinstance(index, tuple) else (index,)
    return array + "".join(f"[{part}]" for part in parts)


def describe_thread(thread: Thread) -> str:
    return f"block {thread[0]}, thread {thread[1]}"


def _unravel(number: int, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    return number % shape[0], number // shape[0] % shape[1], number // (shape[0] * shape[1])
