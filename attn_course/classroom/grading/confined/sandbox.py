"""The sandbox: a command in a process of its own, with limits and without network.

Three walls, each where the system has it:

- a container, by bubblewrap: no network, processes of its own, a folder in memory, and a file
  system that holds nothing but the course and the libraries;
- the kernel's own: with Landlock files outside of a given list cannot be opened; a filter refuses
  system calls, sockets of a network among them;
- limits: time, memory, processes, files and output; they hold everywhere.
"""

import itertools
import json
import os
import shutil
import signal
import site
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from kernelscope import landlock
from kernelscope.errors import UserError

from attn_course.folders import ENGINE, FOLDERS, IMPORT_ROOT, PACKAGE, child_environment, home

from .supervise import FOLDER, OWN_USERS, processes

MODES = ("bubblewrap", "limits")  # strongest first
MIB = 1 << 20
SUPERVISOR = f"{__package__}.supervise"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "fonts", "localtime", "passwd")
_LIBRARIES = ("LD_LIBRARY_PATH", "CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX")
_KEPT = ("PATH", *_LIBRARIES, "PYTHONPATH", "PYTHONNOUSERSITE", "TZ")
_FIND_LIBRARIES = """
import json, sys
finders = [module for name, module in sys.modules.items() if name.startswith("__editable__")]
edited = [path for finder in finders for path in getattr(finder, "MAPPING", {}).values()]
print(json.dumps([*sys.path, *edited]))
"""
_turns = itertools.count(os.getpid())
_running: set[subprocess.Popen] = set()


class SandboxError(UserError, RuntimeError):
    """The sandbox itself does not work; not the fault of what was to run in it."""


@dataclass(frozen=True)
class ProcessLimits:
    """What one command may use.

    seconds: of processors, and twice as many by the clock. memory_bytes: of all its processes
    together, with what they share by mappings; address_bytes: of one process; file_bytes: of one
    file; folder_bytes, folder_files: of its folder, with open files that are removed; output_bytes:
    printed; reply_bytes: answered.
    """

    seconds: float = 20.0
    memory_bytes: int = 2048 * MIB
    address_bytes: int = 4096 * MIB
    processes: int = 48
    file_bytes: int = 16 * MIB
    folder_bytes: int = 64 * MIB
    folder_files: int = 500
    output_bytes: int = MIB
    reply_bytes: int = 8 * MIB


@dataclass(frozen=True)
class ProcessOutcome:
    """How a command ended.

    passed: the limit that ended it: "time" of processors, "clock", "memory", "processes", "files",
    "output", or "".
    status: its exit status, negative for a signal, None where a limit ended it. seconds: it took.
    tail: the end of what it printed. reply: what it answered.
    """

    passed: str
    status: int | None
    seconds: float
    tail: str
    reply: str

    def __bool__(self) -> bool:
        return not self.passed and self.status == 0


@dataclass(frozen=True)
class Sandbox:
    """A way to confine commands.

    mode: one of MODES. kernel_walls: False leaves out Landlock and the filter of system calls, as
    on a machine that has neither.
    """

    mode: str
    kernel_walls: bool = True

    @property
    def description(self) -> str:
        """The walls that it has, for a report."""
        version = landlock.landlock_version() if self.kernel_walls else 0
        container = "bubblewrap" if self.mode == "bubblewrap" else "no container"
        return f"{container}, {f'Landlock {version}' if version else 'no Landlock'}, limits"

    def run(
        self, arguments: Sequence[str], data: bytes, limits: ProcessLimits | None = None
    ) -> ProcessOutcome:
        """Run Python with these arguments and `data` as its standard input, in an empty folder.

        Raises SandboxError where the sandbox cannot start it.
        """
        limits = limits or ProcessLimits()
        readable = _readable()
        user, others = _user()
        request = {
            "command": [sys.executable, *arguments],
            "mode": self.mode,
            "kernel_walls": self.kernel_walls,
            "listable": [str(IMPORT_ROOT), str(ENGINE.parent)],  # where Python looks for packages
            "readable": [*readable, "/proc", "/sys/devices/system/cpu"],
            "limits": asdict(limits),
            "user": user,
            "others": others,
            "parent": os.getpid(),
        }
        supervisor = subprocess.Popen(
            [*self._wrapper(readable, limits), sys.executable, "-P", "-m", SUPERVISOR],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            cwd="/",
            start_new_session=True,  # Ctrl-C goes to the caller, who ends this process
        )
        _running.add(supervisor)
        try:
            out, error = supervisor.communicate(json.dumps(request).encode() + b"\n" + data)
        finally:
            while supervisor.poll() is None:
                supervisor.terminate()
                with suppress(subprocess.TimeoutExpired):
                    supervisor.wait(0.1)
            _end(supervisor)
            _running.discard(supervisor)
        try:
            return ProcessOutcome(**json.loads(out))
        except (ValueError, TypeError):
            text = " ".join(error.decode(errors="replace").split("\n")[-3:]).strip()[-300:]
            raise SandboxError(f"the sandbox ({self.mode}) did not start: {text}") from None

    def _wrapper(self, readable: Sequence[str], limits: ProcessLimits) -> list[str]:
        if self.mode != "bubblewrap":
            return []
        spaces = ["--unshare-all"]
        if not os.geteuid():  # root needs no user namespace, and gives up its rights inside
            spaces = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--cap-add", "ALL"]
        binds = [part for path in readable for part in ("--ro-bind", path, path)]
        return [
            *(shutil.which("bwrap"), *spaces, "--as-pid-1", "--die-with-parent", "--new-session"),
            *("--proc", "/proc", "--dev", "/dev", *binds),
            *("--size", str(limits.folder_bytes + MIB), "--tmpfs", FOLDER),
            *("--remount-ro", "/", "--remount-ro", "/dev", "--"),
        ]


