"""Run the README's commands as on other machines: `make anywhere`, or `python tools/anywhere.py`.

    --list            the settings that can be had here, and what keeps the others away
    --alone           one run for each value, everything else as usual: names the culprit
    --only VALUE ...  the runs that have one of these values
    --commands "make tour" "make test"

A factor is something in which machines differ, such as the locale. Each run is a clone of the last
commit in a folder of its own, with one value of every factor; together the runs hold every value.
A run is green when all of its commands end with exit status 0. Exit status 1 when a run is red.
"""

import argparse
import ctypes
import fcntl
import json
import os
import pwd
import random
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = ("make tour", "make test")
COMMAND_SECONDS = 3600
ORDINARY = "nobody"  # the ordinary user, where this runs as root
GIB = 1 << 30
MEMORY_BYTES = 4 * GIB
CGROUPS = (  # folder of the memory controller, file of its limit: version 2, version 1
    ("/sys/fs/cgroup", "memory.max"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
)
FRESH_MEMORY = "attn_devtools.fresh_memory"  # a plugin of pytest
CPU_FLAGS = {  # what a BLAS kernel needs of the processor
    "Prescott": "pni",
    "Nehalem": "sse4_2",
    "Sandybridge": "avx",
    "Haswell": "avx2 fma",
    "Zen": "avx2 fma",
    "SkylakeX": "avx512f avx512bw avx512dq avx512vl",
}
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


# -- what a run is --------------------------------------------------------------------------------
@dataclass
class Place:
    """Where and how the commands of one run start.

    environment: changes of this process's environment; None removes a variable. hidden: programs
    taken from the PATH. offline: no network after set-up. memory: a limit of 4 GiB.
    """

    folder: str = "attn-course"
    environment: dict[str, str | None] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    user: str = ""
    python: str = ""
    umask: int = 0o022
    one_core: bool = False
    offline: bool = False
    memory: bool = False
    home_is_read_only: bool = False


@dataclass(frozen=True)
class Value:
    """One value of a factor. apply: what it changes. missing: why it cannot be had, or ""."""

    name: str
    apply: Callable[[Place], None]
    missing: str = ""


def variable(name: str, value: str | None, label: str = "", missing: str = "") -> Value:
    """Return a value that sets an environment variable, or removes it."""
    label = label or f"{name}={value}"
    return Value(label, lambda place: place.environment.update({name: value}), missing)


def attribute(label: str, missing: str = "", **changes) -> Value:
    """Return a value that sets attributes of the place."""
    return Value(label, lambda place: place.__dict__.update(changes), missing)


def choose_core(name: str, place: Place) -> None:
    """Let OpenBLAS take the code of this processor; CORE is what the Makefile's notebooks take."""
    place.environment.update(OPENBLAS_CORETYPE=name, CORE=name)


def factors(scratch: Path) -> dict[str, tuple[Value, ...]]:
    """Return factor -> its values on this machine; the usual value of each is left out."""
    root = os.geteuid() == 0
    turkish, locales = turkish_locale(scratch)
    return {
        "user": (
            attribute("root", "" if root else "this is not root"),
            attribute("ordinary user", user=ORDINARY if root else ""),
        ),
        "path": (attribute("path 'Größe ä b'", folder="Größe ä b/attn course"),),
        "Python": tuple(
            attribute(name, "" if path else "not found", python=path)
            for name, path in pythons().items()
        ),
        "BLAS": tuple(
            Value(name, partial(choose_core, name), lacking(flags))
            for name, flags in CPU_FLAGS.items()
        ),
        "threads": tuple(variable("OPENBLAS_NUM_THREADS", n) for n in ("1", "8")),
        "SIMD": (variable("NPY_DISABLE_CPU_FEATURES", dispatched(), "NumPy's baseline"),),
        "locale": (
            Value("LANG=C", lambda place: place.environment.update(LANG="C", LC_ALL="C")),
            Value("LANG=tr_TR.UTF-8", lambda place: place.environment.update(locales), turkish),
        ),
        "zone": (variable("TZ", "Asia/Kathmandu"), variable("TZ", "America/St_Johns")),
        "hashes": tuple(variable("PYTHONHASHSEED", n) for n in ("1", "4242")),
        "home": (attribute("HOME read-only", home_is_read_only=True),),
        "umask": (attribute("umask 077", umask=0o077),),
        "cores": (attribute("one core", one_core=True),),
        "fresh memory": (variable("PYTEST_ADDOPTS", f"-p {FRESH_MEMORY}", "signalling NaN"),),
        "memory": (attribute("4 GiB", missing_cgroup(), memory=True),),
        "pip": (variable("PIP_USER", "1"),),
        "columns": (variable("COLUMNS", "40"),),
        "network": (attribute("offline after set-up", missing_network(), offline=True),),
        "bubblewrap": present_or_hidden("bwrap"),
        "Chromium": present_or_hidden("chromium", "chromium-browser", "google-chrome"),
        "uv": present_or_hidden("uv"),
    }


def present_or_hidden(*programs: str) -> tuple[Value, ...]:
    """Return the two values of a program: there, and taken from the PATH."""
    missing = "" if any(map(shutil.which, programs)) else "not installed"

    def hide(place: Place) -> None:
        place.hidden += programs

    name = programs[0]
    return (Value(f"with {name}", lambda place: None, missing), Value(f"without {name}", hide))


def plan(values: Mapping[str, Sequence[Value]], alone: bool) -> list[list[Value]]:
    """Return the values of each run: few runs that hold every value, or one run for each value.

    Where a factor has fewer values than there are runs, they take turns, the usual value among
    them; each factor in an order of its own, so that two values do not always meet.
    """
    had = {name: [one for one in found if not one.missing] for name, found in values.items()}
    if alone:
        return [[], *([one] for found in had.values() for one in found)]
    count = max(map(len, had.values()))
    runs: list[list[Value]] = [[] for _ in range(count)]
    for name, found in had.items():
        turns = [*found, None] if len(found) < count else found
        dealt = (turns * count)[:count]
        random.Random(name).shuffle(dealt)  # the same on every machine
        for run, chosen in zip(runs, dealt, strict=True):
            if chosen is not None:
                run.append(chosen)
    return runs


# -- what this machine has ------------------------------------------------------------------------
def pythons() -> dict[str, str]:
    """Return "Python 3.N" -> an interpreter that an ordinary user can start too, or ""."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = {}
    for minor in range(11, 15):
        name = f"python3.{minor}"
        paths = [shutil.which(name), *sorted(kept.glob(f"3.{minor}.*/bin/{name}"))]
        paths += sorted(Path("/opt").glob(f"*/3.{minor}*/bin/{name}"))
        working = [str(path) for path in paths if path and starts(str(path))]
        found[f"Python 3.{minor}"] = working[-1] if working else ""
    return found


def starts(python: str) -> bool:
    """Whether an interpreter starts for an ordinary user and can make environments."""
    about = {"user": ORDINARY} if os.geteuid() == 0 else {}
    probe = [*inside(about), python, "-c", "import ensurepip, venv"]
    return not subprocess.run(probe, capture_output=True, cwd="/").returncode


def dispatched() -> str:
    """Return the processor's features for which NumPy has code of its own, as it reads them."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    return " ".join(name for name in __cpu_dispatch__ if __cpu_features__[name])


def lacking(flags: str) -> str:
    """Say which of these features the processor lacks, or ""."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "/proc/cpuinfo cannot be read"
    lines = (line for line in text.splitlines() if line.startswith("flags"))
    have = set(next(lines, "").split())
    missing = [flag for flag in flags.split() if flag not in have]
    return f"the processor lacks {' '.join(missing)}" if missing else ""


def turkish_locale(scratch: Path) -> tuple[str, dict[str, str]]:
    """Return why there is no Turkish locale, or "", and the variables that choose it."""
    chosen = {"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8"}
    listed = subprocess.run(["locale", "-a"], capture_output=True, text=True).stdout
    if "tr_TR.utf8" in listed:
        return "", chosen
    folder = scratch / "locales"
    folder.mkdir(parents=True, exist_ok=True)
    command = ["localedef", "-i", "tr_TR", "-f", "UTF-8", str(folder / "tr_TR.UTF-8")]
    try:
        subprocess.run(command, capture_output=True)
    except OSError:
        pass
    if not (folder / "tr_TR.UTF-8").is_dir():
        return "locale not installed, and localedef cannot make it", {}
    return "", {**chosen, "LOCPATH": str(folder)}


def missing_network() -> str:
    """Say why a process cannot be cut off from the network, or ""."""
    done = subprocess.run([*inside({"offline": True}), "true"], capture_output=True)
    return "" if not done.returncode else "no network namespace can be made"


def missing_cgroup() -> str:
    """Say why memory cannot be limited, or ""."""
    group = memory_group("probe")
    if group is None:
        return "no memory cgroup can be made"
    group.rmdir()
    return ""


def memory_group(name: str) -> Path | None:
    """Make a cgroup of MEMORY_BYTES; None where that is not allowed."""
    for folder, limit in CGROUPS:
        group = Path(folder, f"anywhere-{os.getpid()}-{name}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / limit).exists():  # else a plain folder
                (group / limit).write_text(str(MEMORY_BYTES))
                return group
        except OSError:
            pass
        group.rmdir()
    return None


def path_without(programs: Sequence[str], folder: Path, path: str) -> str:
    """Return a PATH on which these programs are not found.

    A folder of the PATH that has one of them is replaced by one with links to its other programs.
    """
    parts = []
    for number, part in enumerate(path.split(os.pathsep)):
        if not any(Path(part, name).exists() for name in programs):
            parts.append(part)
            continue
        copy = folder / str(number)
        copy.mkdir(parents=True)
        for one in Path(part).iterdir():
            if one.name not in programs:
                (copy / one.name).symlink_to(one)
        parts.append(str(copy))
    return os.pathsep.join(parts)


# -- inside: between this process and the command -------------------------------------------------
def inside(about: Mapping) -> list[str]:
    """Return the beginning of a command that runs as `about` asks; see `enter`."""
    return [sys.executable, __file__, "--inside", json.dumps(about)]


def enter(about: Mapping, command: Sequence[str]) -> None:
    """Take what a place asks of a process upon this one, then become the command."""
    if about.get("group"):
        Path(about["group"], "cgroup.procs").write_text(str(os.getpid()))
    if about.get("offline"):
        leave_network()
    if about.get("read_only") and os.geteuid() == 0:  # whom modes do not stop
        mount_read_only(about["read_only"])
    if about.get("one_core"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if about.get("user"):
        who = pwd.getpwnam(about["user"])
        os.setgroups([])
        os.setgid(who.pw_gid)
        os.setuid(who.pw_uid)
    os.umask(about.get("umask", 0o022))
    os.execvp(command[0], command)


def called(status: int, name: str) -> None:
    """Raise OSError where a call of the C library failed."""
    if status:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def mount_read_only(folder: str) -> None:
    """Mount a folder upon itself, read-only, for this process and those below it."""
    libc, path = ctypes.CDLL(None, use_errno=True), os.fsencode(folder)
    called(libc.unshare(CLONE_NEWNS), "unshare")
    called(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mount /")
    called(libc.mount(path, path, None, MS_BIND, None), "mount")
    called(libc.mount(b"none", path, None, MS_BIND | MS_REMOUNT | MS_RDONLY, None), "mount")


def leave_network() -> None:
    """Enter a network of its own, which has the loopback device only. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    flags = CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWNET | CLONE_NEWUSER
    called(libc.unshare(flags), "unshare")
    if flags & CLONE_NEWUSER:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket() as anything:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(anything, SIOCGIFFLAGS, request))
        fcntl.ioctl(anything, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


# -- one run --------------------------------------------------------------------------------------
@dataclass
class Outcome:
    """What came of one run.

    commands: (command, exit status, seconds). peak_bytes: memory of all its processes at once, of
    looks twice a second. log: what it printed.
    """

    values: list[str]
    commands: list[tuple[str, int, float]]
    peak_bytes: int
    log: str

    @property
    def red(self) -> str:
        """The first command that failed, or ""."""
        return next((command for command, status, _ in self.commands if status), "")


def run(values: Sequence[Value], commands: Sequence[str], scratch: Path, number: int) -> Outcome:
    """Run the commands in a clone of their own, until one fails."""
    place = Place()
    for value in values:
        value.apply(place)
    base = scratch / f"run_{number}"
    clone = base / place.folder
    home = clone.parent / "home"
    home.mkdir(parents=True)
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True)
    if place.user:
        who = pwd.getpwnam(place.user)
        for path in [base, *base.rglob("*")]:
            os.chown(path, who.pw_uid, who.pw_gid, follow_symlinks=False)
    environment = surroundings(place, base, home)
    if place.home_is_read_only:
        home.chmod(0o555)
    group = memory_group(str(number)) if place.memory else None
    outcome = Outcome([value.name for value in values], [], 0, str(scratch / f"run_{number}.log"))
    steps = [*(["make venv"] if place.offline else []), *commands]
    for step in steps:
        about = {
            "group": str(group) if group else "",
            "offline": place.offline and step != "make venv",
            "read_only": str(home) if place.home_is_read_only else "",
            "one_core": place.one_core,
            "user": place.user,
            "umask": place.umask,
        }
        command = [*shlex.split(step), *([f"PYTHON={place.python}"] if place.python else [])]
        status, seconds = follow(command, about, clone, environment, outcome)
        outcome.commands.append((step, status, seconds))
        if status:
            break
    if group:
        with suppress(OSError):  # a process of it may still be ending
            group.rmdir()
    if not outcome.red:
        shutil.rmtree(base, ignore_errors=True)
    return outcome


