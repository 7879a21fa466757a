"""`attn-course bench SUITE`: every method against PyTorch's attention, measured or recorded.

The suite `simulator` is of another kind: how fast the simulator runs on this machine.
"""

import re
import sys
from collections.abc import Callable
from functools import partial

from kernelscope import resolve_backend
from kernelscope.cli.arguments import natural, positive, printer, write_json
from kernelscope.errors import InputError
from tqdm import tqdm

from attn_course.cli.arguments import require_writable
from attn_course.figures import table
from attn_course.ladder.methods import AUTO, METHODS
from attn_course.ladder.steps import Problem
from attn_course.measure import candidates
from attn_course.measure.hardware.devices import peak_of
from attn_course.measure.records import caption, records, write_record
from attn_course.measure.roofline import attention_work

from . import (
    BACKWARD_SUITES,
    LAYER_SUITES,
    PARALLEL_SUITES,
    SUITES,
    Suite,
    problems,
    simulator_speed,
)
from .attention import AUTO_MARGIN
from .backward import GRADIENTS
from .compile_first import compile_first
from .parallel_workers import COMPUTE, EXCHANGE, ONE, RING, TORCH
from .peers import ATTENTION, kinds_of
from .suite import add_records

SIMULATOR = "simulator"
ALL = "all"
REPEATS = 5  # of the simulator's cases
ITERATIONS, WARMUP = 60, 10
LAYER_HEADS = "input|layer|us|20 to 80 %|GB/s|TFLOP/s|error|best peer's time / its|95 %".split("|")
PARALLEL_HEADS = f"B,H,L,D|on|ms|20 to 80 %|TFLOP/s|error|{ONE}: times|95 %|{TORCH}: times|95 %"
BLOCKS_HEADS = "B,H,L,D|NCCL's blocks|grid|ring, ms|computation|exchange|link, GB/s"
TRIALS = ("checked", "by_blocks", "lost_rank")
EXCHANGE_HEADS = (
    "B,H,L,D|MiB sent|both, ms|computation alone|exchange alone|waits|computes meanwhile|hidden"
)
BACKWARD_HEADS = f"B,H,L,D|method|us|20 to 80 %|TFLOP/s|{'|'.join(GRADIENTS)}|peer / its|95 %"
RATIOS = "above 1 ours is faster; 95 %: interval of the ratio, from resampled turns"
STANDING_LEGEND = (
    "auto is: the method that auto takes; 20 to 80 %: percentiles of the turns; of floor: its time "
    "over the least that bytes or operations take at the GPU's peak rates; ratio: the best one's "
    f"time over that of auto, {RATIOS}; of our best: auto's time over that of the fastest method"
)
LAYERS_LEGEND = (
    "20 to 80 %: percentiles of the turns; GB/s and TFLOP/s: of the least bytes and operations; "
    f"error: relative, to float64; best peer's time / its: {RATIOS}; - in the rows of peers"
)


def add(parsers) -> None:
    parser = parsers.add_parser(
        "bench",
        help="kernels against PyTorch on a GPU, or the recorded times; simulator speed",
        description="Times every method of the course against PyTorch's attention, as CUDA graph "
        "replays in turns, each output checked against float64 first. Without a GPU shows the "
        "recorded results. Suites: "
        + "; ".join(f"{name}: {suite.about}" for name, suite in SUITES.items())
        + f"; {SIMULATOR}: how fast the simulator runs on this machine; {ALL}: every suite but "
        "that, one record each.",
    )
    parser.add_argument(
        "suite",
        nargs="?",
        choices=(*SUITES, SIMULATOR, ALL),
        default=SIMULATOR,
        metavar="SUITE",
        help=f"{', '.join(SUITES)}, {ALL} or {SIMULATOR} (the default)",
    )
    parser.add_argument(
        "--iterations",
        "--repeats",
        type=positive,
        metavar="N",
        help=f"timed turns (default {ITERATIONS}; {REPEATS} for {SIMULATOR})",
    )
    parser.add_argument(
        "--warmup",
        type=natural,
        default=WARMUP,
        metavar="N",
        help=f"turns before those (default {WARMUP})",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        help=f"of: {', '.join((*METHODS, AUTO, *ATTENTION))} (default: all)",
    )
    add_records(parser, "there is a GPU")


