"""tools/environment.py: what it installs, from where, past which settings, and what stops it."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import environment
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
GROUPS = ("tour", "lab", "test")


def locked(group):
    """name -> version of a lock, each line of which must have a hash."""
    text = (ROOT / "requirements" / f"{group}.lock").read_text().replace("\\\n", "")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert all("==" in name and hashes for name, *hashes in lines)
    assert all(one.startswith("--hash=sha256:") for _, *hashes in lines for one in hashes)
    return dict(name.split("==") for name, *_ in lines)


def bare_names(requirements):
    return {re.match(r"[\w.-]+", one)[0].lower() for one in requirements}


def test_the_locks_cover_every_direct_dependency():
    project = PROJECT["project"]
    engine = tomllib.loads((ROOT / "kernelscope" / "pyproject.toml").read_text(encoding="utf-8"))
    base = bare_names([*project["dependencies"], *engine["project"]["dependencies"]])
    ours = {project["name"], engine["project"]["name"]}  # of this checkout, in no lock
    extras = project["optional-dependencies"]
    full = base | bare_names([*extras["test"], *extras["class"], *extras["class-cluster"]])
    full |= bare_names(engine["project"]["optional-dependencies"]["test"])
    tour = bare_names(PROJECT["dependency-groups"]["tour"])
    assert tour - {"setuptools"} < base
    assert tour <= set(locked("tour"))
    assert base - ours <= set(locked("lab"))
    assert full - ours <= set(locked("test")) and not ours & set(locked("test"))


def test_a_larger_lock_holds_the_smaller_ones_in_the_same_versions():
    tour, lab, test = map(locked, GROUPS)
    assert tour.items() < lab.items() < test.items()
    assert not {"jupyterlab", "ipython", "anywidget"} & set(tour)


def test_of_the_settings_only_those_about_the_network_reach_the_installers():
    given = {
        **dict.fromkeys(("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_CONSTRAINT"), "x"),
        **dict.fromkeys(("UV_SYSTEM_PYTHON", "UV_PYTHON", "UV_EXCLUDE_NEWER"), "x"),
        **dict.fromkeys(("PYTHONPATH", "PYTHONHOME"), "x"),
    }
    kept = {
        **dict.fromkeys(("PIP_INDEX_URL", "PIP_CERT", "PIP_NO_INDEX", "PIP_RETRIES"), "y"),
        **dict.fromkeys(("UV_DEFAULT_INDEX", "UV_CACHE_DIR", "HTTPS_PROXY", "PATH"), "y"),
    }
    found = environment.settings({**given, **kept})
    assert not set(found) & set(given)
    assert found.items() >= kept.items()
    assert environment.settings({})["PIP_RETRIES"] == "2"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with the locks for the tool to work on, and the calls that it makes of others."""
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "UNFINISHED", tmp_path / ".venv" / ".unfinished")
    return tmp_path


@pytest.fixture
def calls(checkout, monkeypatch):
    """The commands that the tool runs, as words, in place of running them; all of them succeed."""
    seen = []

    def run(*command):
        seen.append(" ".join(map(str, command)))
        (checkout / ".venv").mkdir(exist_ok=True)
        return True

    monkeypatch.setattr(environment, "run", run)
    monkeypatch.setattr(environment, "absent", lambda pins: "")
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    return seen


def stamps(checkout):
    return {name for name in GROUPS if (checkout / ".venv" / f".{name}").exists()}


def test_a_group_is_installed_from_its_hashes_and_leaves_its_stamps(checkout, calls):
    environment.make("lab")
    made, packages, course = calls
    assert "-m venv --clear" in made
    assert "-m pip install" in packages and "--no-user" in packages
    assert packages.endswith(f"--require-hashes -r {checkout}/requirements/lab.lock")
    assert course.endswith(
        f"--no-deps --no-build-isolation -e {checkout}/kernelscope -e {checkout}"
    )
    assert stamps(checkout) == {"tour", "lab"}


