"""The sandbox in every mode of this machine, for root and for an ordinary user.

One process for each mode and user runs all probes. The end of the test run says which modes were
tested, and why others were not (`pytest_terminal_summary` in conftest.py).
"""

import json
import os
import subprocess
import sys
from itertools import product

import pytest
from kernelscope.landlock import landlock_version

from attn_course.classroom.grading import MODES
from attn_course.classroom.grading.confined.supervise import OWN_USERS, REFUSED
from attn_course.folders import ENGINE, IMPORT_ROOT
from attn_devtools.shares import in_turns

pytestmark = pytest.mark.system

MIB = 1 << 20
WITHOUT = "limits without Landlock"
ROOT, ORDINARY = "root", "an ordinary user"
NOBODY = 65534
PROBES = {  # name -> text, limits
    "kill": ("import os; os.kill(os.getpid(), 9)", {}),
    "terminate": ("import signal; signal.raise_signal(signal.SIGTERM)", {}),
    "crash": ("import signal; signal.raise_signal(signal.SIGSEGV)", {}),
    "processor": ("import signal; signal.raise_signal(signal.SIGXCPU)", {}),
    "alarm": ("import signal; signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()", {}),
    "exit": ("raise SystemExit(3)", {}),
    "exit as by a signal": ("import os; os._exit(128 + 9)", {}),
    "orphans": (
        "import os\nfor _ in range(150):\n    if not os.fork(): os._exit(os.fork() and 0)\n"
        "    if os.wait()[1]: raise SystemExit('no further process')",
        {"processes": 8},
    ),
    "bomb": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", {}),
    "removed files": (
        "import os, time\nopened = []\nfor _ in range(64):\n    opened.append(open('x', 'wb', 0))\n"
        "    os.unlink('x')\n    try: opened[-1].write(bytes(1 << 20))\n"
        "    except OSError: break\ntime.sleep(9)",
        {"folder_bytes": 4 * MIB},
    ),
    "closed folders": (
        "import os, time\nos.mkdir('d')\nopened = open('d/x', 'wb', 0)\nos.chmod('d', 0o300)\n"
        "try: opened.write(bytes(12 << 20))\nexcept OSError: pass\ntime.sleep(9)",
        {"folder_bytes": 4 * MIB},
    ),
    "memory unmapped": (
        "import mmap, time\nkept = [mmap.mmap(-1, 8 << 20) for _ in range(20)]\n"
        "for one in kept: one.write(bytes(8 << 20)), one.madvise(mmap.MADV_DONTNEED)\n"
        "time.sleep(9)",
        {"memory_bytes": 80 * MIB},
    ),
    "rights": ("import os\nprint('User:', os.getuid(), open('/proc/self/status').read())", {}),
    "calls": (
        "import ctypes\nlibc, done = ctypes.CDLL(None, use_errno=True), []\n"
        f"for name, number in {REFUSED}.items():\n"
        "    libc.syscall(number, -1, -1, -1, -1, -1)\n"
        "    if ctypes.get_errno() != 1: done.append(name)\n"
        "if libc.syscall(56, 0x10000011, 0, 0, 0, 0) >= 0: done.append('clone')\n"
        "if not libc.prctl(4, 0, 0, 0, 0): done.append('prctl')\n"
        "done += [kind for kind in (1, 2, 10, 16, 17) if libc.socket(kind, 1, 0) >= 0]\n"
        "print('reached:', done)",
        {},
    ),
}
ENDINGS = {  # of a command: the limit that it passed, and its status
    "kill": ("", -9),
    "terminate": ("", -15),
    "crash": ("", -11),
    "processor": ("", -24),
    "alarm": ("", -14),
    "exit": ("", 3),
    "exit as by a signal": ("", 137),
    "orphans": ("", 0),
    "bomb": ("processes", None),
    "removed files": ("files", None),
    "closed folders": ("files", None),
    "memory unmapped": ("memory", None),
}
CHILD = """
import json, shutil, sys, time
from dataclasses import asdict
from attn_course.classroom.grading import ProcessLimits, Sandbox
mode, walls, probes = json.loads(sys.argv[1])
sandbox, why, told = Sandbox(mode, walls), "there is no program bwrap", {}
if mode != "bubblewrap" or shutil.which("bwrap"):
    trial = sandbox.run(["-"], b"pass")
    why = "" if trial else trial.tail.strip() or str(trial)
for name, (text, limits) in probes.items() if not why else ():
    started = time.monotonic()
    limits = ProcessLimits(**{"seconds": 10, "processes": 20, **limits})
    told[name] = asdict(sandbox.run(["-"], text.encode(), limits))
    told[name]["wall"] = time.monotonic() - started
print(json.dumps([why, told]))
"""
# Run a command as another user. A folder that is closed to others and stands above one that the
# command needs, such as the home of root, is covered by one that holds only what is needed.
AS_ANOTHER = """
import ctypes, json, os, sys
from pathlib import Path
user, needed, place, command = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def mount(source, target, kind, flags, data=None):
    if libc.mount(str(source).encode(), str(target).encode(), kind, flags, data):
        raise SystemExit(f"{target} cannot be mounted: {os.strerror(ctypes.get_errno())}")
above = dict.fromkeys(one for path in needed for one in reversed(Path(path).parents))
closed = [one for one in above if not one.stat().st_mode & 1]
if closed:
    if libc.unshare(0x20000):
        raise SystemExit(f"{closed[0]} is closed to other users")
    mount("none", "/", None, 1 << 14 | 1 << 18)  # recursive, private
    kept = {path: Path(place, str(number)) for number, path in enumerate(needed)}
    for path, aside in kept.items():
        aside.mkdir()
        mount(path, aside, None, 1 << 12)  # bound
    for one in filter(Path.exists, closed):
        mount("tmpfs", one, b"tmpfs", 0, b"mode=755")
    for path, aside in kept.items():
        os.makedirs(path, exist_ok=True)
        mount(aside, path, None, 1 << 12)
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
os.chdir("/")
os.execv(command[0], command)
"""


