"""Attention by heads: rows of all heads become all rows of some heads, and back.

Each rank sends every other one the rows of that one's heads, computes its heads over the sequence,
and sends the rows of the output home. Nothing is joined, and nothing computes while rows travel.
"""

from collections.abc import Callable

import numpy as np
from kernelscope.ranks import row_copy

from .form import ParallelPlan


class HeadsPlan(ParallelPlan):
    """Attention by heads; see ParallelPlan. The heads of q and of k are multiples of the ranks."""

    kind = "heads"

    def fault(self) -> str:
        for name in "qk":
            heads = getattr(self, name).shape[1]
            if heads % self.rank.size:
                return (
                    f"{name} has {heads} heads, not a multiple of the {self.rank.size} ranks: "
                    "use ring_attention()"
                )
        return ""

    def prepare(self) -> None:
        batch, heads, rows, d = self.q.shape
        self.lse = self.xp.empty((batch, heads, rows), np.float32)
        self.sent, self.received, self.sort = [], [], []
        self.found, self.home, self.split = [], [], []
        whole = [self._gather(getattr(self, name)) for name in "qkv"]
        out = self.xp.empty((batch, heads // self.rank.size, self.shards.length, d), self.q.dtype)
        self.launch, lse = self.attend(*whole, out, self.causal, False)
        self._scatter(out, self.out)
        self._scatter(lse[..., None], self.lse[..., None])

    def run(self) -> None:
        self.rank.exchange_in_turn(self.sent, self.received)
        for copy in self.sort:
            copy()
        self.launch()
        for copy in self.split:
            copy()
        self.rank.exchange_in_turn(self.found, self.home)

    def _gather(self, array):
        """Prepare the way of rows to their places in (B, H / ranks, length, d), and return that."""
        batch, heads, _, d = array.shape
        own = heads // self.rank.size
        whole = self.xp.empty((batch, own, self.shards.length, d), array.dtype)
        for peer in range(self.rank.size):
            block = self.xp.empty((batch, own, self.shards.rows(peer), d), array.dtype)
            self.sent += self._of_heads(array, peer)
            self.received += [(one, peer) for one in block]
            self.sort += self._copies(whole, block, peer, inwards=True)
        return whole

    def _scatter(self, whole, out) -> None:
        """Prepare the way of rows back to the ranks whose they are."""
        for peer in range(self.rank.size):
            shape = (*whole.shape[:2], self.shards.rows(peer), whole.shape[3])
            block = self.xp.empty(shape, whole.dtype)
            self.split += self._copies(whole, block, peer, inwards=False)
            self.found += [(one, peer) for one in block]
            self.home += self._of_heads(out, peer)

    def _of_heads(self, array, peer: int) -> list[tuple]:
        """Return the heads of a rank, an array for each element of the batch, and the rank."""
        own = array.shape[1] // self.rank.size
        return [(one[peer * own : (peer + 1) * own], peer) for one in array]

    def _copies(self, whole, block, peer: int, inwards: bool) -> list[Callable]:
        """Return copies between a rank's rows and their two places in the sequence."""
        early, late = self.shards.chunks(peer)
        size = early.stop - early.start
        found = []
        for rows, part in ((early, block[:, :, :size]), (late, block[:, :, size:])):
            pair = whole[:, :, rows], part
            found.append(row_copy(*(pair if inwards else reversed(pair))))
        return found


def heads_attention(rank, q, k, v, length: int, *, causal=False, scale=None):
    """Return out and log-sum-exp of this rank's rows; see HeadsPlan. Waits until they are there."""
    plan = HeadsPlan(rank, q, k, v, length, causal, scale, captured=False)
    plan()
    rank.wait()
    return plan.out, plan.lse
