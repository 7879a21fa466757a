"""Shared parts of the subcommands: arguments that name a run, inputs, tables, JSON files."""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from kernelscope import Observer, observe
from kernelscope.cli.arguments import add_backend, dimensions, natural, positive, try_to_write
from kernelscope.cli.options import add_call, call_options
from kernelscope.errors import InputError

from attn_course import reference
from attn_course.ladder.headers import kernel_path
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


def output_folder(text: str) -> Path:
    """A folder to write into, refused before the work where files could not be made in it."""
    try:
        require_writable(Path(text))
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)


def require_writable(folder: Path) -> None:
    """Check that files can be made in a folder; one that is missing is made later.

    Raises:
        InputError: they cannot; the message names the place and the reason.
    """
    places = (folder, *folder.absolute().parents)
    place = next(one for one in places if one.exists() or one.is_symlink())
    if not place.is_dir():
        raise InputError(f"{str(place)!r} is not a folder: choose another")
    try:
        try_to_write(place)
    except OSError as error:
        raise InputError(f"cannot write to {str(place)!r}: {error.strerror}") from None


def ladder_step(text: str) -> int:
    """A step of the ladder by its number, entry point or file name."""
    try:
        return step(int(text) if text.isdecimal() else text).number
    except KeyError as error:
        raise argparse.ArgumentTypeError(error.args[0]) from None


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


def launch_cells(launch: LaunchRecord) -> tuple[str, str, str]:
    """Grid, block and shared memory of a launch for a table."""
    return dimensions(launch.grid), dimensions(launch.block), f"{launch.shared_bytes:,}"


# -- a kernel file of the user's own in place of a method ----------------------------------------
def add_own(parser: argparse.ArgumentParser, *, kernel_help: str = "its kernel's name") -> None:
    """Add the options of a call of a kernel file, which METHOD may name in place of a method."""
    add_call(
        parser,
        title="a kernel of your own",
        about="METHOD is then a file such as my.cu or ./my.cu; --grid and --arg belong to it.",
        kernel_help=kernel_help,
    )
    parser.set_defaults(usual_shape=parser.get_default("shape"))


def is_own(arguments: argparse.Namespace, of_methods: Sequence[str] = ()) -> bool:
    """Whether the call is one of a kernel file: METHOD ends in .cu or holds a slash.

    `arguments.file` is then this file. of_methods: options of a call that a method has too. Raises
    ValueError for an option that belongs to the other kind of call, FileNotFoundError.
    """
    name = arguments.method
    own = name.endswith(".cu") or "/" in name
    wrong = [f"--{one.replace('_', '-')}" for one in _out_of_place(arguments, own, of_methods)]
    if wrong:
        kind = "a method of attention()" if own else "a kernel file, which ends in .cu"
        raise InputError(f"{', '.join(wrong)}: only for {kind}; {name!r} is none")
    if own and not Path(name).is_file():
        with suppress(FileNotFoundError):
            path = kernel_path(name)
            raise InputError(
                f"no kernel file {name!r}; a kernel of the course is named by its file: {path}"
            )
    arguments.file = name
    return own


def _out_of_place(arguments: argparse.Namespace, own: bool, of_methods: Sequence[str]) -> list[str]:
    if not own:
        return [one for one in call_options(arguments) if one not in of_methods]
    given = [one for one in ("kv_length", "causal") if getattr(arguments, one)]
    return given + ["shape"] * (arguments.shape != arguments.usual_shape)
