"""Shared parts of the subcommands: arguments that name a run, inputs, tables, JSON files."""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from kernelscope.cli.arguments import add_backend, dimensions, natural, positive, try_to_write
from kernelscope.cli.options import add_call
from kernelscope.errors import InputError

from attn_course.backward import METHODS as BACKWARD_METHODS
from attn_course.ladder.methods import AUTO, METHODS, check_dtype, dtypes_of
from attn_course.ladder.verify import LaunchRecord, Verdict
from attn_course.reference.comparison import Comparison
from attn_course.reference.dtypes import DTYPES
from attn_course.reference.inputs import seeded_qkv


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
    def title(self) -> str:
        """The words for a run: method, shape, dtype, seed."""
        keys = "" if self.kv_length is None else f", {self.kv_length} keys"
        about = f"(B, H, L, D) = {self.shape}{keys}, {self.dtype}, seed {self.seed}"
        return f"{self.method}, {about}"


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


def add_shape(
    parser: argparse.ArgumentParser, words: str, default: tuple[int, ...] | None = None
) -> None:
    """--shape B,H,L,D."""
    how = {"type": shape_argument, "default": default, "metavar": "B,H,L,D"}
    parser.add_argument("--shape", **how, help=words)


def add_workload(
    parser: argparse.ArgumentParser,
    *,
    shape: tuple[int, int, int, int] = (1, 2, 64, 32),
    kernel_help: str = "its kernel's name",
) -> None:
    """METHOD, the options that say on what it works, and those of a call of a kernel file."""
    parser.add_argument(
        "method",
        metavar="METHOD",
        help=f"one of: {', '.join(METHODS)}, {AUTO}; or of attention_backward(): "
        f"{', '.join(BACKWARD_METHODS)}; or an experiment, such as wide_vectors; or a file of "
        "kernels/ or kernels/broken by its name, such as lost_update; or a kernel file of "
        "your own",
    )
    parser.set_defaults(usual_shape=shape)
    usual = f"default: {','.join(map(str, shape))}; of a broken kernel the case in its file"
    add_shape(parser, f"batch, heads, tokens, head dimension ({usual})")
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
    about = "METHOD is then a file such as my.cu or ./my.cu; --grid and --arg belong to it."
    add_call(parser, title="a kernel of your own", about=about, kernel_help=kernel_help)


def workload(arguments: argparse.Namespace) -> Workload:
    """The workload that :func:`add_workload`'s arguments name.

    Raises:
        UnknownMethod; UnsupportedDtype: names the methods that take the dtype.
    """
    shape, method = arguments.shape or arguments.usual_shape, arguments.method
    dtype = arguments.dtype or ("float32" if method == AUTO else dtypes_of(method)[0])
    if method != AUTO:
        check_dtype(method, dtype)
    on = (arguments.kv_length, arguments.causal, dtype, arguments.seed, arguments.backend)
    return Workload(method, shape, *on)


def judged_record(found: Comparison | None) -> dict:
    """A comparison as plain data for JSON; None in every field where nothing was compared."""
    names = ("max_abs_error", "relative_error", "agrees", "message")
    return {name: getattr(found, name, None) for name in names}


def verdict_record(verdict: Verdict) -> dict:
    """A verdict as plain data for JSON."""
    return judged_record(verdict.comparison) | {
        "name": verdict.name,
        "backend": verdict.backend,
        "picked": verdict.picked,
        "seconds": verdict.seconds,
        "steps": [asdict(launch) for launch in verdict.launches],
    }


def launch_cells(launch: LaunchRecord) -> tuple[str, str, str]:
    """Grid, block and shared memory of a launch for a table."""
    return dimensions(launch.grid), dimensions(launch.block), f"{launch.shared_bytes:,}"
