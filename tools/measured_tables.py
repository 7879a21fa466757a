"""Tables of what was measured on a GPU, which readme_tables writes from the records."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from attn_course.ladder.methods import AUTO
from attn_course.measure import times_on_each_gpu
from attn_course.measure.records import (
    COURSE_GPU,
    caption,
    newest_of_each_gpu,
    no_record,
    read_record,
    stale_kernels,
)
from attn_devtools.bench import BACKWARD_SUITES, LAYER_SUITES, PARALLEL_SUITES, SUITES
from attn_devtools.bench.backward import GRADIENTS
from attn_devtools.bench.parallel import ONE, TORCH
from attn_devtools.bench.peers import kinds_of, listed
from attn_devtools.book import ATTENTION
from attn_devtools.record.sanitizer_runs import clean_subjects

ROOT = Path(__file__).resolve().parent.parent
GPU_RECORDS = ROOT / "results" / "h200"
ENGINE_RECORDS = ROOT / "kernelscope" / "results"  # those that know no kernel of the course
FLASH = "FLASH"  # of elements of 16 bits, PyTorch's kernel of the same instructions as ours
DECODE = "decode"  # the suite of few queries
# What the course runs in each suite.
OURS = {suite: AUTO for suite in (*ATTENTION, DECODE)} | {
    "layernorm": "layer_norm",
    "gelu": "bias_gelu",
    "mlp": "mlp_fp32",
    "block": "block_fp32",
    "backward": "backward_wgmma",
}


def layer_times() -> list[str]:
    """The layers against the best peer, a table for each of their suites."""
    parts = []
    for suite in LAYER_SUITES:
        path = _of(suite)
        if not path.is_file():
            parts.append(f"`{suite}`: {no_record(suite)}.")
            continue
        record = read_record(path)
        lines = [
            suite_line(suite, record),
            "",
            "| input | layer | us | best peer | us | its time / ours | error |",
            "|---|---|--:|---|--:|--:|--:|",
        ]
        for row in record["rows"]:
            best = row["best_peer"]
            for name, ratio in row["ratios"].items():
                mine = row["timings"][name]
                lines.append(
                    f"| {row['label']} | `{name}` | {mine['median_us']:,.1f} | {best} "
                    f"| {row['timings'][best]['median_us']:,.1f} | {ratio['value']:.2f} "
                    f"| {mine['relative_error']:.1e} |"
                )
        parts.append("\n".join(lines))
    return parts


def bench() -> str:
    """`auto` against the best of all baselines, every row of the suites."""
    return _of_suites((*ATTENTION, DECODE), _bench)


def backward() -> str:
    """Our methods of the backward pass against the best peer, every row of their suites."""
    return _of_suites(BACKWARD_SUITES, _backward)


def parallel() -> str:
    """Rings and heads of several GPUs, and how much of a ring's exchange is hidden."""
    return _of_suites(PARALLEL_SUITES, _parallel)


def _of_suites(suites: Iterable[str], parts_of: Callable) -> str:
    """What a function of a suite and its record writes, or that there is no record."""
    parts = []
    for suite in suites:
        if _of(suite).is_file():
            parts += parts_of(suite, read_record(_of(suite)))
        else:
            parts.append(f"`{suite}`: {SUITES[suite].about}; {no_record(suite)}.")
    return "\n\n".join(parts)


def _bench(suite: str, record: dict) -> list[str]:
    rival = "best backend of SDPA" if record["dtype"] == "float32" else FLASH
    lines = [
        "| B, H, L, D | `auto` takes | us | best of all peers | us | its time / ours "
        f"| {rival} / ours |",
        "|---|---|--:|---|--:|--:|--:|",
        *(bench_row(row, rival) for row in record["rows"]),
    ]
    return [suite_line(suite, record), "\n".join(lines)]


def _backward(suite: str, record: dict) -> list[str]:
    heads = f"B, H, L, D|method|us|TFLOP/s|{'|'.join(GRADIENTS)}|best peer|us|its time / ours"
    return [suite_line(suite, record), _table(heads, backward_rows(record))]


def _parallel(suite: str, record: dict) -> list[str]:
    heads = "B, H, L, D|on|ms|TFLOP/s|its speed / one GPU's|its speed / PyTorch's|error"
    return [
        f"`{suite}`: {record['about']}; {caption(record)}, PyTorch {record['torch']}, NCCL "
        f"{record['nccl']}; PyTorch's is context_parallel with cuDNN.",
        _table(heads, parallel_rows(record)),
        _table("B, H, L, D|MiB sent|exchange, ms|waits for keys, ms|hidden", ring_rows(record)),
    ]


