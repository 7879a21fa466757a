"""Run one command under limits and say how it ended.

    python -P -m attn_course.classroom.grading.confined.supervise

Standard input holds the request, one line of JSON, and after it what the command reads. This
process is the init of the sandbox, in a container its first process. It starts the command, reaps
every process that ends, and counts the bytes that come out, the seconds, and the memory, processes
and files of all descendants. It ends all of them when a limit is passed or the command has ended,
and writes one line of JSON to its standard output. The command gives up its rights before it
starts; it answers on file descriptor REPLY, apart from what it prints.
"""

import ctypes
import json
import os
import resource
import select
import signal
import stat
import struct
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from kernelscope import landlock

REPLY = 3  # file descriptor of answers
FOLDER = "/dev/shm"  # of a command in a container: a file system of its own, in memory
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
LOOK_SECONDS = 0.1  # between two looks at memory, processes and files; near a limit a tenth of it
BUSY = 2  # times the limit of seconds: by the clock, with the time that the command waits
MOST_REAPED = 500  # ended processes that are taken between two looks at the limits
TAIL_BYTES = 4096  # kept of what the command prints
OWN_USERS = range(61184, 65520)  # numbers that systemd keeps free of real users
_READ = 1 << 16
_TICKS = os.sysconf("SC_CLK_TCK")
_LIBC = ctypes.CDLL(None, use_errno=True)

# numbers of Linux: prctl(2), clone(2), capabilities(7)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_SECCOMP = 1, 4, 8, 22
_PR_SET_SECUREBITS, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 28, 36, 38, 47
_ANY_NEW_SPACE = 0x7E020000
_CAP_READ, _CAP_OVERRIDE = 1 << 2, 1 << 1  # read any file; read and write any file
_NO_ROOT = 0b11  # a program of user 0 has no rights for it; for good

