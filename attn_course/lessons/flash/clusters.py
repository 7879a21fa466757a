"""Kernels 10 and 19: what travels through a cluster, what its blocks join, and what that gains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from attn_course.engine.events import InstructionEvent, Observer
from attn_course.engine.watch.counters.counters import Counters
from attn_course.engine.watch.tracer.tracer import Tracer
from attn_course.ladder.problem import Device, ceil_div
from attn_course.ladder.steps import Problem, step
from attn_course.measure import tile_model
from attn_course.measure.experiments import Times
from attn_course.measure.records import caption, records
from attn_course.measure.suites import Shape

from .runs import run

NO_TILES = "no record of these tiles yet: on a machine with a GPU, tools/record_tiles.py makes one"


# -- counted on the simulator ----------------------------------------------------------------------
@dataclass(frozen=True)
class ClusterUse:
    """What a launch does: its blocks, sectors it loads from global memory, warp-level accesses by
    way of the cluster, and how often each block waits at a barrier of the cluster.
    """

    blocks: int
    sectors: int
    requests: int
    waits: int


def cluster_use(
    which: int | str, q, k, v, options: Sequence[str] = (), device: Device | None = None
) -> ClusterUse:
    """One fused kernel, run and counted; shapes as in :func:`run`.

    device: whose tiles it gets, the simulator's when None; options win over those.
    """
    (bh, n, d), m = q.shape, k.shape[1]
    launch = step(which).launch(Problem(bh, n, m, d), options, device)
    seen, waits = Counters(), _ClusterWaits()
    run(which, q, k, v, seen, waits, options=launch.options(options))
    warps = prod(launch.grid) * ceil_div(prod(launch.block), 32)
    return ClusterUse(
        prod(launch.grid),
        seen.totals["global_load_sectors"],
        seen.totals["cluster_shared_requests"],
        waits.count // warps,
    )


class _ClusterWaits(Observer):
    """Counts how often a warp waits at a barrier of its cluster."""

    count = 0

    def instruction(self, event: InstructionEvent) -> None:
        if event.instruction.opcode.startswith("barrier.cluster.wait"):
            self.count += event.active_warps.size


def use_table(rows: Mapping[str, ClusterUse]) -> str:
    """A line for each kernel or build. rows: label -> what it does."""
    width = max(map(len, rows))
    lines = [
        f"{'':<{width}}  {'blocks':>6}  {'sectors a block':>15}  {'cluster requests':>16}"
        f"  {'cluster barriers':>16}"
    ]
    for name, one in rows.items():
        lines.append(
            f"{name:<{width}}  {one.blocks:>6}  {one.sectors / one.blocks:>15,.0f}"
            f"  {one.requests:>16,}  {one.waits:>16}"
        )
    return "\n".join(lines)


def key_parts(q, k, v, cluster: int, options: Sequence[str] = ()) -> list[dict]:
    """What each block of kernel 19's first cluster finds of row 0 before they join, from traces.

    options: with one warp a block. One dict a block: tiles (first keys), row_m and row_l.
    """
    traces = [Tracer(block=(rank, 0, 0)) for rank in range(cluster)]
    run(19, q, k, v, *traces, options=(*options, f"-DCLUSTER={cluster}"))
    found = []
    for rank, trace in enumerate(traces):
        recording = trace.recording
        starts = [int(key0) for _, key0 in recording.history("key0")]
        last = {
            name: float(np.ravel(recording.history(name)[-1][1])[0]) for name in ("row_m", "row_l")
        }
        found.append({"rank": rank, "tiles": starts[:-1], **last})  # the last key0 ends the loop
    return found


def parts_table(parts: Sequence[Mapping]) -> str:
    """A line for each block of :func:`key_parts`."""
    lines = [f"block  {'first keys of its tiles':<24} {'row_m':>8} {'row_l':>8}"]
    for part in parts:
        tiles = " ".join(map(str, part["tiles"]))
        lines.append(f"{part['rank']:>5}  {tiles:<24} {part['row_m']:>8.4f} {part['row_l']:>8.4f}")
    return "\n".join(lines)


# -- recorded on a GPU -----------------------------------------------------------------------------
def tile_record() -> dict | None:
    """The newest record of tools/record_tiles.py, None where there is none."""
    return next(iter(records(tile_model.KIND)), None)


def _times(record: dict, shape: Shape, keys: int) -> Iterable[tuple[str, dict, int, float]]:
    """(method, constants, blocks, microseconds) of every tile timed on a problem.

    Raises:
        KeyError: the record does not have the problem.
    """
    rows = {(tuple(row["shape"]), row["keys"]): row for row in record["rows"]}
    for name, one in rows[tuple(shape), keys]["contestants"].items():
        yield *tile_model.constants(name), one["blocks"], one["median_us"]


def split_rows(record: dict, shape: Shape) -> dict[int, tuple[int, int, float]]:
    """Kernel 20 by rows a cluster: (clusters, blocks, microseconds), most rows first.

    Of the tiles timed those with as many keys as the fastest has, so that only the rows differ.
    """
    found = [one for one in _times(record, shape, shape[2]) if one[0] == "rows_split"]
    keys = min(found, key=lambda one: one[3])[1]["KEYS"]
    rows = {
        4 * c["ROWS"]: (blocks // c["CLUSTER"], blocks, time)
        for _, c, blocks, time in found
        if c["KEYS"] == keys
    }
    return dict(sorted(rows.items(), reverse=True))


def rounds_table(record: dict, shape: Shape, fitting: Sequence[int]) -> str:
    """Times of kernel 20 by rows a cluster, and the time of a round if so many clusters fit."""
    heads = "".join(f"{f'us a round if {fit} fit':>23}" for fit in fitting)
    lines = [f"rows a cluster  clusters  blocks  {'us':>5}{heads}"]
    for rows, (clusters, blocks, time) in split_rows(record, shape).items():
        rounds = "".join(f"{time / ceil_div(clusters, fit):>23.1f}" for fit in fitting)
        lines.append(f"{rows:>14}  {clusters:>8}  {blocks:>6}  {time:>5.1f}{rounds}")
    return "\n".join([*lines, caption(record)])


def sectors_and_time(a_block: Sequence[float], at: Times | None) -> str:
    """Kernel 09 over kernel 20: sectors a block loads (a_block: of both), and recorded times."""
    line = f"09 over 10: sectors a block {a_block[0] / a_block[1]:.2f}"
    if at is None or "rows_split" not in at.median_us:
        return f"{line}; no time of it is recorded"
    return f"{line}, time {at.median_us['rows_online'] / at.median_us['rows_split']:.2f}"


def sharing(record: dict, shape: Shape, keys: int) -> dict[int, tuple[int, float, str]]:
    """Blocks that share a row tile -> (blocks in all, microseconds, tile) of the fastest such tile.

    1 is kernel 12, more are kernel 19. tile: ROWS x KEYS scores a thread, warps along the rows x
    warps along the keys. Rows of different tiles differ in more than the sharing.
    """
    best: dict[int, tuple[int, float, str]] = {}
    for method, c, blocks, time in _times(record, shape, keys):
        if method not in ("flash_async", "flash_split"):
            continue
        cluster = c.get("CLUSTER", 1)
        if cluster not in best or time < best[cluster][1]:
            tile = f"{c['ROWS']}x{c['KEYS']}, {c['ROW_WARPS']}x{c['KEY_WARPS']}"
            best[cluster] = (blocks, time, tile)
    return dict(sorted(best.items()))


def sharing_table(record: dict, problems: Sequence[tuple[Shape, int]]) -> str:
    """The fastest tile of each cluster size on several problems, and the gain over kernel 12."""
    lines = [
        f"{'(B, H, n, D)':<18} {'keys':>5}  {'kernel':<17}  {'tile, warps':<11}"
        f"  {'blocks':>6}  {'us':>6}  {'12 over it':>10}"
    ]
    for shape, keys in problems:
        best = sharing(record, shape, keys)
        for cluster, (blocks, time, tile) in best.items():
            name = "12" if cluster == 1 else f"19, clusters of {cluster}"
            lines.append(
                f"{shape!s:<18} {keys:>5}  {name:<17}  {tile:<11}"
                f"  {blocks:>6}  {time:>6.1f}  {best[1][1] / time:>10.2f}"
            )
    return "\n".join([*lines, caption(record)])
