"""Run one command under limits and say how it ended.

    python -I -S supervise.py            the request comes as JSON on standard input
    python -I -S supervise.py --confine  what bubblewrap starts inside: the init

The request names the command, what the command reads on its standard input, and the limits. Three
processes share the work. The supervisor stands outside of the sandbox: it counts the bytes that
come out, the seconds, and the memory, processes and files of all descendants, ends all of them when
one limit is passed, and writes one line of JSON to its standard output. The init stands inside, the
first process of its namespace where there is one: it reaps every process that ends, and writes how
the command ended to file descriptor STATUS. The command gives up its rights before it starts; it
answers on file descriptor REPLY, apart from what it prints.

This file runs as a script without site-packages: it imports the standard library only.
"""

import base64
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
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

REPLY, STATUS = 3, 4  # file descriptors: of answers, and of the init's report
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
LOOK_SECONDS = 0.1  # between two looks at memory, processes and files; near a limit a tenth of it
BUSY = 5  # times the limit of seconds: what a command may take on a busy machine, with its waiting
TAIL_BYTES = 4096  # kept of what the command prints
OWN_USERS = range(61184, 65520)  # numbers that systemd keeps free of real users
_READ = 1 << 16
_TICKS = os.sysconf("SC_CLK_TCK")
_LIBC = ctypes.CDLL(None, use_errno=True)

# numbers of Linux: prctl(2), clone(2), mount(2), capabilities(7)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_SECCOMP = 1, 4, 8, 22
_PR_SET_SECUREBITS, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 28, 36, 38, 47
_NEW_SPACES = 0x20000 | 0x4000000 | 0x8000000 | 0x20000000 | 0x40000000  # mnt uts ipc pid net
_NEW_USER, _ANY_NEW_SPACE = 0x10000000, 0x7E020000
_NOSUID, _NODEV, _NOEXEC, _PRIVATE = 2, 4, 8, 1 << 14 | 1 << 18
_CAP_READ, _CAP_OVERRIDE = 1 << 2, 1 << 1  # read any file; read and write any file
_NO_ROOT = 0b11  # a program of user 0 has no rights for it; for good

