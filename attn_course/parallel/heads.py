"""Attention by heads: rows of all heads become all rows of some heads, and back.

Each rank sends every other one the rows of that one's heads, computes its heads over the sequence,
and sends the rows of the output home. Nothing is joined, and nothing computes while rows travel.
"""

import numpy as np
from kernelscope.errors import InputError
from kernelscope.ranks import row_copy

from .form import ParallelPlan


class HeadsPlan(ParallelPlan):
    """Attention by heads; see ParallelPlan. The heads of q and of k are multiples of the ranks."""

    kind = "heads"

    def prepare(self) -> None:
        (batch, heads, rows, d), ranks = self.q.shape, self.rank.size
        if heads % ranks or self.k.shape[1] % ranks:
            raise InputError(
                f"q has {heads} heads, k {self.k.shape[1]}, not both a multiple of the {ranks} "
                "ranks: use ring_attention()"
            )
        own, length = heads // ranks, self.shards.length
        self.lse = self.xp.empty((batch, heads, rows), np.float32)
        few = [self.k.shape[1] // ranks] * 2  # heads of k and of v
        inputs = self.q, self.k, self.v
        whole = [self.xp.empty((batch, n, length, d), self.q.dtype) for n in (own, *few, own)]
        self.launch, lse = self.attend(*whole, self.causal, False)
        ways = [self._way(*pair, True) for pair in zip(inputs, whole[:3], strict=True)]
        self.there = [sum(lists, []) for lists in zip(*ways, strict=True)]
        ways = self._way(self.out, whole[3], False), self._way(self.lse[..., None], lse[..., None])
        self.back = [sum(lists, []) for lists in zip(*ways, strict=True)]

    def run(self) -> None:
        sends, receives, copies = self.there
        self.rank.exchange_in_turn(sends, receives)
        for launch in (*copies, self.launch, *self.back[2]):
            launch()
        self.rank.exchange_in_turn(*self.back[:2])

    def _way(self, array, whole, inwards: bool = False) -> tuple[list, list, list]:
        """Return sends, receives and copies by which a rank's rows come to their places, or back.

        array: (B, H, rows, ...) of this rank.  whole: (B, H / ranks, length, ...).
        """
        own, parts, blocks, copies = whole.shape[1], [], [], []
        for peer in range(self.rank.size):
            rows = self.shards.rows(peer)
            block = self.xp.empty((*whole.shape[:2], rows, whole.shape[3]), whole.dtype)
            parts += [(one[peer * own : (peer + 1) * own], peer) for one in array]
            blocks += [(one, peer) for one in block]
            early, late = self.shards.chunks(peer)
            size = early.stop - early.start
            for chunk, part in ((early, block[:, :, :size]), (late, block[:, :, size:])):
                pair = whole[:, :, chunk], part
                copies.append(row_copy(*(pair if inwards else pair[::-1])))
        return (parts, blocks, copies) if inwards else (blocks, parts, copies)


def heads_attention(rank, q, k, v, length: int, *, causal=False, scale=None):
    """Return out and log-sum-exp of this rank's rows; see HeadsPlan. Waits until they are there."""
    plan = HeadsPlan(rank, q, k, v, length, causal, scale, captured=False)
    plan()
    rank.wait()
    return plan.out, plan.lse
