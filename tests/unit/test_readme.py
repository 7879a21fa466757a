"""The README's generated tables are current, and what it names exists."""

import json
import re
from pathlib import Path

import pytest
import readme_tables

from attn_course.attention import METHODS
from attn_course.cli import COMMANDS
from attn_course.ladder import LADDER

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tables_are_current():
    assert readme_tables.renewed(README) == README, "run `make readme`"


def test_the_ladder_names_every_step_and_method():
    text = readme_tables.ladder()
    assert all(step.file in text and step.idea in text for step in LADDER)
    assert all(f"| `{method}` |" in text for method in METHODS)


def test_a_stale_ladder_is_renewed():
    stale = README.replace(LADDER[0].idea, "another idea")
    assert stale != README
    assert readme_tables.renewed(stale) == README


def test_the_speed_table_shows_the_record():
    record = json.loads(readme_tables.SPEED_RECORD.read_text())
    text = readme_tables.speed()
    assert record["date"] in text and record["machine"] in text
    for case in record["cases"]:
        (row,) = [r for r in text.splitlines() if r.startswith(f"| {case['name']}, (BH")]
        seconds, rate = (float(c.replace(",", "")) for c in row.split("|")[2:4])
        assert abs(seconds / case["seconds"] - 1) < 0.01
        assert abs(rate * 1e6 * case["seconds"] / case["instructions"] - 1) < 0.01


def test_missing_markers_are_named():
    with pytest.raises(ValueError, match="must hold"):
        readme_tables.renewed("# no markers")


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)", text)
    assert targets
    missing = [t for t in targets if "://" not in t and not (ROOT / t).exists()]
    assert not missing


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"\bmake ([a-z-]+)`", text)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_two_commands_come_first():
    head = "\n".join(README.splitlines()[:15])
    assert head.index("make tour") < head.index("make test")


def test_subcommands_named_in_the_readme_exist():
    known = {command.__name__.rpartition(".")[2] for command in COMMANDS}
    assert set(re.findall(r"\battn-course ([a-z]+)", README)) <= known
