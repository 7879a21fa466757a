"""`attn-course profile`: what Nsight Compute says of the ladder's kernels, measured or recorded."""

import argparse
import re
from collections.abc import Callable
from itertools import chain

from kernelscope import resolve_backend
from kernelscope.cli.arguments import printer, write_json
from kernelscope.errors import UnknownNameError, did_you_mean

from attn_course.cli.arguments import add_shape, require_writable
from attn_course.figures import table
from attn_course.ladder.choose import current_device
from attn_course.ladder.methods import METHODS
from attn_course.ladder.steps import LADDER, Device, Problem, launched, step
from attn_course.measure.hardware.nsight import (
    COUNTER_METRICS,
    LAUNCH_METRICS,
    SPEED_METRICS,
    TIME,
    Target,
)
from attn_course.measure.records import caption, is_current, new_record, records, write_record
from attn_devtools.bench.suite import add_records

from .ncu import collect, find_ncu, stalls

STEPS = (1, 2, 3, 4, 5, 6)
SHAPE = (2, 12, 196, 64)
KIND = "profile"  # what is measured here
KINDS = (KIND, "profile_lesson", "counters")  # what is shown: other tools' records too
_SIDE_BY_SIDE = """
    global_load_sectors global_store_sectors shared_load_wavefronts shared_load_conflicts
    ffma_thread_instructions
""".split()
_TOP_STALLS = 3


def add(parsers) -> None:
    parser = parsers.add_parser(
        "profile",
        help="hardware counters of the kernels, from ncu or from the records",
        description="Where there is a GPU and Nsight Compute, profiles ladder steps with it and "
        "stores a record under results/; elsewhere shows the recorded profiles. The simulator's "
        "counts stand beside the hardware's.",
    )
    parser.add_argument(
        "steps",
        nargs="*",
        type=ladder_steps,
        metavar="STEP",
        help="methods, or ladder steps by number or name (default: steps 1 to 6, or all recorded)",
    )
    add_shape(parser, "the shape to profile (default: 2,12,196,64)", SHAPE)
    add_records(parser, "ncu could run")


def ladder_steps(text: str) -> tuple[int, ...]:
    """The steps of a method, or one by its number, entry point or file name."""
    try:
        return METHODS.get(text) or (step(int(text) if text.isdecimal() else text).number,)
    except UnknownNameError as error:
        near = did_you_mean(text, (*METHODS, *(row.file for row in LADDER)))
        methods = f"; the methods are {', '.join(METHODS)}"
        raise argparse.ArgumentTypeError(f"{error}{methods}{near}") from None


def execute(arguments) -> int:
    """0 where a profile is shown, else 1."""
    steps = list(dict.fromkeys(chain.from_iterable(arguments.steps)))
    measure = not arguments.recorded and find_ncu() and resolve_backend() == "gpu"
    if measure:
        require_writable(arguments.results)
        record = profile(steps or STEPS, arguments.shape)
        path = write_record(record, "profile", arguments.results)
        found, note = [record], f"written to {path}"
    else:
        found = [plain(record) for kind in KINDS for record in records(kind, arguments.results)]
        note = "no GPU with Nsight Compute here" + (
            ": these are records" if found else f", no recorded profile in {arguments.results}"
        )
        if arguments.shape != SHAPE:
            note += "; --shape asks for a run of ncu, the records are of their own shapes"
    found = [select(record, steps) for record in found]
    found = [record for record in found if record["cases"]] or found
    printer(arguments.json)("\n\n".join([*map(report, found), note]))
    write_json(
        arguments.json, {"profiles": [record | {"caption": caption(record)} for record in found]}
    )
    return 0 if any(record["cases"] for record in found) else 1


def profile(numbers, shape: tuple[int, int, int, int]) -> dict:
    """A record of the steps at (B, H, L, D): ncu's metrics, and the simulator's counts."""
    targets = [target_of(number, shape, current_device("gpu")) for number in numbers]
    cases = []
    for target, measured in zip(targets, collect(targets), strict=True):
        cases.append(measured.case(target) | {"step": target.step, "simulator": target.counts()})
    files = [one.file for one in launched(step(number) for number in numbers)]
    return new_record(KIND, files, cases=cases)


