"""The Makefile on a bare machine: a missing tool gives one clear line, not a page of noise."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OLD = '#!/bin/sh\nif [ "$1" = -V ]; then echo "Python 3.8.10"; exit 0; fi\nexit 1\n'
NO_VENV = '#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; *) exit 0;; esac\n'


@pytest.fixture
def bare(tmp_path):
    """A copy of the project's build files, and a PATH with make and a shell but no Python."""
    if shutil.which("make") is None:
        pytest.skip("no make on this machine")
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("make", "sh", "touch", "rm"):
        (programs / name).symlink_to(shutil.which(name))
    return tmp_path


def make(folder, *arguments):
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env={"PATH": str(folder / "bin")},
        text=True,
        capture_output=True,
        timeout=60,
    )


def put_python(folder, script):
    path = folder / "bin" / "python3"
    path.write_text(script)
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        (None, (), ("no python3", "apt-get install")),
        (OLD, (), ("too old (Python 3.8.10)", "3.11")),
        (OLD, ("PYTHON=python3",), ("too old (Python 3.8.10)", "3.11")),
        (NO_VENV, (), ("no venv module", "python3-venv")),
        (None, ("PYTHON=/nowhere/python",), ("is not a program",)),
    ],
)
def test_a_missing_tool_gives_one_line(bare, script, arguments, words):
    if script:
        put_python(bare, script)
    result = make(bare, "tour", *arguments)
    assert result.returncode != 0
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert all(word in result.stderr for word in words)
    assert not (bare / ".venv").exists()


def planned(folder, target):
    """The commands that make would run."""
    result = make(folder, "-n", target, f"PYTHON={sys.executable}")
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("target", ["venv", "tour", "test", "lab", "notebooks", "lint", "bench"])
def test_every_target_makes_the_environment_first(bare, target):
    assert "-m venv .venv" in planned(bare, target).splitlines()[1]


def test_the_environment_is_renewed_when_its_lists_change(bare):
    stamp = bare / ".venv" / ".stamp"
    stamp.parent.mkdir()
    stamp.touch()
    assert "-m venv" not in planned(bare, "lint")
    later = stamp.stat().st_mtime + 10
    os.utime(bare / "requirements.lock", (later, later))
    assert "-m venv" in planned(bare, "lint")


def test_the_environment_is_made_from_hashes_and_past_the_users_settings(bare):
    lines = [line for line in planned(bare, "venv").splitlines() if "/pip install" in line]
    assert len(lines) == 2 and all(line.startswith("PIP_USER=0 ") for line in lines)
    assert "--require-hashes -r requirements.lock" in lines[0]


def test_clean_takes_away_all_that_was_built(bare):
    for name in (".venv", "tour", "book", "build", "dist", "attn_course.egg-info"):
        (bare / name).mkdir()
    assert make(bare, "clean", f"PYTHON={sys.executable}").returncode == 0
    assert {path.name for path in bare.iterdir()} == {
        *("Makefile", "pyproject.toml", "requirements.lock", "bin")
    }


def test_the_lock_covers_every_direct_dependency():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "requirements.lock").read_text().replace("\\\n", "")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert all("==" in name and hashes for name, *hashes in lines)
    assert all(one.startswith("--hash=sha256:") for _, *hashes in lines for one in hashes)
    locked = {name.partition("==")[0] for name, *_ in lines}
    extras = project["optional-dependencies"]
    engine = tomllib.loads((ROOT / "kernelscope" / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *extras["test"], *extras["class"], *extras["class-cluster"]]
    wanted += [*engine["dependencies"], *engine["optional-dependencies"]["test"]]
    names = {re.split(r"[>=\[]", name)[0].strip().lower() for name in wanted}
    ours = {project["name"], engine["name"]}  # of this repository, installed beside the lock
    assert names - ours <= locked and not ours & locked
