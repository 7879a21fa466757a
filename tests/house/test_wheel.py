"""The wheel and the sdist hold the course, and an installed wheel runs outside the checkout."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.turns(17)]

ROOT = Path(__file__).resolve().parents[2]
NOT_OURS = (".git", ".venv", ".*_cache", "__pycache__", "*.egg-info", "build", "dist", "tour")
# What a user does with an installed course, in one process: an import takes longer than a call.
SESSION = """
import json, sys
import numpy as np
import attn_course
from attn_course import attention, reference
from attn_course.cli import tour
from attn_course.cli.main import main

# All of them take long.
tour.LADDER, tour.METHODS = tour.LADDER[:5], ("naive", "rows_online")
tour.LAYERS, tour.BACKWARD_METHODS = tour.LAYERS[:1], {}
small = ["--shape", "1,2,9,8"]
calls = {
    "tour": ["tour", "--quick", "--out", "figures"],
    "run": ["run", "tiled", *small],
    "count": ["count", "rows_online", *small, "--totals"],
    "check": ["check", "naive", *small],
    "check a broken kernel": ["check", "kernels/broken/lost_update.cu"],
    "trace": ["trace", "naive", "--shape", "1,1,2,3", "--html", "trace.html"],
    "bench": ["bench", "seeds_fp32", "--recorded"],
    "profile": ["profile", "--recorded"],
    "lessons": ["lessons", "--folder", "work"],
    "exercises": ["exercises"],
    "prove": ["exercises", "--prove", "add_ten"],
    "claims": ["claims", "no_bank_conflicts", "tensor_cores_slower", "gelu_error"],
    "site, which needs Sphinx": ["site", "--folder", "site"],
    "lab, which needs jupyterlab": ["lessons", "--folder", "work", "--open"],
}
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 7, 5), dtype=np.float32)
error = np.abs(attention(q, k, v, method="naive") - reference.attention(q, k, v)).max()
found = {name: main(words) for name, words in calls.items()}
print(json.dumps({"home": attn_course.__file__, "error": float(error), "status": found}))
"""


def build(kind: str, folder: Path, project: Path = ROOT) -> Path:
    """Build "wheel" or "sdist" of a project here, without isolation: nothing is downloaded."""
    work = folder / "work"  # links to the files: the build must not write into the checkout
    shutil.copytree(
        project, work, copy_function=os.symlink, ignore=shutil.ignore_patterns(*NOT_OURS)
    )
    hook = f"from setuptools import build_meta as b; print(b.build_{kind}({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", hook], cwd=work, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]


def stored(folder: str, *endings: str) -> set[str]:
    """The files of the checkout's folder with these endings, by their place in the checkout."""
    paths = [path for path in (ROOT / folder).rglob("*") if path.name.endswith(endings)]
    kept = [path.relative_to(ROOT).as_posix() for path in paths]
    return {name for name in kept if ".ipynb_checkpoints" not in name and "/logs/" not in name}


DATA = (
    stored("kernels", ".cu", ".cuh", ".toml")
    | stored("results", ".json")
    | stored("notebooks", ".ipynb", ".md")
    | stored("exercises", ".md", ".toml")
    | stored("docs", ".md")
    | stored("kernelscope/docs", ".md")
    | stored("kernelscope/results", ".json")
)


def locked(group: str) -> list[str]:
    """The names of the packages in the lock of a group."""
    lines = (ROOT / "requirements" / f"{group}.lock").read_text().splitlines()
    return [line.partition("==")[0] for line in lines if "==" in line]


def entries_of(names: list[str]) -> set[Path]:
    """The files and folders of packages, on the top level of site-packages."""
    distributions = [metadata.distribution(name) for name in names]
    files = [(one, file) for one in distributions for file in one.files]
    return {Path(one.locate_file(file.parts[0])) for one, file in files if file.parts[0] != ".."}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def engine_wheel(tmp_path_factory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("engine"), ROOT / "kernelscope")


def test_the_engines_wheel_holds_its_package_alone(engine_wheel):
    names = {name for name in zipfile.ZipFile(engine_wheel).namelist() if "dist-info" not in name}
    package = stored("kernelscope/src/kernelscope", ".py", ".js", ".css", ".json", ".cu")
    headers = stored("kernelscope/src/kernelscope/headers", "")
    package |= {name for name in headers if (ROOT / name).is_file()}
    assert {name.removeprefix("kernelscope/src/") for name in package} == names


def test_the_engines_sdist_holds_its_tests_and_docs(tmp_path):
    with tarfile.open(build("sdist", tmp_path, ROOT / "kernelscope")) as archive:
        names = {f"kernelscope/{name.partition('/')[2]}" for name in archive.getnames()}
    kept = stored("kernelscope/src", ".py", ".js", ".css") | stored("kernelscope/tests", ".py")
    single = {f"kernelscope/{name}" for name in ("README.md", "LICENSE", "pyproject.toml")}
    data = stored("kernelscope/docs", "") | stored("kernelscope/results", ".json")
    assert kept | single | data | stored("kernelscope/tools", ".py") <= names
    assert not [name for name in names if name.endswith(".pyc")]


