"""Counters: what Nsight Compute would count, from the simulator's events.

Definitions are Nsight Compute's; `DESCRIPTIONS` states each. The counts are of PTX instructions:
`div.rn.f32`, `expf` and friends become several machine instructions each, so hardware shows more
`instructions` and, where a division or exponential expands, more FFMA. Global requests and
sectors do not depend on that.
"""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from kernelscope.events import (
    Access,
    AsyncOperation,
    InstructionEvent,
    Launch,
    MachineView,
    Observer,
)
from kernelscope.ptx.source_module import SourceModule
from kernelscope.ptx.syntax import Instruction

from .atomics import INCREMENT, JOINED, served_apart, wavefronts_of_a_pass
from .line_table import KernelLines, LineTable
from .merging import Merge, merges_of
from .patterns import Pattern, TouchedBytes
from .traffic import (
    PIECE_BYTES,
    Lanes,
    count_bulk_sectors,
    count_copied_pieces,
    pieces_of_runs,
)

DESCRIPTIONS = {
    "instructions": "instructions executed, once for each warp with an active lane",
    "thread_instructions": "instructions executed, once for each active lane",
    "ffma_thread_instructions": "float32 fused multiply-adds, once for each active lane",
    "tensor_instructions": "tensor-core instructions of sm_90 for mma, wmma and wgmma, once for "
    "each warp",
    "wgmma_shared_bytes": "bytes of the tiles that wgmma reads from shared memory, once for each "
    "warp group: no shared requests",
    "global_load_requests": "warp-level loads from global memory",
    "global_load_sectors": "distinct 32-byte sectors of each load request, added up",
    "global_store_requests": "warp-level stores to global memory",
    "global_store_sectors": "distinct 32-byte sectors of each store request, added up",
    "shared_load_requests": "warp-level loads from shared memory, joined as ptxas joins them",
    "shared_load_wavefronts": "passes over the 32 banks that the shared loads take",
    "shared_load_conflicts": "those passes beyond the fewest that so wide an access takes",
    "shared_loads_merged": "shared loads that became part of another one's wider load",
    "shared_store_requests": "warp-level stores to shared memory, joined as ptxas joins them",
    "shared_store_wavefronts": "passes over the 32 banks that the shared stores take",
    "shared_store_conflicts": "those passes beyond the fewest that so wide an access takes",
    "shared_stores_merged": "shared stores that became part of another one's wider store",
    "local_load_requests": "warp-level loads from local memory, of the PTX: no spilled registers",
    "local_store_requests": "warp-level stores to local memory, of the PTX: no spilled registers",
    "async_copy_requests": "warp-level cp.async: each is a global load too, but no shared store",
    "bulk_copy_requests": "bulk copies and reductions issued (cp.async.bulk, TMA)",
    "bulk_load_bytes": "bytes of global memory that these read: a multicast once, no fills",
    "bulk_load_sectors": "32-byte sectors of each row of these boxes, or of the copy, added up",
    "bulk_fill_sectors": "32-byte sectors of the values past an array's edges, by row of a box",
    "bulk_store_bytes": "bytes of global memory that bulk copies and reductions write",
    "bulk_store_sectors": "32-byte sectors of each row of these boxes, or of the copy, added up",
    "mbarrier_arrivals": "warp-level arrivals at mbarriers and bytes announced: no shared requests",
    "mbarrier_waits": "warp-level waits at mbarriers and questions of a phase: no shared requests",
    "cluster_shared_requests": "warp-level accesses by way of the cluster: no shared requests",
    "atomic_requests": "warp-level atomics and reductions, global and shared",
    "global_atomic_requests": "warp-level atomics and reductions on global memory",
    "global_atomic_sectors": "32-byte sectors of each of these, again for lanes on one address",
    "shared_atomic_requests": "warp-level atomics and reductions on shared memory",
    "shared_atomic_wavefronts": "wavefronts of these: a bank serves one lane in a pass",
    "shared_atomic_conflicts": "their passes beyond the fewest that so wide an access takes",
    "shuffle_instructions": "shuffles executed, once for each warp",
    "barriers": "block barriers executed, once for each warp",
    "branches": "branch instructions executed, once for each warp",
    "divergent_branches": "of these, executions in which the lanes of a warp went both ways",
    "unique_global_bytes_read": "distinct bytes of global memory read in a launch",
    "unique_global_bytes_written": "distinct bytes of global memory written in a launch",
}
NAMES = tuple(DESCRIPTIONS)
_RECENT = 4  # patterns of other instructions that a new address array is tried against
_PENDING = 64  # patterns that wait to be marked as touched

