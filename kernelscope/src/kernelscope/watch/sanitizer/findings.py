"""Findings: what the sanitizer reports, merged so that one mistake is one entry."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np
from kernelscope.events import Buffer, InstructionEvent, Launch, place_in
from kernelscope.ptx.c_types import dtype_of
from kernelscope.ptx.debug_names import shared_arrays
from kernelscope.ptx.source_module import SourceModule

from .elements import NOWHERE, Array, Element, element

REMEDIES = {
    "out-of-bounds": "guard the access with a bounds check, or fix the index",
    "misaligned": "use an address that is a multiple of the access size, or a narrower type",
    "read-only": "write to memory that kernels may change; __constant__ memory is set by the host, "
    "before the launch",
    "uninitialised-read": "write the element before it is read",
    "race": "put a barrier between the two accesses, or make them atomic",
    "divergent-barrier": "move the barrier out of the branch, so that every thread of the block "
    "reaches the same one",
    "bad-launch": "change the launch, or the kernel's constants, to what the device allows",
}
KINDS = tuple(REMEDIES)
MAX_THREADS = 8  # threads named by one finding
MAX_CALLS = 2  # calls whose text a finding shows

Thread = tuple[tuple[int, int, int], tuple[int, int, int]]  # ((block x, y, z), (thread x, y, z))


@dataclass(frozen=True)
class Finding:
    """One mistake at one place.

    Attributes:
        kind: one of KINDS.
        line: line of the kernel's own file; 0 where the compiler gives none.
        message: a sentence for people.
        threads: up to 8 of the threads concerned, each ((block x, y, z), (thread x, y, z)).
        array: the array's name in the source, or "".
        index: element of the array. An int where it has one dimension, or where only its bytes are
            known (then elements as wide as the access, 4 bytes at most). A tuple where the source
            or the caller's NumPy array gives several extents, one number each, as they would be
            subscripted; of a vector type such as float4 the last one is the member (0: x). Past
            the end the first number is the one outside. None for what is no array.
        severity: "error", or "warning" where the result does not depend on it.
        line_text: the source line.
        valid_range: the elements the array has: "elements 0 to 255 of s", or with several
            extents "tile[0..31][0..32]".
        remedy: the usual fix.
        count: how often it was seen, in accesses of single threads; a barrier's in blocks.
        other_line: line of the earlier access of a race, or where the block ended whose memory
            it is; 0 elsewhere.
        header: "name:line `text`" of the place in a header that `line` leads to; "" elsewhere.
        called: "line N `text`" of the call of the function that `line` is in; calls joined by "or"
            where it is not known which of those that were made; "" in the kernel itself.
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
    header: str = ""
    called: str = ""

    def __str__(self) -> str:
        text = [f"{self.severity}: {self.kind}, line {self.line}: {self.line_text}".rstrip(": ")]
        if self.header:
            text.append(f"  in {self.header}")
        if self.called:
            text.append(f"  called from {self.called}")
        text.append(f"  {self.message}" + (f" ({self.count} times)" if self.count > 1 else ""))
        text.append(f"  remedy: {self.remedy}")
        return "\n".join(text)


class Findings:
    """The findings of a run in the order of their first sight, equal ones counted together."""

    def __init__(self):
        self._found: dict[tuple, Finding] = {}
        self.source_lines: tuple[str, ...] = ()
        self.source: SourceModule | None = None  # whose language messages speak
        self.line, self.header = 0, ""  # of the instruction that is running
        self.event: InstructionEvent | None = None  # its event

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, key: tuple) -> bool:
        return key in self._found

    def has(self, key: tuple, count: int) -> bool:
        """Count `count` more of a known finding; return False when it is not known."""
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
        remedy = finding.remedy or REMEDIES.get(finding.kind, "")
        in_words = self.source.in_words if self.source else str
        self._found[key] = replace(
            finding,
            message=in_words(finding.message),
            line_text=finding.line_text or text,
            header=finding.header or (self.header if finding.line == self.line else ""),
            called=finding.called or (self.called() if finding.line == self.line else ""),
            remedy=in_words(remedy),
        )

    def called(self) -> str:
        """The calls of the function that is running."""
        if self.event is None:
            return ""
        machine, instruction = self.event.machine, self.event.instruction
        sites = machine.running(instruction, self.event.lanes.size)
        calls = {machine.line_at(one.caller, one.call) for one in sites if one.caller is not None}
        return self.calls(calls - {self.line})

    def calls(self, lines: set[int]) -> str:
        """Return the text of calls on these lines, 0 aside, for a finding's `called`."""
        numbers = sorted(lines - {0})
        if len(numbers) > MAX_CALLS:
            return f"one of the lines {', '.join(map(str, numbers))}"
        texts = [(n, self.source_lines[n - 1 : n]) for n in numbers]
        return " or ".join(f"line {n} `{text[0].strip()}`" for n, text in texts if text)


