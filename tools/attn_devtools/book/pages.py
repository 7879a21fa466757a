"""The benchmark book: what its figures show, read from the records of the suites.

One page a suite: times, times faster than the best of all baselines, rates, growth with batch and
length, a summary.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from attn_course.measure import records
from attn_devtools.bench.peers import kinds_of

ATTENTION = ("seeds_fp32", "ragged_fp32", "long_fp32", "long_bf16", "hopper_bf16")
LAYERS = ("layernorm", "gelu", "mlp", "block")
LADDER = "ladder"
READ_AND_WRITTEN = (
    "bytes: the input read once and the output written once; inputs of a few MB are still in L2, "
    "so their rates can pass that of device memory"
)
COUNTED = {  # by the records of layers
    "layernorm": READ_AND_WRITTEN,
    "gelu": READ_AND_WRITTEN,
    "mlp": "operations: of the two products with weights; biases and GELU are not counted",
    "block": "operations: of the products with weights; those of attention itself (q k^T and p v), "
    "softmax, layer norm and GELU are not counted, though their time is",
}
BEST_BASELINE = "best peer"
BATCHES = ((1, 1, 128, 64), (4, 1, 128, 64), (8, 1, 128, 64))  # (B, H, L, D) of growth with B
LENGTHS = ((4, 1, 128, 64), (4, 1, 256, 64), (4, 1, 512, 64))  # and with L


Times = dict[str, tuple[float | None, ...]]  # candidate -> microseconds a row


@dataclass(frozen=True)
class Page:
    """Rows of one suite's record.

    Attributes:
        suite, about, source: its name, what it times, and where and when.
        shapes: labels of the rows.
        times: candidate -> microseconds a row, None where it did not run.
        operations, bytes: of each row; None where the record has none, and bytes of a layer with
            products: its record leaves out those of the weights.
        baselines: the candidates that are not the course's.
        counted: what operations and bytes are of, where that is not all of the computation.
    """

    suite: str
    about: str
    source: str
    shapes: tuple[str, ...]
    times: Times
    operations: tuple[float | None, ...]
    bytes: tuple[float | None, ...]
    baselines: frozenset[str] = field(default=frozenset())
    counted: str = ""

    def best(self, names: Iterable[str]) -> tuple[float | None, ...]:
        """Return the shortest time of some candidates, a row each."""
        columns = [self.times[name] for name in names if name in self.times]
        return tuple(
            min((value for value in row if value is not None), default=None)
            for row in zip(*columns, strict=True)
        )

    def with_best_baseline(self, names: Iterable[str]) -> Times:
        """Return the times of some candidates, and as BEST_BASELINE the baselines' shortest."""
        found = {name: self.times[name] for name in names}
        return found | (
            {BEST_BASELINE: self.best(sorted(self.baselines))} if self.baselines else {}
        )

    def over_best_baseline(self) -> Times:
        """Return candidate -> the best baseline's time over its own, the course's candidates only.

        Empty where no baseline ran.
        """
        if not self.baselines:
            return {}
        baseline = self.best(sorted(self.baselines))
        return {
            name: _over(baseline, row)
            for name, row in self.times.items()
            if name not in self.baselines
        }

    def rates(self, names: Iterable[str]) -> dict[str, Times]:
        """Return "GFLOP/s" and "GB/s", where the record has the work -> candidate -> rates."""
        times = self.with_best_baseline(names)
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
    baselines = {name for name in names if name.startswith("torch")}
    labels = tuple(row["label"] for row in rows)
    work = zip(*map(_work, rows), strict=True)
    source = f"{records.caption(record)}, PyTorch {record['torch']}; peers: {kinds_of(record)}"
    about = record["about"]
    counted = COUNTED.get(record["suite"], "")
    return Page(record["suite"], about, source, labels, times, *work, frozenset(baselines), counted)


def _work(row: dict) -> tuple[float | None, float | None]:
    """Operations and bytes of a row: of attention in the row itself, of a layer in its work."""
    if "work" not in row:
        return row.get("operations"), row.get("bytes")
    operations, moved = row["work"]["operations"], row["work"]["bytes"]
    return (operations, None) if operations else (None, moved)


def growth(page: Page, shapes: Iterable[tuple[int, ...]], names: Iterable[str]) -> Times:
    """Return candidate -> microseconds at shapes of a suite, the best of the baselines as well."""
    at = [page.shapes.index(",".join(map(str, shape))) for shape in shapes]
    times = page.with_best_baseline(names)
    return {name: tuple(row[place] for place in at) for name, row in times.items()}


def newest(suite: str, root: Path = records.RESULTS_FOLDER) -> dict | None:
    """Return the newest record of a suite, None where there is none."""
    return records.newest_record(f"bench_{suite}", root)
