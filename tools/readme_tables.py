"""Writes the tables of the README and of docs/ from kernels' headers, the lessons and the records.

The table of lessons also goes into the first lesson.

    python tools/readme_tables.py            write them
    python tools/readme_tables.py --check    exit status 1 where one is not current
"""

import argparse
import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from attn_course.backward import BACKWARD
from attn_course.backward import METHODS as BACKWARD_METHODS
from attn_course.exercises.exercise import exercise_names
from attn_course.ladder.methods import AUTO, METHODS, steps_of
from attn_course.ladder.steps import LADDER, Step
from attn_course.layers import LAYERS
from attn_course.lessons.working_copy import lessons as course_lessons
from attn_course.measure import times_on_each_gpu
from attn_course.measure.records import (
    COURSE_GPU,
    RecordError,
    caption,
    newest_of_each_gpu,
    no_record,
    read_record,
    stale_kernels,
)
from attn_devtools.bench import BACKWARD_SUITES, LAYER_SUITES, SUITES
from attn_devtools.bench.backward import GRADIENTS
from attn_devtools.bench.peers import kinds_of, listed
from attn_devtools.book import ATTENTION
from attn_devtools.questions import question_of
from attn_devtools.record.sanitizer_runs import clean_subjects
from attn_devtools.record.schema import NumbaRecord, SpeedRecord, check
from attn_devtools.site.published import badges

ROOT = Path(__file__).resolve().parent.parent
SPEED_RECORD = ROOT / "results" / "cpu" / "simulator_speed.json"
START = ROOT / "notebooks" / "00_start_here.ipynb"
GPU_RECORDS = ROOT / "results" / "h200"
FLASH = "FLASH"  # of elements of 16 bits, PyTorch's kernel of the same instructions as ours
# What the course runs in each suite.
OURS = {suite: AUTO for suite in ATTENTION} | {
    "layernorm": "layer_norm",
    "gelu": "bias_gelu",
    "mlp": "mlp_fp32",
    "block": "block_fp32",
    "backward": "backward_wgmma",
}
ENGINE_RECORDS = ROOT / "kernelscope" / "results"  # those that know no kernel of the course
NUMBA_RECORD = ENGINE_RECORDS / "cpu" / "numba_simulator.json"


def cell(text: str) -> str:
    """Text for one cell of a Markdown table."""
    return text.replace("|", "\\|")


def step_row(step: Step) -> str:
    link = f"[{step.file}](kernels/{step.path.name})"
    return f"| {link} | {cell(step.idea)} | `{cell(step.computes)}` | {cell(step.needs)} |"


def backward_row(path: Path) -> str:
    """A file of the backward pass, with what each of its entries computes."""
    first, *others = (step for step in BACKWARD if step.path == path)
    computes = "; ".join(step.computes for step in (first, *others))
    return step_row(replace(first, computes=computes))


def method_row(method: str) -> str:
    files = " → ".join(step.file for step in steps_of(method))
    return f"| `{method}` | {files} |"


def ladder() -> str:
    """The steps and the methods, from the kernels' headers."""
    return "\n".join(
        [
            "| kernel | idea | computes | needs |",
            "|---|---|---|---|",
            *map(step_row, LADDER),
            "",
            "| method of `attention()` | kernels |",
            "|---|---|",
            *map(method_row, METHODS),
            "",
            "| kernel of the backward pass | idea | computes | needs |",
            "|---|---|---|---|",
            *map(backward_row, dict.fromkeys(step.path for step in BACKWARD)),
            "",
            "| method of `attention_backward()` | kernels |",
            "|---|---|",
            *(
                f"| `{name}` | {' → '.join(step.entry for step in method.steps)} |"
                for name, method in BACKWARD_METHODS.items()
            ),
        ]
    )


def layers() -> str:
    """The kernels of the layers, and their times against PyTorch's as recorded."""
    files = {step.file: step for step in LAYERS}.values()
    entries = {
        one.file: "; ".join(f"`{cell(step.computes)}`" for step in LAYERS if step.file == one.file)
        for one in files
    }
    parts = [
        "\n".join(
            [
                "| kernel | idea | computes |",
                "|---|---|---|",
                *(
                    f"| [{one.file}](kernels/{one.path.name}) | {cell(one.idea)} "
                    f"| {entries[one.file]} |"
                    for one in files
                ),
            ]
        )
    ]
    for suite in LAYER_SUITES:
        path = GPU_RECORDS / f"bench_{suite}.json"
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
    return "\n\n".join(parts)


