"""Trials beside the times of the suite `parallel`: is it right, what does NCCL take, who is lost?

They are fields of the suite's record. A team that fails is a message in its field: the times of
the suite are kept.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from kernelscope.ranks import CHANNELS, RankLost

from attn_course.reference.comparison import compare
from attn_course.reference.dtypes import TOLERANCES

from .parallel_workers import COMPUTE, EXCHANGE, HEADS, ONE, RING, Ours, RankTeam, TeamFailed

NCCL_BLOCKS = (4, 8, 16, 32)  # that an exchange may take
TURNS = 15
DIES_AFTER_S, ENDS_WITHIN_S = 2.0, 70.0


class BlockAnSm(Ours):
    """A rank whose kernel takes an SM a block for all its tiles, as on one GPU alone."""

    def __init__(self):
        from attn_course.parallel import form

        form.pick = lambda *_: "as it is"  # attend() asks for another grid by the method's name
        super().__init__()


class Mortal(Ours):
    """A rank that runs rings until another one is lost; the last one kills itself."""

    def spin(self, seconds: float) -> dict:
        """Return how long after the end of the last rank this one has stopped, and its words."""
        start, plan = time.monotonic(), self.plans[RING]
        if self.rank.rank == self.rank.size - 1:
            threading.Thread(target=_die, args=(seconds,), daemon=True).start()
        try:
            while True:
                plan()
                self.rank.wait()
        except RankLost as error:
            return {"seconds": round(time.monotonic() - start - seconds, 2), "said": str(error)}


def _die(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def checked(rows: Sequence, ranks: int, make: Callable = RankTeam) -> list[dict]:
    """Return the error of a ring and of heads on each row, relative to float64."""
    found, team = [], make(Ours, ranks)
    try:
        for row in rows:
            team.ask("prepare", *row.arguments)
            [exact] = [one for one in team.ask("expected") if one is not None]
            for name in (ONE, RING, HEADS):
                team.ask("make", name)
                team.ask("poison", name)
                team.ask("time_us", name, 1)
                verdict = compare(team.rows(name), exact, relative=TOLERANCES[row.dtype])
                error = {"name": name, "relative_error": verdict.relative_error}
                found.append({"label": row.label, **error, "agrees": bool(verdict)})
    finally:
        team.end()
    return found


def by_blocks(rows: Sequence, ranks: int) -> Iterator[dict]:
    """Yield the times of rings and their two sides, by the blocks of NCCL and by the grid."""
    settings = [(NCCL_BLOCKS[-1], BlockAnSm), *((blocks, Ours) for blocks in NCCL_BLOCKS)]
    for blocks, kind in settings:
        team = RankTeam(kind, ranks, {CHANNELS: str(blocks)})
        try:
            link = team.ask("facts")[0]["link"]
            for row in rows:
                team.ask("prepare", *row.arguments)
                team.ask("make", RING)
                times = {name: [] for name in (RING, COMPUTE, EXCHANGE)}
                for name in TURNS * tuple(times):
                    times[name].append(max(team.ask("time_us", name, 1)))
                medians = {f"{name}_us": round(float(np.median(x)), 2) for name, x in times.items()}
                grid = "a block an SM" if kind is BlockAnSm else "a block a tile"
                stamp = {"label": row.label, "nccl_blocks": blocks, "grid": grid}
                yield stamp | medians | {"link_gb_s": link[-1]["gb_s"]}
        finally:
            team.end()


def lost_rank(row, ranks: int) -> dict:
    """Return after how many seconds rank 0 knows that the last rank was killed, and its words."""
    team = RankTeam(Mortal, ranks)
    try:
        team.ask("prepare", *row.arguments)
        team.ask("make", RING)
        for link in team.links:
            link.send(("spin", (DIES_AFTER_S,)))
        if not team.links[0].poll(ENDS_WITHIN_S):
            raise TeamFailed(f"rank 0 has not ended {ENDS_WITHIN_S:g} s after rank {ranks - 1}")
        return team.links[0].recv()[1]
    finally:
        team.end()


def or_message(trial: Callable[[], object]) -> object:
    """Return what a trial finds, or why its team has failed."""
    try:
        return trial()
    except TeamFailed as error:
        return str(error).splitlines()[0]
