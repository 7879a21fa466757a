"""The Makefile on a bare machine: a missing tool gives one clear line, not a page of noise."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OLD = '#!/bin/sh\nif [ "$1" = -V ]; then echo "Python 3.8.10"; exit 0; fi\nexit 1\n'
NEW = OLD.replace("3.8.10", "3.15.0")
# Suits make; its answer to the question for hurdles stands for all of tools/environment.py.
HINDERED = '#!/bin/sh\ncase "$3" in --hurdle) echo "no room: (make some)";; *) exit 0;; esac\n'
FILES = (
    *("Makefile", "pyproject.toml", "kernelscope/pyproject.toml", "tools/environment.py"),
    *(f"requirements/{group}.lock" for group in ("tour", "lab", "test")),
)

# Prints the processor for which OpenBLAS has chosen its kernels.
BLAS_CORE = """
import ctypes, pathlib, numpy
(library,) = (pathlib.Path(numpy.__path__[0]).parent / "numpy.libs").glob("libscipy_openblas*")
name = ctypes.CDLL(library).scipy_openblas_get_corename64_
name.restype = ctypes.c_char_p
print(name().decode())
"""


@pytest.fixture
def bare(tmp_path):
    """A copy of the project's build files, and a PATH with make and a shell but no Python."""
    if shutil.which("make") is None:
        pytest.skip("no make on this machine")
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("make", "sh", "touch", "rm"):
        (programs / name).symlink_to(shutil.which(name))
    return tmp_path


def make(folder, *arguments, **environment):
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env={"PATH": str(folder / "bin"), **environment},
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
        (None, (), ("python3 is not a program", "apt-get install")),
        (OLD, (), ("python3 is Python 3.8.10", "3.11")),
        (NEW, (), ("python3 is Python 3.15.0", "3.14")),
        (OLD, ("PYTHON=python3",), ("python3 is Python 3.8.10", "3.11")),
        (HINDERED, (), ("no room: (make some)",)),
        (None, ("PYTHON=/nowhere/python",), ("/nowhere/python is not a program",)),
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


@pytest.mark.turns(7)
@pytest.mark.system
@pytest.mark.parametrize(
    ("group", "targets"),
    [
        ("tour", ("tour", "bench")),
        ("lab", ("lab", "readme")),
        (
            "test",
            ("venv", "site", "unit", "system-test", "notebook-test", "notebooks", "lint", "class"),
        ),
    ],
)
def test_a_target_makes_the_environment_that_it_needs_first(bare, group, targets):
    for target in targets:
        first, *others = planned(bare, target).splitlines()
        assert first == f'"{sys.executable}" tools/environment.py {group}'
        assert not any("tools/environment.py" in line for line in others)


@pytest.mark.parametrize(
    "changed",
    ["requirements/test.lock", "pyproject.toml", "kernelscope/pyproject.toml", None],
)
def test_the_environment_is_renewed_when_its_lists_change_or_its_python_goes(bare, changed):
    stamp, python = bare / ".venv" / ".test", bare / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    stamp.touch()
    assert "environment.py" not in planned(bare, "lint")
    if changed is None:
        python.unlink()
        python.symlink_to(bare / "gone")
    else:
        later = stamp.stat().st_mtime + 10
        os.utime(bare / changed, (later, later))
    assert "environment.py test" in planned(bare, "lint")


def test_the_quick_tour(bare):
    assert planned(bare, "tour").splitlines()[-1].endswith("attn-course tour ")
    result = make(bare, "-n", "tour", "QUICK=1", f"PYTHON={sys.executable}")
    assert result.stdout.splitlines()[-1].endswith("attn-course tour --quick")


def told(folder, recipe, **environment):
    """What a target prints that is put at the end of the Makefile."""
    with (folder / "Makefile").open("a") as file:
        file.write(f"told:\n\t@{recipe}\n")
    return make(folder, "told", **environment).stdout.rstrip("\n")


def test_paths_of_another_python_do_not_reach_the_commands(bare):
    recipe = 'echo "[$$PYTHONPATH$$PYTHONHOME]"'
    assert told(bare, recipe, PYTHONPATH="/other", PYTHONHOME="/other") == "[]"


def test_a_home_that_cannot_be_written_to_is_replaced(bare):
    recipe = 'echo "$$HOME"'
    assert told(bare, recipe, HOME=str(bare)) == str(bare)
    assert make(bare, "told", HOME="/nowhere").stdout == f"{bare}/.home\n"
    assert make(bare, "told").stdout == f"{bare}/.home\n"


def test_the_folder_may_have_blanks_quotes_and_other_letters(bare):
    folder = bare.parent / "it's a path with ü"
    shutil.copytree(bare, folder, symlinks=True)
    recipe = "$(KEPT) sh -c 'echo \"$$KERNELSCOPE_COMPILED\"'"
    assert told(folder, recipe) == f"{folder}/.compiled_cache"


def test_a_path_with_other_letters_gets_a_locale_that_has_them(bare):
    folder = bare.parent / "ü"
    shutil.copytree(bare, folder, symlinks=True)
    recipe = 'echo "[$$LC_ALL]"'
    if str(bare).isascii():  # the tests themselves may run below other letters
        assert told(bare, recipe, LC_ALL="C") == "[C]"
    assert told(folder, recipe, LC_ALL="C") == "[C.UTF-8]"


def test_the_makefile_and_the_project_agree_on_pythons():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    oldest, newest = re.search(r"not \((3, \d+)\) <= .* <= \((3, \d+)\)\)", text).groups()
    oldest, newest = oldest.replace(", ", "."), newest.replace(", ", ".")
    assert project["requires-python"] == f">={oldest}"
    known = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert (known[0], known[-1]) == (oldest, newest)
    assert f"Python {oldest} to {newest}" in text


def test_notebooks_run_with_the_blas_of_another_processor(bare):
    """The name in the Makefile is one that NumPy's OpenBLAS has kernels for, and follows."""
    (command,) = (line for line in planned(bare, "notebook-test").splitlines() if "--nbval" in line)
    variable = next(word for word in command.split() if word.startswith("OPENBLAS_CORETYPE="))
    name, _, core = variable.partition("=")
    found = subprocess.run(
        [sys.executable, "-c", BLAS_CORE],
        env={**os.environ, name: core},
        text=True,
        capture_output=True,
        check=True,
    )
    assert found.stdout.strip() == core


def test_clean_takes_away_all_that_was_built(bare):
    for name in (".venv", ".home", "tour", "book", "build", "dist", "attn_course.egg-info"):
        (bare / name).mkdir()
    assert make(bare, "clean", f"PYTHON={sys.executable}").returncode == 0
    assert {path.name for path in bare.iterdir()} == {
        *(name.partition("/")[0] for name in FILES),
        "bin",
    }
