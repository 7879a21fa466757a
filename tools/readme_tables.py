"""Writes the README's tables, from the kernels' own headers and the records under results/.

    python tools/readme_tables.py            write them
    python tools/readme_tables.py --check    exit status 1 where one is not current
"""

import argparse
import json
import sys
from pathlib import Path

from attn_course.attention import METHODS, steps
from attn_course.ladder import LADDER, Step

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
SPEED_RECORD = ROOT / "results" / "cpu" / "simulator_speed.json"
NUMBA_RECORD = ROOT / "results" / "cpu" / "numba_simulator.json"


def cell(text: str) -> str:
    """Text for one cell of a Markdown table."""
    return text.replace("|", "\\|")


def step_row(step: Step) -> str:
    link = f"[{step.file}](kernels/{step.path.name})"
    return f"| {link} | {cell(step.idea)} | `{cell(step.computes)}` | {cell(step.needs)} |"


def method_row(method: str) -> str:
    files = " → ".join(step.file for step in steps(method))
    return f"| `{method}` | {files} |"


def ladder() -> str:
    """The steps and the methods, from the kernels' headers."""
    return "\n".join([
        "| kernel | idea | computes | needs |", "|---|---|---|---|", *map(step_row, LADDER), "",
        "| method of `attention()` | kernels |", "|---|---|", *map(method_row, METHODS),
    ])


def speed() -> str:
    """How fast the simulator ran, from the record of `attn-course bench`."""
    record, numba = (json.loads(path.read_text()) for path in (SPEED_RECORD, NUMBA_RECORD))
    lines = ["| kernel, on the simulator | seconds | million lane-instructions a second |",
             "|---|---|---|"]
    for case in record["cases"]:
        rate = case["lane_instructions_per_second"] / 1e6
        name = f"{case['name']}, (BH, n, d) = {tuple(case['shape'])}"
        lines.append(f"| {name} | {case['seconds']:.3g} | {rate:,.0f} |")
    lines += [
        "", f"Recorded on {record['date']}: {record['machine']}; medians of {record['repeats']}.",
        f"Numba's CUDA simulator took {numba['seconds']:.3g} s for the last one",
        f"(recorded {numba['date']}: {numba['machine']}, Numba {numba['numba']})."]
    return "\n".join(lines)


TABLES = {"ladder": ladder, "speed": speed}


def markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}: written by `make readme` -->", f"<!-- end of {name} -->"


def renewed(readme: str) -> str:
    """The README with all tables written anew.

    Raises:
        ValueError: a marker is missing, doubled, or stands in the wrong order.
    """
    for name, write in TABLES.items():
        begin, end = markers(name)
        if (readme.count(begin), readme.count(end)) != (1, 1) or (
            readme.find(end) < readme.find(begin)
        ):
            raise ValueError(f"README.md must hold, once and in this order: {begin} and {end}")
        before, _, rest = readme.partition(begin)
        readme = f"{before}{begin}\n\n{write()}\n\n{end}{rest.partition(end)[2]}"
    return readme


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")
    check = parser.parse_args(arguments).check
    current = README.read_text(encoding="utf-8")
    wanted = renewed(current)
    if check and current != wanted:
        print("README.md: a table is not current; run `make readme`", file=sys.stderr)
        return 1
    if current != wanted:
        README.write_text(wanted, encoding="utf-8")
        print("README.md: tables written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
