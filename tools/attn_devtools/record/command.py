"""`attn-course record NAME`: take a measurement and keep it as a record under results/."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from kernelscope import gpu_count, resolve_backend
from kernelscope.cli.arguments import positive
from kernelscope.errors import InputError, did_you_mean

from attn_course.cli.arguments import output_folder, require_writable
from attn_course.folders import child_environment
from attn_course.measure import candidates
from attn_course.measure.records import (
    RESULTS_FOLDER,
    RecordError,
    caption,
    newest_record,
)
from attn_devtools.bench import SUITES, problems, simulator_speed
from attn_devtools.bench.command import REPEATS
from attn_devtools.bench.command import report as suite_report
from attn_devtools.bench.compile_first import compile_first
from attn_devtools.bench.parallel_workers import TORCH
from attn_devtools.bench.peers import PEERS

from . import schema

WRITES_RECORDS = True
SECONDS = 600
ROOT = Path(__file__).resolve().parents[2]  # of the package
TAIL = 3  # lines of a failed record's output that are shown


@dataclass(frozen=True)
class RecordKind:
    """One record: its contents, what it needs, and its file under results/<gpu>/.

    quick: options for a short run of a comparison, which writes its record itself.
    """

    about: str
    needs: str
    file: str
    quick: tuple[str, ...] = ()


KINDS = {
    **{
        name: RecordKind(suite.about, suite.needs, f"bench_{name}")
        for name, suite in SUITES.items()
    },
    "experiments": RecordKind("kernels/experiments beside the ladder", "GPU", "experiments"),
    "memory": RecordKind(
        "latency and bandwidth of each level of memory; layouts of the score kernels",
        "GPU",
        "memory_lesson",
    ),
    "pipeline": RecordKind("the kernels of the pipelines, alone and together", "GPU", "pipeline"),
    "timing": RecordKind("first calls, launches, noise and clocks", "GPU", "timing_lesson"),
    "claims": RecordKind(
        "reductions by atomics and by shuffles; a cuBLAS handle a call", "GPU", "claims_lesson"
    ),
    "tiles": RecordKind(
        "every tile of the tuned kernels; --fit fits the model's prices to it", "GPU", "tiles"
    ),
    "ablations": RecordKind("the flash kernels without one idea at a time", "GPU", "ablations"),
    "hopper_ablations": RecordKind(
        "kernel 18 without one idea at a time", "GPU", "hopper_ablations"
    ),
    "profile": RecordKind(
        "speed of light and stall reasons of kernels 01 to 06, of flash kernels and a large copy",
        "GPU, ncu",
        "profile_lesson",
    ),
    "counters": RecordKind(
        "the simulator's counters against Nsight Compute",
        "GPU, ncu",
        "counters",
        ("--every", "30"),
    ),
    "sanitizer": RecordKind(
        "the sanitizer against compute-sanitizer",
        "GPU, compute-sanitizer",
        "sanitizer",
        ("--every", "10"),
    ),
    "differential": RecordKind(
        "the simulator against the GPU, bit for bit",
        "GPU",
        "differential",
        ("--every", "40", "--kernels", "4"),
    ),
    "simulator_speed": RecordKind(
        "lane-instructions a second of the simulator", "CPU", "simulator_speed"
    ),
}
ALL = "all"
ON_A_GPU = tuple(name for name, one in KINDS.items() if one.needs.startswith("GPU"))


def add(parsers) -> None:
    parser = parsers.add_parser(
        "record",
        help="take measurements on this machine and keep them as records",
        description="Takes measurements and writes each to DIR/<gpu>/. Records: "
        + "; ".join(f"{name} ({one.needs}): {one.about}" for name, one in KINDS.items())
        + f". {ALL}: every one that needs a GPU.",
    )
    parser.add_argument(
        "names",
        nargs="+",
        choices=(*KINDS, ALL),
        metavar="NAME",
        help=f"{', '.join(KINDS)}; or {ALL}. Several run in sequence; a failure is named and "
        "the next one starts",
    )
    parser.add_argument(
        "--out",
        type=output_folder,
        metavar="DIR",
        help="folder of records to write to (default: results/)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few turns of the first problem, to try the command; needs --out",
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=SECONDS,
        metavar="N",
        help=f"of several records: start none after this time, and end the one that runs "
        f"(default {SECONDS})",
    )
    parser.add_argument(
        "--compile-only",
        action="store_true",
        help="of suites: compile PyTorch's peers into the cache on disk, in several processes, and "
        "take no record; a record does so first as well",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="PEER",
        help="of suites: leave out this peer of PyTorch's, such as torch_eager_autotune, whose "
        "compilation takes long; the record's tables name what was not timed. May be repeated",
    )
    parser.add_argument(
        "--fit",
        action="store_true",
        help="with tiles: fit the model's prices to the newest record and print them; no GPU",
    )


def execute(arguments) -> int:
    """0 where every record was taken and holds no fault, else 1.

    Raises:
        ValueError: options that do not go together.  Errors of the measurement.
    """
    out = arguments.out or RESULTS_FOLDER
    chosen = (ON_A_GPU if name == ALL else (name,) for name in arguments.names)
    names = list(dict.fromkeys(chain.from_iterable(chosen)))
    if arguments.quick and not arguments.out:
        raise InputError("--quick measures too little for results/: name a folder with --out")
    if arguments.fit:
        if names != ["tiles"]:
            raise InputError("--fit is for tiles alone: attn-course record tiles --fit")
        return fit(out)
    known = (*PEERS, TORCH)
    if unknown := [peer for peer in arguments.without if peer not in known]:
        near = did_you_mean(unknown[0], known)
        raise InputError(f"no peer {unknown[0]!r}{near}; there are: {', '.join(known)}")
    if arguments.compile_only:
        return compile_only(names, arguments.quick, arguments.without)
    require_writable(out)
    if len(names) > 1:
        return take_several(names, out, arguments.quick, arguments.seconds, arguments.without)
    return take_one(names[0], out, arguments.quick, arguments.without)


def measurement(
    name: str, without: Collection[str] = ()
) -> tuple[Callable[[bool], dict], Callable[[dict], str]]:
    """Return the functions that take a record (quick -> record) and show it (record -> text)."""
    if name in SUITES:
        return partial(take_suite, name, without=without), suite_report
    # Imported here: no other command waits for these modules.
    from attn_course.lessons import fused, lesson03_memory, lesson05_timing, lesson07_pipelines
    from attn_devtools.claims import times as claim_times

    from . import ablation_times, profile_metrics, tile_model
    from .report import report

    homes = {
        "ablations": ablation_times.FLASH,
        "hopper_ablations": ablation_times.HOPPER,
        "claims": claim_times,
        "experiments": fused,
        "memory": lesson03_memory,
        "pipeline": lesson07_pipelines,
        "profile": profile_metrics,
        "tiles": tile_model,
        "timing": lesson05_timing,
    }
    return homes[name].record, getattr(homes[name], "report", report)


def take_suite(name: str, quick: bool, without: Collection[str] = ()) -> dict:
    """Return the record of a suite without some peers. Raises RecordError where there is no GPU."""
    if resolve_backend() != "gpu":
        shown = f"`attn-course bench {name} --recorded` shows the record that was taken"
        more = shown if newest_record(f"bench_{name}") else "no record of it is kept either"
        raise RecordError(f"there is no GPU here for {name}; {more}")
    if not candidates.available():
        print("no PyTorch with CUDA here: the record has no peers", file=sys.stderr)
    turns = {"iterations": 5, "warmup": 1} if quick else {}
    suite = SUITES[name]
    chosen = [one for one in suite.candidates() if one not in without]
    refused = compile_first(suite, chosen, quick)
    return suite.run(chosen, quick=quick, refused=refused, **turns)


def compile_only(names: Sequence[str], quick: bool, without: Collection[str] = ()) -> int:
    """Compile the peers of suites; print what does not compile. Returns 0.

    Raises:
        InputError: a record that is no suite's.  BaselinesMissing: no PyTorch with a GPU.
    """
    if others := [name for name in names if name not in SUITES]:
        raise InputError(f"--compile-only is for suites: {others[0]} is none")
    candidates.torch_module()
    for name in names:
        chosen = [one for one in SUITES[name].candidates() if one not in without]
        for (row, peer), reason in compile_first(SUITES[name], chosen, quick).items():
            print(f"{name}: {row}: {peer}: {reason}")
    return 0


def fit(out: Path) -> int:
    """Fit the prices of the tile model to the newest record; print the picks and the prices."""
    from . import tile_model

    found = newest_record(tile_model.KIND, out)
    if found is None:
        raise RecordError(f"no record of tiles in {out}: `attn-course record tiles` makes one")
    prices = tile_model.fit(found)
    print(tile_model.report(found, prices), prices, sep="\n")
    return 0


def take_one(name: str, out: Path, quick: bool = False, without: Collection[str] = ()) -> int:
    """Take one record in this process, print it, write it. Returns the exit status."""
    one = KINDS[name]
    if one.quick:
        options = one.quick if quick else ()
        return comparison(name)(["--out", str(out.resolve()), *options])
    if name == "simulator_speed":
        path = out / "cpu" / f"{one.file}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        return simulator_speed.run(1 if quick else REPEATS, path)
    take, report = measurement(name, without)
    record = take(quick)
    path = schema.write(record, one.file, out)
    print(report(record))
    faults = faults_of(record)
    for line in faults:
        print(f"WRONG: {line}")
    print(f"{caption(record)}\nwritten to {path}")
    return 1 if faults else 0


def faults_of(record: dict) -> list[str]:
    """Return the wrong outputs in a record's rows, and for a suite auto beyond its margin."""
    if "suite" in record:
        return problems(record)
    rows = [row for row in (*record.get("rows", ()), record.get("tiles")) if row]
    return [f"{row['shape']}: {text}" for row in rows for text in row.get("wrong", {}).values()]


