"""NVRTC in a process of its own, which can be ended at any time; see `server.py`."""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from .server import HEADER, message, write_all

_SERVER = Path(__file__).with_name("server.py")
_READ = 1 << 20


class CompilerProcess:
    """A server process; `ask` is for one thread at a time."""

    def __init__(self, library: str):
        self.nvrtc = library
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SERVER), library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to the caller, who ends this process
            bufsize=0,
        )

    def ask(self, request: dict, seconds: float) -> tuple[dict, bytes]:
        """Return the reply's fields and its image.

        Raises TimeoutError after that many seconds and ChildProcessError when the process is
        gone. After any exception the process has ended.
        """
        try:
            write_all(self.process.stdin.fileno(), message(request))
            return self._reply(time.monotonic() + seconds)
        except BrokenPipeError as error:
            self.end()
            raise ChildProcessError("the compiler's process has ended") from error
        except BaseException:
            self.end()
            raise

    def _reply(self, deadline: float) -> tuple[dict, bytes]:
        lengths = HEADER.unpack(self._read(HEADER.size, deadline))
        text, image = (self._read(length, deadline) for length in lengths)
        return json.loads(text), image

    def _read(self, count: int, deadline: float) -> bytes:
        out, parts = self.process.stdout.fileno(), []
        poll = select.poll()
        poll.register(out, select.POLLIN)
        while count:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(max(1, min(left, 3600.0) * 1000)):
                if deadline - time.monotonic() <= 0:
                    raise TimeoutError
                continue
            part = os.read(out, min(count, _READ))
            if not part:
                raise ChildProcessError("the compiler's process has ended")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def end(self) -> None:
        """End the process and what it compiles."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.forget()
        self.process.wait()

    def forget(self) -> None:
        """Close this side of the pipes: an idle server then ends by itself."""
        self.process.stdin.close()
        self.process.stdout.close()


_idle: list[CompilerProcess] = []  # threads that compile at the same time have one each


def ask_compiler(library: str, request: dict, seconds: float) -> tuple[dict, bytes]:
    """Compile by the NVRTC of this path; see CompilerProcess.ask."""
    try:
        server = _idle.pop()
    except IndexError:
        server = CompilerProcess(library)
    if server.nvrtc != library or server.process.poll() is not None:
        server.end()
        server = CompilerProcess(library)
    reply = server.ask(request, seconds)
    _idle.append(server)
    return reply


def _end_all() -> None:
    while _idle:
        _idle.pop().end()


def _leave_to_the_parent() -> None:
    """In a fork: the servers belong to the process that started them."""
    while _idle:
        server = _idle.pop()
        server.forget()
        server.process.returncode = 0  # not ours to wait for


atexit.register(_end_all)
os.register_at_fork(after_in_child=_leave_to_the_parent)