def test_uv_installs_where_it_is_and_pip_where_uv_fails(checkout, calls, monkeypatch):
    monkeypatch.setattr(environment.shutil, "which", lambda name: "/opt/uv")
    environment.make("tour")
    assert [call.split(" ")[0] for call in calls[1:]] == ["/opt/uv"] * 2
    assert f"--python {checkout}/.venv/bin/python --require-hashes" in calls[1]
    succeed = environment.run
    monkeypatch.setattr(environment, "run", lambda *c: succeed(*c) and c[0] != "/opt/uv")
    calls.clear()
    environment.make("tour")
    assert ["/opt/uv" in call for call in calls[1:]] == [True, False, True, False]


@pytest.mark.parametrize("fault", ["pip fails", "packages elsewhere"])
def test_no_stamp_where_packages_are_missing(checkout, calls, monkeypatch, fault):
    if fault == "pip fails":
        monkeypatch.setattr(environment, "install", lambda *what: False)
    else:
        monkeypatch.setattr(environment, "absent", lambda pins: pins[0])
    with pytest.raises(SystemExit, match="network" if fault == "pip fails" else "lacks contourpy"):
        environment.make("tour")
    assert stamps(checkout) == set()
    assert not environment.UNFINISHED.exists()


def test_an_environment_whose_installer_was_killed_is_made_again(checkout, calls, monkeypatch):
    monkeypatch.setattr(environment, "serves", lambda: True)
    (checkout / ".venv").mkdir()
    environment.make("tour")
    assert not any("-m venv" in call for call in calls)

    def interrupted(*what):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(environment, "install", interrupted)
        with pytest.raises(KeyboardInterrupt):
            environment.make("tour")
    calls.clear()
    environment.make("tour")
    assert "-m venv --clear" in calls[0]


def test_an_environment_of_another_python_or_without_one_does_not_serve(checkout, monkeypatch):
    assert not environment.serves()
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(checkout / "gone")
    assert not environment.serves()
    python.unlink()
    python.write_text('#!/bin/sh\necho "pip 26 from /x (python 3.10)"\n')
    python.chmod(0o755)
    assert not environment.serves()
    ours = ".".join(map(str, sys.version_info[:2]))
    python.write_text(python.read_text().replace("3.10", ours))
    assert environment.serves()


def test_a_package_outside_the_environment_counts_as_absent(checkout):
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    here = f"numpy=={version('numpy')}"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    assert environment.absent([here, "numpy==0.1", "nowhere==1.0"]) == "numpy==0.1 nowhere==1.0"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout / "bare"], check=True)
    elsewhere = os.path.dirname(os.path.dirname(sys.modules["pytest"].__file__))
    python.write_text(
        f'#!/bin/sh\nshift\nPYTHONPATH="{elsewhere}" exec "{checkout}/bare/bin/python" "$@"\n'
    )
    assert environment.absent([here]) == here


def test_two_makes_take_turns(checkout, capsys, monkeypatch):
    asked = []

    def flock(file, how):
        asked.append(how)
        if len(asked) == 1:
            raise BlockingIOError

    monkeypatch.setattr(fcntl, "flock", flock)
    with open(checkout / "pyproject.toml") as file:
        environment.wait_for_turn(file)
    assert asked == [fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_EX]
    assert "another make" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "name", "answer", "words"),
    [
        ("sys", "platform", "darwin", "container"),
        ("platform", "machine", lambda: "ppc64le", "on ppc64le"),
        ("platform", "libc_ver", lambda: ("", ""), "glibc"),
        ("importlib.util", "find_spec", lambda name: None, "python3-venv"),
        ("os", "access", lambda path, mode: False, "no right to write"),
        ("shutil", "disk_usage", lambda path: SimpleNamespace(free=700 << 20), "700 MB are free"),
    ],
)
def test_a_hurdle_is_one_line_with_the_way_out(checkout, monkeypatch, place, name, answer, words):
    assert environment.hurdle("tour") == ""
    monkeypatch.setattr(f"environment.{place}.{name}", answer)
    found = environment.hurdle("tour")
    assert words in found and "\n" not in found


def test_what_is_there_needs_no_room_again(checkout):
    whole = environment.megabytes_needed("test")
    (checkout / ".venv").mkdir()
    environment.stamp("lab").touch()
    assert environment.megabytes_needed("test") == whole - environment.MEGABYTES["lab"]
    environment.stamp("test").touch()
    assert environment.megabytes_needed("test") == 0