def speed() -> str:
    """How fast the simulator ran, from the record of `attn-course bench`."""
    record, numba = (json.loads(path.read_text()) for path in (SPEED_RECORD, NUMBA_RECORD))
    check(record, SpeedRecord)
    check(numba, NumbaRecord)
    lines = [
        "| kernel, on the simulator | seconds | million lane-instructions a second |",
        "|---|---|---|",
    ]
    for case in record["cases"]:
        rate = case["lane_instructions_per_second"] / 1e6
        name = f"{case['name']}, (BH, n, d) = {tuple(case['shape'])}"
        lines.append(f"| {name} | {case['seconds']:.3g} | {rate:,.0f} |")
    lines += [
        "",
        f"Recorded on {record['date']}: {record['machine']}; medians of {record['repeats']}.",
        f"Numba's CUDA simulator took {numba['seconds']:.3g} s for the last one",
        f"(recorded {numba['date']}: {numba['machine']}, Numba {numba['numba']}).",
    ]
    return "\n".join(lines)


# -- lessons ---------------------------------------------------------------------------------------
def lessons(folder: str = "notebooks/") -> str:
    """Number, title and question of each lesson, as its first cell states them."""
    rows = ["| lesson | its question |", "|---|---|"]
    for lesson in course_lessons():
        if not (question := question_of(lesson)):
            raise ValueError(f"{lesson.name}: its first cell has no '**The question: ...**'")
        link = f"[{cell(lesson.title)}]({folder}{lesson.name}.ipynb)"
        rows.append(f"| {link} | {cell(question)} |")
    return "\n".join(rows)


# -- measured on a GPU -----------------------------------------------------------------------------
def bench() -> str:
    """`auto` against the best of all baselines, every row of the suites."""
    parts = []
    for suite in ATTENTION:
        path = GPU_RECORDS / f"bench_{suite}.json"
        if not path.is_file():
            parts.append(f"`{suite}`: {SUITES[suite].about}; {no_record(suite)}.")
            continue
        record = read_record(path)
        rival = "best backend of SDPA" if record["dtype"] == "float32" else FLASH
        rows = [bench_row(row, rival) for row in record["rows"]]
        parts.append(
            "\n".join(
                [
                    suite_line(suite, record),
                    "",
                    "| B, H, L, D | `auto` takes | us | best of all peers | us | its time / ours "
                    f"| {rival} / ours |",
                    "|---|---|--:|---|--:|--:|--:|",
                    *rows,
                ]
            )
        )
    return "\n\n".join(parts)


def backward() -> str:
    """Our methods of the backward pass against the best peer, every row of their suites."""
    parts = []
    for suite in BACKWARD_SUITES:
        path = GPU_RECORDS / f"bench_{suite}.json"
        if not path.is_file():
            parts.append(f"`{suite}`: {SUITES[suite].about}; {no_record(suite)}.")
            continue
        record = read_record(path)
        heads = f"B, H, L, D|method|us|TFLOP/s|{'|'.join(GRADIENTS)}|best peer|us|its time / ours"
        parts += [suite_line(suite, record), _table(heads, backward_rows(record))]
    return "\n\n".join(parts)


def _table(heads: str, rows: Iterable[str]) -> str:
    """A table with two columns of words and else numbers."""
    words = [":--" if at < 2 or "peer" in one else "--:" for at, one in enumerate(heads.split("|"))]
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


# -- the first screen ------------------------------------------------------------------------------
PATHS = {  # name -> numbers of its lessons, in this order
    "a weekend": "00 01 02 03 04 06 08 09",
    "the course": "00 01 02 03 04 05 06 07 08 09 10 11 12 13 14",
}


def study_minutes() -> dict[str, tuple[int, int]]:
    """Return lesson -> minutes of its text and of its exercises, as its first cell states them."""
    return {one.name: (one.minutes, one.exercise_minutes) for one in course_lessons()}


def paths() -> str:
    """Ways through the lessons, with their hours."""
    minutes = study_minutes()
    rows = ["| path | lessons | hours | of them exercises |", "|---|---|--:|--:|"]
    for name, numbers in (PATHS | {"the whole": " ".join(one[:2] for one in minutes)}).items():
        taken = [both for lesson, both in minutes.items() if lesson[:2] in numbers.split()]
        hours, own = sum(map(sum, taken)) / 60, sum(both[1] for both in taken) / 60
        rows.append(f"| {name} | {', '.join(numbers.split())} | {hours:.0f} | {own:.0f} |")
    return "\n".join(rows)


