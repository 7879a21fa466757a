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
from dataclasses import replace
from functools import partial
from pathlib import Path

import measured_tables as measured

from attn_course.backward import BACKWARD
from attn_course.backward import METHODS as BACKWARD_METHODS
from attn_course.exercises.exercise import exercise_names
from attn_course.ladder.methods import METHODS, files_of
from attn_course.ladder.steps import LADDER, Step
from attn_course.layers import LAYERS
from attn_course.lessons.working_copy import lessons as course_lessons
from attn_course.measure.records import COURSE_GPU, RecordError
from attn_devtools.questions import question_of
from attn_devtools.record.schema import NumbaRecord, SpeedRecord, check
from attn_devtools.site.published import badges

ROOT = Path(__file__).resolve().parent.parent
SPEED_RECORD = ROOT / "results" / "cpu" / "simulator_speed.json"
START = ROOT / "notebooks" / "00_start_here.ipynb"
NUMBA_RECORD = measured.ENGINE_RECORDS / "cpu" / "numba_simulator.json"
FLOAT32 = ("seeds_fp32", "ragged_fp32", "long_fp32")  # suites


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
    files = " → ".join(files_of(method))
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
    return "\n\n".join(parts + measured.layer_times())


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
    equal, counts = measured.counters()
    exact, of = measured.opcodes()
    long = len(next(row for row in LADDER if row.maps).path.read_text().splitlines())
    lines = [
        f"**How long**: {len(minutes)} lessons and {len(exercise_names())} exercises, about "
        f"{hours:.0f} hours, {own:.0f} of them for kernels that you write; the shortest path takes "
        f"{sum(sum(minutes[one]) for one in minutes if one[:2] in weekend) / 60:.0f}.",
        "",
        f"- **The simulator** agrees bit for bit with an {COURSE_GPU} on {exact:,} of {of:,} PTX "
        f"opcodes, and with Nsight Compute on {equal:,} of {counts:,} counts; the record names the "
        "reason of every other.",
        f"- **float32**: `attention()` is {measured.best_peers(FLOAT32)}. What PyTorch's autotuner "
        "picks differs [from run to run](docs/results.md).",
        f"- **bfloat16**: a kernel of {long} lines is "
        f"{measured.best_peers(('hopper_bf16', 'long_bf16'))}.",
        f"- **Gradients, few queries, two GPUs**: {measured.elsewhere()}.",
    ]
    return "\n".join(_wrapped(line) for line in lines)


def _wrapped(line: str) -> str:
    return textwrap.fill(line, 100, subsequent_indent="  " if line.startswith("- ") else "")


# -- placing ---------------------------------------------------------------------------------------
TABLES = {  # page -> what stands on it
    "README.md": {"badges": badges, "facts": facts},
    "docs/lessons.md": {"paths": paths, "lessons": lessons},
    "docs/ladder.md": {"ladder": ladder},
    "docs/layers.md": {"layers": layers},
    "docs/results.md": {
        "bench": measured.bench,
        "backward": measured.backward,
        "parallel": measured.parallel,
        "gpus": measured.other_gpus,
        "methods": measured.methods,
        "checked": measured.checked,
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
