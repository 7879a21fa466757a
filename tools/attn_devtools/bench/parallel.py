"""Attention over several GPUs of one host against one of them, and against PyTorch's.

Every rank is a process. A call takes as long as the rank that takes longest. Beside each problem of
a ring stands how much of its exchange the computation hides: the exchange alone, the computation
alone and the two together take turns.
"""

from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from kernelscope import gpu_count
from kernelscope.contest import Contest, Replay, TimingError, contest
from kernelscope.errors import InputError, did_you_mean

from attn_course.ladder.methods import files_of, pick
from attn_course.ladder.problem import Problem
from attn_course.measure import candidates
from attn_course.measure.benchmarks import BenchmarkResult, Shape, shape_label, turns_for
from attn_course.measure.candidates import BaselineRefuses
from attn_course.measure.roofline import attention_work, tflops
from attn_course.reference.dtypes import TOLERANCES

from .parallel_trials import by_blocks, checked, lost_rank, or_message
from .parallel_workers import (
    COMPUTE,
    EXCHANGE,
    HEADS,
    ONE,
    RING,
    TORCH,
    Ours,
    RankTeam,
    TeamClock,
    TeamFailed,
    TorchPeer,
)
from .suite import Suite, fastest, refuse

OURS = (ONE, RING, HEADS)
SPREAD = (RING, HEADS)  # over all ranks
LONG = 32768  # rows of the longest sequences of trials
ROW_SECONDS, TURNS = 5.0, 30  # of a ring and its two sides in turns
SAMPLE_US, MOST_CALLS = 20_000, 20  # a sample's calls last about so long, where they are so few


@dataclass(frozen=True)
class ParallelRow:
    """One problem: shape (B, H, L, D) of q; kv_heads: of k and v, H where 0."""

    shape: Shape
    causal: bool = False
    dtype: str = "bfloat16"
    kv_heads: int = 0

    @property
    def label(self) -> str:
        """'1,16,8192,128 causal bfloat16'."""
        grouped = f" kv_heads {self.kv_heads}" if self.kv_heads else ""
        return f"{shape_label(self.shape, self.causal)} {self.dtype}{grouped}"

    @property
    def arguments(self) -> tuple:
        """What a process of a team prepares."""
        return self.shape, self.causal, self.dtype, self.kv_heads or self.shape[1]