@pytest.mark.parametrize(
    ("label", "user"), in_turns([*product([*MODES, WITHOUT], [ROOT, ORDINARY])], 5)
)
def test_the_walls_of_a_mode(label, user, tmp_path, record_property):
    why, told = _probed(label, user, tmp_path)
    record_property("sandbox", [f"{label} ({user})", why])
    if why:
        pytest.skip(f"{label} as {user}: {why}")
    endings = {name: (told[name]["passed"], told[name]["status"]) for name in ENDINGS}
    assert endings == ENDINGS, told
    assert told["bomb"]["wall"] < 5
    _assert_no_rights(told["rights"]["tail"], user)
    if label != WITHOUT and os.uname().machine == "x86_64":
        assert told["calls"]["tail"] == "reached: []\n"


def _assert_no_rights(status, user):
    fields = dict(line.split(":", 1) for line in status.split("\n") if line)
    number, effective = int(fields["User"].split()[0]), int(fields["CapEff"], 16)
    assert int(fields["NoNewPrivs"]) == 1
    if user == ROOT:  # another user, with no right but to read what root reads
        assert number in OWN_USERS or number == 0
        assert effective & ~(1 << 2) == 0
    else:
        assert effective == 0


def _probed(label, user, place):
    """Return why this machine does not have a mode, or "", and how the probes ended."""
    if user == ROOT and os.geteuid():
        return "the tests do not run as root", {}
    if label == MODES[-1] and not landlock_version():
        return "the kernel has no Landlock", {}
    mode = label.split()[0]
    command = [sys.executable, "-c", CHILD, json.dumps([mode, label != WITHOUT, PROBES])]
    if user == ORDINARY and not os.geteuid():
        needed = list(dict.fromkeys([sys.base_prefix, sys.prefix, str(IMPORT_ROOT)]))
        task = json.dumps([NOBODY, needed, str(place), command])
        command = [sys.executable, "-c", AS_ANOTHER, task]
    environment = {name: os.environ[name] for name in os.environ if name != "TMPDIR"}
    environment["PYTHONPATH"] = str(IMPORT_ROOT)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1], {}
    return json.loads(done.stdout)


USER_SITE = """
import json, sys
from attn_course.classroom.grading import Sandbox, works
text = b"import json, numpy, own_package, own_edited, own_found; print(own_package.__file__)"
sandbox = Sandbox(sys.argv[1])
outcome = sandbox.run(["-"], text) if works(sandbox) else None
print(json.dumps(outcome and [outcome.status, outcome.tail]))
"""


@pytest.mark.turns(23)
@pytest.mark.parametrize("mode", MODES)
def test_packages_of_a_user_site_are_found(mode, tmp_path):
    base = os.path.realpath(sys.executable)
    environment = {**os.environ, "PYTHONUSERBASE": str(tmp_path / "base")}
    for name in ("PYTHONPATH", "PYTHONNOUSERSITE", "TMPDIR"):
        environment.pop(name, None)

    def python(*arguments):
        command = [base, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    site = python("-c", "import site; print(site.getusersitepackages())").stdout.strip()
    for folder in (site, tmp_path / "edited", tmp_path / "found" / "own_found"):
        os.makedirs(folder)
    rest = (IMPORT_ROOT, ENGINE.parent, *_site_packages())
    texts = {
        f"{site}/own_package.py": "",
        tmp_path / "edited" / "own_edited.py": "",
        tmp_path / "found" / "own_found" / "__init__.py": "",
        f"{site}/__editable___own_finder.py": FINDER.format(str(tmp_path / "found" / "own_found")),
        f"{site}/own.pth": f"{tmp_path / 'edited'}\nimport __editable___own_finder\n",
        f"{site}/rest.pth": "".join(f"{one}\n" for one in rest),
    }
    for path, text in texts.items():
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    done = python("-c", USER_SITE, mode)
    assert done.returncode == 0, done.stderr
    if (outcome := json.loads(done.stdout)) is None:
        pytest.skip(f"no {mode} on this machine")
    assert outcome == [0, f"{site}/own_package.py\n"]


# how setuptools finds a package that is installed to be edited
FINDER = """
import sys
from importlib.util import spec_from_file_location
MAPPING = {{"own_found": {0!r}}}
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in MAPPING:
            return spec_from_file_location(name, MAPPING[name] + "/__init__.py")
sys.meta_path.append(Finder)
"""


def _site_packages():
    return [path for path in sys.path if path.endswith("site-packages")]