def target_of(number: int, shape: tuple[int, int, int, int], device: Device) -> Target:
    """A step at (B, H, L, D) with the constants that suit the device, the simulator's run too."""
    b, h, length, d = shape
    extents = (b * h, length, length, d)
    return Target(number, extents, step(number).launch(Problem(*extents), (), device).options())


def plain(record: dict) -> dict:
    """A record of any of the kinds with what the tables need: step numbers and our counts.

    The profile of the lesson has no counts of the simulator; a comparison of counters has them
    counter by counter beside the hardware's.
    """
    cases = []
    for case in record["cases"]:
        ours = {name: both["simulator"] for name, both in case.get("counters", {}).items()}
        number = re.match(r"\d+(?=_)", case["file"])  # a probe is no step of the ladder
        cases.append({"step": int(number[0]) if number else 0, "simulator": ours} | case)
    return record | {"cases": cases}


def select(record: dict, numbers) -> dict:
    """The record with only these steps (all, where none is named), each marked when stale."""
    cases = [
        case | {"current": is_current(record, case["file"])}
        for case in record["cases"]
        if not numbers or case["step"] in numbers
    ]
    return record | {"cases": cases}


# -- tables ----------------------------------------------------------------------------------------
def report(record: dict) -> str:
    """One record for people: speed of light, stalls, and hardware beside simulator."""
    cases = record["cases"]
    if not cases:
        return f"{caption(record)}\nnone of the steps asked for"
    problems = sorted({tuple(case["problem"]) for case in cases})
    parts = [
        f"{record['kind']}: (BH, n, m, d) = {', '.join(map(str, problems))}, {caption(record)}"
    ]
    timed = (TIME, *SPEED_METRICS.values()) if record["kind"] != "counters" else ()
    if any(metric in case["metrics"] for case in cases for metric in timed):
        parts.append("How near to the hardware's limits, % of peak\n" + speed_table(cases))
    if any(stalls(case["metrics"]) for case in cases):
        parts.append("What a warp waits for, cycles an instruction\n" + stall_table(cases))
    ours = ", then the simulator" if any(case["simulator"] for case in cases) else ""
    parts.append(f"Counted: the hardware{ours}\n" + counter_table(cases))
    return "\n\n".join(parts)


def name_of(case: dict) -> str:
    """'02_scores_tiled PAD=0': file and options, and whether the kernel has changed since."""
    options = [option.removeprefix("-D") for option in case.get("options", ())]
    name = " ".join([case["file"].removesuffix(".cu"), *options])
    return name + ("" if case.get("current", True) else " (STALE)")


def _value(case: dict, metric: str, show: Callable[[float], str]) -> str:
    value = case["metrics"].get(metric)
    return "-" if value is None else show(value)


def speed_table(cases: list[dict]) -> str:
    shown = {"time us": (TIME, lambda ns: f"{ns / 1000:.1f}")}
    shown |= {head: (metric, "{:.1f}".format) for head, metric in SPEED_METRICS.items()}
    shown |= {head: (metric, "{:,.0f}".format) for head, metric in LAUNCH_METRICS.items()}
    rows = [[name_of(one), *(_value(one, *cell) for cell in shown.values())] for one in cases]
    return table(["kernel", *shown], rows, right=range(1, len(shown) + 1))


def stall_table(cases: list[dict]) -> str:
    rows = []
    for case in cases:
        cells = [f"{name} {cycles:.2f}" for name, cycles in stalls(case["metrics"])[:_TOP_STALLS]]
        rows.append([name_of(case), *cells, *["-"] * (_TOP_STALLS - len(cells))])
    return table(["kernel", *(f"{i + 1}." for i in range(_TOP_STALLS))], rows)


def counter_table(cases: list[dict]) -> str:
    heads = ["kernel", "(BH, n, m, d)", *_SIDE_BY_SIDE]
    rows = []
    for case in cases:
        cells = [
            _value(case, COUNTER_METRICS[name], "{:,}".format)
            + (f" / {case['simulator'].get(name, 0):,}" if case["simulator"] else "")
            for name in _SIDE_BY_SIDE
        ]
        rows.append([name_of(case), str(tuple(case["problem"])), *cells])
    return table(heads, rows, right=range(2, len(heads)))