class RankWork:
    """A candidate that all processes of a team run together."""

    def __init__(self, name: str, team: RankTeam, row: ParallelRow):
        self.name, self.team = name, team
        self.relative = TOLERANCES[row.dtype]

    def try_call(self) -> None:
        """Make it and run it once. BaselineRefuses: it does not take the problem."""
        try:
            self.team.ask("make", self.name)
        except TeamFailed as error:
            if self.team.broken and self.name != TORCH:
                raise
            raise BaselineRefuses(first_line(error)) from None

    def capture(self, calls: int) -> Replay:
        """Return a sample: so many calls of the slowest rank in sequence, more of short ones."""
        calls = max(calls, int(min(MOST_CALLS, SAMPLE_US // self._time_us(1))))
        return Replay(lambda: calls * self._time_us(calls), calls)

    def poison(self) -> None:
        """Fill the outputs with NaN."""
        self.team.ask("poison", self.name)

    def output(self) -> np.ndarray:
        """Return the sampled rows of all ranks, in order."""
        return self.team.rows(self.name)

    def _time_us(self, calls: int) -> float:
        return max(self.team.ask("time_us", self.name, calls))


@dataclass(frozen=True)
class ParallelSuite(Suite):
    """Problems of ring_attention() and heads_attention(), which teams of processes run.

    checks: small rows whose errors are recorded.  ranks: GPUs.  teams: those that run, ours first,
    then PyTorch's; empty but during a run.  faults: why PyTorch's does not start.
    """

    rows: tuple[ParallelRow, ...]
    checks: tuple[ParallelRow, ...] = ()
    ranks: int = 2
    teams: list[RankTeam] = field(default_factory=list, compare=False)
    faults: list[str] = field(default_factory=list, compare=False)
    needs = "2 GPUs"

    def candidates(self, chosen: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return the names to run: those chosen, else all; PyTorch's only where PyTorch is.

        Raises:
            ValueError: an unknown name; lists those there are.
        """
        if chosen is None:
            return (*OURS, TORCH) if candidates.available() else OURS
        known = (*OURS, TORCH)
        for name in (chosen := tuple(dict.fromkeys(chosen))):
            if name not in known:
                near = did_you_mean(name, known)
                raise InputError(f"no candidate {name!r}{near}; there are: {', '.join(known)}")
        return chosen

    def peers(self, row: ParallelRow, names: Sequence[str]) -> list[str]:
        """Return none: there is nothing to compile for them."""
        return []

    def files(self, names: Sequence[str], rows: Sequence[dict] = ()) -> list[str]:
        """Return the kernel files of attention and of the join."""
        methods = {pick("auto", problem_of(row), "gpu") for row in self.rows}
        return sorted({*files_of(*methods), "31_join_parts"})

    def run(self, chosen: Iterable[str] | None = None, **how) -> dict:
        """Run the suite with a team of processes for each library; return its record.

        Raises:
            TimingError: fewer GPUs than ranks.  TeamFailed: a process of ours has failed.
        """
        if gpu_count() < self.ranks:
            raise TimingError(
                f"the suite {self.name} needs {self.ranks} GPUs, here are {gpu_count()}: "
                f"`attn-course bench {self.name} --recorded` shows the record"
            )
        with self.started():
            found = super().run(chosen, **how) | {"ranks": self.ranks}
            found |= self.teams[0].ask("facts")[0]
        return found if how.get("quick") else found | self.trials()

    def trials(self) -> dict:
        """Return the fields of the record beside its times; each starts teams of its own."""
        rows, ranks = [row for row in self.rows if row.shape[2] <= LONG], self.ranks
        return {
            "checked": or_message(lambda: checked(self.checks, ranks)),
            "by_blocks": or_message(lambda: list(by_blocks(rows, ranks))),
            "lost_rank": or_message(lambda: lost_rank(rows[0], ranks)),
        }

    @contextmanager
    def started(self):
        """Start our team for a block, and end all of them after it."""
        try:
            self.teams.append(RankTeam(Ours, self.ranks))
            yield
        finally:
            for team in self.teams:
                team.end()
            self.teams.clear()
            self.faults.clear()

    def peers_team(self) -> RankTeam:
        """Return PyTorch's team; start it, or another one in the place of one that is broken.

        Raises:
            BaselineRefuses: it does not start; this is tried once.
        """
        if len(self.teams) > 1 and self.teams[1].broken:
            self.teams.pop().end()
        if len(self.teams) == 1 and not self.faults:
            try:
                self.teams.append(RankTeam(TorchPeer, self.ranks))
            except (BaselineRefuses, TeamFailed) as error:
                self.faults.append(first_line(error))
        if self.faults:
            raise BaselineRefuses(self.faults[0])
        return self.teams[1]

    def run_row(self, row: ParallelRow, names: Sequence[str], refused=None, **how) -> dict:
        """Check and time one row; return its record. Again without a peer that fails meanwhile.

        Raises:
            TeamFailed: a process of ours has failed.
        """
        how = {"clock": TeamClock(), **how}
        try:
            return super().run_row(row, names, refused, **how)
        except TeamFailed as error:
            if error.team in (None, self.teams[0]):
                raise
            error.team.broken = True  # in the midst of a row: its ranks may wait for each other
            found = super().run_row(row, [n for n in names if n != TORCH], refused, **how)
            return found | {"refused": found["refused"] | {TORCH: first_line(error)}}

    def benchmark(self, row: ParallelRow, names: Sequence[str]) -> dict:
        """Return the arguments of run_benchmark(): processes have made the inputs."""
        makers = {name: partial(RankWork, name, self.teams[0], row) for name in names}
        self.teams[0].ask("prepare", *row.arguments)
        if TORCH in names:
            try:
                team = self.peers_team()
                team.ask("prepare", *row.arguments)
                makers[TORCH] = partial(RankWork, TORCH, team, row)
            except (BaselineRefuses, TeamFailed) as error:
                makers[TORCH] = partial(refuse, first_line(error))
        given = {"makers": makers, "inputs": [], "row_seconds": ROW_SECONDS}
        return given | {"expected": lambda: self.teams[0].ask("expected")[0]}

    def standing(self, row: ParallelRow, result: BenchmarkResult) -> dict:
        """Return rates, ratios to one GPU and to PyTorch, and the share of the exchange hidden."""
        measured, operations = result.measured, attention_work(problem_of(row)).operations
        others = [name for name in (ONE, TORCH) if name in measured.timings]
        found = {
            "causal": row.causal,
            "dtype": row.dtype,
            "operations": operations,
            "timings": {
                name: one
                | {"how": "events", "tflops": round(tflops(operations, one["median_us"]), 3)}
                for name, one in result.records().items()
            },
            "best": fastest(measured, SPREAD),
            "ratios": {
                name: {other: measured.ratio(name, other).record() for other in others}
                for name in SPREAD
                if name in measured.timings
            },
        }
        if RING in measured.timings:
            found["exchange"] = self.hidden(row, measured.timings[RING].median_us)
        return found

    def hidden(self, row: ParallelRow, call_us: float) -> dict:
        """Return the times of a ring, of its two sides alone, and the share of the exchange hidden.

        The share is what the two together take less than one after the other, of the exchange.
        What is left is waiting for keys, timed beside it on the rank that waits longest, and what
        the exchange takes from the computation: multiprocessors, bandwidth, power.
        """
        ours = self.teams[0]
        work = {name: RankWork(name, ours, row) for name in (RING, COMPUTE, EXCHANGE)}
        replays = {name: one.capture(1) for name, one in work.items()}
        turns = turns_for(dict.fromkeys(work, max(call_us, SAMPLE_US)), TURNS, ROW_SECONDS)
        found: Contest = contest(replays, iterations=turns, warmup=1, clock=TeamClock())
        both, alone, travel = (found.timings[name].median_us for name in work)
        _, heads, n, d = row.shape
        size = 2 if row.dtype != "float32" else 4
        each = 2 * row.shape[0] * (row.kv_heads or heads) * (n // self.ranks) * d * size
        return {
            "bytes": each * (self.ranks - 1),
            "both_us": round(both, 2),
            "compute_us": round(alone, 2),
            "exchange_us": round(travel, 2),
            "waited_us": round(max(ours.ask("waited_us", turns)), 2),
            "hidden": round((alone + travel - both) / travel, 4),
            "turns": turns,
        }


def first_line(error: Exception) -> str:
    """Return what an error says, without the trace of its process."""
    return str(error).partition("\n")[0]


def problem_of(row: ParallelRow) -> Problem:
    """Return the extents of a row on one GPU."""
    b, h, n, d = row.shape
    return Problem(b * h, n, n, d, h, row.kv_heads or h, row.causal, dtype=row.dtype)


PARALLEL_SUITES = {
    "parallel": ParallelSuite(
        "parallel",
        "attention of two GPUs, bfloat16: a ring, and by heads, beside one GPU",
        tuple(
            ParallelRow((1, 16, n, 128), causal)
            for n in (2048, 4096, 8192, 32768, 131072)
            for causal in (False, True)
        ),
        (
            ParallelRow((1, 4, 4096, 128), True),
            ParallelRow((2, 8, 1111, 128), True, "bfloat16", 2),
            ParallelRow((1, 8, 5003, 128), False, "bfloat16", 4),
            ParallelRow((1, 4, 3001, 128), True, "float16"),
            ParallelRow((1, 4, 3001, 64), False, "float16", 2),
            ParallelRow((2, 4, 777, 64), True, "float32", 2),
            ParallelRow((1, 4, 1030, 64), False, "float32"),
        ),
    )
}
