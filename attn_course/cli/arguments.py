"""Shared parts of the subcommands: arguments that name a run, inputs, tables, JSON files."""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from attn_course import reference
from attn_course.engine.backend import BACKENDS
from attn_course.engine.events import Observer, observe
from attn_course.ladder.methods import AUTO, METHODS, attention, check_dtype, dtypes_of, steps_of
from attn_course.ladder.steps import step
from attn_course.ladder.verify import LaunchRecord, Verdict
from attn_course.measure.records import RESULTS_FOLDER
from attn_course.reference.comparison import Comparison, compare
from attn_course.reference.dtypes import DTYPES, TOLERANCES
from attn_course.reference.inputs import seeded_qkv

DEFAULT_SHAPE = (1, 2, 64, 32)


@dataclass(frozen=True)
class Workload:
    """One attention call as the command line names it; shape is (B, H, L, D)."""

    method: str
    shape: tuple[int, int, int, int]
    kv_length: int | None
    causal: bool
    dtype: str
    seed: int
    backend: str | None

    def inputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Seeded random q (B, H, L, D), k and v (B, H, kv_length or L, D) of the dtype."""
        arrays = seeded_qkv(self.shape, self.kv_length, self.seed)
        return tuple(array.astype(DTYPES[self.dtype]) for array in arrays)

    @property
    def tolerance(self) -> float:
        """The relative error to float64 that a method's kernels are allowed with this dtype."""
        if self.method == AUTO:
            return TOLERANCES[self.dtype]
        return max(row.tolerance(self.dtype) for row in steps_of(self.method))


def shape_argument(text: str) -> tuple[int, int, int, int]:
    """'2,12,196,64' -> (2, 12, 196, 64); argparse shows the message of what it refuses."""
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if len(shape) != 4 or min(shape, default=0) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a shape: give batch, heads, tokens and head dimension, each at "
            "least 1, as B,H,L,D (for example 2,12,196,64)"
        )
    return shape


def positive(text: str) -> int:
    """A whole number of at least 1; argparse shows the message of what it refuses."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def output_file(text: str) -> Path:
    """A file to write ('-': the screen), refused before the work where it cannot be written."""
    path = Path(text)
    if text == "-":
        return path
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"no folder {str(path.parent)!r} for {path.name!r}: make it or choose another"
        )
    try:
        if path.exists():
            path.open("ab").close()
        else:
            _try_to_write(path.parent)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: {error.strerror}") from None
    return path


def output_folder(text: str) -> Path:
    """A folder to write into, refused before the work where files could not be made in it."""
    try:
        require_writable(Path(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)


def require_writable(folder: Path) -> None:
    """Check that files can be made in a folder; one that is missing is made later.

    Raises:
        ValueError: they cannot; the message names the place and the reason.
    """
    places = (folder, *folder.absolute().parents)
    place = next(one for one in places if one.exists() or one.is_symlink())
    if not place.is_dir():
        raise ValueError(f"{str(place)!r} is not a folder: choose another")
    try:
        _try_to_write(place)
    except OSError as error:
        raise ValueError(f"cannot write to {str(place)!r}: {error.strerror}") from None


def _try_to_write(folder: Path) -> None:
    """Make a file in the folder that is gone at once. OSError: why none can be made."""
    tempfile.TemporaryFile(dir=folder).close()


def ladder_step(text: str) -> int:
    """A step of the ladder by its number, entry point or file name."""
    try:
        return step(int(text) if text.isdecimal() else text).number
    except KeyError as error:
        raise argparse.ArgumentTypeError(error.args[0]) from None


def natural(text: str) -> int:
    """A whole number of at least 0, as `positive`."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def add_backend(parser: argparse.ArgumentParser) -> None:
    """--backend."""
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        help=(
            "where kernels run; default: ATTN_COURSE_BACKEND, else a GPU if there is one, else the "
            "simulator"
        ),
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json FILE, which `write_json` takes."""
    parser.add_argument(
        "--json",
        metavar="FILE",
        type=output_file,
        help="also write the result to this file ('-': only JSON, to the screen)",
    )


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


def add_workload(
    parser: argparse.ArgumentParser,
    *,
    shape: tuple[int, int, int, int] = DEFAULT_SHAPE,
    metavar: str = "METHOD",
    also: str = "",
) -> None:
    """METHOD and the options that name an attention call; `also` ends the method's help."""
    parser.add_argument(
        "method",
        metavar=metavar,
        help=(
            f"one of: {', '.join(METHODS)}, {AUTO}; or an experiment, such as wide_vectors{also}"
        ),
    )
    parser.add_argument(
        "--shape",
        type=shape_argument,
        default=shape,
        metavar="B,H,L,D",
        help=f"batch, heads, tokens, head dimension (default: {','.join(map(str, shape))})",
    )
    parser.add_argument(
        "--kv-length",
        type=positive,
        metavar="N",
        help="number of keys and values, where it differs from L",
    )
    parser.add_argument("--causal", action="store_true", help="a query sees no later key")
    parser.add_argument(
        "--dtype",
        choices=tuple(DTYPES),
        help="of q, k, v and the output (default: the method's usual one, float32 of auto)",
    )
    parser.add_argument("--seed", type=natural, default=0, help="of the random inputs (default 0)")
    add_backend(parser)


