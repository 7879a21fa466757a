"""Writes the README's ladder table from the kernels' own headers, between its markers.

    python tools/readme_ladder.py            write it
    python tools/readme_ladder.py --check    exit status 1 where it is not current
"""

import argparse
import sys
from pathlib import Path

from attn_course.attention import METHODS, steps
from attn_course.ladder import LADDER, Step

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN = "<!-- ladder: written by tools/readme_ladder.py from the kernels' headers -->"
END = "<!-- end of ladder -->"


def cell(text: str) -> str:
    """Text for one cell of a Markdown table."""
    return text.replace("|", "\\|")


def step_row(step: Step) -> str:
    link = f"[{step.file}](kernels/{step.path.name})"
    return f"| {link} | {cell(step.idea)} | `{cell(step.computes)}` | {cell(step.needs)} |"


def method_row(method: str) -> str:
    files = " → ".join(step.file for step in steps(method))
    return f"| `{method}` | {files} |"


def ladder_text() -> str:
    """Both tables, between the markers, as they should stand in the README."""
    return "\n".join([
        BEGIN, "",
        "| kernel | idea | computes | needs |", "|---|---|---|---|", *map(step_row, LADDER), "",
        "| method of `attention()` | kernels |", "|---|---|", *map(method_row, METHODS), "",
        END,
    ])


def renewed(readme: str) -> str:
    """The README with its ladder written anew.

    Raises:
        ValueError: a marker is missing, doubled, or the two are in the wrong order.
    """
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.find(END) < readme.find(BEGIN):
        raise ValueError(f"README.md must hold, once and in this order: {BEGIN} and {END}")
    before, _, rest = readme.partition(BEGIN)
    return before + ladder_text() + rest.partition(END)[2]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")
    check = parser.parse_args(arguments).check
    current = README.read_text(encoding="utf-8")
    wanted = renewed(current)
    if check and current != wanted:
        print("README.md: the ladder is not current; run `make readme`", file=sys.stderr)
        return 1
    if current != wanted:
        README.write_text(wanted, encoding="utf-8")
        print("README.md: ladder written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