def parallel_rows(record: dict) -> Iterable[str]:
    """The lines of times."""
    for row in record["rows"]:
        for name, one in row["timings"].items():
            ratios = row["ratios"].get(name, {})
            against = " | ".join(
                f"{ratios[other]['value']:.2f}" if other in ratios else "-"
                for other in (ONE, TORCH)
            )
            yield (
                f"| {row['label']} | `{name}` | {one['median_us'] / 1e3:,.2f} "
                f"| {one['tflops']:.0f} | {against} | {one['relative_error']:.1e} |"
            )


def ring_rows(record: dict) -> Iterable[str]:
    """The lines of exchanges."""
    for row in record["rows"]:
        if one := row.get("exchange"):
            yield (
                f"| {row['label']} | {one['bytes'] >> 20} | {one['exchange_us'] / 1e3:.2f} "
                f"| {one['waited_us'] / 1e3:.3f} | {100 * one['hidden']:.0f} % |"
            )


def _table(heads: str, rows: Iterable[str]) -> str:
    """A table of numbers; of words in the first column and where something is named."""
    names = ("method", "on", "best peer")
    words = [":--" if at == 0 or one in names else "--:" for at, one in enumerate(heads.split("|"))]
    return "\n".join([f"| {heads.replace('|', ' | ')} |", f"|{'|'.join(words)}|", *rows])


def backward_rows(record: dict) -> Iterable[str]:
    """The lines of a record's table."""
    for row in record["rows"]:
        best = row["best_peer"]
        for name, ratio in row["ratios"].items():
            mine = row["timings"][name]
            errors = " | ".join(f"{mine['errors'][gradient]:.1e}" for gradient in GRADIENTS)
            yield (
                f"| {row['label']} | `{name}` | {mine['median_us']:,.1f} | {mine['tflops']:.0f} "
                f"| {errors} | {best.removeprefix('torch_')} "
                f"| {row['timings'][best]['median_us']:,.1f} | {ratio['value']:.2f} |"
            )


def suite_line(suite: str, record: dict) -> str:
    """The first line of a suite's table: what and when, and the kinds of peers in the record."""
    about = f"`{suite}`: {record['about']}; {caption(record)}, PyTorch {record['torch']}"
    return f"{about}; peers: {kinds_of(record)}."


def other_gpus() -> str:
    """The course's times on other GPUs over those on its own GPU, a row for each suite."""
    heads = (
        f"| suite | ours | GPU | rows | its time / that on the {COURSE_GPU}, from least to most |"
    )
    lines = [heads, "|---|---|---|--:|---|"]
    for suite, name in OURS.items():
        rows, records = times_on_each_gpu(suite, name), newest_of_each_gpu(f"bench_{suite}")
        others = {gpu for us in rows.values() if COURSE_GPU in us for gpu in us} - {COURSE_GPU}
        for gpu in sorted(others):
            ratios = {
                label: us[gpu] / us[COURSE_GPU]
                for label, us in rows.items()
                if {gpu, COURSE_GPU} <= set(us)
            }
            ends = [
                f"{ratios[label]:.2f} at {label}"
                for label in (at(ratios, key=ratios.get) for at in (min, max))
            ]
            if stale_kernels(records[gpu]) or stale_kernels(records[COURSE_GPU]):
                ends.append("STALE: not of the kernels as they are")
            lines.append(f"| `{suite}` | `{name}` | {gpu} | {len(ratios)} | {'; '.join(ends)} |")
    return "\n".join(lines)


