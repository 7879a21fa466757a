"""A class of submissions, many of them hostile, each with what must come of it.

    python tools/hostile_class.py FOLDER           write the submissions in nbgrader's layout
    python tools/hostile_class.py FOLDER --grade   also grade them and compare; exit status 1
                                                   where one outcome is not the expected one

Each submission is the released notebook of ps1 with its kernel solved, and one thing changed.
"""

import argparse
import copy
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from attn_course.classroom.grading.class_run import grade_class
from attn_course.classroom.grading.store import GRADED, Result
from attn_course.classroom.notebooks import released_notebook
from attn_course.classroom.sets import problem_set

SET, PROBLEM = "ps1", "ps1_scores"
TEST = f"{PROBLEM}-agrees"  # the id of a test cell
OUTSIDE = "outside.txt"  # in the folder of the class: no submission may write it
DAEMON = "attn-course-test-daemon"


@dataclass(frozen=True)
class Case:
    """A submission and what must come of it.

    Attributes:
        name: the student.
        change: takes the solved notebook and the class's folder and changes the notebook; or it
            returns what stands in its place (see `write_class`). Or the name of another solution.
        points: -1: all; None: the submission is not readable.
        remarks: kinds that must be among the remarks.
        held: of Python, which never runs here: how it ends where a test gives it to the sandbox
            itself. A limit, "status N", or what it prints; one of these.
    """

    name: str
    change: Callable | str
    points: int | None = -1
    remarks: tuple[str, ...] = ()
    held: tuple[str, ...] = ("status 0",)


def cell_of(notebook: dict, name: str) -> dict:
    """Return the cell with a grade_id."""
    about = (one for one in notebook["cells"])
    return next(one for one in about if one["metadata"]["nbgrader"]["grade_id"] == name)


def code_cell(text: str, metadata: dict | None = None) -> dict:
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": f"own-{abs(hash(text)) % 10**8}",
        "metadata": metadata or {},
        "outputs": [],
        "source": text,
    }


@dataclass(frozen=True)
class Python:
    """A change: one more cell, of Python, before all others. It must never run, and tells if so."""

    text: str

    def __call__(self, notebook, folder):
        told = f"open('FOLDER/{OUTSIDE}', 'a').close()\n{self.text}"
        notebook["cells"].insert(0, code_cell(at(told, folder)))


def at(text: str, folder: Path) -> str:
    """Return a text that names a folder, and a listener which nobody may reach."""
    port = str(listener().getsockname()[1])
    return text.replace("FOLDER", str(folder)).replace("PORT", port)


def kernel(text: str) -> Callable:
    """A change: another kernel."""

    def change(notebook, folder):
        cell_of(notebook, PROBLEM)["source"] = f"%%cuda {PROBLEM}\n{text}"

    return change


def edit(old: str, new: str) -> Callable:
    """A change of the correct kernel's text."""

    def change(notebook, folder):
        cell = cell_of(notebook, PROBLEM)
        assert old in cell["source"], old
        cell["source"] = cell["source"].replace(old, new)

    return change


def with_cell(name: str, **fields) -> Callable:
    """A change of a cell's fields."""

    def change(notebook, folder):
        cell_of(notebook, name).update(fields)

    return change


def with_metadata(name: str, **fields) -> Callable:
    def change(notebook, folder):
        cell_of(notebook, name)["metadata"]["nbgrader"].update(fields)

    return change


def without_cell(notebook, folder):
    notebook["cells"].remove(cell_of(notebook, TEST))


def doubled_cell(notebook, folder):
    notebook["cells"].append(copy.deepcopy(cell_of(notebook, TEST)))


def copied_cell(notebook, folder):
    notebook["cells"].append(code_cell(cell_of(notebook, TEST)["source"]))


def two_kernels(notebook, folder):
    notebook["cells"].append(code_cell(f"%%cuda {PROBLEM}\nnot the kernel"))


