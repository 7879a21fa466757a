"""Run one command under limits and say how it ended.

    python -I -S supervise.py            the request comes as JSON on standard input
    python -I -S supervise.py --confine  inside the sandbox: limits and Landlock, then the command

The request names the command, what the command reads on its standard input, and the limits. The
supervisor stands outside of the sandbox: it counts the bytes that come out, the seconds, and the
memory, processes and files of all descendants, ends all of them when one limit is passed, and
writes one line of JSON to its standard output. The command answers on file descriptor REPLY, apart
from what it prints.

This file runs as a script without site-packages: it imports the standard library only.
"""

import base64
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location

REPLY = 3  # the file descriptor of answers
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
LOOK_SECONDS = 0.1  # between two looks at memory, processes and files
BUSY = 5  # times the limit of seconds: what a command may take on a busy machine, with its waiting
TAIL_BYTES = 4096  # kept of what the command prints
_READ = 1 << 16
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_TICKS = os.sysconf("SC_CLK_TCK")


# -- inside the sandbox ---------------------------------------------------------------------------
def confine(request: dict) -> None:
    """Take the limits of the request upon this process, then become its command."""
    limits = request["limits"]
    for what, most in (
        (resource.RLIMIT_AS, limits["address_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_CPU, int(limits["seconds"]) + 3),  # later than the supervisor
        (resource.RLIMIT_NPROC, limits["processes"] if os.geteuid() else resource.RLIM_INFINITY),
        (resource.RLIMIT_NOFILE, 256),  # files in memory have a size each
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        if hard != resource.RLIM_INFINITY and (most == resource.RLIM_INFINITY or most > hard):
            most = hard
        resource.setrlimit(what, (most, most))
    landlock = _landlock(request["landlock"])
    allowed = dict.fromkeys(request["listable"], landlock.LANDLOCK_LIST)
    allowed |= dict.fromkeys(request["readable"], landlock.LANDLOCK_RUN)
    allowed |= dict.fromkeys([request["folder"], *DEVICES], ~0)
    landlock.restrict(allowed, offline=True)
    os.execve(request["command"][0], request["command"], request["environment"])


def _landlock(path: str):
    """The module kernelscope.landlock; loaded by path, as this script sees no packages."""
    spec = spec_from_file_location("landlock", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- outside --------------------------------------------------------------------------------------
def start(request: dict, output: int, reply: int) -> int:
    """Fork the wrapped command; return its process."""
    data = os.memfd_create("stdin")
    _fill(data, request["stdin"])
    child = os.fork()
    if child:
        os.close(data)
        return child
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        for source, target in ((data, 0), (output, 1), (output, 2), (reply, REPLY)):
            os.dup2(source, target)
        os.closerange(REPLY + 1, 256)
        os.chdir(request["folder"])
        inner = {key: request[key] for key in INNER}
        command = [*request["wrapper"], sys.executable, "-I", "-S", __file__, "--confine"]
        os.execve(command[0], [*command, json.dumps(inner)], request["environment"])
    finally:
        os._exit(127)


INNER = ("command", "environment", "folder", "readable", "listable", "landlock", "limits")


def _fill(file: int, text: str) -> None:
    view = memoryview(base64.b64decode(text))
    while view:
        view = view[os.write(file, view) :]
    os.lseek(file, 0, os.SEEK_SET)


class Watch:
    """What a running command has used, and the name of the limit that it has passed."""

    def __init__(self, request: dict, child: int):
        self.limits, self.folder, self.child = request["limits"], request["folder"], child
        self.started = time.monotonic()
        self.printed, self.tail, self.reply = 0, b"", b""
        self.memory_bytes, self.cpu_seconds, self.waited = 0, 0.0, 0.0
        self.passed = ""

    def took(self, part: bytes, answers: bool) -> None:
        """Count bytes that came out of the command."""
        if answers:
            self.reply += part
            if len(self.reply) > self.limits["reply_bytes"]:
                self.passed = self.passed or "output"
            return
        self.printed += len(part)
        self.tail = (self.tail + part)[-TAIL_BYTES:]
        if self.printed > self.limits["output_bytes"]:
            self.passed = self.passed or "output"

    def look(self) -> None:
        """Compare time, memory, processes and files with the limits."""
        limits, tree = self.limits, descendants()
        resident = sum(map(_resident, tree))
        self.memory_bytes = max(self.memory_bytes, resident)
        self.cpu_seconds = max(self.cpu_seconds, sum(tree.values()))
        passed = time.monotonic() - self.started
        self.waited = max([self.waited, *map(_waited, tree)])
        own = max(self.cpu_seconds, passed - self.waited)
        if own > limits["seconds"] or passed > BUSY * limits["seconds"]:
            self.passed = self.passed or "time"
        elif resident > limits["memory_bytes"]:
            self.passed = self.passed or "memory"
        elif len(tree) > limits["processes"] + 4:  # the sandbox has some of its own
            self.passed = self.passed or "processes"
        elif not _small(self.folder, limits["folder_bytes"], limits["folder_files"]):
            self.passed = self.passed or "files"


def supervise(request: dict) -> dict:
    """Run a request to its end and return the outcome."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    (reads_output, output), (reads_reply, reply) = os.pipe(), os.pipe()
    child = start(request, output, reply)
    os.close(output)
    os.close(reply)
    watch, poll, status = Watch(request, child), select.poll(), None
    open_ends = {reads_output: False, reads_reply: True}
    for end in open_ends:
        os.set_blocking(end, False)
        poll.register(end, select.POLLIN)
    look_at = 0.0
    while status is None and not watch.passed:
        for end, _ in poll.poll(LOOK_SECONDS * 1000 / 2):
            if end in open_ends and not _drain(watch, end, open_ends[end]):
                poll.unregister(end)
                del open_ends[end]
        if time.monotonic() > look_at:
            watch.look()
            look_at = time.monotonic() + LOOK_SECONDS
        done, state = os.waitpid(child, os.WNOHANG)
        if done:
            status = state
        elif not open_ends:
            time.sleep(LOOK_SECONDS / 4)
    seconds = time.monotonic() - watch.started
    end_all()
    for end, answers in open_ends.items():
        _drain(watch, end, answers)
    code = None if status is None else os.waitstatus_to_exitcode(status)
    return {
        "passed": watch.passed,
        "status": code,
        "seconds": round(seconds, 3),
        "printed": watch.printed,
        "cpu_seconds": round(watch.cpu_seconds, 3),
        "memory_bytes": watch.memory_bytes,
        "tail": watch.tail.decode(errors="replace"),
        "reply": watch.reply[: request["limits"]["reply_bytes"]].decode(errors="replace"),
    }


def _drain(watch: Watch, end: int, answers: bool) -> bool:
    """Take what a pipe holds, up to a limit; False where it has ended."""
    while not watch.passed:
        try:
            part = os.read(end, _READ)
        except BlockingIOError:
            return True
        if not part:
            return False
        watch.took(part, answers)
    return True


def end_all() -> None:
    """Kill all descendants until none is left, those too that have left their parents."""
    while True:
        tree = descendants()
        for process in tree:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, 0 if not tree else os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def descendants() -> dict[int, float]:
    """All processes below this one, ended ones aside, with the processor seconds of each.

    The seconds of a process hold those of its children that have ended.
    """
    children: dict[int, list[tuple[int, float]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            seconds = sum(map(int, fields[11:15])) / _TICKS
            children.setdefault(int(fields[1]), []).append((int(name), seconds))
    found, queue = {}, [os.getpid()]
    while queue:
        below = dict(children.get(queue.pop(), []))
        found |= below
        queue += below
    return found


def _waited(process: int) -> float:
    """Seconds that a process was ready to run while others had the processors."""
    try:
        with open(f"/proc/{process}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _resident(process: int) -> int:
    """Bytes of memory that a process has to itself or shares by a mapping; files aside."""
    size = 0
    try:
        with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(("RssAnon:", "RssShmem:")):
                    size += int(line.split()[1]) << 10
    except OSError:
        pass
    return size


def _small(folder: str, most_bytes: int, most_files: int) -> bool:
    """Whether a folder holds no more than this; links are not followed."""
    files = size = 0
    queue = [folder]
    while queue:
        try:
            entries = os.scandir(queue.pop())
        except OSError:
            continue
        with entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        queue.append(entry.path)
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                except OSError:
                    continue
                files += 1
                if files > most_files or size > most_bytes:
                    return False
    return True


def main() -> None:
    if sys.argv[1:2] == ["--confine"]:
        confine(json.loads(sys.argv[2]))
    request = json.load(sys.stdin)
    parent = request["parent"]
    signal.signal(signal.SIGTERM, _stop)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        return  # who asked is gone
    print(json.dumps(supervise(request)))


def _stop(*_) -> None:
    end_all()
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
