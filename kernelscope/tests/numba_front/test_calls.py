"""Calls of Numba kernels: the page's table, errors in one line, observers, what is imported."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba_cuda")

import feature_kernels  # noqa: E402
import good_kernels  # noqa: E402
from kernelscope import Counters, Sanitizer, Tracer, UserError, numba, observe  # noqa: E402
from kernelscope.errors import CompilerMissingError, KernelAssertion  # noqa: E402
from numba import cuda, float32  # noqa: E402

pytestmark = pytest.mark.system

PAGE = Path(__file__).parents[2] / "docs" / "python_kernels.md"
NUMBA = PAGE.read_text(encoding="utf-8").partition("## Numba\n")[2].partition("\n## ")[0]
FEATURES, _, OBSERVED = NUMBA.partition("### What the observers see")
TABLE = re.findall(r"^\| (?!feature|--)(.+?) \| (.+?) \|$", FEATURES, re.MULTILINE)
RECORD = json.loads((PAGE.parents[1] / "results" / "cpu" / "numba_front.json").read_text())
X = np.arange(1, 33, dtype=np.float32)


def row_of(feature):
    (found,) = [name for name in feature_kernels.ROWS if feature.startswith(name)]
    return feature_kernels.ROWS[found]


def test_the_table_names_every_row():
    assert len(TABLE) == len(feature_kernels.ROWS)


@pytest.mark.turns(37)
@pytest.mark.parametrize(("feature", "state"), TABLE, ids=lambda text: text[:24])
def test_a_row_of_the_table_is_true(feature, state, capsys):
    row = row_of(feature)
    if state == "works":
        row()
        assert "print" not in feature or "third is 3.0" in capsys.readouterr().out
        return
    with pytest.raises(UserError) as refusal:
        row()
    expected = state.removeprefix("refused: ")
    if "KernelAssertion" in state:
        assert refusal.type is KernelAssertion and refusal.value.line
        expected = "judges: ValueError: five, raised on line"
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_python_of_the_page_runs(tmp_path, capsys):
    """As a file, for Numba reads the source."""
    blocks = re.findall(r"^```python\n(.*?)^```", NUMBA, re.MULTILINE | re.DOTALL)
    path = tmp_path / "page.py"
    path.write_text("\n".join(blocks))
    exec(compile(path.read_text(), str(path), "exec"), {"__name__": "page"})
    (shown,) = re.findall(r"^```text\n(.*?)^```", NUMBA, re.MULTILINE | re.DOTALL)
    assert shown in capsys.readouterr().out


def test_the_figures_of_the_page_are_those_of_the_record():
    for name, case in RECORD["cpu_seconds"].items():
        ours = case["kernelscope"]
        cells = (f"{one:.3g} s" for one in (case["numba"]["again"], ours["again"], ours["first"]))
        assert f"| `{name}` | {' | '.join(cells)} |" in OBSERVED
    for name, both in RECORD["wrong_kernels"].items():
        assert f"| `{name}` | " in OBSERVED and f"`{both['kernelscope']}` |" in OBSERVED
        assert not both["numba"] or f"`{both['numba']}`" in OBSERVED
    assert RECORD["date"] in OBSERVED


# -- errors in one line --------------------------------------------------------------------------
@cuda.jit
def attribute(x, n):
    x[0] = x.nothing + n


@cuda.jit
def unknown_name(x, n):
    x[0] = n
    x[1] = nowhere  # noqa: F821


@cuda.jit
def first(x, n):
    if n:
        x[0] = 3


def read_only():
    x = X.copy()
    x.flags.writeable = False
    return x


ERRORS = [  # a call, and parts of its message
    ((attribute, 1, 32, X, 3), "attribute: test_calls.py:", "`x[0] = x.nothing + n`: Unknown attr"),
    ((unknown_name, 1, 32, X, 3), "`x[1] = nowhere", "NameError: name 'nowhere' is not defined"),
    ((first, 1, 32, read_only(), 3), "`x[0] = 3`", "Cannot modify readonly array"),
    ((first, 1, 32, X), "first (test_calls.py:", "takes 2 arguments, got 1. Its parameters: x, n"),
    ((first, 1, 32, X, 2**70), "argument n", "Int value is too large"),
    ((first, 1, 32, X, "n"), "argument n: got str 'n', which no kernel takes"),
    ((first, 1, 32, np.array([None]), 3), "cannot compile first", "array(pyobject, 1d, C)"),
    ((first, 0, 32, X, 3), "grid (0,) holds 0; every size must be at least 1"),
    ((first, 1.5, 32, X, 3), "grid is 1.5; it must be"),
    ((first, 1, 2000, X, 3), "block (2000,) has 2000 in x; at most 1024"),
    ((first[128, 32], 1, 32, X, 3), "pass the kernel itself and its grid and block"),
    ((len, 1, 32, X), "len is no Numba kernel: it needs a function with @cuda.jit"),
    ((good_kernels.scaled, 1, 32, X, 3), "scaled is a device function"),
    ((good_kernels.typed, 1, 32, X.astype(int), X, 3), "is compiled for (array(float32, 1d, A), "),
]


@pytest.mark.parametrize(("call", "parts"), [(c, p) for c, *p in ERRORS], ids=range(len(ERRORS)))
def test_an_error_is_one_line_with_the_function_and_the_reason(call, parts):
    with pytest.raises(UserError) as refusal:
        numba.run(*call)
    message = str(refusal.value)
    assert "\n" not in message and all(part in message for part in parts), message


@pytest.mark.parametrize("state", ["missing", "simulated"])
def test_without_the_compiler_of_numba_the_error_says_what_to_do(monkeypatch, state):
    if state == "missing":
        monkeypatch.setitem(sys.modules, "numba_cuda", None)
    else:
        monkeypatch.setattr("numba.config.ENABLE_CUDASIM", 1)
    wanted = {"missing": "pip install kernelscope\\[numba\\]", "simulated": "NUMBA_ENABLE_CUDASIM"}
    with pytest.raises(CompilerMissingError, match=wanted[state]):
        numba.run(first, 1, 32, X, 3)


@pytest.mark.turns(17)
def test_numba_is_imported_at_the_first_use_and_never_asks_for_a_driver():
    code = (
        "import sys, kernelscope, kernelscope.numba as front, kernelscope.cli.main\n"
        "assert not {'numba', 'numba_cuda', 'llvmlite'} & set(sys.modules)\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import good_kernels as good\n"
        "from numba.cuda.cudadrv.driver import Driver\n"
        "asked = []\n"
        "Driver.__getattr__ = lambda self, name: asked.append(name)\n"
        "kernel, grid, block, arguments, *_ = good.case_constant_array_and_device_function()\n"
        "front.run(kernel, grid, block, *arguments)\n"
        "assert not asked, asked\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)], check=True, timeout=120
    )


# -- observers -------------------------------------------------------------------------------------
def test_the_counters_are_those_of_the_source_lines():
    kernel, grid, block, arguments, *_ = good_kernels.case_vector_add()
    with observe(Counters()) as counted:
        numba.run(kernel, grid, block, *arguments)
    line = next(n for n, text in enumerate(lines_of(kernel), 1) if "z[i] = x[i] + y[i]" in text)
    assert counted.by_line[line].counts["global_load_sectors"] == 2 * 13
    assert "z[i] = x[i] + y[i]" in str(counted)


def lines_of(kernel):
    return Path(kernel.py_func.__code__.co_filename).read_text(encoding="utf-8").splitlines()


def test_the_tracer_shows_variables_arrays_and_the_source():
    kernel, grid, block, arguments, _, shared = good_kernels.case_prefix_sums()
    with observe(Tracer(warp=0)) as traced:
        numba.run(kernel, grid, block, *arguments, shared_mem=shared)
    (recording,) = traced.recordings
    assert {"t", "step"} <= set(recording.variables) and recording.variables["t"]["dtype"] == "i4"
    assert recording.arrays["sums"]["space"] == "shared"
    assert recording.lines[recording.frames[-1]["line"] - 1].strip() == "y[t] = sums[t]"
    values = [
        f["variables"]["step"]["values"] for f in recording.frames if "step" in f["variables"]
    ]
    assert {1, 2, 4, 64} <= {value for each in values for value in each}


CASES = (good_kernels.case_matmul_tiled, good_kernels.case_constant_array_and_device_function)


@pytest.mark.turns(37)
@pytest.mark.parametrize("case", CASES, ids=["matmul_tiled", "device_function"])
def test_both_builds_of_a_kernel_write_the_same(case):
    results = []
    for observers in ((), (Tracer(warp=0),)):
        kernel, grid, block, arguments, *_ = case()
        given = [np.arange(a.size, dtype=a.dtype).reshape(a.shape) for a in arguments]
        with observe(*observers) as traced:
            numba.run(kernel, grid, block, *given)
        results.append(given[-1])
    np.testing.assert_array_equal(*results)
    lines = {traced.recordings[0].lines[frame["line"] - 1] for frame in traced.recordings[0].frames}
    if case is not CASES[0]:  # a function that is linked to the debug build of the kernel
        assert "    return value * factor" in lines


# -- names of elements -----------------------------------------------------------------------------
@cuda.jit
def shifted(x, y):
    i, j = cuda.grid(2)
    y[i, j] = x[i, j] + 1


VIEWS = {  # an array of 4 x 8, and the element that is one too far along its longest stride
    "C": (np.zeros((4, 8)), 32),
    "Fortran": (np.zeros((4, 8), order="F"), (0, 8)),
    "transposed": (np.zeros((12, 20)).T[:4, :8], (0, 8)),
    "reversed": (np.zeros((8, 4)).T[::-1], (0, 8)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_an_element_of_a_view_has_the_index_of_the_view(name):
    view, index = VIEWS[name]
    with observe(Sanitizer()) as seen:
        numba.run(shifted, 1, (4, 9) if name != "C" else (5, 8), np.zeros((16, 16)), view)
    (finding,) = seen.findings
    assert (finding.array, finding.index, finding.kind) == ("y", index, "out-of-bounds")


def test_a_shared_array_of_the_kernel_keeps_its_name_beside_one_of_a_function():
    with observe(Sanitizer()) as seen:
        numba.run(twice_named, 1, 32, np.zeros(32, np.float32))
    assert [finding.array for finding in seen.findings] == ["part"]


@cuda.jit(device=True)
def filled(value):
    part = cuda.shared.array(32, float32)
    part[cuda.threadIdx.x] = value
    cuda.syncthreads()
    return part[31 - cuda.threadIdx.x]


@cuda.jit
def twice_named(x):
    t = cuda.threadIdx.x
    part = cuda.shared.array(32, float32)
    if t > 0:
        part[t] = x[t]
    cuda.syncthreads()
    x[t] = part[t] + filled(x[t])