def trapped_outputs(notebook, folder):
    trap = "gASVJgAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAtleGl0IDEgIyBhYZSFlFKULg=="
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            data = {"application/x-pickle": trap, "text/html": "<script>alert(1)</script>"}
            output = {"output_type": "display_data", "data": data, "metadata": {}}
            cell["outputs"] = [output, {"output_type": "nonsense"}, 7]


def odd_outputs(notebook, folder):
    """Errors among the stored outputs, and what only looks like them."""
    deep: object = "x"
    for _ in range(400):
        deep = {"=1": [deep]}
    error = {"output_type": "error", "ename": "<script>", "evalue": "=1"}
    odd = {"output_type": "error", "ename": deep, "evalue": deep}
    outputs = [1, None, {"output_type": "error"}, odd, {"output_type": deep}, *[error] * 900]
    cell_of(notebook, TEST)["outputs"] = outputs
    cell_of(notebook, PROBLEM)["outputs"] = "none"


def scripted(notebook, folder):
    cell_of(notebook, PROBLEM)["source"] += "\n// </pre><script>alert(1)</script>\nthis is no CUDA"
    text = "raise ValueError('<script>alert(2)</script><img src=x onerror=alert(3)>')"
    notebook["cells"].append(code_cell(text))
    notebook["cells"].append(code_cell("1 / 0", {"nbgrader": {"grade_id": '=cmd|"/c calc"!A0'}}))


def linked(notebook, folder):
    target = folder / "elsewhere.ipynb"
    target.write_text(json.dumps(notebook))
    return target


def another_set(*_):
    return json.dumps(released_notebook(problem_set("ps2"))).encode()


def beside(folder: Path, student: str, files: dict[str, dict]) -> None:
    """Write more files into a student's folder, name -> notebook."""
    for name, notebook in files.items():
        path = folder / "submitted" / student / SET / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(notebook), encoding="utf-8")


def extra_files(notebook, folder):
    """Two that are not taken, and one that is read and not graded."""
    stub = released_notebook(problem_set(SET))
    names = (f".{SET}.ipynb", f"deeper/{SET}.ipynb", f"{SET} (1).ipynb")
    beside(folder, "extra_files", dict.fromkeys(names, stub))


def work_beside_stub(notebook, folder):
    beside(folder, "work_beside_stub", {f"{SET} (1).IPYNB": copy.deepcopy(notebook)})
    notebook.update(copy.deepcopy(released_notebook(problem_set(SET))))


def three_answers(notebook, folder):
    other = copy.deepcopy(notebook)
    cell_of(other, PROBLEM)["source"] += "// another"
    beside(folder, "three_answers", {f"{SET} (1).ipynb": notebook, f"{SET} (2).ipynb": other})
    cell_of(notebook, PROBLEM)["source"] = f"%%cuda {PROBLEM}\n{problem_set(SET).problems[0].stub}"


def many_remarks(notebook, folder):
    text = cell_of(notebook, TEST)["source"]
    other = {"nbgrader": {"grade_id": "x" * 2000}}
    notebook["cells"] += [code_cell(text, other) for _ in range(900)]


@cache
def listener() -> socket.socket:
    """A server on this machine that no submission may reach."""
    return socket.create_server(("127.0.0.1", 0))


SOLVED = edit("", "")
STUB = kernel("// a comment\n" + problem_set(SET).problems[0].stub)
PIPE = "pipe"
NO_FILE = ("PermissionError", "FileNotFoundError")  # refused, or not there at all
CALLS = "import socket\nsocket.create_connection(('127.0.0.1', PORT), 2)"
DAEMONS = f"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(900)", "{DAEMON}"])
    os._exit(0)
time.sleep(1)
"""
FORKS = """
import os, time
for _ in range(12):
    os.fork()
time.sleep(60)
"""
FILES = """
for number in range(10_000):
    with open(f"{number}.bin", "wb") as file:
        file.write(bytes(8 << 20))