def execute(arguments) -> int:
    """0 where a result is shown, 1 where there is none or one of ours fails its checks."""
    check_options(arguments)
    if arguments.suite == SIMULATOR:
        return simulator_speed.run(arguments.iterations or REPEATS, arguments.json)
    found, complete = [], True
    for name in SUITES if arguments.suite == ALL else (arguments.suite,):
        results, note, faults = results_of(SUITES[name], arguments)
        printer(arguments.json)("\n\n".join([note, *map(report, results), *faults]))
        found += results
        complete &= bool(results) and not faults
    write_json(
        arguments.json, {"results": [record | {"caption": caption(record)} for record in found]}
    )
    return 0 if complete else 1


def check_options(arguments) -> None:
    """Raise InputError for options that do not go together."""
    suite = arguments.suite
    if suite == SIMULATOR and arguments.recorded:
        raise InputError(f"--recorded shows a suite's record: name one of {', '.join(SUITES)}")
    if not arguments.methods:
        return
    if suite == SIMULATOR:
        raise InputError(
            "--methods chooses what a suite times: name the suite before it, as in "
            "attn-course bench seeds_fp32 --methods tiled flash_fp32"
        )
    if suite == ALL:
        raise InputError("--methods chooses what one suite times: name the suite")
    if arguments.recorded:
        raise InputError(
            "--methods chooses what is timed; --recorded shows all that was: leave one"
        )
    SUITES[suite].candidates(arguments.methods)  # refuses unknown names
    if resolve_backend() != "gpu":
        raise InputError(
            "--methods chooses what is timed, and there is no GPU here: leave it, and the "
            "records are shown"
        )


def results_of(suite: Suite, arguments) -> tuple[list[dict], str, list[str]]:
    """Measure a suite, or read its records: the results, a note on them, and their faults."""
    if arguments.recorded or resolve_backend() != "gpu":
        found = records(f"bench_{suite.name}", arguments.results)
        why = "as asked for" if arguments.recorded else "no GPU here"
        if found:
            return found, f"these are recorded results, {why}", []
        return [], f"no record of {suite.name} in {arguments.results}, and none taken: {why}", []
    require_writable(arguments.results)
    if arguments.methods is None and not candidates.available():
        tqdm.write(
            "no PyTorch with CUDA here: timing the course's methods alone "
            "(pip install -e '.[peers]' adds the peers)",
            file=sys.stderr,
        )
    record = suite.run(
        arguments.methods,
        refused=compile_first(suite, arguments.methods),
        iterations=arguments.iterations or ITERATIONS,
        warmup=arguments.warmup,
        progress=partial(tqdm, unit="row", disable=None, leave=False),
    )
    path = write_record(record, f"bench_{suite.name}", arguments.results)
    return [record], f"written to {path}", problems(record)


# -- tables ----------------------------------------------------------------------------------------
def report(record: dict) -> str:
    """One record for people: where it is from, its tables, and who stayed out."""
    torch = f", PyTorch {record['torch']}" if record["torch"] else ""
    heading = f"{record['suite']}: {record['about']}\n{caption(record)}{torch}{clock_text(record)}"
    kinds = {**dict.fromkeys(LAYER_SUITES, layer_tables)}
    kinds |= dict.fromkeys(BACKWARD_SUITES, backward_tables)
    kinds |= dict.fromkeys(PARALLEL_SUITES, parallel_tables)
    tables = kinds.get(record["suite"], attention_tables)
    return "\n\n".join([heading, *tables(record), *filter(None, ["\n".join(absent(record))])])


def attention_tables(record: dict) -> list[str]:
    """auto against its best peer, all times and rates, and pipelines kernel by kernel."""
    tables = [
        "auto against the best backend of scaled_dot_product_attention and the best of all peers: "
        f"{kinds_of(record)}; medians of graph replays in turns, us a call\n"
        + standing_table(record)
        + "\n"
        + STANDING_LEGEND,
        "All methods and peers, us a call\n"
        + candidates_table(record, lambda one: f"{one['median_us']:.2f}"),
        "All methods and peers, TFLOP/s and relative error to float64\n"
        + candidates_table(record, lambda one: f"{one['tflops']:.1f} {one['relative_error']:.0e}"),
    ]
    if any(row.get("kernels") for row in record["rows"]):
        tables.append("A pipeline kernel by kernel\n" + kernel_table(record))
    return tables