_SHAPE = re.compile(r"m(\d+)n(\d+)k\d+$")
_FLOAT8 = {"e4m3", "e5m2"}
_TENSOR_SUMS = 128  # of one machine instruction: 16 rows, 8 columns


def tensor_instructions(parts: list[str]) -> int:
    """Return the machine instructions of sm_90 that the parts of an opcode stand for.

    One computes 16 x 8 sums or fewer: wmma.m16n16k16 is two. Split along k in two are products of
    8-bit floats, since mma has no unit for them on sm_90, and those of TF32 of wmma. (Seen in the
    machine code of ptxas 13.0.) A wgmma is one for each of its four warps, whatever its shape.
    """
    if parts[:2] == ["wgmma", "mma_async"]:
        return 1
    if parts[0] not in ("mma", "wmma") or parts[0] == "wmma" and parts[1] != "mma":
        return 0
    shape = next(filter(None, map(_SHAPE.match, parts)), None)
    if shape is None:
        return 1
    m, n = map(int, shape.groups())
    split = _FLOAT8 & {*parts} or parts[0] == "wmma" and "tf32" in parts
    return max(1, m * n // _TENSOR_SUMS) * (2 if split else 1)


@lru_cache(maxsize=4096)
def _counted_as(opcode: str) -> tuple[str, int]:
    """(The counter of an instruction's executions, or lanes, by itself; how many each is of it)."""
    parts = opcode.split(".")
    if parts[0] == "fma" and parts[-1] == "f32":
        return "ffma_thread_instructions", 1
    if parts[0] in ("bar", "barrier") and not {"warp", "cluster"} & set(parts):
        return "barriers", 1
    of_warp = tensor_instructions(parts)
    if of_warp:
        return "tensor_instructions", of_warp
    alone = {"shfl": "shuffle_instructions", "bra": "branches", "brx": "branches"}
    return alone.get(parts[0], ""), 1


class _Row:
    """One instruction's counts. It keeps the instruction alive, whose id is its key."""

    __slots__ = """
        instruction line executions threads counts merge folded copy past_l1 cluster off_chip
        patterns serving mbarrier
    """.split()

    def __init__(self, instruction, line: int, kernel: "_Kernel"):
        self.instruction, self.line = instruction, line
        merges = kernel.merges
        self.serving = kernel.served.get(id(instruction), "")
        self.executions = self.threads = 0
        self.counts: Counter[str] = Counter()
        merge = merges.get(id(instruction), self)
        self.folded = merge is None
        self.merge = merge if isinstance(merge, Merge) else None
        kinds = instruction.opcode.split(".")
        self.copy = kinds[:2] == ["cp", "async"] and "mbarrier" not in kinds
        self.past_l1 = self.copy and "cg" in kinds
        at = kinds.index("mbarrier") + 1 if "mbarrier" in kinds else 0
        self.mbarrier = kinds[at] if at else ""  # of cp.async.mbarrier.arrive too
        self.cluster = "shared::cluster" in kinds
        # Constants and parameters have a cache of their own, which these counters leave out.
        self.off_chip = not instruction.opcode.startswith(("ld.const", "ld.param"))
        self.patterns: dict[tuple[str, int], Pattern] = {}

    def total(self) -> Counter[str]:
        counts = Counter(self.counts)
        counts["instructions"] = self.executions
        counts["thread_instructions"] = self.threads
        name, of_warp = _counted_as(self.instruction.opcode)
        if name:
            by_lanes = name == "ffma_thread_instructions"
            counts[name] = self.threads if by_lanes else of_warp * self.executions
        return counts


@dataclass
class _Kernel:
    """All launches of one kernel of one program."""

    source: SourceModule  # kept, so that its id stays its own
    name: str
    source_name: str
    source_lines: tuple[str, ...]
    build: str
    merges: dict[int, Merge | None]
    served: dict[int, str]
    rows: dict[int, _Row]
    unique: defaultdict[int, Counter]  # line -> unique bytes, added up over finished launches
    unique_totals: Counter
    launches: int = 0


class Counters(Observer):
    """Counts requests, sectors, wavefronts, branches and bytes of the kernels it observes.

    with observe(Counters()) as seen:
        kernel(grid, block, args)
    seen.totals["global_load_sectors"]     # every name of DESCRIPTIONS, ints
    seen.by_line[27]["global_load_sectors"]
    seen.by_line.text(); seen.by_line      # the source with its counts; a table in a notebook
    seen.by_kernel["scores_tiled"].totals

    Several launches add up; distinct bytes are counted for each launch and then added.
    """

    def __init__(self):
        super().__init__()
        self._kernels: dict[tuple[int, str], _Kernel] = {}
        self._current: _Kernel | None = None
        self._bytes: TouchedBytes | None = None
        self._running: Lanes | None = None  # of the last instruction
        self._lanes: Lanes | None = None  # the last that were cut, and those before them
        self._lanes_before: Lanes | None = None
        self._recent: dict[tuple[str, int], list[Pattern]] = {}
        self._pending: dict[int, Pattern] = {}

    # -- results --------------------------------------------------------------------------------
    @property
    def by_kernel(self) -> dict[str, KernelLines]:
        """Kernel name -> its counts; with the file's name where two files share a kernel name."""
        names = Counter(kernel.name for kernel in self._kernels.values())
        found = {}
        for kernel in self._kernels.values():
            name = kernel.name
            if names[name] > 1:
                name = f"{name} ({kernel.source_name}, {len(found) + 1})"
            found[name] = self._lines_of(kernel)
        return found

    @property
    def totals(self) -> dict[str, int]:
        """Every counter of DESCRIPTIONS over all launches."""
        total = Counter()
        for kernel in self.by_kernel.values():
            total.update(kernel.totals)
        return {name: total[name] for name in NAMES}

    @property
    def by_line(self) -> LineTable:
        """Source line -> its counts, for every kernel seen."""
        return LineTable(tuple(self.by_kernel.values()))

    def __str__(self) -> str:
        return self.by_line.text()

    def _repr_html_(self) -> str:
        return self.by_line._repr_html_()

    def _lines_of(self, kernel: _Kernel) -> KernelLines:
        lines: dict[int, Counter] = defaultdict(Counter)
        for row in kernel.rows.values():
            lines[row.line].update(row.total())
        for line, counts in kernel.unique.items():
            lines[line].update(counts)
        unique = Counter(kernel.unique_totals)
        if kernel is self._current and self._bytes is not None:  # a launch that was cut short
            self._mark_pending()
            unique.update(self._unique_bytes(None))
            for line in lines:
                lines[line].update(self._unique_bytes(line))
        totals = Counter()
        for counts in lines.values():
            totals.update({k: v for k, v in counts.items() if not k.startswith("unique")})
        totals.update(unique)
        return KernelLines(
            kernel.name,
            kernel.source_name,
            kernel.source_lines,
            kernel.build,
            kernel.launches,
            {name: totals[name] for name in NAMES},
            {at: {name: lines[at][name] for name in NAMES} for at in sorted(lines)},
        )

    # -- launches -------------------------------------------------------------------------------
    def launch_started(self, launch: Launch) -> None:
        self._finish()
        key = (id(launch.source), launch.kernel)
        if key not in self._kernels:
            self._kernels[key] = _Kernel(
                launch.source,
                launch.kernel,
                launch.source_name,
                launch.source_lines,
                launch.build,
                merges_of(launch),
                served_apart(launch),
                {},
                defaultdict(Counter),
                Counter(),
            )
        self._current = self._kernels[key]
        self._current.launches += 1
        self._block_lanes = 32 * launch.warps  # lane ids of a block
        arrays = [b for b in launch.buffers if b.space == "global"]
        self._bytes = TouchedBytes((b.start, b.start + b.size) for b in arrays)

    def chunk_finished(self, machine: MachineView) -> None:
        self._mark_pending()

    def launch_finished(self, launch: Launch) -> None:
        self._finish()

    def _finish(self) -> None:
        """Count the launch's unique bytes and let its addresses go."""
        if self._bytes is not None:
            self._mark_pending()
            self.bytes_touched(self._bytes)
            self._current.unique_totals.update(self._unique_bytes(None))
            for line in {at for at, _ in self._bytes.maps}:
                self._current.unique[line].update(self._unique_bytes(line))
            for row in self._current.rows.values():
                row.patterns.clear()
        self._bytes = self._running = self._lanes = self._lanes_before = None
        self._recent.clear()

    def rows_of(self, launch: Launch) -> list[tuple[Instruction, int, int, Counter, bool]]:
        """(instruction, line, executions by warps, counts, merged into another) of a kernel."""
        rows = self._kernels[id(launch.source), launch.kernel].rows.values()
        return [(r.instruction, r.line, r.executions, r.total(), r.folded) for r in rows]

    def _mark_pending(self) -> None:
        for pattern in self._pending.values():
            self._bytes.mark(pattern)
        self._pending.clear()

    def bytes_touched(self, touched: TouchedBytes) -> None:
        """Hear of the bytes that a launch has touched, at its end; for subclasses."""

    def _unique_bytes(self, line: int | None) -> dict[str, int]:
        return {
            f"unique_global_bytes_{how}": self._bytes.count(how, line)
            for how in ("read", "written")
        }

    # -- instructions ---------------------------------------------------------------------------
    def instruction(self, event: InstructionEvent) -> None:
        row = self._current.rows.get(id(event.instruction))
        if row is None:
            row = self._row(event.instruction, event.line)
        self._running = lanes = self._cut(event.lanes)
        row.executions += lanes.warps
        row.threads += lanes.size
        if event.accesses:
            if row.copy:
                self._copy(row, event.accesses, lanes.warps)
            else:
                for access in event.accesses:
                    self._access(row, access)
        if event.taken is not None and np.ndim(event.taken):
            row.counts["divergent_branches"] += lanes.mixed(event.taken)

    def async_issued(self, operation: AsyncOperation, machine: MachineView) -> None:
        """Count a bulk copy's global memory, and what wgmma reads of shared memory.

        A further block of a multicast reads nothing.
        """
        row = self._row(operation.instruction, operation.line)
        if operation.completion == "wgmma_group":
            read = sum(access.address.size * access.size for access in operation.accesses)
            row.counts["wgmma_shared_bytes"] += read
            return
        if operation.completion not in ("mbarrier", "bulk_group"):
            return
        kinds = {access.kind for access in operation.accesses}
        row.counts["bulk_copy_requests"] += "load" in kinds
        for access in operation.accesses:
            if access.space == "global":
                way, how = ("load", "read") if access.kind == "load" else ("store", "written")
                address = pieces_of_runs(access.address, access.size)
                size = min(access.size, PIECE_BYTES)
                sectors, fills = count_bulk_sectors(address, size, operation.box, operation.rows)
                row.counts[f"bulk_{way}_bytes"] += size * address.size
                row.counts[f"bulk_{way}_sectors"] += sectors
                row.counts["bulk_fill_sectors"] += fills if way == "load" else 0
                self._bytes.touch(row.line, how, address, size)
                if access.kind == "atomic":
                    self._bytes.touch(row.line, "read", address, size)

    def _row(self, instruction: Instruction, line: int) -> _Row:
        """The counts of an instruction."""
        rows = self._current.rows
        row = rows.get(id(instruction))
        if row is None:
            row = rows[id(instruction)] = _Row(instruction, line, self._current)
        return row

    def _cut(self, lanes: np.ndarray) -> Lanes:
        found = self._lanes
        if found is None or found.lanes is not lanes:
            # a guarded access has lanes of its own; behind it come those of all again
            found = self._lanes_before
            if found is None or found.lanes is not lanes:
                found = Lanes(lanes)
            self._remember(found)
        return found

    def _remember(self, lanes: Lanes) -> None:
        self._lanes, self._lanes_before = lanes, self._lanes

    def _access(self, row: _Row, access: Access) -> None:
        address, lanes = access.address, access.lanes
        if access.valid is not None:  # refused accesses never reach memory
            address, lanes = address[access.valid], lanes[access.valid]
        if not lanes.size or not row.off_chip:
            if lanes.size:
                self._constant(row, address, lanes)
            return
        requests = self._cut(lanes).warps
        if row.mbarrier:
            if row.mbarrier not in ("init", "inval"):
                kind = "waits" if row.mbarrier.endswith("wait") else "arrivals"
                row.counts[f"mbarrier_{kind}"] += requests
            return
        if access.space == "local":
            row.counts[f"local_{access.kind}_requests"] += requests
            return
        if access.kind == "atomic":
            row.counts["atomic_requests"] += requests
            if row.serving == JOINED:
                first = self._cut(lanes).starts(32)
                address, lanes = address[first], lanes[first]
        if access.space == "global":
            self._global(row, access, address, lanes, requests)
        else:
            self._shared(row, access, address, lanes, requests)

    def _copy(self, row: _Row, accesses: tuple[Access, ...], requests: int) -> None:
        """cp.async: a load from global memory; its way into shared memory is no store."""
        row.counts["async_copy_requests"] += requests
        by_space = {access.space: access for access in accesses}
        read, written = by_space.get("global"), by_space["shared"]
        if read is None:  # zeros only
            return
        before = row.counts["global_load_sectors"]
        self._access(row, read)
        if not row.past_l1:
            return
        kept = slice(None) if read.valid is None else read.valid
        address, lanes = read.address[kept], read.lanes[kept]
        if lanes.size:
            into = written.address[np.searchsorted(written.lanes, lanes)]
            pieces = count_copied_pieces(self._cut(lanes), address, into)
            row.counts["global_load_sectors"] = before + pieces

    def _global(self, row: _Row, access: Access, address, lanes, requests: int) -> None:
        pattern, delta = self._pattern(row, access, address, lanes)
        found = pattern.atomic_sectors if access.kind == "atomic" else pattern.sectors
        row.counts[f"global_{access.kind}_requests"] += requests
        row.counts[f"global_{access.kind}_sectors"] += found(delta)
        if access.kind != "store":
            pattern.touch(row.line, "read", access.size, delta)
        if access.kind != "load":
            pattern.touch(row.line, "written", access.size, delta)
        self._pending[id(pattern)] = pattern
        if len(self._pending) > _PENDING:
            self._mark_pending()

    def _constant(self, row: _Row, address, lanes) -> None:
        """A load of constants or parameters; for subclasses."""

    def _shared(self, row: _Row, access: Access, address, lanes, requests: int) -> None:
        if row.cluster:
            row.counts["cluster_shared_requests"] += requests
            address, lanes = self._at_home(access, address, lanes)
            requests = 0  # what goes to other blocks passes over their banks, and is not counted
            if not lanes.size:
                return
        if row.folded:
            row.counts[f"shared_{access.kind}s_merged"] += requests
            return
        pattern, delta = self._pattern(row, access, address, lanes)
        size = access.size
        if row.merge is not None:
            delta, size = delta + row.merge.start, row.merge.size
        kind = "store" if row.serving == INCREMENT else access.kind  # lanes of a word go together
        passes, minimum = pattern.wavefronts(delta, size, kind)
        waves = wavefronts_of_a_pass(row.instruction.opcode) if access.kind == "atomic" else 1
        row.counts[f"shared_{access.kind}_requests"] += requests
        row.counts[f"shared_{access.kind}_wavefronts"] += waves * passes
        row.counts[f"shared_{access.kind}_conflicts"] += passes - minimum

    def _at_home(self, access: Access, address, lanes) -> tuple[np.ndarray, np.ndarray]:
        """The part of an access by way of the cluster that stays in the lanes' own block."""
        if access.block is None:
            return address, lanes
        holder = access.block if access.valid is None else access.block[access.valid]
        own = holder == lanes // self._block_lanes
        return address[own], lanes[own]

    def _pattern(self, row: _Row, access: Access, address, lanes) -> tuple[Pattern, int]:
        """A known pattern and how far these addresses are moved from it, or a new pattern."""
        key = (access.space, access.size)
        own = row.patterns.get(key)
        recent = self._recent.setdefault(key, [])
        for pattern in (own, *recent) if own is not None else recent:
            delta = pattern.delta(lanes, address)
            if delta is not None:
                row.patterns[key] = pattern
                return pattern, delta
        pattern = Pattern(self._cut(lanes), address)
        row.patterns[key] = pattern
        recent.insert(0, pattern)
        del recent[_RECENT:]
        return pattern, 0
