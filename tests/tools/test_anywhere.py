"""The matrix of machines: every value has a run, and a run's commands meet what it promises."""

import json
import os
import subprocess
from pathlib import Path

import anywhere
import pytest
from anywhere import Outcome, Value, attribute, by_value, plan, present_or_hidden, table, variable


def values_of(counts):
    return {
        name: tuple(attribute(f"{name}{number}") for number in range(count))
        for name, count in counts.items()
    }


def test_every_value_has_a_run():
    values = values_of({"a": 6, "b": 2, "c": 1, "d": 4, "e": 1})
    runs = plan(values, alone=False)
    assert len(runs) == 6
    names = {value.name for run in runs for value in run}
    assert names == {value.name for found in values.values() for value in found}
    for run in runs:
        factors = [value.name[0] for value in run]
        assert len(set(factors)) == len(factors), "two values of one factor in a run"
    assert any(not any(one.name == "c0" for one in run) for run in runs), "never without c0"


def test_alone_is_one_value_a_run():
    runs = plan(values_of({"a": 2, "b": 1}), alone=True)
    assert [[value.name for value in run] for run in runs] == [[], ["a0"], ["a1"], ["b0"]]


def test_what_is_missing_is_not_run_but_named():
    values = {"a": (attribute("there"), attribute("away", "not installed"))}
    assert [[one.name for one in run] for run in plan(values, alone=False)] == [["there"]]
    green = Outcome(["there"], [("make tour", 0, 1.0)], 0, "log")
    assert by_value(values, [green]) == "a           there: green; away: not installed"
    red = Outcome(["there"], [("make tour", 0, 1.0), ("make test", 2, 3.0)], 0, "log")
    assert "1 of 2 red" in by_value(values, [green, red])
    assert "RED at `make test`, see log" in table([red]) and "green" in table([green])


def test_a_hidden_program_is_not_found_and_its_neighbours_are(tmp_path):
    for name in ("one/bwrap", "one/other", "two/third"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    path = f"{tmp_path / 'one'}:{tmp_path / 'two'}"
    hidden = anywhere.path_without(("bwrap",), tmp_path / "links", path)
    assert hidden == f"{tmp_path / 'links' / '0'}:{tmp_path / 'two'}"
    assert anywhere.shutil.which("other", path=hidden) and anywhere.shutil.which("bwrap", path=path)
    assert anywhere.shutil.which("bwrap", path=hidden) is None
    there, gone = present_or_hidden("no-such-program")
    assert there.missing == "not installed" and not gone.missing


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of one file in place of this one."""
    root = tmp_path / "project"
    root.mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(root)]
    (root / "file").write_text("text")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setattr(anywhere, "ROOT", root)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return scratch


SEEN = (
    "import json, os; print(json.dumps([os.umask(0), len(os.sched_getaffinity(0)), os.getcwd(), "
    "os.environ.get('A'), os.access(os.environ['HOME'], os.W_OK), open('file').read()]))"
)


def test_a_run_has_what_its_values_promise(project):
    values = [
        attribute("umask 077", umask=0o077),
        attribute("one core", one_core=True),
        attribute("path", folder="Größe ä b/c d"),
        attribute("home", home_is_read_only=True),
        variable("A", "1"),
    ]
    command = ["python3", "-c", SEEN]
    done = anywhere.run(values, [anywhere.shlex.join(command)], project, 1)
    log = Path(done.log).read_text(encoding="utf-8")
    assert not done.red, log
    umask, cores, folder, variable_a, writes_home, text = json.loads(log.splitlines()[-1])
    assert (umask, cores, variable_a, text) == (0o077, 1, "1", "text")
    assert folder.endswith("/run_1/Größe ä b/c d") and writes_home is False
    assert not (project / "run_1").exists(), "the clone of a green run is removed"


def test_the_first_red_command_ends_a_run(project):
    done = anywhere.run([], ["true", "sh -c 'echo told; exit 3'", "true"], project, 1)
    assert [(command, status) for command, status, _ in done.commands][1:] == [
        ("sh -c 'echo told; exit 3'", 3)
    ]
    assert done.red.startswith("sh -c") and "told" in Path(done.log).read_text(encoding="utf-8")
    assert (project / "run_1").exists(), "the clone of a red run stays, to look at"


def test_without_network_there_is_loopback_alone():
    if why := anywhere.missing_network():
        pytest.skip(why)
    text = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname(), 5).close()
try:
    socket.create_connection(("192.0.2.1", 9), 5)
except OSError as error:
    print(error.strerror)
"""
    command = [*anywhere.inside({"offline": True}), "python3", "-c", text]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "Network is unreachable\n", done.stderr


def test_an_ordinary_user_is_one(project):
    if os.geteuid():
        pytest.skip("only root can become another user")
    who = anywhere.pwd.getpwnam(anywhere.ORDINARY)
    command = [*anywhere.inside({"user": anywhere.ORDINARY}), "id", "-u"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.strip() == str(who.pw_uid), done.stderr


@pytest.mark.turns(23)
@pytest.mark.system
def test_the_factors_of_this_machine(tmp_path):
    values = anywhere.factors(tmp_path)
    names = [value.name for found in values.values() for value in found]
    assert len(set(names)) == len(names)
    assert all(isinstance(value, Value) for found in values.values() for value in found)
    for words in ("ordinary user", "LANG=C", "COLUMNS=40", "Prescott", "without uv", "umask 077"):
        assert words in names