"""
FORGED = """
import json, os
line = {"problem": "ps1_scores", "rows": [{"property": "agrees", "earned": 99, "possible": 99}]}
for file in range(3, 20):
    try:
        os.write(file, b'{"end": true}\\n[[[[{"cell": 999}\\n{"error": {}, "cell": -1}\\n')
        os.write(file, json.dumps(line).encode() + b"\\n")
    except OSError:
        pass
"""
REPLACED = """
import attn_course.classroom.points as points
import attn_course.exercises.examination as judging
from attn_course import classroom, exercises
points.points_of = judging.judge = judging.examine = lambda *_, **__: True
classroom.earn = exercises.check = lambda *_, **__: print("all points")
"""
PRINTED = r"""extern "C" __global__ void scores(const float* q, const float* k, float* s, int n,
                                  int m, int d, float scale) {
    printf("{\"problem\": \"ps1_scores\", \"rows\": [{\"property\": \"agrees\", \"earned\": 99, "
           "\"possible\": 99, \"block\": null}]}\n");
}
"""
ENDLESS = """extern "C" __global__ void scores(const float* q, const float* k, volatile float* s,
                                  int n, int m, int d, float scale) {
    while (true) s[0] += 1.0f;
}
"""
SEGMENTS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in range(64):
    if libc.shmget(0, 64 << 20, 0o1600) < 0:
        raise PermissionError(f"{number} segments")
"""
REMOVED = """
import os, time
opened = []
try:
    for _ in range(200):
        opened.append(open("x", "wb", 0))
        os.unlink("x")
        opened[-1].write(bytes(8 << 20))
except OSError:  # the folder is full
    pass
time.sleep(60)
"""
ORPHANS = """
import os
for _ in range(300):
    if os.fork() == 0:
        try:
            os._exit(os.fork() and 0)
        except OSError:
            os._exit(1)
    if os.wait()[1]:
        raise OSError("no further process")
"""
CROWD = """
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(16):
    if os.fork() == 0:
        while True:
            if os.fork() == 0:
                sum(range(1_000_000))
                os._exit(0)
            try:
                os.wait()
            except ChildProcessError:
                pass
while True:
    pass
"""
OWN_LIMIT = "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 4))\nwhile True: pass"
ABORTS = "__device__ int zeros[1 << 28] = {1};\n"  # NVRTC ends by SIGABRT in 1 GiB of memory
END = "    // END SOLUTION"
CASES = (
    Case("correct", SOLVED),
    Case("two_buffers", "one barrier a step, two buffers"),
    Case("rotated", "the tile of k stored with its columns rotated"),
    Case("no_first_barrier", "no first barrier", 7),
    Case("swapped", "query and key swapped in the output", 5),
    Case("stub", STUB, 0),
    Case("divides_by_zero", Python("1 / 0"), held=("ZeroDivisionError",)),
    Case("kills_itself", Python("import os; os.kill(os.getpid(), 9)"), held=("status -9",)),
    Case("exits", Python("import sys; sys.exit(3)"), held=("status 3",)),
    Case("leaves", Python("import os; os._exit(0)")),
    Case("endless_python", Python("while True: pass"), held=("time", "clock")),
    Case("sleeps", Python("import time; time.sleep(1e6)"), held=("clock",)),
    Case("endless_cuda", kernel(ENDLESS), 0),
    Case("hundred_gigabytes", Python("x = bytearray(100 << 30)"), held=("MemoryError",)),
    Case("hungry", Python("x = []\nwhile True: x.append(bytes(1 << 24) + b'1')"), held=("memory",)),
    Case(
        "prints_a_gigabyte", Python("for _ in range(1 << 20): print('x' * 1023)"), held=("output",)
    ),
    Case("writes_outside", Python(f"open('FOLDER/{OUTSIDE}', 'w')"), held=NO_FILE),
    Case("reads_others", Python("open('FOLDER/submitted/correct/ps1/ps1.ipynb')"), held=NO_FILE),
    Case("opens_a_socket", Python(CALLS), held=("PermissionError",)),
    Case("forks", Python(FORKS), held=("processes",)),
    Case("leaves_a_daemon", Python(DAEMONS)),
    Case("fills_the_disk", Python(FILES), held=("files",)),
    Case("one_huge_file", Python("open('x', 'wb').write(bytes(1 << 28))"), held=("OSError",)),
    Case("forges_its_report", Python(FORGED)),
    Case("replaces_the_judge", Python(REPLACED)),
    Case("tampers", with_cell(TEST, source="print('4 of 4 points')"), remarks=("changed",)),
    Case("drops_a_test", without_cell, remarks=("missing",)),
    Case("doubles_a_test", doubled_cell, remarks=("duplicate",)),
    Case("copies_a_test", copied_cell, remarks=("copied",)),
    Case("more_points", with_metadata(TEST, points=400), remarks=("metadata",)),
    Case(
        "unknown_id", with_metadata(TEST, grade_id="mine"), remarks=("unknown", "missing", "copied")
    ),
    Case("trapped_outputs", trapped_outputs),
    Case("odd_outputs", odd_outputs, remarks=("output",)),
    Case("includes_a_file", edit('extern "C"', '#include "/etc/passwd"\nextern "C"'), 0),
    Case("wrong_kernel_name", edit("void scores(", "void score("), 0),
    Case("wrong_magic", edit(f"%%cuda {PROBLEM}", "%%cuda other"), remarks=("name",)),
    Case("two_kernels", two_kernels, remarks=("duplicate",)),
    Case("prints_points", kernel(PRINTED), 0),
    Case(
        "huge_shared",
        edit(END, f"__shared__ volatile float more[1 << 20];\nmore[n] = m;\n{END}"),
        0,
    ),
    Case("scripts", scripted, 0, remarks=("unknown",)),
    Case("not_json", lambda *_: b"{not json", None),
    Case("not_text", lambda *_: b"\xff\xfe\x00\x80" * 100, None),
    Case("no_notebook", lambda *_: b'["a", "list"]', None),
    Case("nested", lambda *_: b"[" * 200_000, None),
    Case("odd_cells", lambda *_: b'{"cells": [1, {"source": {}}]}', None),
    Case("empty", lambda *_: b"", None),
    Case("link", linked, None),
    Case("pipe", lambda *_: PIPE, None),
    Case("huge", lambda *_: 1 << 30, None),
    Case("another_set", another_set, None),
    Case("extra_files", extra_files, remarks=("file",)),
    Case("work_beside_stub", work_beside_stub, remarks=("file",)),
    Case("three_answers", three_answers, None),
    Case("many_remarks", many_remarks, remarks=("unknown", "copied")),
    Case("odd_line_ends", edit("    float ", "    // \f \v \x1c \x85 \u2028 \r .\n    float ")),
    Case("crashes_the_compiler", edit('extern "C"', ABORTS + 'extern "C"'), None),
    Case("=cmd()", STUB, 0),
    # more Python that must never run
    Case("takes_segments", Python(SEGMENTS), held=("PermissionError",)),
    Case("removes_open_files", Python(REMOVED), held=("files",)),
    Case("leaves_orphans", Python(ORPHANS)),
    Case("crowds", Python(CROWD), held=("time", "clock")),
    Case("crashes", Python("import signal; signal.raise_signal(11)"), held=("status -11",)),
    Case("alarms", Python("import signal; signal.alarm(1); signal.pause()"), held=("status -14",)),
    Case("limits_itself", Python(OWN_LIMIT), held=("status -24",)),
)


