"""Recorded measurements under results/<gpu>/: where they were taken, when, and of which kernels.

A record is JSON: `kind`, `gpu`, `driver`, `cuda`, `date`, `commit`, `kernels` (file name -> SHA-256
of the .cu text and of the headers that it includes), for edited kernels also `sources` (label ->
SHA-256 of the edited code), and the measurements. A kernel or an edit that has changed since makes
its record stale; :func:`caption` says so, and everything that shows a record shows its caption.

Reading and writing check these fields; `attn-course record` checks each kind's own besides.
"""

import datetime
import errno
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, TypedDict

import msgspec
from kernelscope import gpu_count, resolve_backend
from kernelscope.compile import closure_hash, file_stamp, include_closure
from kernelscope.differential.identity import checkout_commit, gpu_folder, gpu_identity
from kernelscope.errors import UnknownNameError, UserError
from msgspec import Meta

from attn_course.folders import checkout, course_folder
from attn_course.ladder.headers import KERNEL_FOLDER, code_of, kernel_path

RESULTS_FOLDER = course_folder("results")
COURSE_GPU = "NVIDIA H200"  # of the course's own records
CPU_FOLDER = "cpu"  # of results/: the simulator's speed, no records of a GPU
_log = logging.getLogger(__name__)
_warned: set[Path] = set()  # files that were named as corrupt


class RecordStamp(TypedDict):
    """Where and when a record was taken, and of which kernels (file -> SHA-256)."""

    kind: str
    gpu: str
    driver: str
    cuda: str  # the runtime's version
    date: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d")]
    commit: str
    kernels: dict[str, str]


class RecordError(UserError, ValueError):
    """A results file that is no record, or a record that is missing; names it and the remedy."""


def kernel_hash(file: str, folder: Path = KERNEL_FOLDER) -> str:
    """Return SHA-256 of a kernel file's code and of the headers that it includes by quotes.

    Comments and line ends do not count: a corrected comment makes no measurement old.
    """
    path = kernel_path(file, folder)
    return _kernel_hash(path, file_stamp(path))


@lru_cache(maxsize=256)
def _kernel_hash(path: Path, stamp: tuple) -> str:
    """Return the hash of a kernel whose files have this stamp."""
    text = path.read_text(encoding="utf-8")
    headers = include_closure(text, path.parent)
    return closure_hash(code_of(text), tuple((name, code_of(header)) for name, header in headers))


def new_record(kind: str, files: Iterable[str], folder: Path = KERNEL_FOLDER, **measured) -> dict:
    """A record of this machine's GPU, now, for kernel files such as "01_scores_naive.cu"; files in
    folders keep theirs: "broken/missing_first_barrier.cu".
    """
    names = sorted({kernel_path(file, folder).relative_to(folder).as_posix() for file in files})
    stamp = {"date": datetime.date.today().isoformat(), "commit": checkout_commit(checkout())}
    hashes = {name: kernel_hash(name, folder) for name in names}
    return {"kind": kind, **gpu_identity(), **stamp, "kernels": hashes, **measured}


def write_record(record: dict, name: str, root: Path = RESULTS_FOLDER) -> Path:
    """Write results/<gpu>/<name>.json and return its path.

    Raises:
        RecordError: a field of the stamp is missing, or a value is NaN or infinity. The record is
            kept as <name>.rejected, which nothing reads: a measurement may have taken long.
    """
    text = json.dumps(record, indent=1) + "\n"
    path = root / gpu_folder(str(record.get("gpu", "unknown"))) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        decoded(text.encode())
    except ValueError as error:
        rejected = path.with_suffix(".rejected")
        rejected.write_text(text, encoding="utf-8")
        raise RecordError(f"{name} is not a record: {error}; kept as {rejected}") from None
    path.write_text(text, encoding="utf-8")
    return path


