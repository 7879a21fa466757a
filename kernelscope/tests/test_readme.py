"""The README: its example runs, its commands exist, its table is complete."""

import re
from pathlib import Path

from kernelscope.cli.main import build_parser
from kernelscope.settings import ALIASES

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_example_finds_the_race(capsys):
    (block,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert "race" in out and "x[i] = x[i + 1]" in out


def test_the_commands_parse():
    calls = re.findall(r"^kernelscope (.*)", README, re.MULTILINE)
    assert [build_parser().parse_args(call.split()).file for call in calls] == ["shift.cu"] * 3


def test_every_setting_is_in_the_table():
    assert set(re.findall(r"^\| `(KERNELSCOPE_\w+)`", README, re.MULTILINE)) == set(ALIASES)
