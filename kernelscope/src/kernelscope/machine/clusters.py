"""Thread block clusters: blocks that meet at a barrier and read each other's shared memory.

In a shared::cluster address the bits from CLUSTER_SHIFT on hold the block's rank plus one; a plain
shared address, with zeros there, is in the thread's own block.
"""

import numpy as np
from kernelscope.translate.control_flow import LANE

from ..addresses import CLUSTER_SHIFT
from .lanes import ChunkLanes


class Cluster:
    """The clusters of a chunk's blocks, which are numbered in the chunk.

    of_block, rank_of_block: (blocks,) cluster, and rank in it; block_of_rank: (clusters, ranks).
    phase: (lane ids,) how often each lane has arrived at the barrier of its cluster.
    """

    def __init__(self, run, lanes: ChunkLanes):
        self.lanes, self.shared_stride = lanes, run.shared_stride
        blocks = lanes.first_block + np.arange(lanes.block_count)
        cluster, self.rank_of_block = run.cluster_ranks(blocks)
        self.of_block = np.unique(cluster, return_inverse=True)[1]
        shape = (int(self.of_block.max()) + 1, int(self.rank_of_block.max()) + 1)
        self.block_of_rank = np.zeros(shape, np.int64)
        self.block_of_rank[self.of_block, self.rank_of_block] = np.arange(lanes.block_count)
        self.phase = np.zeros(lanes.alive.size, np.int64)

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
        own = self.rank_of_block[self.lanes.running_blocks()].astype(np.uint32)
        return np.where(bits == 0, own, bits - np.uint32(1))

    def base_of(self, address) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(address in its block, that block's first byte, is there such a block), (lanes,) each."""
        block = self.lanes.running_blocks()
        rank = (address >> np.uint64(CLUSTER_SHIFT)).astype(np.int64) - 1
        rank = np.where(rank < 0, self.rank_of_block[block], rank)
        exists = rank < self.block_of_rank.shape[1]
        holder = self.block_of_rank[self.of_block[block], np.where(exists, rank, 0)]
        inside = address & np.uint64((1 << CLUSTER_SHIFT) - 1)
        return inside, (holder * self.shared_stride).astype(np.uint64), exists

    def together_with(self, block: int) -> np.ndarray:
        """The chunk's blocks of a block's cluster, by number."""
        return np.nonzero(self.of_block == self.of_block[block])[0]

    # -- the cluster barrier --------------------------------------------------------------------
    def arrive(self) -> None:
        """barrier.cluster.arrive."""
        self.phase[self.lanes.R[LANE]] += 1

    def passes(self, lanes: np.ndarray) -> np.ndarray:
        """(lanes,) bool: has every thread of the lane's cluster that has not ended arrived too?"""
        per_block = 32 * self.lanes.warps_per_block
        living = np.nonzero(self.lanes.alive)[0]
        cluster = self.of_block[living // per_block]
        slowest = np.full(self.block_of_rank.shape[0], np.iinfo(np.int64).max)
        np.minimum.at(slowest, cluster, self.phase[living])
        return slowest[self.of_block[lanes // per_block]] >= self.phase[lanes]