def surroundings(place: Place, base: Path, home: Path) -> dict[str, str]:
    """Return the environment of a run's commands."""
    own = {"HOME": str(home), "TMPDIR": str(home.parent), **place.environment}
    if place.hidden:
        own["PATH"] = path_without(place.hidden, base / "programs", os.environ["PATH"])
    kept = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "CI")}
    return {name: value for name, value in {**kept, **own}.items() if value is not None}


def follow(
    command: list[str], about: dict, clone: Path, environment: dict[str, str], outcome: Outcome
) -> tuple[int, float]:
    """Run one command to its end; return its exit status and seconds."""
    started = time.monotonic()
    with open(outcome.log, "ab") as log:
        log.write(f"\n$ {shlex.join(command)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            [*inside(about), *command],
            cwd=clone,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        done = threading.Event()
        looking = threading.Thread(target=_look, args=(process.pid, outcome, done))
        looking.start()
        try:
            status = process.wait(COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            status = 124
        finally:
            done.set()
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            looking.join()
    return status, time.monotonic() - started


def _look(process: int, outcome: Outcome, done: threading.Event) -> None:
    """Keep the most memory that a process and all below it had at once, shared pages aside."""
    import psutil

    while not done.wait(0.5):
        size = 0
        try:
            tree = psutil.Process(process).children(recursive=True)
        except psutil.Error:
            continue
        for one in tree:
            try:
                memory = one.memory_info()
                size += memory.rss - memory.shared
            except psutil.Error:
                continue
        outcome.peak_bytes = max(outcome.peak_bytes, size)


# -- the table ------------------------------------------------------------------------------------
def table(outcomes: Sequence[Outcome]) -> str:
    """Return the runs as text, one paragraph each: result, commands with seconds, values."""
    lines = []
    for number, one in enumerate(outcomes, 1):
        done = ", ".join(f"{command} {seconds:.0f} s" for command, _, seconds in one.commands)
        result = f"RED at `{one.red}`, see {one.log}" if one.red else "green"
        lines.append(f"run {number}: {result} ({done}; at most {one.peak_bytes / GIB:.1f} GiB)")
        lines.append(f"    {' · '.join(one.values) or 'everything as usual'}")
    return "\n".join(lines)


def by_value(values: Mapping[str, Sequence[Value]], outcomes: Sequence[Outcome]) -> str:
    """Return the factors as text: each value with the runs that had it, or why none has."""
    lines = []
    for factor, found in values.items():
        parts = []
        for value in found:
            runs = [one for one in outcomes if value.name in one.values]
            red = sum(bool(one.red) for one in runs)
            said = f"{red} of {len(runs)} red" if red else "green" if runs else "not run"
            parts.append(f"{value.name}: {value.missing or said}")
        lines.append(f"{factor:11} {'; '.join(parts)}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="what can be had here; run nothing")
    parser.add_argument("--alone", action="store_true", help="one value a run")
    parser.add_argument("--only", nargs="+", default=(), metavar="VALUE", help="runs with these")
    parser.add_argument("--commands", nargs="+", default=COMMANDS, metavar="COMMAND")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the outcomes for machines")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="clones and logs go here")
    arguments = parser.parse_args()
    scratch = arguments.keep
    if scratch is None:
        scratch = Path(tempfile.mkdtemp(prefix="anywhere-"))
        scratch.chmod(0o755)  # an ordinary user passes through it
    elif scratch.exists() and any(scratch.iterdir()):
        parser.error(f"{scratch} is not empty: name a new folder")
    scratch.mkdir(parents=True, exist_ok=True)
    values = factors(scratch)
    if arguments.list:
        print(by_value(values, []))
        return 0
    names = {value.name for found in values.values() for value in found}
    if unknown := set(arguments.only) - names:
        parser.error(f"no value {min(unknown)!r}; there are: {', '.join(sorted(names))}")
    if changed := uncommitted():
        print(f"not tested, as it is not committed: {changed}", flush=True)
    runs = plan(values, arguments.alone)
    if arguments.only:
        runs = [one for one in runs if {value.name for value in one} & set(arguments.only)]
    outcomes = []
    for number, chosen in enumerate(runs, 1):
        outcomes.append(run(chosen, arguments.commands, scratch, number))
        print(table(outcomes).splitlines()[-2], flush=True)
    print(f"\n{table(outcomes)}\n\n{by_value(values, outcomes)}")
    red = [one for one in outcomes if one.red]
    print(f"anywhere: {len(outcomes)} runs, {len(outcomes) - len(red)} green; logs in {scratch}")
    if arguments.json:
        arguments.json.write_text(json.dumps([vars(one) for one in outcomes], indent=1) + "\n")
    return 1 if red else 0


def uncommitted() -> str:
    """Name the first changed files of the checkout, or ""."""
    command = ["git", "status", "--short"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return ", ".join(line[3:] for line in done.stdout.splitlines()[:4])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        enter(json.loads(sys.argv[2]), sys.argv[3:])
    sys.exit(main())
