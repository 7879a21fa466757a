"""docs/engine.md: its Python runs, and its commands; its table of settings is complete."""

import re
from pathlib import Path

import pytest
from kernelscope.cli.main import main
from kernelscope.settings import ALIASES

ENGINE = (Path(__file__).resolve().parents[1] / "docs" / "engine.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{re.escape(language)}\n(.*?)^```", ENGINE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    for source in blocks("c++"):
        name = source.splitlines()[0].removeprefix("// ")
        (tmp_path / name).write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")
    return tmp_path


def test_the_python_of_the_engine_page_runs(in_folder, capsys):
    names = {}
    assert len(blocks("python")) == 7
    for block in blocks("python"):
        exec(compile(block, "engine.md", "exec"), names)
    assert "z[i] = x[i] + y[i]" in capsys.readouterr().out
    assert (in_folder / "add.html").stat().st_size > 10_000


def test_the_commands_of_the_engine_page_run(in_folder, capsys):
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) == 4
    for command in commands:
        program, *arguments = command.split()
        assert program == "kernelscope" and main(arguments) == 0, command
    assert (in_folder / "trace.html").is_file()


def test_every_setting_is_in_the_table():
    assert set(re.findall(r"^\| `(KERNELSCOPE_\w+)`", ENGINE, re.MULTILINE)) == set(ALIASES)
