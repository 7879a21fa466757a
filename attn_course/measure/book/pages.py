"""The benchmark book: what its figures show, read from the records of the suites.

One page a suite: times, times faster than the best of all peers, rates, growth with batch and
length, a summary; and one page of every kernel under the roofs of the GPU.
"""

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from attn_course.ladder.attention import METHODS
from attn_course.ladder.problem import Problem
from attn_course.measure import records
from attn_course.measure.hardware.devices import peak_of
from attn_course.measure.roofline import method_work

ATTENTION = ("seeds_fp32", "long_fp32", "long_bf16")
LAYERS = ("layernorm", "mlp", "block")
LADDER = "ladder"
BEST_PEER = "best of PyTorch"
BATCHES = ((1, 1, 128, 64), (4, 1, 128, 64), (8, 1, 128, 64))  # (B, H, L, D) of growth with B
LENGTHS = ((4, 1, 128, 64), (4, 1, 256, 64), (4, 1, 512, 64))  # and with L


Times = dict[str, tuple[float | None, ...]]  # contestant -> microseconds a row


@dataclass(frozen=True)
class Page:
    """Rows of one suite's record.

    Attributes:
        suite, about, source: its name, what it times, and where and when.
        shapes: labels of the rows.
        times: contestant -> microseconds a row, None where it did not run.
        operations, bytes: of each row; None where the record has none.
        peers: the contestants that are not the course's.
    """

    suite: str
    about: str
    source: str
    shapes: tuple[str, ...]
    times: Times
    operations: tuple[float | None, ...]
    bytes: tuple[float | None, ...]
    peers: frozenset[str] = field(default=frozenset())

    def best(self, names: Iterable[str]) -> tuple[float | None, ...]:
        """Return the shortest time of some contestants, a row each."""
        columns = [self.times[name] for name in names if name in self.times]
        return tuple(
            min((value for value in row if value is not None), default=None)
            for row in zip(*columns, strict=True)
        )

    def with_best_peer(self, names: Iterable[str]) -> Times:
        """Return the times of some contestants, and as BEST_PEER the shortest of the peers."""
        found = {name: self.times[name] for name in names}
        return found | ({BEST_PEER: self.best(sorted(self.peers))} if self.peers else {})

    def over_best_peer(self) -> Times:
        """Return contestant -> the best peer's time over its own, the course's contestants only.

        Empty where no peer ran.
        """
        if not self.peers:
            return {}
        peer = self.best(sorted(self.peers))
        return {
            name: _over(peer, row) for name, row in self.times.items() if name not in self.peers
        }

    def rates(self, names: Iterable[str]) -> dict[str, Times]:
        """Return "GFLOP/s" and "GB/s", where the record has the work -> contestant -> rates."""
        times = self.with_best_peer(names)
        work = {"GFLOP/s": self.operations, "GB/s": self.bytes}
        found = {
            unit: {
                name: _over((one and one / 1e3 for one in amounts), row)
                for name, row in times.items()
            }
            for unit, amounts in work.items()
        }
        return {
            unit: values
            for unit, values in found.items()
            if any(one is not None for row in values.values() for one in row)
        }


def _over(amounts: Iterable[float | None], times: Iterable[float | None]) -> tuple:
    """Amounts over times, a row each; None where either is missing."""
    pairs = zip(amounts, times, strict=True)
    return tuple(None if us is None or not one else one / us for one, us in pairs)


def page_of(record: dict) -> Page:
    """Return a suite's record as a page."""
    rows = record["rows"]
    names = dict.fromkeys(name for row in rows for name in row["timings"])
    times = {
        name: tuple(
            row["timings"][name]["median_us"] if name in row["timings"] else None for row in rows
        )
        for name in names
    }
    peers = {name for name in names if name.startswith("torch")}
    labels = tuple(row["label"] for row in rows)
    work = [tuple(row.get(key) for row in rows) for key in ("operations", "bytes")]
    source = f"{records.caption(record)}, PyTorch {record['torch']}"
    about = record["about"]
    return Page(record["suite"], about, source, labels, times, *work, frozenset(peers))


def growth(page: Page, shapes: Iterable[tuple[int, ...]], names: Iterable[str]) -> Times:
    """Return contestant -> microseconds at shapes of a suite, the best of the peers as well."""
    at = [page.shapes.index(",".join(map(str, shape))) for shape in shapes]
    times = page.with_best_peer(names)
    return {name: tuple(row[place] for place in at) for name, row in times.items()}


def under_the_roof(record: dict) -> tuple[Mapping[str, tuple[float, float]], dict]:
    """Return every method's intensity and TFLOP/s at the last shape of the ladder's record, and
    the roofs of its GPU: keywords of figures.roofline.

    The bytes of a method are those that its kernels must move, scores between two kernels too.
    """
    row = record["rows"][-1]
    b, h, n, d = row["shape"]
    problem = Problem(b * h, n, n, d, h, h)
    points = {}
    for name in row["timings"]:
        if name in METHODS:
            work = method_work(name, problem)
            points[name] = (
                work.intensity,
                work.operations / row["timings"][name]["median_us"] / 1e6,
            )
    gpu = peak_of(record["gpu"])
    roofs = {"tflops": gpu.fp32_tflops, "gbps": {"device memory": gpu.memory_gbps}}
    source = textwrap.fill(records.caption(record), 72)
    return points, roofs | {"source": source, "title": f"Every method at {row['label']}"}


def newest(suite: str, root: Path = records.RESULTS_FOLDER) -> dict | None:
    """Return the newest record of a suite, None where there is none."""
    return records.newest_record(f"bench_{suite}", root)