def facts() -> str:
    """How long the course takes, and what proves it: from the lessons and the records."""
    minutes = study_minutes()
    hours, own = sum(map(sum, minutes.values())) / 60, sum(one[1] for one in minutes.values()) / 60
    weekend = PATHS["a weekend"].split()
    counters = _verdicts(read_record(GPU_RECORDS / "counters.json"))
    exact, of = _exact(read_record(GPU_RECORDS / "differential.json"))
    fp32, bf16 = map(best_peers, (("seeds_fp32", "long_fp32"), ("hopper_bf16", "long_bf16")))
    long = len(next(row for row in LADDER if row.maps).path.read_text().splitlines())
    lines = [
        f"**How long**: {len(minutes)} lessons and {len(exercise_names())} exercises, about "
        f"{hours:.0f} hours, {own:.0f} of them for kernels that you write; the shortest path takes "
        f"{sum(sum(minutes[one]) for one in minutes if one[:2] in weekend) / 60:.0f}.",
        "",
        f"- **The simulator** agrees bit for bit with an {COURSE_GPU} on {exact:,} of {of:,} PTX "
        f"opcodes, and with Nsight Compute on {counters.count('equal'):,} of {len(counters):,} "
        "counts; the record names the reason of every other.",
        f"- **float32**: `attention()` is {fp32}.",
        f"- **bfloat16**: a kernel of {long} lines is {bf16}.",
    ]
    return "\n".join(_wrapped(line) for line in lines)


def best_peers(suites: Iterable[str]) -> str:
    """How `auto` stands against the best peer of each row, and which kinds of peers there are.

    Suites that were recorded with other peers, or with kernels that have changed, stand apart.
    """
    groups: dict[tuple, list[dict]] = {}
    for suite in suites:
        record = read_record(GPU_RECORDS / f"bench_{suite}.json")
        groups.setdefault((kinds_of(record), bool(stale_kernels(record))), []).append(record)
    parts, rows = [], []
    for (kinds, changed), found in groups.items():
        own = [row for record in found for row in record["rows"]]
        ratios, rows = [row["ratio_peer"]["value"] for row in own], rows + own
        names = listed([f"`{one['suite']}`" for one in found])
        of = f" of {names}" if len(groups) > 1 else ""
        parts.append(
            f"{min(ratios):.2f} to {max(ratios):.2f} times as fast, at {len(own)} shapes{of}, as "
            f"the best of {kinds}" + (", before the kernels last changed" if changed else "")
        )
    best = Counter(row["best_peer"].removeprefix("torch_") for row in rows)
    tally = listed(f"`{name}` at {count}" for name, count in best.most_common())
    lost = sum(row["ratio_peer"]["value"] < 1 for row in rows)
    return f"{'; '.join(parts)}. The best is {tally}" + (
        f"; the {lost} rows that lose stay" if lost else ""
    )


def _wrapped(line: str) -> str:
    return textwrap.fill(line, 100, subsequent_indent="  " if line.startswith("- ") else "")


# -- placing ---------------------------------------------------------------------------------------
TABLES = {  # page -> what stands on it
    "README.md": {"badges": badges, "facts": facts},
    "docs/lessons.md": {"paths": paths, "lessons": lessons},
    "docs/ladder.md": {"ladder": ladder},
    "docs/layers.md": {"layers": layers},
    "docs/results.md": {
        "bench": bench,
        "backward": backward,
        "gpus": other_gpus,
        "methods": methods,
        "checked": checked,
    },
    "docs/simulator.md": {"speed": speed},
}


def markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}: written by `make readme` -->", f"<!-- end of {name} -->"


def renewed(page: str, text: str) -> str:
    """A page's text with all of its tables written again.

    Raises:
        ValueError: a marker is missing, doubled, or stands in the wrong order.
    """
    up = "../" * page.count("/")
    for name, write in TABLES[page].items():
        text = placed(text, name, re.sub(r"\]\((?=[\w]+/)", f"]({up}", write()), page)
    return text


def placed(text: str, name: str, table: str, file: str) -> str:
    """The text with a table between its markers. ValueError where they are not there once."""
    begin, end = markers(name)
    if (text.count(begin), text.count(end)) != (1, 1) or text.find(end) < text.find(begin):
        raise ValueError(f"{file} must hold, once and in this order: {begin} and {end}")
    before, _, rest = text.partition(begin)
    table = f"\n{table}\n\n" if table else ""
    return f"{before}{begin}\n{table}{end}{rest.partition(end)[2]}"


def renewed_start(text: str) -> str:
    """The first lesson, as JSON, with the table of lessons in its last cell written again."""
    notebook = json.loads(text)
    last = notebook["cells"][-1]
    source = placed("".join(last["source"]), "lessons", lessons(folder=""), START.name)
    last["source"] = source.splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")
    check = parser.parse_args(arguments).check
    writers = {ROOT / page: partial(renewed, page) for page in TABLES} | {START: renewed_start}
    status = 0
    for path, write in writers.items():
        current = path.read_text(encoding="utf-8")
        try:
            wanted = write(current)
        except RecordError as error:
            print(error, file=sys.stderr)
            return 1
        if current == wanted:
            continue
        if check:
            print(f"{path.name}: a table is not current; run `make readme`", file=sys.stderr)
            status = 1
        else:
            path.write_text(wanted, encoding="utf-8")
            print(f"{path.name}: tables written")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