def stop_all() -> None:
    """End everything that runs in a sandbox of this process."""
    for supervisor in list(_running):
        _end(supervisor)


def _end(supervisor: subprocess.Popen) -> None:
    """End a supervisor; once it is gone, what is left of its group.

    A child that bubblewrap was about to set up when it was ended would wait for it for ever, and
    keep the pipes open.
    """
    supervisor.terminate()
    if supervisor.poll() is not None:
        with suppress(OSError):  # nothing is left
            os.killpg(supervisor.pid, signal.SIGKILL)


@lru_cache(maxsize=1)
def best_sandbox() -> Sandbox:
    """Return the strongest sandbox that works on this machine. SandboxError where none does."""
    for sandbox in map(Sandbox, MODES):
        if works(sandbox):
            return sandbox
    last = Sandbox(MODES[-1]).run(["-"], b"pass")
    raise SandboxError(f"no command runs under limits on this machine: {last.tail}")


def works(sandbox: Sandbox) -> bool:
    """Whether a command runs in this sandbox here."""
    if sandbox.mode == "bubblewrap" and not shutil.which("bwrap"):
        return False
    try:
        return bool(sandbox.run(["-"], b"pass"))
    except SandboxError:
        return False


def _user() -> tuple[int, int]:
    """Return the user that the command becomes, 0: none, and the others' tasks that count with it.

    The kernel counts the tasks of a user in all, before Linux 5.14 in a user namespace too: those
    that this user has already are no part of the command's limit.
    """
    owners: dict[int, int] = {}
    for process, fields in processes():
        try:
            owner = os.stat(f"/proc/{process}").st_uid
        except OSError:
            continue
        owners[owner] = owners.get(owner, 0) + int(fields[17])
    if os.geteuid():
        return 0, owners.get(os.geteuid(), 0) + 4  # the sandbox has some of its own
    free = (OWN_USERS[turn % len(OWN_USERS)] for turn in _turns)
    return next(user for user in free if user not in owners), 0


def _readable() -> list[str]:
    """Files and folders that a command may read: the system's programs, Python, the course."""
    course = map(str, (PACKAGE, ENGINE, *(home() / name for name in (*FOLDERS, "pyproject.toml"))))
    python = (sys.prefix, sys.base_prefix, sys.exec_prefix)
    paths = [*_SYSTEM, *(f"/etc/{name}" for name in _ETC), *python, *course]
    paths += _libraries(os.environ.get("PYTHONPATH", ""))
    return [path for path in dict.fromkeys(paths) if os.path.exists(path)]


@lru_cache
def _libraries(python_path: str) -> tuple[str, ...]:
    """Where a fresh Python finds packages and libraries, but for the course's own folder.

    python_path: PYTHONPATH. Beside it the user's site, what a .pth file names, packages that are
    installed to be edited.
    """
    command = [sys.executable, "-P", "-c", _FIND_LIBRARIES]
    told = subprocess.run(
        command, env=child_environment(), cwd=PACKAGE, capture_output=True, check=True
    )
    named = [os.environ.get(name, "").split(os.pathsep) for name in _LIBRARIES]
    found = filter(os.path.isabs, [*json.loads(told.stdout), *sum(named, [])])
    return tuple(path for path in found if Path(path).resolve() != IMPORT_ROOT)


def _environment() -> dict[str, str]:
    """A command's environment: nothing of the grader's but what Python needs.

    The supervisor puts the command's folder in the place of HOME and TMPDIR.
    """
    kept = {name: value for name, value in child_environment().items() if name in _KEPT}
    if site.ENABLE_USER_SITE:  # `pip install --user`, which Python looks for in HOME
        kept["PYTHONUSERBASE"] = site.getuserbase()
    return kept | {
        "USER": "student",
        "TMPDIR": tempfile.gettempdir(),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "LC_ALL": "C.UTF-8",  # the caller's locale may not be found in there
        "MPLBACKEND": "agg",
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "KERNELSCOPE_WORKERS"), "1"),
        "KERNELSCOPE_BACKEND": "simulator",
        "KERNELSCOPE_MEMORY": "1G",
        "KERNELSCOPE_TIMEOUT": "60",
    }
