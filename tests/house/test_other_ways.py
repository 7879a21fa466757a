"""The ways to the course beside make: conda, Binder, a container. Their files name what exists."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import try_container
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
PIP_LINES = [line for one in CONDA if isinstance(one, dict) for line in one["pip"]]


def resolved(lines, folder):
    """pip's answer to lines of environment.yml, from the packages that are installed here."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    (folder / "attn_course").mkdir()
    shutil.copy(ROOT / "attn_course" / "__init__.py", folder / "attn_course")
    (folder / "kernelscope").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "src"):
        (folder / "kernelscope" / name).symlink_to(ROOT / "kernelscope" / name)
    offline = ["--dry-run", "--no-index", "--no-build-isolation", "--no-user"]
    return subprocess.run(
        [sys.executable, "-m", "pip", "install", *offline, *" ".join(lines).split()],
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.mark.turns(17, "conda")
@pytest.mark.system
def test_what_conda_gives_to_pip_is_the_course_with_all_its_tests_need(tmp_path):
    done = resolved(PIP_LINES, tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search("Would install attn-course.* kernelscope", done.stdout)
    assert "does not provide the extra" not in done.stderr
    assert "pytest" in done.stdout


@pytest.mark.turns(17, "conda")
@pytest.mark.system
def test_a_wrong_line_for_pip_is_noticed(tmp_path):
    engine, course = PIP_LINES
    misspelt, gone = course.replace("test", "tset"), course.replace(".", "./gone")
    assert "does not provide the extra" in resolved([engine, misspelt], tmp_path).stderr
    (tmp_path / "other").mkdir()
    assert resolved([engine, gone], tmp_path / "other").returncode != 0


def test_conda_takes_the_pythons_that_the_project_takes():
    known = re.findall(r"Python :: 3\.(\d+)", " ".join(PROJECT["classifiers"]))
    assert f"python>=3.{known[0]},<3.{int(known[-1]) + 1}" in CONDA
    binder = yaml.safe_load((ROOT / ".binder" / "environment.yml").read_text(encoding="utf-8"))
    version = binder["dependencies"][0].removeprefix("python=3.")
    image = next(step.rest for step in try_container.steps() if step.word == "FROM")
    assert {version, re.match(r"python:3\.(\d+)-slim$", image)[1]} <= set(known)


@pytest.mark.parametrize("file", [".binder/postBuild", "Dockerfile"])
def test_binder_and_the_container_install_the_lock_of_the_lab(file):
    installs = re.findall(r"pip install (.*)", (ROOT / file).read_text(encoding="utf-8"))
    packages, course = installs
    assert packages.endswith("--require-hashes -r requirements/lab.lock")
    assert course.endswith("--no-deps --no-build-isolation -e kernelscope -e .")
    assert (ROOT / "requirements" / "lab.lock").is_file()
    for name in re.findall(r"cp -r (\S+)", (ROOT / file).read_text(encoding="utf-8")):
        assert (ROOT / name).is_dir()


def test_the_container_copies_what_exists_and_runs_a_command_of_the_course_as_a_user():
    steps = try_container.steps()
    words = [step.word for step in steps]
    for step in steps:
        if step.word == "COPY":
            assert (ROOT / step.rest.split()[0]).exists()
    users = [step.rest for step in steps if step.word == "USER"]
    assert users and users[-1] not in ("root", "0")
    assert words.index("USER") > max(n for n, word in enumerate(words) if word == "RUN")
    command = re.findall(r'"([^"]+)"', steps[-1].rest)
    assert steps[-1].word == "CMD" and command[0] in PROJECT["scripts"]


def test_the_container_gets_nothing_that_git_ignores():
    def for_docker(line):
        anchored = line.startswith("/") or "/" in line.rstrip("/")
        name = line.strip("/")
        return name if anchored else f"**/{name}"

    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    left_out = set((ROOT / ".dockerignore").read_text(encoding="utf-8").split())
    assert left_out == {".git", *map(for_docker, ignored)}


def test_a_container_is_known_by_what_its_image_sets(monkeypatch, tmp_path):
    from attn_course.cli.course.lessons import lab_command

    name, _, value = next(s.rest for s in try_container.steps() if s.word == "ENV").partition("=")
    monkeypatch.delenv(name, raising=False)
    outside = "0.0.0.0" in lab_command(tmp_path, "00_start_here")
    monkeypatch.setenv(name, value)
    assert "0.0.0.0" in lab_command(tmp_path, "00_start_here")
    assert outside == any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))


def test_opening_the_lab_without_jupyterlab_names_the_package(monkeypatch, tmp_path, capsys):
    from attn_course.cli.main import main

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["lessons", "--folder", str(tmp_path / "work"), "--open"]) == 2
    assert capsys.readouterr().err.startswith(
        "attn-course: jupyterlab is not installed; `make lab`"
    )
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("sandbox", "words"),
    [(None, "no bubblewrap"), ("exit 0", "bubblewrap is here"), ("exit 1", "another mode")],
)
def test_ci_tests_with_what_the_machine_has(tmp_path, sandbox, words):
    programs = {"make": "echo tested", "chromium": "exit 0", "bwrap": sandbox}
    for name in ("env", "bash", "id", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name))
    for name, script in programs.items():
        if script is not None:
            (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
            (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [ROOT / ".ci" / "run"], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    first, *others, last = done.stdout.splitlines()
    assert first == "ci: chromium is here" and last == "tested"
    assert words in "\n".join(others)
