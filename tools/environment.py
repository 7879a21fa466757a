"""Make .venv, or bring it up to date: `python tools/environment.py tour`, `lab` or `test`.

`make` calls it with the Python that .venv is made from, so it needs nothing but that. It installs
requirements/GROUP.lock, each package checked against its hash, the engine and the course. uv does
it where it is on the PATH; else, or where uv fails, pip does. A larger group holds the smaller
ones.
"""

import argparse
import fcntl
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
UNFINISHED = VENV / ".unfinished"  # stays where an installer was killed
MEGABYTES = {"tour": 780, "lab": 960, "test": 2490}  # of .venv
DOWNLOADS = {"tour": 320, "lab": 370, "test": 850}  # MB that pip fetches
MACHINES = ("x86_64", "aarch64")
# Settings of pip and uv that a user's network needs. Others, such as PIP_USER, PIP_TARGET or
# UV_SYSTEM_PYTHON, would send packages elsewhere, or install something else.
KEPT = "INDEX|FIND_LINKS|CERT|TLS|PROXY|HOST|CACHE|TIMEOUT|RETRIES|KEYRING|OFFLINE|CONFIG_FILE"
# Prints the packages among its arguments, NAME==VERSION, that are not in its environment.
MISSING = """
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
def held(name, version):
    try:
        one = distribution(name)
    except PackageNotFoundError:
        return False
    inside = Path(sys.prefix) in Path(one.locate_file("")).parents
    return inside and one.version == version
print(*[pin for pin in sys.argv[1:] if not held(*pin.split("=="))])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("group", choices=MEGABYTES)
    parser.add_argument(
        "--hurdle", action="store_true", help="only say what is in the way, if anything is"
    )
    arguments = parser.parse_args()
    if arguments.hurdle:
        print(hurdle(arguments.group))
        return
    try:
        with open(ROOT / "pyproject.toml", "ab") as file:  # NFS locks what is open for writing
            wait_for_turn(file)
            make(arguments.group)
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command makes .venv again, from what was fetched")


def wait_for_turn(file) -> None:
    """Lock a file until the process ends: two installers at once would spoil .venv."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("waiting for another make that works on .venv")
        fcntl.flock(file, fcntl.LOCK_EX)


def hurdle(group: str) -> str:
    """What keeps the environment from being made, as one line with the way out; '' for nothing."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        return (
            f"{platform.system()} on {platform.machine()}: CuPy has no wheels for it; the README "
            "names a container and other ways"
        )
    if platform.libc_ver()[0] != "glibc":
        return "this Linux has no glibc, which CuPy's wheels need: take the course's container"
    if not all(map(importlib.util.find_spec, ("ensurepip", "venv"))):
        return (
            f"{sys.executable} has no venv module: install it (Debian, Ubuntu: apt-get install "
            "python3-venv) or run: make PYTHON=/path/to/python"
        )
    if not os.access(VENV if VENV.exists() else ROOT, os.W_OK | os.X_OK):
        return f"no right to write in {ROOT}: copy the course to a folder of yours"
    free = shutil.disk_usage(ROOT).free >> 20
    if free < (needed := megabytes_needed(group)):
        return f"{free} MB are free in {ROOT}, and .venv needs {needed} MB more: make room"
    return ""


def megabytes_needed(group: str) -> int:
    """MB that .venv grows by: those of the group, without the largest one that is there."""
    return MEGABYTES[group] - max(
        [MEGABYTES[name] for name in MEGABYTES if stamp(name).exists()] or [0]
    )


def stamp(group: str) -> Path:
    """The file that says when a group was installed: what make compares with its lock."""
    return VENV / f".{group}"


def make(group: str) -> None:
    """Install a group and the course, then leave the stamps of it and of the smaller ones.

    An environment of another Python, or one whose installer was killed, is made from nothing.
    """
    lock = ROOT / "requirements" / f"{group}.lock"
    pins = re.findall(r"^([\w.-]+==[\w.!+-]+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    if UNFINISHED.exists() or not serves():
        say(f"making .venv with Python {platform.python_version()}")
        run(sys.executable, "-m", "venv", "--clear", VENV) or stop("python -m venv failed")
    mb, fetched = MEGABYTES[group], DOWNLOADS[group]
    say(f"installing {len(pins)} packages: {fetched} MB to fetch at most, {mb} MB in .venv")
    UNFINISHED.touch()
    installed = install("--require-hashes", "-r", lock) and install(
        # the engine and the course themselves
        *("--no-deps", "--no-build-isolation", "-e", ROOT / "kernelscope", "-e", ROOT)
    )
    UNFINISHED.unlink()
    if not installed:
        stop(
            "pip failed, as it says above. Without a network: the same command, once there is one; "
            "what was fetched is kept. With a mirror: set PIP_INDEX_URL."
        )
    if missing := absent(pins):
        stop(f".venv lacks {missing}: a pip.conf or uv.toml of yours sends packages elsewhere")
    groups = list(MEGABYTES)
    for name in groups[: groups.index(group) + 1]:
        stamp(name).touch()
    say("done")


def serves() -> bool:
    """Whether .venv has a pip that starts, and a Python of this version."""
    ask = [VENV / "bin" / "python", "-I", "-m", "pip", "--version"]
    try:
        said = subprocess.run(ask, capture_output=True, text=True).stdout
    except OSError:
        return False
    return f"(python {sys.version_info[0]}.{sys.version_info[1]})" in said


def install(*what: "str | Path") -> bool:
    """Install into .venv by uv, else by pip; each shows its progress where there is a terminal."""
    quiet = [] if sys.stderr.isatty() else ["-q"]
    python = VENV / "bin" / "python"
    if uv := shutil.which("uv"):
        if run(uv, "pip", "install", *quiet, "--python", python, *what):
            return True
        say("uv failed; pip is next")
    # Files of bytecode are written when a module is first imported, and not for all of Jupyter.
    return run(python, "-m", "pip", "install", *quiet, *quiet, "--no-user", "--no-compile", *what)


def run(*command: "str | Path") -> bool:
    """Run a command in the user's environment, less what would mislead it; True on success."""
    return subprocess.run(command, cwd=ROOT, env=settings(os.environ)).returncode == 0


def settings(environment) -> dict[str, str]:
    """The environment for pip and uv: no Python's own paths, and of their settings only KEPT."""
    ours = {
        name: value
        for name, value in environment.items()
        if not name.startswith(("PYTHON", "PIP_", "UV_"))
        or re.match(rf"(PIP|UV)_\w*({KEPT})", name)
    }
    # Five tries for each package would be minutes without a network. A proxy's certificate is
    # among the system's, which uv does not read by itself.
    defaults = {"PIP_RETRIES": "2", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    return defaults | {"UV_SYSTEM_CERTS": "1"} | ours


def absent(pins: list[str]) -> str:
    """The locked packages, NAME==VERSION, that .venv does not hold at this version."""
    said = subprocess.run(
        [VENV / "bin" / "python", "-I", "-c", MISSING, *pins], capture_output=True, text=True
    )
    return said.stdout.strip() if said.returncode == 0 else said.stderr.strip()


def say(what: str) -> None:
    print(f"setup: {what}", file=sys.stderr, flush=True)


def stop(why: str) -> None:
    sys.exit(f"setup: {why}")


if __name__ == "__main__":
    main()
