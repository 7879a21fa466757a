"""The sandbox: what a process in it can reach, and which limit ends it."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hostile_class import CASES, Python, at, traces
from kernelscope.landlock import landlock_version

from attn_course.classroom.grading import (
    MODES,
    ProcessLimits,
    Sandbox,
    SandboxError,
    best_sandbox,
    works,
)
from attn_course.classroom.grading.confined import sandbox as sandbox_module
from attn_course.classroom.grading.confined.supervise import Watch, _small
from attn_devtools.shares import in_turns

pytestmark = pytest.mark.system

MIB = 1 << 20
ROOMY = {"memory_bytes": 4096 * MIB}
PROBE = """
import json, os, socket
found = {}
def trial(name, action):
    try:
        found[name] = str(action())
    except OSError as error:
        found[name] = type(error).__name__
trial("connects", lambda: socket.create_connection(("127.0.0.1", PORT), 2))
trial("reads", lambda: open("SECRET").read())
trial("writes", lambda: open("SECRET", "a").write("x"))
trial("writes here", lambda: open("file", "w").write("x"))
trial("changes the course", lambda: open("COURSE", "a"))
trial("environment", lambda: os.environ.get("GRADE_SECRET"))
import attn_course
os.write(3, json.dumps(found).encode())
"""


@pytest.fixture(scope="module")
def sandbox():
    return best_sandbox()


@pytest.mark.parametrize("mode", MODES)
def test_a_submission_reaches_nothing(mode, tmp_path, monkeypatch):
    chosen = Sandbox(mode)
    if not works(chosen):
        pytest.skip(f"no {mode} on this machine")
    monkeypatch.setenv("GRADE_SECRET", "42")
    secret = tmp_path / "secret.txt"
    secret.write_text("the solution")
    course = sandbox_module.PACKAGE / "__init__.py"
    before = course.read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        text = PROBE.replace("PORT", str(listener.getsockname()[1]))
        text = text.replace("SECRET", str(secret), 2).replace("COURSE", str(course))
        outcome = chosen.run(["-"], text.encode())
        listener.setblocking(False)
        if mode != "limits" or landlock_version() >= 4 or os.uname().machine == "x86_64":
            with pytest.raises(BlockingIOError):
                listener.accept()
    assert outcome, outcome
    found = json.loads(outcome.reply)
    assert found["writes here"] == "1" and found["environment"] == "None"
    if mode != "limits" or landlock_version() >= 4 or os.uname().machine == "x86_64":
        assert found["connects"].endswith("Error")
    if mode == "bubblewrap" or landlock_version():
        assert found["reads"].endswith("Error") and found["writes"].endswith("Error")
        assert found["changes the course"].endswith("Error")
        assert secret.read_text() == "the solution" and course.read_bytes() == before


@pytest.mark.turns(23)
@pytest.mark.parametrize(
    ("text", "limit", "given"),
    [
        ("while True: pass", "time clock", {"seconds": 0.4}),  # where others have the processors
        ("import time; time.sleep(99)", "clock", {"seconds": 0.4}),
        ("x = bytearray(b'1') * (200 << 20)\nimport time; time.sleep(9)", "memory", {}),
        ("while True: print('x' * 1000)", "output", {}),
        ("import os\nwhile True: os.write(3, b'x' * 1000)", "output", {}),
        ("import os, time\nfor _ in range(7): os.fork()\ntime.sleep(9)", "processes", ROOMY),
        ("import time\nfor n in range(99): open(f'{n}', 'w')\ntime.sleep(9)", "files", {}),
        ("import time\nopen('x', 'wb').write(bytes(9 << 20))\ntime.sleep(9)", "files", {}),
    ],
)
def test_a_limit_ends_a_process(sandbox, text, limit, given):
    limits = ProcessLimits(
        **{
            "seconds": 10,
            "memory_bytes": 100 * MIB,
            "processes": 20,
            "folder_files": 50,
            "folder_bytes": 4 * MIB,
            "output_bytes": 10_000,
            "reply_bytes": 10_000,
            **given,
        }
    )
    outcome = sandbox.run(["-"], text.encode(), limits)
    assert outcome.passed in limit.split() and outcome.status is None and outcome.seconds < 5
    assert len(outcome.reply) <= 10_000 and len(outcome.tail) <= 4096


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("x = bytearray(100 << 30)", "MemoryError"),
        ("open('x', 'wb').write(bytes(32 << 20))", "OSError"),
        ("input()\ninput()", "EOFError"),
    ],
)
def test_a_limit_is_an_error_of_python(sandbox, text, word):
    outcome = sandbox.run(["-"], text.encode())
    assert outcome.status == 1 and word in outcome.tail


@pytest.mark.parametrize(
    ("status", "seconds", "told"),
    [(-9, 4.2, ("time", None)), (-9, 3.9, ("", -9)), (-11, 4.2, ("", -11)), (1, 4.2, ("", 1))],
)
def test_a_limit_of_time_that_the_kernel_saw_first(status, seconds, told):
    watch = Watch({"limits": {"seconds": 4.0}, "folder": ""}, 1)
    watch.reaped_seconds = seconds
    watch.ended(status)
    assert (watch.passed, watch.status) == told


def test_a_process_that_ends_while_its_files_are_read_is_no_fault(monkeypatch, tmp_path):
    """Between the list of processes and the look at their files some have ended."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    monkeypatch.setattr(os, "scandir", _ended(os.scandir))
    assert _small(str(tmp_path), {"folder_files": 1, "folder_bytes": 1}, {gone.pid: [], 1: []})


