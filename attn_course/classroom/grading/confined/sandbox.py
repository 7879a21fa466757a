"""The sandbox: a command in a process of its own, with limits, without network where possible.

Three walls, each where the system has it:

- a container: bubblewrap, or else namespaces: no network, processes of its own, a folder in memory,
  and with bubblewrap a file system that holds nothing but the course and the libraries;
- the kernel's own: with Landlock files outside of a given list cannot be opened, and with a newer
  kernel there is no TCP; a filter refuses system calls;
- limits: time, memory, processes, files and output; they hold everywhere.
"""

import base64
import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from kernelscope import landlock
from kernelscope.errors import UserError

from attn_course.folders import ENGINE, FOLDERS, IMPORT_ROOT, PACKAGE, child_environment, home

MODES = ("bubblewrap", "namespaces", "limits")  # strongest first
MIB = 1 << 20
_SUPERVISOR = Path(__file__).with_name("supervise.py")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "fonts", "localtime", "passwd")
_LIBRARIES = ("LD_LIBRARY_PATH", "CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX")
_KEPT = ("PATH", "LANG", "LC_ALL", *_LIBRARIES, "PYTHONPATH", "PYTHONNOUSERSITE", "TZ")
_FIND_LIBRARIES = """
import json, sys
finders = [module for name, module in sys.modules.items() if name.startswith("__editable__")]
edited = [path for finder in finders for path in getattr(finder, "MAPPING", {}).values()]
print(json.dumps([*sys.path, *edited]))
"""
_running: set[subprocess.Popen] = set()
_lock = threading.Lock()


class SandboxError(UserError, RuntimeError):
    """The sandbox itself does not work; not the fault of what was to run in it."""


@dataclass(frozen=True)
class ProcessLimits:
    """What one command may use.

    seconds: of a processor, and by the clock, less those that it waits for a processor of a busy
    machine. memory_bytes: resident, of all its processes together, with files in memory;
    address_bytes: of one process; file_bytes: of one file; folder_bytes, folder_files: of its
    folder, with open files that are removed; output_bytes: printed; reply_bytes: answered.
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

    passed: the limit that ended it: "time", "memory", "processes", "files", "output", or "".
    status: its exit status, negative for a signal, None where a limit ended it. seconds,
    cpu_seconds: it took. printed: bytes; tail: their end. memory_bytes: the most it had. reply:
    what it answered.
    """

    passed: str
    status: int | None
    seconds: float
    printed: int
    cpu_seconds: float
    memory_bytes: int
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
        walls = {
            "bubblewrap": "bubblewrap (no network, no foreign files)",
            "namespaces": "namespaces (no network)",
            "limits": "no container",
        }
        files = "no Landlock"
        if version:
            network = ", no TCP" if version >= 4 else ""
            files = f"Landlock {version} (files{network})"
        return f"{walls[self.mode]}, {files}, limits"

    def run(
        self, arguments: Sequence[str], data: bytes, limits: ProcessLimits | None = None
    ) -> ProcessOutcome:
        """Run Python with these arguments and `data` as its standard input, in an empty folder.

        Raises SandboxError where the sandbox cannot start it.
        """
        with tempfile.TemporaryDirectory(prefix="grade-") as folder:
            command = [sys.executable, *arguments]
            return self._run(command, data, limits or ProcessLimits(), folder)

    def _run(
        self, command: list[str], data: bytes, limits: ProcessLimits, folder: str
    ) -> ProcessOutcome:
        readable = [path for path in _readable() if os.path.exists(path)]
        request = {
            "command": command,
            "mode": self.mode,
            "kernel_walls": self.kernel_walls,
            "own_folder": self.mode != "limits",  # a file system in memory, as large as allowed
            "wrapper": self._wrapper(folder, readable, limits),
            "environment": _environment(folder),
            "folder": folder,
            "listable": [str(IMPORT_ROOT), str(ENGINE.parent)],  # where Python looks for packages
            "landlock": landlock.__file__,
            "readable": [*readable, "/proc", "/sys/devices/system/cpu"],
            "stdin": base64.b64encode(data).decode(),
            "limits": asdict(limits),
            "parent": os.getpid(),
        }
        supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SUPERVISOR)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C goes to the caller, who ends this process
        )
        with _lock:
            _running.add(supervisor)
        try:
            out, error = supervisor.communicate(json.dumps(request).encode())
        finally:
            if supervisor.poll() is None:
                supervisor.terminate()
                supervisor.communicate()
            with _lock:
                _running.discard(supervisor)
        try:
            return ProcessOutcome(**json.loads(out))
        except (ValueError, TypeError):
            text = error.decode(errors="replace").strip()[-300:]
            raise SandboxError(f"the sandbox ({self.mode}) did not start: {text}") from None

    def _wrapper(self, folder: str, readable: Sequence[str], limits: ProcessLimits) -> list[str]:
        if self.mode != "bubblewrap":
            return []
        spaces = ["--unshare-all"]
        if not os.geteuid():  # root needs no user namespace, and gives up its rights inside
            spaces = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--cap-add", "ALL"]
        binds = [part for path in readable for part in ("--ro-bind", path, path)]
        return [
            *(shutil.which("bwrap"), *spaces, "--as-pid-1", "--die-with-parent", "--new-session"),
            *("--proc", "/proc", "--dev", "/dev", *binds),
            *("--size", str(limits.folder_bytes + MIB), "--tmpfs", folder, "--chdir", folder),
            *("--remount-ro", "/", "--remount-ro", "/dev", "--"),
        ]


def stop_all() -> None:
    """End everything that runs in a sandbox of this process."""
    with _lock:
        for supervisor in _running:
            supervisor.terminate()


@lru_cache(maxsize=1)
def best_sandbox() -> Sandbox:
    """Return the strongest sandbox that works on this machine."""
    return next(sandbox for sandbox in map(Sandbox, MODES) if works(sandbox))


def works(sandbox: Sandbox) -> bool:
    """Whether a command runs in this sandbox here. SandboxError where none can run at all."""
    if sandbox.mode == "bubblewrap" and not shutil.which("bwrap"):
        return False
    outcome = sandbox.run(["-"], b"pass")
    if not outcome and sandbox.mode == MODES[-1]:
        raise SandboxError(f"no command runs under limits on this machine: {outcome.tail}")
    return bool(outcome)


def _readable() -> list[str]:
    """Files and folders that a command may read: the system's programs, Python, the course."""
    course = home()
    own = [str(PACKAGE), str(ENGINE), *(str(course / name) for name in FOLDERS)]
    if course != PACKAGE:
        own.append(str(course / "pyproject.toml"))
    python = dict.fromkeys((sys.prefix, sys.base_prefix, sys.exec_prefix))
    paths = [*_SYSTEM, *(f"/etc/{name}" for name in _ETC), *python, *own]
    return list(dict.fromkeys([*paths, *_libraries(os.environ.get("PYTHONPATH", ""))]))


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


def _environment(folder: str) -> dict[str, str]:
    """A command's environment: nothing of the grader's but what Python needs."""
    kept = {name: value for name, value in child_environment().items() if name in _KEPT}
    if site.ENABLE_USER_SITE:  # `pip install --user`, which Python looks for in HOME
        kept["PYTHONUSERBASE"] = site.getuserbase()
    return kept | {
        "HOME": folder,
        "USER": "student",
        "TMPDIR": folder,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "MPLBACKEND": "agg",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "KERNELSCOPE_BACKEND": "simulator",
        "KERNELSCOPE_MEMORY": "1G",
        "KERNELSCOPE_TIMEOUT": "60",
    }