def key_of(kind: str, line: int, array: str, severity: str = "error") -> tuple:
    """Return the fields that make two findings the same."""
    return kind, line, array, severity


class Naming:
    """Names of arrays and threads of one launch, for the findings that it adds."""

    def __init__(self, launch: Launch, findings: Findings):
        self.launch, self.findings = launch, findings
        self.per_block = 32 * launch.warps
        self.buffers = {
            space: [b for b in launch.buffers if b.space == space and b.size]
            for space in ("global", "shared")
        }

    @cached_property
    def declared(self) -> dict:
        """Arrays of the source by name, with their extents; see debug_names.shared_arrays."""
        source, sizes = self.launch.source, self.launch.shared_sizes
        return shared_arrays(source, sizes) if source else {}

    def buffer(self, space: str, address: int) -> Buffer | None:
        """Return the smallest buffer of the space that holds the byte address."""
        holding = [b for b in self.buffers.get(space, ()) if b.start <= address < b.start + b.size]
        return min(holding, key=lambda b: b.size, default=None)

    def array(self, buffer: Buffer, size: int) -> Array:
        """Return a buffer with the type and extents of its declaration, where it has one.

        size: the width of an access in bytes, for those whose elements nothing is known of.
        """
        item = buffer.dtype.itemsize if buffer.dtype is not None else min(size, 4)
        variable = buffer.space == "shared" or not buffer.shape
        known = self.declared.get(buffer.name) if variable else None
        if known is None:
            shape = tuple(buffer.shape)
            return Array(
                buffer.name, buffer.start, buffer.size, item, shape, strided=buffer.strided
            )
        item = dtype_of(known.dtype).itemsize
        shape = known.shape
        if shape and shape[0] < 0:  # the launch decides
            shape = (buffer.size // (item * prod(shape[1:])), *shape[1:])
        return Array(buffer.name, buffer.start, buffer.size, item, shape, known.members)

    def element(self, space: str, address: int, size: int) -> Element:
        """Return the element at a byte address; `size` is the access's width in bytes."""
        buffer = self.buffer(space, address)
        if buffer is None:
            name = f"{space} memory"
            return Element(name, address, f"{name}[{address}]", "")
        return element(self.array(buffer, size), address)

    def thread(self, lane: int) -> Thread:
        """Return the thread of a lane, counted through the grid."""
        block, thread = divmod(int(lane), self.per_block)
        return place_in(block, self.launch.grid), place_in(thread, self.launch.block)

    def who(self, lane: int) -> str:
        return describe_thread(self.thread(lane))

    def threads(self, lanes) -> tuple[Thread, ...]:
        return tuple(self.thread(lane) for lane in np.unique(lanes)[:MAX_THREADS])

    def finding(
        self, kind, line: int, text: str, lanes, where: Element = NOWHERE, **more
    ) -> Finding:
        """Return a finding about lanes, counted through the grid, at an element of an array.

        count: how many lanes, unless `more`, the finding's other fields, says something else.
        """
        more = {"count": int(lanes.size), "valid_range": where.valid} | more
        return Finding(kind, line, text, self.threads(lanes), where.array, where.index, **more)

    def report(self, *about, **more) -> None:
        """Add a finding; arguments as of `finding`."""
        self.findings.add(self.finding(*about, **more))


def describe_thread(thread: Thread) -> str:
    return f"block {thread[0]}, thread {thread[1]}"