_X86_64, _X32, _CLONE, _CLONE3, _PRCTL = 0xC000003E, 1 << 30, 56, 435, 157
REFUSED = {  # system calls of x86-64
    # network, and sockets that have a name
    "socket": 41,
    # memory of the kernel that no limit counts
    **{"shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "memfd_create": 319},
    **{"memfd_secret": 447, "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321},
    # memory of others
    **{"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "perf_event_open": 298},
    # new walls, and ways round the old ones
    **{"unshare": 272, "setns": 308, "mount": 165, "pivot_root": 155, "open_tree": 428},
    **{"move_mount": 429, "fsopen": 430, "mount_setattr": 442, "io_uring_setup": 425},
    **{"name_to_handle_at": 303, "open_by_handle_at": 304, "userfaultfd": 323},
}


def _die_with_parent(by: int = signal.SIGKILL) -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)


# -- the command ----------------------------------------------------------------------------------
def become(request: dict) -> None:
    """Take the limits of the request upon this process, then become its command."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    limits = request["limits"]
    for what, most in (
        (resource.RLIMIT_AS, limits["address_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_CPU, int(limits["seconds"]) + 3),  # later than the supervisor
        (resource.RLIMIT_NPROC, 4 * limits["processes"] + 64 + request["others"]),  # as well
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    allowed = dict.fromkeys(request["listable"], landlock.LANDLOCK_LIST)
    allowed |= dict.fromkeys(request["readable"], landlock.LANDLOCK_RUN)
    allowed |= dict.fromkeys([request["folder"], *DEVICES], ~0)
    _drop_rights(request)
    _die_with_parent()  # a change of the user forgets it
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # no program gives rights, such as sudo
    if request["kernel_walls"]:
        landlock.restrict(allowed, offline=True)
        refuse_calls()
    os.execv(request["command"][0], request["command"])


def _drop_rights(request: dict) -> None:
    """Become the user of the request, to whom nothing belongs but the folder, without capabilities.

    Only root can; anybody else keeps the user. Where the new user may not read Python or the
    course, as in the home of root, the right to read any file is kept.
    """
    user, kept = request["user"], 0
    _LIBC.prctl(_PR_SET_SECUREBITS, _NO_ROOT, 0, 0, 0)
    _LIBC.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    try:
        if user:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.chown(request["folder"], user, user)
            os.setresuid(user, user, user)
            needed = [*request["readable"], request["folder"]]
            kept = 0 if all(os.access(path, os.R_OK) for path in needed) else _CAP_READ
    except OSError:  # a root that may not, as in some containers
        pass
    for right in (kept, _CAP_OVERRIDE):  # the second is what a container's root has of them
        if not _set_capabilities(right):
            _LIBC.prctl(_PR_CAP_AMBIENT, 2, right.bit_length() - 1, 0, 0)
            return


def _set_capabilities(wanted: int) -> int:
    """Keep these capabilities and no others; 0 where it is done."""
    header = struct.pack("<Ii", 0x20080522, 0)
    return _LIBC.capset(header, struct.pack("<6I", wanted, wanted, wanted, 0, 0, 0))


def refuse_calls() -> bool:
    """Refuse the system calls REFUSED, new namespaces, and hiding from /proc, to this process and
    its children.

    They fail with EPERM; clone3, whose flags a filter cannot see, with ENOSYS, so that the C
    library takes clone. Returns False on another machine than x86-64: nothing is refused.
    """
    if os.uname().machine != "x86_64" or struct.calcsize("P") != 8:
        return False
    load, equal, above, has, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    refused, n = REFUSED.values(), len(REFUSED)
    code = [
        (load, 0, 0, 4),  # the architecture
        (equal, 0, n + 9, _X86_64),
        (load, 0, 0, 0),  # the number of the call
        (above, n + 7, 0, _X32),
        *((equal, n + 6 - at, 0, number) for at, number in enumerate(refused)),
        (equal, 7, 0, _CLONE3),
        (equal, 1, 0, _CLONE),
        (equal, 2, 6, _PRCTL),
        (load, 0, 0, 16),  # the flags of clone
        (has, 2, 4, _ANY_NEW_SPACE),
        (load, 0, 0, 16),  # what prctl is to do
        (equal, 0, 2, _PR_SET_DUMPABLE),
        (answer, 0, 0, 0x50000 | 1),  # EPERM
        (answer, 0, 0, 0x50000 | 38),  # ENOSYS
        (answer, 0, 0, 0x7FFF0000),  # allowed
    ]
    text = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *one) for one in code))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(text))
    if _LIBC.prctl(_PR_SET_SECCOMP, 2, program, 0, 0):
        raise OSError(ctypes.get_errno(), "the filter of system calls is refused")
    return True


# -- the init -------------------------------------------------------------------------------------
class Watch:
    """What a running command has used, and the name of the limit that it has passed."""

    def __init__(self, request: dict, command: int):
        self.limits, self.folder, self.command = request["limits"], request["folder"], command
        self.started = time.monotonic()
        self.printed, self.tail, self.reply = 0, b"", b""
        self.reaped_seconds, self.cpu_seconds, self.near = 0.0, 0.0, 0.0
        self.passed, self.status = "", None

    def drain(self, end: int, answers: bool) -> bool:
        """Take the bytes that a pipe holds, up to a limit; False where it has ended."""
        while not self.passed:
            try:
                part = os.read(end, _READ)
            except BlockingIOError:
                return True
            if not part:
                return False
            if answers:
                self.reply += part
            else:
                self.printed += len(part)
                self.tail = (self.tail + part)[-TAIL_BYTES:]
            over = self.printed > self.limits["output_bytes"]
            if over or len(self.reply) > self.limits["reply_bytes"]:
                self.passed = "output"
        return True

    def reap(self) -> None:
        """Take processes that have ended; keep their seconds, and the command's status."""
        for _ in range(MOST_REAPED):
            try:
                process, state, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not process:
                return
            self.reaped_seconds += used.ru_utime + used.ru_stime
            if process == self.command:
                self.ended(os.waitstatus_to_exitcode(state))

    def ended(self, status: int) -> None:
        """Note how the command ended, unless a limit was passed."""
        self.cpu_seconds = max(self.cpu_seconds, self.reaped_seconds)
        killed = status in (-signal.SIGKILL, -signal.SIGXCPU)
        if killed and self.cpu_seconds >= self.limits["seconds"]:
            self.passed = self.passed or "time"  # the kernel was first
        self.status = None if self.passed else status

    def look(self) -> None:
        """Compare time, memory, processes and files with the limits."""
        limits, tree = self.limits, descendants()
        live = sum(int(ticks) for fields in tree.values() for ticks in fields[11:15]) / _TICKS
        self.cpu_seconds = max(self.cpu_seconds, self.reaped_seconds + live)
        clock = time.monotonic() - self.started
        memory = _memory(tree)
        self.near = min(1.0, memory / limits["memory_bytes"])
        over = {
            "time": self.cpu_seconds > limits["seconds"],
            "clock": clock > BUSY * limits["seconds"],
            "processes": len(tree) > limits["processes"],
            "memory": memory > limits["memory_bytes"],
            "files": not _small(self.folder, limits, tree),
        }
        self.passed = self.passed or next((name for name, is_over in over.items() if is_over), "")


def supervise(request: dict) -> dict:
    """Run a request to its end and return the outcome."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    (reads_output, output), (reads_reply, reply), (wakes, wake) = os.pipe(), os.pipe(), os.pipe()
    command = os.fork()
    if not command:
        try:
            for source, target in ((output, 1), (output, 2), (reply, REPLY)):
                os.dup2(source, target)
            become(request)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(127)
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # its memory is closed to the command
    for end in (sys.stdin.fileno(), output, reply):
        os.close(end)
    watch, poll, look_at = Watch(request, command), select.poll(), 0.0
    answers = {reads_output: False, reads_reply: True}
    for end in (*answers, wakes, wake):
        os.set_blocking(end, False)
    for end in (*answers, wakes):
        poll.register(end, select.POLLIN)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the poll
    while watch.status is None and not watch.passed:
        for end, _ in poll.poll(max(1.0, 1000 * (look_at - time.monotonic()))):
            if end == wakes:
                os.read(wakes, _READ)
            elif not watch.drain(end, answers[end]):
                poll.unregister(end)
        watch.reap()
        if time.monotonic() > look_at:
            watch.look()
            look_at = time.monotonic() + LOOK_SECONDS * max(0.1, 1 - watch.near)
    if not watch.passed and not _small(watch.folder, watch.limits, {}):
        watch.passed = "files"  # and the command ended for want of room
    seconds = time.monotonic() - watch.started
    end_all()
    for end in answers:
        watch.drain(end, answers[end])
    return {
        "passed": watch.passed,
        "status": None if watch.passed else watch.status,
        "seconds": round(seconds, 3),
        "tail": watch.tail.decode(errors="replace"),
        "reply": watch.reply[: request["limits"]["reply_bytes"]].decode(errors="replace"),
    }


def end_all() -> None:
    """Kill all descendants until none is left, those too that have left their parents."""
    while True:
        tree = descendants()
        for what in (signal.SIGSTOP, signal.SIGKILL):  # a stopped process starts no others
            for process in tree:
                try:
                    os.kill(process, what)
                except ProcessLookupError:
                    pass
        try:
            while os.waitpid(-1, 0 if not tree else os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def processes():
    """Yield the number of each process of the machine and the fields of its stat after the name."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                yield int(name), file.read().rpartition(")")[2].split()
        except OSError:
            continue


def descendants() -> dict[int, list[str]]:
    """All processes below this one, ended ones aside, with the fields of their stat."""
    children: dict[int, dict[int, list[str]]] = {}
    for process, fields in processes():
        if fields[0] not in "ZX":
            children.setdefault(int(fields[1]), {})[process] = fields
    found, queue = {}, [os.getpid()]
    while queue:
        below = children.get(queue.pop(), {})
        found |= below
        queue += below
    return found


def _lines(process: int, name: str) -> list[bytes]:
    """The lines of a file of a process; none where it has ended."""
    try:
        return Path(f"/proc/{process}/{name}").read_bytes().split(b"\n")[:-1]
    except OSError:
        return []


def _memory(tree) -> int:
    """Bytes of memory that processes have to themselves, and that they share by mappings.

    What was mapped and closed has no other name: of a mapping that can be shared the whole length
    counts, once for each file, as nobody tells how much of it is there.
    """
    own, shared = 0, {}
    for process in tree:
        status = _lines(process, "status")
        own += sum(int(line.split()[1]) << 10 for line in status if line.startswith(b"RssAnon:"))
        for line in _lines(process, "maps"):
            place, rights, offset, device, inode = line.split(maxsplit=5)[:5]
            if rights.endswith(b"s"):
                first, end = (int(part, 16) for part in place.split(b"-"))
                size = int(offset, 16) + end - first
                shared[device, inode] = max(size, shared.get((device, inode), 0))
    return own + sum(shared.values())


def _small(folder: str, limits: dict, tree) -> bool:
    """Whether a folder, and files that are open without a name, are within the limits."""
    sizes, files = {}, 0
    try:
        for about in _files(folder, tree):
            sizes[about.st_dev, about.st_ino] = about.st_blocks * 512
            files += bool(about.st_nlink)
            if files > limits["folder_files"]:
                return False
    except OSError:  # a folder that is closed to us, or too deep to be named
        return False
    return sum(sizes.values()) <= limits["folder_bytes"]


def _files(folder: str, tree):
    """Yield the stat of each open file without a name and of all in a folder; follow no links."""
    for process in tree:
        names = next(os.walk(f"/proc/{process}/fd"), ("", (), ()))[2]  # none where it has ended
        for name in names:
            try:
                about = os.stat(f"/proc/{process}/fd/{name}")
            except OSError:  # closed by now
                continue
            if not about.st_nlink and stat.S_ISREG(about.st_mode):
                yield about
    for place, folders, names in os.walk(folder, onerror=_unless_gone):
        for name in (*folders, *names):
            try:
                yield os.lstat(f"{place}/{name}")
            except FileNotFoundError:
                continue


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def main() -> None:
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as file:
        request = json.loads(file.readline())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    own = None
    if request["mode"] == "limits":
        signal.signal(signal.SIGTERM, lambda *_: _stop(own))
        _die_with_parent(signal.SIGTERM)
        if os.getppid() != request["parent"]:
            return
        own = TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True)
    request["folder"] = own.name if own else FOLDER
    os.environ["HOME"] = os.environ["TMPDIR"] = request["folder"]
    os.chdir(request["folder"])
    outcome = supervise(request)
    if own:
        own.cleanup()
    os.write(sys.stdout.fileno(), json.dumps(outcome).encode())
    os._exit(0)


def _stop(own: TemporaryDirectory | None) -> None:
    """End the command and remove its folder, which may have no other owner any more."""
    end_all()
    if own:
        own.cleanup()
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