def workload(arguments: argparse.Namespace) -> Workload:
    """The workload that :func:`add_workload`'s arguments name.

    Raises:
        UnknownMethod; UnsupportedDtype: names the methods that take the dtype.
    """
    names = ("method", "shape", "kv_length", "causal", "dtype", "seed", "backend")
    found = {name: getattr(arguments, name) for name in names}
    method, dtype = arguments.method, arguments.dtype
    found["dtype"] = dtype or ("float32" if method == AUTO else dtypes_of(method)[0])
    if method != AUTO:
        check_dtype(method, found["dtype"])
    return Workload(**found)


def observed(work: Workload, observer: Observer) -> Comparison:
    """One call of the method on the simulator under an observer, compared with float64."""
    q, k, v = work.inputs()
    with observe(observer):
        out = attention(q, k, v, work.method, causal=work.causal, backend="simulator")
    expected = reference.attention(q, k, v, causal=work.causal)
    return compare(out, expected, relative=work.tolerance, name=work.method)


def observed_record(work: Workload, judged: Comparison) -> dict:
    """The result of `observed` for machines: the workload's fields and the comparison's."""
    return asdict(work) | {
        "backend": "simulator",
        "max_abs_error": judged.max_abs_error,
        "relative_error": judged.relative_error,
        "agrees": judged.agrees,
    }


def title(work: Workload, end: str) -> str:
    """The line that names a run: method, shape, dtype, seed, and `end`."""
    keys = "" if work.kv_length is None else f", {work.kv_length} keys"
    return (
        f"{work.method}, (B, H, L, D) = {work.shape}{keys}, {work.dtype}, seed {work.seed}, {end}"
    )


def printer(path: Path | None) -> Callable[..., None]:
    """Return print; with `--json -`, a function that leaves the screen to the JSON."""
    return print if path != Path("-") else lambda *_, **__: None


def write_json(path: Path | None, record: dict) -> None:
    """Write a record where --json asks for it: a file, '-' for standard output, or nowhere."""
    if path is None:
        return
    text = json.dumps(finite(record), indent=1) + "\n"
    if str(path) == "-":
        print(text, end="")
    else:
        path.write_text(text, encoding="utf-8")


def finite(value):
    """The value with every float that JSON cannot hold (NaN, infinity) as its name."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def verdict_record(verdict: Verdict) -> dict:
    """A verdict as plain data for JSON."""
    return {
        "name": verdict.name,
        "backend": verdict.backend,
        "max_abs_error": verdict.comparison.max_abs_error,
        "relative_error": verdict.comparison.relative_error,
        "agrees": verdict.agrees,
        "message": verdict.comparison.message,
        "picked": verdict.picked,
        "seconds": verdict.seconds,
        "steps": [asdict(launch) for launch in verdict.launches],
    }


def dimensions(extents: Sequence[int]) -> str:
    """(7, 7, 24) -> '7x7x24', as launch geometry is written in tables; ends of 1 left out."""
    kept = list(extents)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "x".join(map(str, kept))


def launch_cells(launch: LaunchRecord) -> tuple[str, str, str]:
    """Grid, block and shared memory of a launch for a table."""
    return dimensions(launch.grid), dimensions(launch.block), f"{launch.shared_bytes:,}"