def layer_tables(record: dict) -> list[str]:
    """All times, rates and errors, ours against the best peer."""
    rows = [
        [
            row["label"],
            name,
            *time_cells(one),
            f"{row['work']['bytes'] / one['median_us'] / 1e3:.0f}",
            f"{row['work']['operations'] / one['median_us'] / 1e6:.1f}",
            f"{one['relative_error']:.1e}",
            *ratio_cells(row["ratios"].get(name)),
        ]
        for row in record["rows"]
        for name, one in row["timings"].items()
    ]
    legend = f"{LAYERS_LEGEND}; peers: {kinds_of(record)}"
    return [table(LAYER_HEADS, rows, right=range(2, 8)) + "\n" + legend]


def backward_tables(record: dict) -> list[str]:
    """All times and rates, the error of each gradient, ours against the best peer."""
    rows = [
        [
            row["label"],
            name,
            *time_cells(one),
            f"{one['tflops']:.1f}",
            *(f"{one['errors'][gradient]:.1e}" for gradient in GRADIENTS),
            *ratio_cells(row["ratios"].get(name)),
        ]
        for row in record["rows"]
        for name, one in row["timings"].items()
    ]
    legend = (
        "the backward pass alone; dq, dk, dv: the relative error of each to float64; peer / its: "
        f"the best peer's time over its own, {RATIOS}; peers: {kinds_of(record)}"
    )
    return [table(BACKWARD_HEADS.split("|"), rows, right=range(2, 9)) + "\n" + legend]


def parallel_tables(record: dict) -> list[str]:
    """All times and rates, the ring and heads against one GPU and the peer, what is hidden."""
    rows, hidden = [], []
    for row in record["rows"]:
        for name, one in row["timings"].items():
            times = (f"{one[key] / 1e3:.3f}" for key in ("median_us", "p20_us", "p80_us"))
            median, low, high = times
            rates = [f"{one['tflops']:.0f}", f"{one['relative_error']:.1e}"]
            ratios = row["ratios"].get(name, {})
            against = [cell for other in (ONE, TORCH) for cell in ratio_cells(ratios.get(other))]
            rows.append([row["label"], name, median, f"{low} to {high}", *rates, *against])
        if one := row.get("exchange"):
            names = ("both_us", "compute_us", "exchange_us", "waited_us")
            times = [f"{one[name] / 1e3:.3f}" for name in names]
            meanwhile = 1 - one["waited_us"] / one["exchange_us"]
            shares = [f"{100 * share:.0f} %" for share in (meanwhile, one["hidden"])]
            hidden.append([row["label"], f"{one['bytes'] / 2**20:.0f}", *times, *shares])
    link = ", ".join(f"{one['gb_s']:.0f} at {one['bytes'] >> 20} MiB" for one in record["link"])
    return [
        f"{record['ranks']} GPUs, a process each; NCCL {record['nccl']}; GB/s between neighbours, "
        f"both ways at once, each: {link}",
        table(PARALLEL_HEADS.split("|"), rows, right=range(2, 9)) + f"\ntimes: {RATIOS}",
        "How much of a ring's exchange the computation hides\n"
        + table(EXCHANGE_HEADS.split("|"), hidden, right=range(1, 8))
        + "\nms; waits: for keys; computes meanwhile: of the exchange, all but the waits; hidden: "
        "of the exchange, what both together take less than one after the other",
        *trial_texts(record),
    ]


def trial_texts(record: dict) -> list[str]:
    """The trials beside the times, or why they have failed."""
    found = [f"{name}: {record[name]}" for name in TRIALS if isinstance(record.get(name), str)]
    if isinstance(record.get("checked"), list):
        rows = [
            (one["label"], one["name"], f"{one['relative_error']:.1e}", str(one["agrees"]))
            for one in record["checked"]
        ]
        found.append(table(("B,H,L,D", "on", "error", "agrees"), rows, right=(2,)))
    if isinstance(record.get("by_blocks"), list):
        rows = [
            (
                *(str(one[name]) for name in ("label", "nccl_blocks", "grid")),
                *(f"{one[f'{name}_us'] / 1e3:.3f}" for name in (RING, COMPUTE, EXCHANGE)),
                f"{one['link_gb_s']:.0f}",
            )
            for one in record["by_blocks"]
        ]
        found.append(table(BLOCKS_HEADS.split("|"), rows, right=range(3, 7)))
    if isinstance(record.get("lost_rank"), dict):
        one = record["lost_rank"]
        found.append(
            f"rank 0, {one['seconds']:.1f} s after the last rank was killed: {one['said']}"
        )
    return found


def time_cells(one: dict) -> list[str]:
    """The median and the spread of a timing."""
    return [f"{one['median_us']:.2f}", f"{one['p20_us']:.2f} to {one['p80_us']:.2f}"]