def test_the_wheel_holds_the_package_kernels_records_and_lessons(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = stored("attn_course", ".py", ".js", ".j2", ".json", ".mplstyle", ".toml")
    authors = stored("tools/attn_devtools", ".py", ".js", ".css", ".j2", ".toml")
    assert package | {f"attn_course/{name}" for name in DATA} <= names
    assert {name.removeprefix("tools/") for name in authors} <= names
    tops = {name.partition("/")[0] for name in names}
    ours = {top for top in tops if not top.endswith(".dist-info")}
    assert ours == {"attn_course", "attn_devtools"}


def test_the_sdist_is_a_checkout(tmp_path):
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    package = stored("attn_course", ".py", ".js", ".j2", ".json", ".mplstyle", ".toml")
    others = stored("tests", ".py", ".cfg") | stored("docs", "")
    others |= stored("tools", ".py", ".js", ".css", ".j2", ".toml")
    single = {"Makefile", "pyproject.toml", "setup.py", "environment.yml", "Dockerfile"}
    single |= {f"requirements/{group}.lock" for group in ("tour", "lab", "test")}
    assert DATA | package | {name for name in others if "__pycache__" not in name} | single <= {
        *names
    }
    assert {
        "README.md",
        "CONTRIBUTING.md",
        "LICENSE",
        ".ci/run",
        ".pre-commit-config.yaml",
    } <= names
    assert not [name for name in names if name.endswith(".pyc")]


class Environment:
    """A fresh environment with some wheels, and commands that run in it outside the checkout."""

    def __init__(self, folder: Path, *wheels: Path):
        self.home, self.work = folder / "env", folder / "elsewhere"
        command = [sys.executable, "-m", "venv", "--without-pip", self.home]
        subprocess.run(command, check=True)
        (self.packages,) = self.home.glob("lib/python*/site-packages")
        # Of this environment's packages the new one gets those that `make tour` installs alone.
        for entry in entries_of(locked("tour")):
            if not (self.packages / entry.name).exists():
                (self.packages / entry.name).symlink_to(entry)
        self.variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        self.variables["KERNELSCOPE_BACKEND"] = "simulator"
        flags = ["--no-deps", "--no-index", "--no-compile", "--quiet"]
        install = ["pip", "--python", str(self.home / "bin" / "python"), "install", *flags]
        command = [sys.executable, "-m", *install, *wheels]
        subprocess.run(command, check=True, env=self.variables)
        self.work.mkdir()

    def run(self, program: str, *words: str) -> subprocess.CompletedProcess:
        """Run a program of the environment in an empty folder."""
        command = [self.home / "bin" / program, *words]
        return subprocess.run(
            command, cwd=self.work, env=self.variables, capture_output=True, text=True, timeout=200
        )


ADD = """extern "C" __global__ void add(const float* x, float* z, int n) {
    if (threadIdx.x < n) z[threadIdx.x] = x[threadIdx.x] + 1;
}
"""
ADD_CALL = "--grid 1 --block 32 --arg ones:20 --arg output:20 --arg 20 --json -".split()


def test_the_installed_engine_counts_a_kernel_alone(engine_wheel, tmp_path):
    there = Environment(tmp_path, engine_wheel)
    (there.work / "add.cu").write_text(ADD)
    counted = there.run("kernelscope", "count", "add.cu", *ADD_CALL)
    assert counted.returncode == 0, counted.stderr
    assert json.loads(counted.stdout)["totals"]["global_store_sectors"] == 3
    course = there.run("python", "-c", "import kernelscope, attn_course")
    assert "No module named 'attn_course'" in course.stderr


def test_an_installed_wheel_runs_outside_the_checkout(wheel, engine_wheel, tmp_path):
    there = Environment(tmp_path, engine_wheel, wheel)
    packages, work = there.packages, there.work
    version = there.run("attn-course", "--version")
    assert version.stdout.startswith("attn-course 0.") and str(packages) in version.stdout
    done = there.run("python", "-c", SESSION)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert Path(found["home"]).is_relative_to(packages) and found["error"] < 1e-5
    assert found["status"].pop("check a broken kernel") == 1
    told = {"site, which needs Sphinx": "the site needs Sphinx: `make site`"}
    told["lab, which needs jupyterlab"] = "jupyterlab is not installed"
    for command, message in told.items():
        assert found["status"].pop(command) == 2
        assert f"attn-course: {message}" in done.stderr
    assert set(found["status"].values()) == {0}, done.stdout[-3000:]
    assert (work / "work" / "kernels" / "01_scores_naive.cu").is_file()
    assert (work / "trace.html").is_file() and len(list((work / "figures").iterdir())) == 3