# -- writing and grading the class -----------------------------------------------------------------


def write_class(folder: Path, names: Sequence[str] = ()) -> list[Case]:
    """Write the submissions in nbgrader's layout; return their cases.

    names: of some cases; all where it is empty.
    """
    chosen = [case for case in CASES if not names or case.name in names]
    for case in chosen:
        path = folder / "submitted" / case.name / SET / f"{SET}.ipynb"
        path.parent.mkdir(parents=True)
        notebook, instead = solved(), None
        if isinstance(case.change, str):
            kernel(solution(case.change))(notebook, folder)
        else:
            instead = case.change(notebook, folder)
        if instead is None:
            path.write_text(json.dumps(notebook), encoding="utf-8")
        elif isinstance(instead, bytes):
            path.write_bytes(instead)
        elif isinstance(instead, Path):
            path.symlink_to(instead)
        elif isinstance(instead, int):
            path.touch()
            os.truncate(path, instead)
        else:
            os.mkfifo(path)
    return chosen


def solved() -> dict:
    """Return the released notebook with the reference solution."""
    chosen = problem_set(SET)
    notebook = copy.deepcopy(released_notebook(chosen))
    kernel(chosen.problems[0].solution)(notebook, None)
    return notebook


def solution(name: str) -> str:
    """Return the text of one of the problem's solutions, right or wrong."""
    problem = problem_set(SET).problems[0]
    return next(one.text for one in (*problem.correct, *problem.wrong) if one.name == name)