def decoded(text: bytes) -> dict:
    """Return the record that JSON text holds.

    Raises:
        msgspec.DecodeError: not JSON (NaN is none), or a field of the stamp is missing.
    """
    msgspec.json.decode(text, type=RecordStamp)
    return msgspec.json.decode(text)


def read_record(path: Path) -> dict:
    """Return one record.

    Raises:
        RecordError: the file cannot be read or is no record; names it and the place in it.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise OSError(errno.EINVAL, "it is no plain file")  # reading it could wait for ever
        return decoded(path.read_bytes())
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not a record: {error}") from None


def read_or_warn(path: Path) -> dict | None:
    """Return one record, as read_record(); None for a corrupt file, which the log names once."""
    try:
        return read_record(path)
    except RecordError as error:
        if path not in _warned:
            _warned.add(path)
            _log.warning("skipped: %s", error)
        return None


def records(kind: str, root: Path = RESULTS_FOLDER) -> list[dict]:
    """Return all records of a kind: those of this machine's GPU first, then those of COURSE_GPU.

    Of each GPU, and of the others, the newest first. A corrupt file is skipped, whatever its kind;
    the log names it and says why.
    """
    here = gpu_identity()["gpu"] if gpu_count() else None
    paths = [path for path in sorted(root.glob("*/*.json")) if path.parent.name != CPU_FOLDER]
    found = [record for path in paths if (record := read_or_warn(path)) and record["kind"] == kind]

    def rank(record: dict) -> tuple:
        return record["gpu"] == here, record["gpu"] == COURSE_GPU, record["date"]

    return sorted(found, key=rank, reverse=True)


def newest_record(kind: str, root: Path = RESULTS_FOLDER) -> dict | None:
    """Return the first of :func:`records`, None where there is none."""
    return next(iter(records(kind, root)), None)


def newest_of_each_gpu(kind: str, root: Path = RESULTS_FOLDER) -> dict[str, dict]:
    """Return GPU -> its newest record of a kind, in the order of :func:`records`."""
    found: dict[str, dict] = {}
    for record in records(kind, root):
        found.setdefault(record["gpu"], record)
    return found


def layer_times(name: str, root: Path = RESULTS_FOLDER) -> str:
    """Return the recorded times of a suite, a line each, or how to make the record."""
    found = newest_record(f"bench_{name}", root)
    if found is None:
        return no_record(name)
    lines = [caption(found)]
    for row in found["rows"]:
        lines.append(row["label"])
        for one, timing in row["timings"].items():
            ratio = row["ratios"].get(one)
            text = f"  {one:<30} {timing['median_us']:8.2f} us, error "
            faster = f", {ratio['value']:.2f} times as fast as {ratio['peer']}" if ratio else ""
            lines.append(f"{text}{timing['relative_error']:.1e}{faster}")
    return "\n".join(lines)


def times_on_each_gpu(
    suite: str, candidate: str, root: Path = RESULTS_FOLDER
) -> dict[str, dict[str, float]]:
    """Return label of a row -> GPU -> microseconds of a candidate, from each GPU's newest record.

    A row has the GPUs on which the candidate ran; rows of fewer than two GPUs are left out.
    """
    times: dict[str, dict[str, float]] = {}
    for gpu, record in newest_of_each_gpu(f"bench_{suite}", root).items():
        for row in record["rows"]:
            if timing := row["timings"].get(candidate):
                times.setdefault(row["label"], {})[gpu] = timing["median_us"]
    return {label: found for label, found in times.items() if len(found) > 1}


def times_of(
    method: str, label: str, dtype: str, root: Path = RESULTS_FOLDER
) -> list[tuple[dict, float]]:
    """Return the newest record of each GPU that has a method at one shape, and the microseconds.

    label: of a row of a suite, such as "4,16,1024,64 causal" or "8,32,1,128 keys 8192".
    """
    kinds = sorted({path.stem for path in root.glob("*/bench_*.json")})
    found: dict[str, tuple[dict, float]] = {}
    suites = sorted((r for kind in kinds for r in records(kind, root)), key=lambda r: r["date"])
    for record in suites:
        for row in record["rows"]:
            same = (row["label"], row.get("dtype")) == (label, dtype)
            if same and method in row["timings"]:
                found[record["gpu"]] = record, row["timings"][method]["median_us"]
    return list(found.values())


_measured_now: dict[str, list[dict]] = {}


def recorded(
    kind: str,
    measure: Callable[[], dict] | None = None,
    root: Path = RESULTS_FOLDER,
    has: Callable[[dict], bool] = lambda record: True,
) -> dict:
    """Return a record of a kind: measured now where there is a GPU, else that of :func:`records`.

    measure: takes the record, once a process; None where no lesson measures it. A record that was
    measured now has the key "now", and :func:`caption` says so.
    has: whether a record has the part that is asked for.

    Raises:
        RecordError: there is no such record; names the command that takes one.
    """
    if measure and resolve_backend() == "gpu":
        found = _measured_now.setdefault(kind, [])
        if not any(map(has, found)):
            found.append(measure() | {"now": True})
    else:
        found = records(kind, root)
    for record in filter(has, found):
        return record
    name = kind.removeprefix("bench_").removesuffix("_lesson")
    raise RecordError(f"record {name!r}, {root}: {no_record(name)}")


def row_of(record: dict, shape: Iterable[int], **fields) -> dict:
    """Return the row of a record about one shape whose fields, such as causal, have these values.

    Raises:
        UnknownNameError: it has none.
    """
    for row in (*record["rows"], *filter(None, [record.get("tiles")])):
        if tuple(row["shape"]) == tuple(shape) and fields.items() <= row.items():
            return row
    said = "".join(f", {name} {value}" for name, value in fields.items())
    raise UnknownNameError(f"no row of shape {tuple(shape)}{said} in this record")


def medians_us(timings: Mapping[str, dict]) -> dict[str, float]:
    """Return candidate -> its median time in microseconds."""
    return {name: one["median_us"] for name, one in timings.items()}


def no_record(name: str) -> str:
    """Return the sentence for a missing record: the command that makes one."""
    return f"no record of it yet: on a machine with a GPU, `attn-course record {name}` makes one"


# -- is a record still true? -----------------------------------------------------------------------
def stale_kernels(record: dict, folder: Path = KERNEL_FOLDER) -> list[str]:
    """Return the kernel files that have changed, or gone, since the record was taken."""
    names = record["kernels"]
    return [name for name in names if not is_current(record, name, folder)]


def is_current(
    record: dict,
    file: str | None = None,
    folder: Path = KERNEL_FOLDER,
    sources: Mapping[str, str] | None = None,
) -> bool:
    """Return whether a record, or its part about one kernel file, was measured with these kernels.

    sources: label -> hash of the edited texts as they are now, for a record of edited kernels.
    """
    if file is None:
        same = sources is None or record["sources"] == sources
        return same and not stale_kernels(record, folder)
    name = file if file.endswith(".cu") else f"{file}.cu"
    if name not in record["kernels"] or not (folder / name).is_file():
        return False
    return kernel_hash(name, folder) == record["kernels"][name]


def caption(
    record: dict, folder: Path = KERNEL_FOLDER, sources: Mapping[str, str] | None = None
) -> str:
    """Return where and when a record was taken, and which of its kernels have changed since.

    sources: as of :func:`is_current`.
    """
    if record.get("now"):
        return f"measured now on {record['gpu']}"
    text = (
        f"recorded {record['date']} on {record['gpu']} (driver {record['driver']}, "
        f"CUDA {record['cuda']}, commit {record['commit'] or 'unknown'})"
    )
    stale = stale_kernels(record, folder)
    if stale:
        text += f"; STALE, changed since: {', '.join(stale)}"
    elif not is_current(record, None, folder, sources):
        text += "; STALE, edits changed since"
    return text