def ratio_cells(ratio: dict | None) -> list[str]:
    """A ratio and its interval; '-' where there is none."""
    if not ratio:
        return ["-", "-"]
    return [f"{ratio['value']:.2f}", f"{ratio['low']:.2f} to {ratio['high']:.2f}"]


def clock_text(record: dict) -> str:
    """', SM clock 1635 to 1980 MHz': the range seen during the run."""
    low, middle, high = record["clocks"].get("sm_mhz") or (None,) * 3
    return f", SM clock {low:.0f} to {high:.0f} MHz, median {middle:.0f}" if low else ""


def standing_table(record: dict) -> str:
    heads = (
        "B,H,L,D|auto is|auto|20 to 80 %|TFLOP/s|of floor|best backend|us|ratio|95 %|best peer|us|"
        f"ratio|95 %|of our best (<= {AUTO_MARGIN})|error"
    ).split("|")
    rows = []
    for row in record["rows"]:
        auto = row["timings"].get(AUTO)
        if auto is None:
            continue
        rows.append(
            [
                row["label"],
                row["auto_picks"],
                *time_cells(auto),
                f"{auto['tflops']:.2f}",
                floor_cell(record, row, auto["median_us"]),
                *rival_cells(row, "backend"),
                *rival_cells(row, "peer"),
                f"{row['auto_over_best']:.3f}" if "auto_over_best" in row else "-",
                f"{auto['relative_error']:.1e}",
            ]
        )
    return table(heads, rows, right=(2, 3, 4, 5, 7, 8, 11, 12, 14, 15))


def rival_cells(row: dict, key: str) -> list[str]:
    """Name, time, ratio and interval of the best backend or peer; '-' where there is none."""
    best, ratio = row[f"best_{key}"], row.get(f"ratio_{key}")
    if not best or not ratio:
        return ["-"] * 4
    time_us = f"{row['timings'][best]['median_us']:.2f}"
    return [best.removeprefix("torch_"), time_us, *ratio_cells(ratio)]


def floor_cell(record: dict, row: dict, time_us: float) -> str:
    """How many times its floor a time is; '-' for a GPU without peak rates."""
    (b, h, n, d), dtype = row["shape"], row.get("dtype", "float32")
    try:
        work = attention_work(Problem(b * h, n, n, d, causal=row["causal"], dtype=dtype))
        return f"{time_us / work.floor_us(peak_of(record['gpu']), dtype):.1f}x"
    except KeyError:
        return "-"


def candidates_table(record: dict, cell: Callable[[dict], str]) -> str:
    """Problems down, candidates across; `cell` of each timing."""
    names = list(dict.fromkeys(name for row in record["rows"] for name in row["timings"]))
    rows = [
        [
            row["label"],
            *(cell(row["timings"][name]) if name in row["timings"] else "-" for name in names),
        ]
        for row in record["rows"]
    ]
    return table(["B,H,L,D", *names], rows, right=range(1, len(names) + 1))


def kernel_table(record: dict) -> str:
    rows = []
    for row in record["rows"]:
        for name, kernels in row.get("kernels", {}).items():
            total = sum(kernel["median_us"] for kernel in kernels)
            for kernel in kernels:
                share = f"{100 * kernel['median_us'] / total:.1f} %"
                rows.append(
                    [row["label"], name, kernel["name"], f"{kernel['median_us']:.2f}", share]
                )
    return table(["B,H,L,D", "pipeline", "kernel", "us", "share"], rows, right=(3, 4))


def absent(record: dict) -> list[str]:
    """One line for each reason why candidates were not timed, with the rows it holds for."""
    names: dict[str, dict[str, list[str]]] = {}  # reason -> name -> rows
    for row in record["rows"]:
        for why in ("refused", "skipped", "wrong"):
            for name, reason in row.get(why, {}).items():
                text = "too slow, " + reason.partition(", ")[2] if why == "skipped" else reason
                # Reasons that differ in a number or in who gives them are one.
                text = re.sub(r"\d{4,}", "..", text.removeprefix(f"{name}: ").partition(";")[0])
                text = text.replace(f"method {name!r} has", "it has").partition(". ")[0]
                names.setdefault(text, {}).setdefault(name, []).append(row["label"])
    found = []
    for reason, who in names.items():
        for rows in dict.fromkeys(map(tuple, who.values())):
            those = ", ".join(name for name, held in who.items() if tuple(held) == rows)
            where = "all rows" if len(rows) == len(record["rows"]) else "; ".join(rows)
            found.append(f"not timed: {those}: {reason} ({where})")
    return found