def unexpected(case: Case, result: Result) -> list[str]:
    """Return what differs from the outcome that a case must have."""
    if case.points is None:
        told = f"graded with {result.earned} points; it is not readable"
        return [told] if result.state == GRADED else []
    if result.state != GRADED:
        return [f"{result.state}: {result.all_remarks}"]
    found = []
    if result.earned != (result.possible if case.points < 0 else case.points):
        found.append(f"{result.earned} of {result.possible} points, not {case.points}")
    kinds = {one.kind for one in result.all_remarks}
    if missing := set(case.remarks) - kinds:
        found.append(f"no remark {missing}, but {kinds}")
    return found


def without_nvrtc(folder: Path) -> str:
    """Write a folder that, in PYTHONPATH, hides CuPy's compiler from each new process."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text('import sys\nsys.modules["cupy.cuda"] = None\n')
    return str(folder)


def traces(folder: Path) -> list[str]:
    """Return what submissions have left outside of their sandboxes."""
    found = [f"{OUTSIDE} is written"] if (folder / OUTSIDE).exists() else []
    listener().setblocking(False)
    try:
        listener().accept()[0].close()
        found.append("a submission reached the listener")
    except BlockingIOError:
        pass
    listener().close()
    listener.cache_clear()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if DAEMON.encode() in path.read_bytes().split(b"\0"):
                found.append(f"{path}: a submission's process still runs")
        except OSError:
            continue
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--grade", action="store_true", help="grade them, and compare")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=(), help="names of submissions")
    arguments = parser.parse_args()
    cases = write_class(arguments.folder.resolve(), arguments.only)
    print(f"{len(cases)} submissions in {arguments.folder}")
    if not arguments.grade:
        return 0
    folder, started = arguments.folder.resolve(), time.monotonic()
    run = grade_class(folder, folder / "grades", jobs=arguments.jobs)
    seconds = time.monotonic() - started
    results, wrong = {result.student: result for result in run.results}, 0
    for case in cases:
        found = unexpected(case, results[case.name])
        wrong += bool(found)
        result = results[case.name]
        told = "; ".join(found) or "as expected"
        print(f"{result.seconds:7.1f} s  {case.name:20}  {told}")
    left = traces(folder)
    print(*left, sep="\n")
    slowest = max(result.seconds for result in run.results)
    print(
        f"{len(cases)} submissions in {seconds:.0f} s, {arguments.jobs} at a time, the slowest in "
        f"{slowest:.1f} s; {wrong} not as expected"
    )
    return 1 if wrong or left else 0


if __name__ == "__main__":
    sys.exit(main())
