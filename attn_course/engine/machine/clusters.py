"""Thread block clusters: blocks that meet at a barrier and read each other's shared memory.

In a shared::cluster address the bits from CLUSTER_SHIFT on hold the block's rank plus one; a plain
shared address, with zeros there, is the thread's own block's.
"""

from __future__ import annotations

import numpy as np

from attn_course.engine.events import CLUSTER_BARRIER
from attn_course.engine.translate.control_flow import LANE, Block, Key

from .barriers import Waiting
from .memory import CLUSTER_SHIFT


class Clusters:
    """Mixed into Chunk. `cluster_phase` counts the arrivals of each lane at the cluster barrier."""

    def start_clusters(self) -> None:
        blocks = self.first_block + np.arange(self.block_count)
        cluster, self.rank_of_block = self.run_.cluster_ranks(blocks)
        self.cluster_of_block = np.unique(cluster, return_inverse=True)[1]
        shape = (int(self.cluster_of_block.max()) + 1, int(self.rank_of_block.max()) + 1)
        self.block_of_rank = np.zeros(shape, np.int64)
        self.block_of_rank[self.cluster_of_block, self.rank_of_block] = np.arange(self.block_count)
        self.cluster_phase = np.zeros(self.alive.size, np.int64)  # by lane id

    # -- shared memory of other blocks ----------------------------------------------------------
    def names_block(self, address: int) -> bool:
        """May a shared address name a block of the cluster? Without clusters there is but one."""
        return self.block_of_rank.shape[1] > 1 or address >> CLUSTER_SHIFT == 1

    @staticmethod
    def map_address(address, rank):
        """mapa: where `address` of shared memory is in the cluster's block `rank`."""
        kind = address.dtype.type
        own = address & kind(~(0xFF << CLUSTER_SHIFT) & (1 << 8 * address.dtype.itemsize) - 1)
        return own | (rank.astype(kind) + kind(1)) << kind(CLUSTER_SHIFT)

    def rank_of_address(self, address):
        """getctarank: the block whose shared memory an address is in."""
        bits = (address >> address.dtype.type(CLUSTER_SHIFT)).astype(np.uint32) & np.uint32(0xFF)
        own = self.rank_of_block[self.running_blocks()].astype(np.uint32)
        return np.where(bits == 0, own, bits - np.uint32(1))

    def running_blocks(self) -> np.ndarray:
        """(lanes,) number in the chunk of each running lane's block."""
        return self.R[LANE] // (32 * self.warps_per_block)

    def cluster_base(self, address) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(address in its block, that block's first byte, is there such a block), (lanes,) each."""
        block = self.running_blocks()
        rank = (address >> np.uint64(CLUSTER_SHIFT)).astype(np.int64) - 1
        rank = np.where(rank < 0, self.rank_of_block[block], rank)
        exists = rank < self.block_of_rank.shape[1]
        holder = self.block_of_rank[self.cluster_of_block[block], np.where(exists, rank, 0)]
        inside = address & np.uint64((1 << CLUSTER_SHIFT) - 1)
        return inside, (holder * self.run_.shared_stride).astype(np.uint64), exists

    # -- the cluster barrier --------------------------------------------------------------------
    def cluster_arrive(self) -> None:
        self.cluster_phase[self.R[LANE]] += 1

    def end_cluster_wait(self, block: Block) -> Key | None:
        instruction, fall = block.terminator.instruction, block.terminator.fall
        if self.cluster_passes(self.R[LANE]).all():
            self.tell_barrier(CLUSTER_BARRIER, [(instruction, self.R[LANE])])
            return fall
        self.flush(self.blocks[fall].live_in)
        places = self.all_places()
        number = np.full(places.size, CLUSTER_BARRIER)
        self.waiting.append(
            Waiting(
                places,
                fall,
                block.terminator.action,
                instruction,
                number,
                None,
            )
        )
        return None

    def cluster_passes(self, lanes: np.ndarray) -> np.ndarray:
        """(lanes,) bool: has every thread of the lane's cluster that has not ended arrived too?"""
        per_block = 32 * self.warps_per_block
        living = np.nonzero(self.alive)[0]
        cluster = self.cluster_of_block[living // per_block]
        slowest = np.full(self.block_of_rank.shape[0], np.iinfo(np.int64).max)
        np.minimum.at(slowest, cluster, self.cluster_phase[living])
        return slowest[self.cluster_of_block[lanes // per_block]] >= self.cluster_phase[lanes]