_X86_64, _X32, _CLONE, _CLONE3, _PRCTL = 0xC000003E, 1 << 30, 56, 435, 157
REFUSED = {  # system calls of x86-64: kernel memory that no limit counts, others' memory, new walls
    **{
        "shmget": 29,
        "semget": 64,
        "msgget": 68,
        "mq_open": 240,
        "memfd_secret": 447,
        "memfd_create": 319,
    },
    **{"add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321, "userfaultfd": 323},
    **{"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "perf_event_open": 298},
    **{"unshare": 272, "setns": 308, "mount": 165, "pivot_root": 155, "open_tree": 428},
    **{"move_mount": 429, "fsopen": 430, "mount_setattr": 442, "io_uring_setup": 425},
    **{"name_to_handle_at": 303, "open_by_handle_at": 304},
}


def _call(name: str, *arguments) -> None:
    """Call a function of the C library. OSError where it fails."""
    if getattr(_LIBC, name)(*arguments) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# -- inside the sandbox: the command --------------------------------------------------------------
def become(request: dict) -> None:
    """Take the limits of the request upon this process, then become its command."""
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
    landlock = _landlock(request["landlock"])
    allowed = dict.fromkeys(request["listable"], landlock.LANDLOCK_LIST)
    allowed |= dict.fromkeys(request["readable"], landlock.LANDLOCK_RUN)
    allowed |= dict.fromkeys([request["folder"], *DEVICES], ~0)
    _drop_rights(request)
    _die_with_parent()  # a change of the user forgets it
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # no program gives rights, such as sudo
    if request["kernel_walls"]:
        landlock.restrict(allowed, offline=True)
        refuse_calls()
    os.execve(request["command"][0], request["command"], request["environment"])


def _landlock(path: str):
    """The module kernelscope.landlock; loaded by path, as this script sees no packages."""
    spec = spec_from_file_location("landlock", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    _call("prctl", _PR_SET_SECCOMP, 2, program, 0, 0)
    return True


# -- inside the sandbox: the init -----------------------------------------------------------------
def confine(request: dict) -> None:
    """Start the command, reap all that ends until the command does, report how; then end."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = os.fork()
    if not command:
        os.close(STATUS)
        become(request)
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # its memory is closed to the command
    os.closerange(0, STATUS)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    report = {"passed": "", "status": None, "cpu_seconds": 0.0}
    ended = 0
    while ended != command and not report["passed"]:
        signal.sigtimedwait([signal.SIGCHLD], LOOK_SECONDS)
        for ended, state, used in _reaped():
            if ended == command:
                report["status"] = os.waitstatus_to_exitcode(state)
                report["cpu_seconds"] = used.ru_utime + used.ru_stime
                break
        if request["own_folder"] and not _fits(request):
            report["passed"] = "files"
    os.write(STATUS, json.dumps(report).encode())
    os._exit(0)


def _reaped():
    """Yield the processes that have ended, as os.wait4 tells them."""
    while (one := os.wait4(-1, os.WNOHANG))[0]:
        yield one


def _fits(request: dict) -> bool:
    """Whether the file system of the folder holds no more than the limits, removed files too."""
    limits, about = request["limits"], os.statvfs(request["folder"])
    size, files = (about.f_blocks - about.f_bfree) * about.f_frsize, about.f_files - about.f_ffree
    return size <= limits["folder_bytes"] and files - 1 <= limits["folder_files"]


def enter_namespaces(request: dict) -> None:
    """Go on as the first process of namespaces of its own, without network, the folder in memory.

    Root needs no user namespace. OSError where the system refuses.
    """
    user, group = os.geteuid(), os.getegid()
    if _LIBC.unshare(_NEW_SPACES):
        _call("unshare", _NEW_SPACES | _NEW_USER)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path("/proc/self", name).write_text(text)
    limits, folder = request["limits"], request["folder"].encode()
    room = f"size={limits['folder_bytes'] + (1 << 20)},nr_inodes={limits['folder_files'] + 16}"
    _call("mount", b"none", b"/", None, _PRIVATE, None)
    _call("mount", b"tmpfs", folder, b"tmpfs", _NOSUID | _NODEV, f"{room},mode=700".encode())
    first = os.fork()
    if first:
        os.closerange(0, STATUS + 1)
        code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    _die_with_parent()
    _call("mount", b"proc", b"/proc", b"proc", _NOSUID | _NODEV | _NOEXEC, None)


# -- outside --------------------------------------------------------------------------------------
def start(request: dict, output: int, reply: int, status: int) -> int:
    """Fork the process that becomes the init, in its walls; return its number."""
    data = os.memfd_create("stdin")
    _fill(data, request.pop("stdin"))
    child = os.fork()
    if child:
        os.close(data)
        return child
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _die_with_parent()
        os.setsid()
        for source, target in ((data, 0), (output, 1), (output, 2), (reply, REPLY)):
            os.dup2(source, target)
        os.dup2(status, STATUS)
        os.closerange(STATUS + 1, 256)
        if request["mode"] == "namespaces":
            enter_namespaces(request)
        os.chdir(request["folder"])
        if request["wrapper"]:
            command = [*request["wrapper"], sys.executable, "-I", "-S", __file__, "--confine"]
            os.execve(command[0], [*command, json.dumps(request)], request["environment"])
        confine(request)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(127)


def _fill(file: int, text: str) -> None:
    view = memoryview(base64.b64decode(text))
    while view:
        view = view[os.write(file, view) :]
    os.lseek(file, 0, os.SEEK_SET)


def _user_for() -> tuple[int, int]:
    """Return the user that the command becomes, 0: none, and the others' tasks that count with it.

    The kernel counts the tasks of a user in all, before Linux 5.14 in a user namespace too: those
    that this user has already are no part of the command's limit.
    """
    owners = {}
    for process, fields in _processes():
        try:
            owner = os.stat(f"/proc/{process}").st_uid
        except OSError:
            continue
        owners[owner] = owners.get(owner, 0) + int(fields[17])
    if os.geteuid():
        return 0, owners.get(os.geteuid(), 0) + 4  # the sandbox has some of its own
    first = OWN_USERS[os.getpid() % (len(OWN_USERS) // 2)]
    return next(user for user in range(first, OWN_USERS.stop) if user not in owners), 0


class Watch:
    """What a running command has used, and the name of the limit that it has passed."""

    def __init__(self, request: dict, child: int):
        self.limits, self.folder, self.child = request["limits"], request["folder"], child
        self.started = time.monotonic()
        self.printed, self.tail, self.reply = 0, b"", b""
        self.memory_bytes, self.cpu_seconds, self.near = 0, 0.0, 0.0
        self.waited, self._waits = 0.0, 0.0
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
        in_memory, removed = _nameless(tree)
        resident = in_memory + sum(map(_own_memory, tree))
        self.memory_bytes = max(self.memory_bytes, resident)
        self.near = min(1.0, resident / limits["memory_bytes"])
        self.cpu_seconds = max(self.cpu_seconds, sum(map(_seconds, tree.values())))
        passed = time.monotonic() - self.started
        own = max(self.cpu_seconds, passed - self._waited(tree))
        if own > limits["seconds"] or passed > BUSY * limits["seconds"]:
            self.passed = self.passed or "time"
        elif len(tree) > limits["processes"] + 4:  # the sandbox has some of its own
            self.passed = self.passed or "processes"
        elif resident > limits["memory_bytes"]:
            self.passed = self.passed or "memory"
        elif not _small(self.folder, limits, removed):
            self.passed = self.passed or "files"

    def _waited(self, tree: dict[int, list[str]]) -> float:
        """Seconds that the command waited for processors which others had.

        With more running processes than processors it waits for itself, which does not count.
        """
        waits = max([self._waits, *map(_waits, tree)])
        if sum(fields[0] == "R" for fields in tree.values()) <= len(os.sched_getaffinity(0)):
            self.waited += waits - self._waits
        self._waits = waits
        return self.waited

    def ended(self, code: int, report: bytes) -> int | None:
        """Take the init's report; return the command's status. code: of the init itself."""
        try:
            told = json.loads(report)
        except ValueError:  # the init is gone: the sandbox did not start, or it was killed
            return 128 - code if code > 128 else code
        self.passed = self.passed or told["passed"]
        self.cpu_seconds = max(self.cpu_seconds, told["cpu_seconds"])
        killed = told["status"] in (-signal.SIGKILL, -signal.SIGXCPU)
        if killed and told["cpu_seconds"] >= self.limits["seconds"]:
            self.passed = self.passed or "time"  # the kernel was first
        return None if self.passed else told["status"]


def supervise(request: dict) -> dict:
    """Run a request to its end and return the outcome."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    (reads_output, output), (reads_reply, reply) = os.pipe(), os.pipe()
    reads_status, status = os.pipe()
    request["user"], request["others"] = _user_for()
    child = start(request, output, reply, status)
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # its memory is closed to the command
    for end in (output, reply, status):
        os.close(end)
    watch, poll, code = Watch(request, child), select.poll(), None
    open_ends = {reads_output: False, reads_reply: True}
    for end in (*open_ends, reads_status):
        os.set_blocking(end, False)
        poll.register(end, select.POLLIN)
    look_at = 0.0
    while code is None and not watch.passed:
        for end, _ in poll.poll(max(1.0, 1000 * min(look_at - time.monotonic(), LOOK_SECONDS / 2))):
            if end not in open_ends or not _drain(watch, end, open_ends[end]):
                poll.unregister(end)
                open_ends.pop(end, None)
        if time.monotonic() > look_at:
            watch.look()
            look_at = time.monotonic() + LOOK_SECONDS * max(0.1, 1 - watch.near)
        done, state = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(state)
    seconds = time.monotonic() - watch.started
    end_all()
    for end, answers in open_ends.items():
        _drain(watch, end, answers)
    if code is not None and not watch.passed:
        code = watch.ended(code, os.read(reads_status, _READ))
    return {
        "passed": watch.passed,
        "status": None if watch.passed else code,
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


def _processes():
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
    for process, fields in _processes():
        if fields[0] not in "ZX":
            children.setdefault(int(fields[1]), {})[process] = fields
    found, queue = {}, [os.getpid()]
    while queue:
        below = children.get(queue.pop(), {})
        found |= below
        queue += below
    return found


def _seconds(fields: list[str]) -> float:
    """Seconds of a processor that a process had, with its children that have ended."""
    return sum(map(int, fields[11:15])) / _TICKS


def _waits(process: int) -> float:
    """Seconds that a process was ready to run while others had the processors."""
    try:
        with open(f"/proc/{process}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _nameless(tree) -> tuple[int, int]:
    """Bytes of files without a name, each counted once: in memory, and removed from a disk.

    A file in memory may be mapped and closed: of what is mapped the whole length counts, as nobody
    tells how much of it is there.
    """
    found: dict[tuple[int, int], int] = {}
    for process in tree:
        for inode, size in _shared_mappings(process):
            key = _memory_device(), inode
            found[key] = max(found.get(key, 0), size)
        for path in _listed(f"/proc/{process}/fd"):
            try:
                about = os.stat(path)
            except OSError:  # closed by now
                continue
            if not about.st_nlink and stat.S_ISREG(about.st_mode):
                key = about.st_dev, about.st_ino
                found[key] = max(found.get(key, 0), about.st_blocks * 512)
    in_memory = sum(size for (device, _), size in found.items() if device == _memory_device())
    return in_memory, sum(found.values()) - in_memory


def _shared_mappings(process: int):
    """Yield the inode of each file in memory that a process has mapped to share, and its length."""
    device = f"{os.major(_memory_device()):02x}:{os.minor(_memory_device()):02x}"
    try:
        with open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                place, rights, offset, where, inode = line.split(maxsplit=5)[:5]
                if rights[3] == "s" and where == device:
                    first, _, end = place.partition("-")
                    yield int(inode), int(offset, 16) + int(end, 16) - int(first, 16)
    except OSError:
        return


def _listed(folder: str) -> list[str]:
    try:
        return [f"{folder}/{name}" for name in os.listdir(folder)]
    except OSError:
        return []


@lru_cache(maxsize=1)
def _memory_device() -> int:
    """The device of files in memory."""
    with open(os.memfd_create("own"), "rb") as file:
        return os.fstat(file.fileno()).st_dev


def _own_memory(process: int) -> int:
    """Bytes of memory that a process has to itself; files and shared mappings aside."""
    try:
        with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon:"))
    except OSError:
        return 0


def _small(folder: str, limits: dict, size: int) -> bool:
    """Whether a folder, and `size` bytes beside it, are within limits; links are not followed."""
    files, queue = 0, [folder]
    while queue and size <= limits["folder_bytes"] and files <= limits["folder_files"]:
        try:
            entries = os.scandir(queue.pop())
        except FileNotFoundError:
            continue
        except OSError:  # closed to us, or too deep to be named
            return False
        with entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        queue.append(entry.path)
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                except FileNotFoundError:
                    continue
                except OSError:
                    return False
                files += 1
                if files > limits["folder_files"]:
                    break
    return size <= limits["folder_bytes"] and files <= limits["folder_files"]


def main() -> None:
    if sys.argv[1:2] == ["--confine"]:
        confine(json.loads(sys.argv[2]))
    request = json.load(sys.stdin)
    signal.signal(signal.SIGTERM, lambda *_: _stop(request["folder"]))
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != request["parent"]:
        return _stop(request["folder"])  # who asked is gone
    print(json.dumps(supervise(request)))


def _stop(folder: str) -> None:
    """End the command and remove its folder, which may have no other owner any more."""
    from shutil import rmtree

    end_all()
    rmtree(folder, ignore_errors=True)
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
