"""What plans of a ring and of heads share: what ranks agree on first, and attention itself."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from kernelscope.errors import InputError
from kernelscope.ranks import Rank

from attn_course.ladder.checks import check_arrays, check_flags
from attn_course.ladder.methods import AUTO, Plan, Request, pick

from .shards import Shards

UNDER_WAY = "-DBLOCKS=268435456"  # of kernel 18: a block a tile, so SMs come free all the time


class ParallelPlan(ABC):
    """Attention of several ranks on fixed arrays; ``plan()`` queues it and returns ``plan.out``.

    All ranks make it, and call it, in the same order. On a GPU the work is on CuPy's current
    stream and on that of the rank; ``rank.wait()`` waits for it and names a rank that is lost.

    Args:
        rank: of kernelscope.ranks.
        q, k, v: this rank's rows, (B, H, rows, d) and (B, H_kv, rows, d): Shards.take().
        length: of the sequence on all ranks.
        causal, scale: as of attention().
        captured: whether each launch of attention is a CUDA graph: for a plan that runs often.

    Attributes:
        out, lse: like q, and (B, H, rows) float32: this rank's rows.

    Raises:
        InputError, InputTypeError: as attention(); ranks that disagree on shapes, dtype or options.
        RankLost: a rank that does not come.
    """

    kind = ""  # of the plan, in the form that ranks agree on

    def __init__(self, rank: Rank, q, k, v, length: int, causal=False, scale=None, captured=True):
        self.rank, self.causal, self.captured = rank, causal, captured
        self.xp, self.q, self.k, self.v = rank.xp, q, k, v
        self.agree(length, scale)
        self.shards = Shards(length, rank.size)
        self.out = self.xp.empty(q.shape, q.dtype)
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Make buffers and launches."""

    @abstractmethod
    def run(self) -> None:
        """Queue all work."""

    def __call__(self):
        self.run()
        return self.out

    def agree(self, length: int, scale: float | None) -> None:
        """Check the call, and that those of all ranks are alike."""
        fault, form = None, {}
        try:
            check_flags(causal=self.causal)
            self.causal = bool(self.causal)
            check_arrays(self.q, self.k, self.v, self.xp)
            rows = Shards(length, self.rank.size).rows(self.rank.rank)
            if {self.q.shape[2], self.k.shape[2]} != {rows}:
                raise InputError(
                    f"q has {self.q.shape[2]} rows, k {self.k.shape[2]}; of {length} on "
                    f"{self.rank.size} ranks this one has {rows}: cut them by Shards.take()"
                )
            batch, heads, _, d = self.q.shape
            self.scale = d**-0.5 if scale is None else float(scale)
            form = {"method": self.kind, "length": length, "batch": batch, "heads": heads, "d": d}
            form |= {"heads of k": self.k.shape[1], "dtype": self.q.dtype.name}
            form |= {"causal": self.causal, "scale": self.scale}
        except (InputError, TypeError) as error:
            fault = error
        self.rank.agree(form, "a call of attention", fault)

    def attend(self, q, k, v, out, causal: bool, exchanging: bool) -> tuple[Callable, object]:
        """Return a launch of attention into `out`, and its log-sum-exp.

        exchanging: an exchange is under way, for which SMs must come free.
        """
        how = {"method": AUTO, "causal": causal, "scale": self.scale, "return_lse": True}
        how |= {"backend": self.rank.backend, "out": out}
        request = Request(q, k, v, **how)
        if exchanging and pick(AUTO, request.problem(), self.rank.backend) == "flash_wgmma":
            request = Request(q, k, v, **how, options=(UNDER_WAY,))
        call = request.call()
        if self.captured:
            plan = Plan(call)
            return plan.run, plan.lse
        return call.run, call.arrays["lse"]

    def buffer(self, *shape: int, like=None):
        """Return an array of this shape and of q's dtype, at the start of `like` where given."""
        if like is None:
            return self.xp.empty(shape, self.q.dtype)
        return like[: int(np.prod(shape))].reshape(shape)