def comparison(name: str) -> Callable[[list[str]], int]:
    """Return the command that takes a record of the simulator beside a GPU."""
    # Imported here: no other command waits for these modules.
    from . import compare_counters, compare_sanitizer, differential_ladder

    commands = {
        "counters": compare_counters.main,
        "sanitizer": compare_sanitizer.main,
        "differential": differential_ladder.main,
    }
    return commands[name]


# -- several ---------------------------------------------------------------------------------------
def take_several(
    names: Sequence[str], out: Path, quick: bool, seconds: float, without: Collection[str] = ()
) -> int:
    """Take records in sequence, each in a process of its own; a failing one does not end the rest.

    The output of each goes to OUT/logs/NAME.txt. Returns 1 where one failed or was left out.
    """
    if not gpu_count() and set(names) & set(ON_A_GPU):
        raise RecordError(
            f"no GPU here for {', '.join(n for n in names if n in ON_A_GPU)}; "
            "`attn-course bench SUITE --recorded` shows the record of a suite"
        )
    logs, end, failed = out / "logs", time.monotonic() + seconds, []
    logs.mkdir(parents=True, exist_ok=True)
    for name in names:
        left = end - time.monotonic()
        if left <= 0:
            said = "left out: no time left"
        else:
            start = time.monotonic()
            status = run_alone(name, out, quick, left, logs / f"{name}.txt", without)
            said = f"{status}, {time.monotonic() - start:.0f} s"
        if not said.startswith("taken"):
            failed.append(name)
        print(f"{name}: {said}", flush=True)
    print(f"{len(names) - len(failed)} of {len(names)} records taken; output in {logs}")
    if failed:
        print(f"not taken, or with faults: {', '.join(failed)}")
    return 1 if failed else 0


def run_alone(
    name: str, out: Path, quick: bool, seconds: float, log: Path, without: Collection[str] = ()
) -> str:
    """Take one record in a new process. Returns "taken", or how it failed with its last lines."""
    command = [sys.executable, "-m", "attn_devtools", "record", name, "--out", str(out)]
    if quick:
        command.append("--quick")
    for peer in without:
        command += ["--without", peer]
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=child_environment(ROOT),
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with what it started: ncu, workers
            process.wait()
            status = None
    if status == 0:
        return "taken"
    # a tool writes in the encoding of the user's locale
    text = log.read_text(encoding="utf-8", errors="replace")
    last = [line for line in text.splitlines() if line.strip()][-TAIL:]
    how = "ended at the time limit" if status is None else f"FAILED with exit status {status}"
    return "\n  ".join([how, *last])
