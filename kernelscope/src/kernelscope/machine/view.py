"""The view of a chunk that observers are given: the only code that knows both."""

from collections.abc import Iterator

import numpy as np
from kernelscope.events import Access, CallSite, MachineView, MatrixProduct, PhaseUse
from kernelscope.ptx.syntax import Immediate, Instruction, Register, Vector

from .barriers.mbarriers import unpack_state


class ChunkView(MachineView):
    """The MachineView of one Chunk."""

    def __init__(self, chunk):
        self._chunk, self._kernel = chunk, chunk.kernel
        self.first_block, self.block_count = chunk.first_block, chunk.block_count
        self.warps_per_block, self.alive = chunk.lanes.warps_per_block, chunk.lanes.alive
        self.clustered = chunk.cluster.block_of_rank.shape[1] > 1
        self.cluster_of_block, self.cluster_arrivals = chunk.cluster.of_block, chunk.cluster.phase
        self._sites: dict[CallSite, object] = {}  # -> the Instance, in the order they were met
        self._of_instance: dict[int, CallSite] = {}  # by the id of the Instance
        self._in_order: tuple[CallSite, ...] = ()
        self._having: dict[int, list[CallSite]] = {}  # id of an instruction -> its call sites
        self._lines: dict[tuple[int, int], int] = {}  # (id of site, of instruction) -> line

    @property
    def shuffle_sources(self) -> np.ndarray | None:
        found, count = self._chunk.warps.sources, np.size(self._chunk.warps.reads_inactive)
        return None if found is None else np.resize(found, count)

    @property
    def reads_inactive(self) -> np.ndarray | None:
        return self._chunk.warps.reads_inactive

    @property
    def phase_use(self) -> PhaseUse | None:
        return self._chunk.mbarriers.use

    @property
    def matrix_product(self) -> MatrixProduct | None:
        return self._chunk.matrices.last_product()

    # -- memory ---------------------------------------------------------------------------------
    def memory(self, space: str) -> np.ndarray:
        memory = self._chunk.memory
        parts = {"global": memory.globals, "shared": memory.shared, "local": memory.local}
        return parts[space].bytes

    @property
    def local_bytes(self) -> int:
        return self._chunk.memory.local_size

    def mbarrier(self, block: int, address: int) -> tuple[int, int, int, int]:
        start = block * self._chunk.cluster.shared_stride + address
        words = self._chunk.mbarriers.words[start >> 3 : (start >> 3) + 1]
        return tuple(int(field[0]) for field in unpack_state(words))

    def bytes_under_way(self, block: int, address: int) -> int:
        word = block * self._chunk.cluster.shared_stride + address >> 3
        pending = self._chunk.mbarriers.arrivals.pending
        return sum(one.size * int((one.mbarrier == word).sum()) for one in pending)

    def by_space(self, addresses: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        return self._chunk.memory.space_parts(addresses)

    # -- code and values ------------------------------------------------------------------------
    @property
    def call_sites(self) -> tuple[CallSite, ...]:
        instances = self._kernel.instances
        if len(instances) != len(self._in_order):
            sites = dict(self._of_instance)
            for instance in instances.values():  # callers come before what they call
                if id(instance) not in sites:
                    caller, call = instance.called_from or (None, None)
                    places = instance.places.items()
                    frame = {name: at for name, (space, at) in places if space == "local"}
                    site = CallSite(instance.function, sites.get(id(caller)), call, frame)
                    sites[id(instance)], self._sites[site] = site, instance
            self._of_instance = sites
            self._in_order = tuple(sites[id(one)] for _, one in sorted(instances.items()))
            self._having.clear()
        return self._in_order

    def _sites_having(self, instruction: Instruction) -> list[CallSite]:
        sites = self.call_sites
        if id(instruction) not in self._having:
            self._having[id(instruction)] = [site for site in sites if site.has(instruction)]
        return self._having[id(instruction)]

    def running(self, instruction: Instruction, lanes: int) -> list[CallSite]:
        found = self._sites_having(instruction)
        if len(found) < 2:
            return found
        block = self._chunk.reports.block
        now = self.site_of(block.instance) if block is not None else None
        if now in found:
            return [now]
        return [site for site in found if self._has_registers(site, lanes)] or found

    def _has_registers(self, site: CallSite, lanes: int) -> bool:
        """Are there registers of this call site for exactly the active lanes?"""
        R = self._chunk.lanes.R
        slots = [slot for slot in self._sites[site].slots.values() if slot < len(R)]
        return any(isinstance(R[slot], np.ndarray) and R[slot].size == lanes for slot in slots)

    def callee(self, caller: CallSite | None, at: int, instruction: Instruction) -> CallSite | None:
        if caller is None:
            return self.call_sites[0]
        having = self._sites_having(instruction)
        outer = self._sites[caller]
        path = outer.key(at)
        here = [one for one in having if self._sites[one].prefix[: len(path)] == path]
        # The call sites of a recursive function are shared: its frame tells whose callee it is.
        shared = [one for one in having if self._sites[one].base == outer.frame_end]
        return next(iter(here or shared), None)

    def lines_of(self, instruction: Instruction, lanes: int | None = None) -> list[int]:
        if lanes is None:
            sites = self._sites_having(instruction)
        else:
            sites = self.running(instruction, lanes)
        return [self.line_at(site, instruction) for site in sites]

    def site_of(self, instance) -> CallSite:
        """Return the call site of a function of the machine."""
        known = self._of_instance.get(id(instance))
        return known or self.call_sites and self._of_instance[id(instance)]

    def line_at(self, site: CallSite, instruction: Instruction) -> int:
        key = id(site), id(instruction)
        if key not in self._lines:
            line, program = 0, self._kernel.program
            while site is not None and not line:
                line = program.own_line(instruction)
                line = line or program.call_line(site.function.name, instruction)
                before = site.function.body[instruction.index :: -1]
                line = line or next(filter(None, map(program.own_line, before)), 0)
                site, instruction = site.caller, site.call
            self._lines[key] = line
        return self._lines[key]

    def register(self, site: CallSite, name: str) -> np.ndarray | np.generic | None:
        slot, R = self._sites[site].slots.get(name), self._chunk.lanes.R
        return R[slot] if slot is not None and slot < len(R) else None

    def operand(self, instruction: Instruction, operand, lanes: int):
        if isinstance(operand, Immediate):
            return np.uint64(int(operand.value) & (1 << 64) - 1)
        sites = self.running(instruction, lanes)
        if len(sites) != 1 or not isinstance(operand, Register):
            return None
        value = self.register(sites[0], operand.name)
        return value if value is not None and np.size(value) in (1, lanes) else None

    def stored(self, instruction: Instruction, access: Access, lanes: int) -> np.ndarray | None:
        operands = instruction.operands
        if len(operands) < 2 or access.lanes.size != lanes:
            return None
        if instruction.opcode.startswith(("wmma.", "stmatrix.")):  # other lanes' registers
            return None
        items = operands[1].items if isinstance(operands[1], Vector) else operands[1:2]
        width = access.size // len(items)
        columns = []
        for item in items:
            value = self.operand(instruction, item, lanes)
            if value is None:
                return None
            bits = np.broadcast_to(np.asarray(value), (lanes,))
            raw = np.ascontiguousarray(bits).view(np.uint8).reshape(lanes, -1)
            if raw.shape[1] < width:
                return None
            columns.append(raw[:, :width])  # little-endian: a narrow store takes the low bytes
        return np.concatenate(columns, axis=1)