def methods() -> str:
    """Every method at each shape of the suite `ladder`: time, rate, speed beside the best, error.

    Baselines stand among the methods, slowest first.
    """
    path = GPU_RECORDS / "bench_ladder.json"
    if not path.is_file():
        return no_record("ladder").capitalize() + "."
    record = read_record(path)
    parts = [f"{caption(record)}, PyTorch {record['torch']}; peers: {kinds_of(record)}."]
    for row in record["rows"]:
        best = row["timings"][row["best_peer"]]["median_us"] if row["best_peer"] else None
        ordered = sorted(row["timings"].items(), key=lambda one: -one[1]["median_us"])
        lines = [
            f"(B, H, L, D) = ({row['label'].replace(',', ', ')})",
            "",
            "| method | us | TFLOP/s | speed, % of the best peer | relative error |",
            "|---|--:|--:|--:|--:|",
            *(method_time_row(name, one, best) for name, one in ordered),
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def method_time_row(name: str, timing: dict, best_us: float | None) -> str:
    share = f"{100 * best_us / timing['median_us']:.0f}" if best_us else "-"
    return (
        f"| `{name}` | {timing['median_us']:,.1f} | {timing['tflops']:.2f} | {share} | "
        f"{timing['relative_error']:.1e} |"
    )


def bench_row(row: dict, rival: str) -> str:
    """`auto` beside the best baseline, eager attention included, and FLASH or SDPA's best."""
    ours, best = row["timings"]["auto"]["median_us"], row["best_peer"]
    theirs, ratio = row["timings"][best]["median_us"], row["ratio_peer"]["value"]
    if rival == FLASH:
        flash = row["timings"].get("torch_flash")
        over = f"{flash['median_us'] / ours:.2f}" if flash else "-"
    else:
        over = f"{row['ratio_backend']['value']:.2f}"
    return (
        f"| {row['label']} | `{row['auto_picks']}` | {ours:,.1f} | "
        f"{best.removeprefix('torch_')} | {theirs:,.1f} | {ratio:.2f} | {over} |"
    )


def checked() -> str:
    """The comparisons of the simulator and its sanitizer with a GPU, from four records."""
    lines = (counters_line(), differential_line(), matrices_line(), sanitizer_line())
    return "\n".join(lines)


def counters_line() -> str:
    record = read_record(GPU_RECORDS / "counters.json")
    found = _verdicts(record)
    apart = len(found) - found.count("equal") - len(record["missed"])
    return (
        f"- **Counters** against Nsight Compute: {found.count('equal')} of {len(found)} equal, "
        f"{apart} differ for a reason that the record names, {len(record['missed'])} "
        f"unexplained; {caption(record)}."
    )


def counters() -> tuple[int, int]:
    """Return how many counts are equal to Nsight Compute's, and of how many."""
    found = _verdicts(read_record(GPU_RECORDS / "counters.json"))
    return found.count("equal"), len(found)


def _verdicts(record: dict) -> list[str]:
    """The verdict of each counter of a record of counters."""
    return [
        both["verdict"]
        for part in ("cases", "probes")
        for case in record[part]
        for both in case["counters"].values()
    ]


def differential_line() -> str:
    record = read_record(GPU_RECORDS / "differential.json")
    exact, of = _exact(record)
    kernels = record["sections"]["random_kernels"]
    bounded = record["sections"]["opcodes"]["count"] - of
    return (
        f"- **Results** against the GPU: {exact:,} of {of:,} PTX "
        f"opcodes and {kernels['agree']:,} of {kernels['count']:,} random kernels bit for bit "
        "(NaNs aside whose bits the ISA leaves open), "
        f"{bounded} approximate opcodes within their documented error; {caption(record)}."
    )


def opcodes() -> tuple[int, int]:
    """Return how many PTX opcodes agree with the GPU bit for bit, and of how many."""
    return _exact(read_record(GPU_RECORDS / "differential.json"))


def _exact(record: dict) -> tuple[int, int]:
    """Return how many opcodes agree bit for bit, and how many should."""
    opcodes = record["sections"]["opcodes"]
    # An approximate operation is held to the error that NVIDIA documents, not to bits.
    bounded = sum("documented" in item for item in opcodes["items"])
    return opcodes["agree"] - bounded, opcodes["count"] - bounded


def matrices_line() -> str:
    record = read_record(ENGINE_RECORDS / "h200" / "differential.json")
    found = record["sections"]["matrices"]
    sums = sum(item.get("sums", 0) for item in found["items"])
    return (
        f"- **Tensor cores** against the GPU: {found['agree']} of {found['count']} matrix "
        f"instructions, {sums:,} sums among them, bit for bit; {caption(record)}."
    )


def sanitizer_line() -> str:
    record = read_record(GPU_RECORDS / "sanitizer.json")
    verdicts = Counter(one["verdict"] for one in record["broken"])
    tally = ", ".join(f'{count} "{verdict}"' for verdict, count in verdicts.most_common())
    ran = {row["file"] for row in record["clean"]}
    missing = sorted(set(clean_subjects()) - ran)
    without = f" (the record lacks {listed(missing)})" if missing else ""
    told = record.get("false_alarms", {})
    known = "".join(f"; in {name} {why}" for name, why in told.items())
    return (
        f"- **Sanitizer** against compute-sanitizer over {verdicts.total()} broken kernels: "
        f"{tally}; {len(record['alarms'])} false alarms over {len(record['clean'])} clean "
        f"kernels{without}{known}; {len(record['machine_code'])} found by the tool alone, as only "
        f"ptxas's machine code does it; {caption(record)}."
    )


def best_peers(suites: Iterable[str]) -> str:
    """How `auto` stands against the best peer of each row, and which kinds of peers there are.

    Suites that were recorded with other peers, or with kernels that have changed, stand apart.
    """
    groups: dict[tuple, list[dict]] = {}
    for suite in suites:
        record = read_record(_of(suite))
        groups.setdefault((kinds_of(record), bool(stale_kernels(record))), []).append(record)
    parts, rows = [], []
    first = next(iter(groups))[0]
    for (kinds, _), found in groups.items():
        own = [row for record in found for row in record["rows"]]
        ratios, rows = [row["ratio_peer"]["value"] for row in own], rows + own
        names = listed([f"`{one['suite']}`" for one in found])
        of = f" of {names}" if len(groups) > 1 else ""
        parts.append(
            f"{min(ratios):.2f} to {max(ratios):.2f} times as fast, at {len(own)} shapes{of}, as "
            f"the best of {kinds.replace(first, 'the same') if parts else kinds}"
            f"{_changed(found[0])}"
        )
    best = Counter(row["best_peer"].removeprefix("torch_") for row in rows)
    tally = listed(f"`{name}` at {count}" for name, count in best.most_common())
    lost = sum(row["ratio_peer"]["value"] < 1 for row in rows)
    return f"{'; '.join(parts)}. The best is {tally}" + (
        f"; the {lost} rows that lose stay" if lost else ""
    )


def elsewhere() -> str:
    """How the gradients of 16 bits, few queries and rings stand against their peers."""
    gradients, few, rings = (read_record(_of(suite)) for suite in ("backward", DECODE, "parallel"))
    ratios, exact = (
        [row["ratios"][name]["value"] for row in gradients["rows"] if name in row["ratios"]]
        for name in (OURS["backward"], "backward_tf32x3")
    )
    untimed = kinds_of(gradients).partition(" (")[2].replace("torch_", "").replace("_backward", "")
    decoding = [row["ratio_peer"]["value"] for row in few["rows"]]
    against = [(row["shape"][2], row["ratios"]["ring"]) for row in rings["rows"]]
    peers = [one[TORCH]["value"] for _, one in against if TORCH in one]
    return (
        f"the backward pass of kernel 25 is {_ends(ratios)} times as fast as the best of its peers "
        f"at {len(ratios)} shapes of bfloat16, that of kernel 30 {_ends(exact)} times at "
        f"{len(exact)} of float32{_changed(gradients)}{f' ({untimed}' if untimed else ''}; "
        f"decoding {_ends(decoding)} times at {len(decoding)}{_changed(few)}; "
        "a ring of two GPUs is "
        f"{_pays([(n, one[ONE]['value']) for n, one in against])}, and {_ends(peers)} times as "
        f"fast as PyTorch's context_parallel at {len(peers)} shapes{_changed(rings)}"
    )


def _pays(gains: Sequence[tuple[int, float]]) -> str:
    """How (tokens, times as fast as one GPU) stand from the length on where all of them gain."""
    lengths = sorted({n for n, _ in gains})
    paying = [n for n in lengths if all(gain > 1 for m, gain in gains if m >= n)]
    if not paying:
        return f"{_ends(gain for _, gain in gains)} times as fast as one of them"
    long = [gain for n, gain in gains if n >= paying[0]]
    short = [gain for n, gain in gains if n < paying[0]]
    lost = sum(gain < 1 for gain in short)
    return f"{_ends(long)} times as fast as one of them from {paying[0]:,} tokens on" + (
        f" and slower at {lost} of {len(short)} shorter shapes ({min(short):.2f} at worst)"
        if lost
        else ""
    )


def _changed(record: dict) -> str:
    return ", before the kernels last changed" if stale_kernels(record) else ""


def _of(suite: str) -> Path:
    return GPU_RECORDS / f"bench_{suite}.json"


def _ends(values: Iterable[float]) -> str:
    """'0.97 to 1.37'."""
    values = list(values)
    return f"{min(values):.2f} to {max(values):.2f}"
