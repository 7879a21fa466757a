"""A suite: problems on which candidates are timed in turns, and the record of a run."""

import argparse
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernelscope.contest import ClockWatch, Contest, require_gpu

from attn_course.measure import candidates, records
from attn_course.measure.benchmarks import BenchmarkResult, run_benchmark
from attn_course.measure.candidates import BaselineRefuses
from attn_course.measure.records import RESULTS_FOLDER

from .peers import forget_compiled

Refusals = dict[tuple[str, str], str]  # label of a row, peer -> why it is not timed


@dataclass(frozen=True)
class Suite(ABC):
    """Rows under a name, and what they are for. A row has a `shape` and a `label`."""

    name: str
    about: str
    rows: tuple
    needs = "GPU"  # of its record

    @abstractmethod
    def candidates(self, chosen: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return the names to run: those chosen, else all. ValueError: a name that is none."""

    @abstractmethod
    def peers(self, row, names: Sequence[str]) -> list[str]:
        """Return the peers of a row that are among the names to run."""

    @abstractmethod
    def files(self, names: Sequence[str], rows: Sequence[dict] = ()) -> list[str]:
        """Return the kernel files that these candidates may run, or ran where `rows` tell it.

        rows: records of all rows.
        """

    @abstractmethod
    def benchmark(self, row, names: Sequence[str]) -> dict:
        """Return the arguments of run_benchmark() for a row."""

    @abstractmethod
    def standing(self, row, result: BenchmarkResult) -> dict:
        """Return the fields of a row's record that this kind of suite has alone."""

    def rules(self) -> dict:
        """Return the fields of the record that this kind of suite has alone."""
        return {}

    def run_row(self, row, names: Sequence[str], refused: Refusals | None = None, **how) -> dict:
        """Check and time one row; return its record.

        refused: peers that are known not to compile.  how: as of run_benchmark().
        """
        forget_compiled()
        given = self.benchmark(row, names)
        for (label, name), reason in (refused or {}).items():
            if label == row.label:
                given["makers"][name] = partial(refuse, reason)
        result = run_benchmark(**given, **how)
        fields = {
            "label": row.label,
            "shape": row.shape,
            "timings": result.records(),
            "refused": result.entrants.refused,
            "skipped": result.entrants.skipped,
            "wrong": result.entrants.wrong,
            "clocks": result.measured.clocks,
        }
        return fields | self.standing(row, result)

    def run(
        self,
        chosen: Iterable[str] | None = None,
        *,
        iterations: int = 60,
        warmup: int = 10,
        quick: bool = False,
        refused: Refusals | None = None,
        progress: Callable[[Iterable], Iterable] = iter,
    ) -> dict:
        """Run the suite and return its record (see :mod:`attn_course.measure.records`).

        chosen: names of candidates; None: all.  quick: the first row alone.  refused: peers
        that are known not to compile.  progress: wraps the rows, as tqdm does.

        Raises:
            ValueError: no such candidate. TimingError: no GPU.
        """
        require_gpu()
        names, start = self.candidates(chosen), time.perf_counter()
        with ClockWatch() as watch:
            rows = [
                self.run_row(row, names, refused, iterations=iterations, warmup=warmup)
                for row in progress(self.rows[:1] if quick else self.rows)
            ]
        return records.new_record(
            f"bench_{self.name}",
            self.files(names, rows),
            suite=self.name,
            about=self.about,
            torch=candidates.torch_version(),
            iterations=iterations,
            warmup=warmup,
            clocks=watch.record(),
            seconds=round(time.perf_counter() - start, 1),
            rows=rows,
            **self.rules(),
        )


def refuse(reason: str, *_inputs) -> None:
    """Stand for the maker of a candidate that does not take a problem."""
    raise BaselineRefuses(reason)


def fastest(measured: Contest, names: Iterable[str]) -> str | None:
    """Return the one of these with the smallest median; None where none was timed."""
    timed = [name for name in names if name in measured.timings]
    return min(timed, key=lambda name: measured.timings[name].median_us, default=None)


def problems(record: dict) -> list[str]:
    """Return the faults of a suite's record: wrong outputs of ours, auto beyond its margin."""
    checked = record.get("checked", ())
    if isinstance(checked, str):
        return [f"checked: {checked}"]
    found = [f"{one['label']}: {one['name']} is wrong" for one in checked if not one["agrees"]]
    for row in record["rows"]:
        for name, message in row["wrong"].items():
            if not name.startswith("torch"):
                found.append(f"{row['label']}: {message}")
        if row.get("auto_within_margin") is False:
            found.append(
                f"{row['label']}: auto takes {row['auto_over_best']:.2f} times the "
                f"{row['best_method']} method"
            )
    return found


def add_records(parser: argparse.ArgumentParser, measured_where: str) -> None:
    """--recorded and --results, of a subcommand that measures only where a GPU is."""
    parser.add_argument(
        "--recorded", action="store_true", help=f"show the records even where {measured_where}"
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS_FOLDER,
        metavar="FOLDER",
        help="where records are read and written (default: results/)",
    )