def _ended(scandir):
    """os.scandir, where a process ends between the look at its folder and the reading."""

    def scan(path):
        if str(path).startswith("/proc/"):
            raise ProcessLookupError(3, "No such process")
        return scandir(path)

    return scan


@pytest.mark.turns(41)
@pytest.mark.parametrize(
    "case",
    in_turns([case for case in CASES if isinstance(case.change, Python)], 6),
    ids=lambda case: case.name,
)
def test_the_python_of_hostile_submissions_is_held(sandbox, case, tmp_path):
    """No submission's Python runs. The sandbox holds it all the same."""
    text = at(case.change.text, tmp_path)
    limits = ProcessLimits(seconds=2.0, memory_bytes=512 * MIB)
    outcome = sandbox.run(["-"], text.encode(), limits)
    told = (outcome.passed, f"status {outcome.status}")
    assert any(word in told or word in outcome.tail for word in case.held), outcome
    assert outcome.seconds < 5 and not traces(tmp_path)


def _command(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_locale_that_only_the_grader_has_changes_nothing(sandbox, monkeypatch):
    """Python 3.11 reads paths of packages in the encoding of the locale, PYTHONUTF8 or not."""
    for name in ("LANG", "LC_ALL"):
        monkeypatch.setenv(name, "xx_XX.UTF-8")
    outcome = sandbox.run(["-"], b"import locale, os; os.write(3, locale.getencoding().encode())")
    assert outcome.reply == "UTF-8", outcome


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_grader_leaves_nothing(mode, tmp_path):
    if not works(Sandbox(mode)):
        pytest.skip(f"no {mode} on this machine")
    mark = f"orphan-{os.getpid()}"
    text = f"""
from attn_course.classroom.grading import Sandbox
text = "open('file', 'w').write('x'); import time; time.sleep(600)"
Sandbox("{mode}").run(["-c", text, "{mark}"], b"")
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    tmp_path.chmod(0o755)  # the sandbox has a user of its own, where root starts it
    grader = subprocess.Popen([sys.executable, "-c", text], env=environment)
    try:
        _wait(lambda: _running(mark), "the process starts")
        assert len(list(tmp_path.iterdir())) == (mode == "limits")  # a container has its own
        grader.kill()
        grader.wait()
        _wait(lambda: not _running(mark), "it has ended")
        _wait(lambda: not list(tmp_path.iterdir()), "its folder is removed")
    finally:
        grader.kill()
        grader.wait()


def _running(mark):
    """Processes of this name, the graders aside."""
    commands = [_command(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
    return [one for one in commands if mark.encode() in one and b"grading import" not in one]


def _wait(holds, what):
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_sandbox_that_does_not_start_is_told(sandbox, monkeypatch):
    monkeypatch.setattr(sandbox_module, "SUPERVISOR", "no_such_module")
    with pytest.raises(SandboxError, match="did not start: .*No module named no_such_module"):
        sandbox.run(["-"], b"")


def test_the_walls_are_named(sandbox):
    assert "limits" in sandbox.description
    assert ("Landlock" in sandbox.description) and sandbox.mode in MODES


def test_what_a_dead_supervisor_leaves_behind_is_ended():
    """As where bubblewrap is ended before it has set up its child, which waits for it."""
    words = ["sh", "-c", "sleep 600 & kill -9 $$"]
    supervisor = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
    sandbox_module._running.add(supervisor)
    try:
        supervisor.wait(10)
        with pytest.raises(subprocess.TimeoutExpired):
            supervisor.communicate(timeout=0.2)
        sandbox_module.stop_all()
        assert supervisor.communicate(timeout=10) == (b"", None)
    finally:
        sandbox_module._running.discard(supervisor)
