"""The commands on kernels of Numba and Triton in Python files."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from kernelscope.cli.main import main

pytest.importorskip("numba_cuda")
pytest.importorskip("triton")

PAGE = Path(__file__).parents[2] / "docs" / "python_kernels.md"
SECTION = PAGE.read_text(encoding="utf-8").partition("## Command line\n")[2].partition("\n## ")[0]
TUNED = """import triton
import triton.language as tl


@triton.autotune(
    [triton.Config({"TILE": 64}, num_warps=2), triton.Config({"TILE": 32, "K": tl.float16})], ["n"]
)
@triton.heuristics({"EVEN": lambda named: named["n"] % named["TILE"] == 0})
@triton.jit
def tuned(x, y, n, TILE: tl.constexpr, EVEN: tl.constexpr, K: tl.constexpr = tl.float32):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(y + at, tl.load(x + at, at < n).to(K) * 2, at < n)
"""
BROKEN = {
    "raises.py": "import math\n\nx = math.sqrt(-1)\n",
    "lacks.py": "import no_such_package\n",
    "syntax.py": "def f(:\n",
    "leaves.py": "raise SystemExit(3)\n",
    "none.py": "x = 1\n",
    "signed.py": "from numba import cuda\n@cuda.jit('void(float32[:])')\ndef k(x):\n    x[0] = 1\n",
}


def block(language):
    return re.findall(rf"^```{language}\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("python")
    for name, text in {"kernels.py": block("python"), "tuned.py": TUNED, **BROKEN}.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def call(capsys, monkeypatch, folder):
    """Run a command in the folder of the files: (exit status, output, error)."""
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")
    monkeypatch.chdir(folder)

    def run(*arguments):
        status = main(list(arguments))
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


def test_the_commands_of_the_page_run(call, folder):
    commands = [line.split() for line in block("sh").splitlines()]
    assert [command[1] for command in commands] == ["run", "check", "count", "trace"]
    shown = [call(*command[1:]) for command in commands]
    assert [status for status, _, _ in shown] == [0, 0, 0, 0]
    run, check, count, _ = [out for _, out, _ in shown]
    assert "z      100    float32  100 of 100" in run and "no findings" in check
    assert "tl.store(z + at" in count and "block 64, backend simulator" in count
    assert "z[i] = x[i] + y[i]" in (folder / "trace.html").read_text()


TUNED_CALL = "tuned.py:tuned --grid 4 --arg normal:100 --arg output:100".split()


@pytest.mark.parametrize("command", ["run", "check", "count"])
def test_an_autotuned_kernel_takes_its_first_configuration_and_says_so(call, command):
    status, out, _ = call(command, *TUNED_CALL, "--arg", "100")
    assert status == 0
    assert "block 64, config 0 of 2 (TILE=64, num_warps=2, " in out
    assert "; choose with --config), backend simulator" in out


@pytest.mark.parametrize("config", ["1", "TILE=32", "TILE=32,num_warps=4"])
def test_config_names_a_configuration_by_number_or_values(call, config, folder):
    given = (*TUNED_CALL, "--arg", "100", "--config", config)
    status, out, _ = call("run", *given, "--json", "-", "--out", "o.npz")
    assert status == 0
    assert {"TILE": 32, "num_warps": 4, "K": "fp16"}.items() <= json.loads(out)["config"].items()
    arrays = np.load(folder / "o.npz")
    np.testing.assert_array_equal(arrays["y"], 2 * arrays["x"].astype(np.float16))


CONFIG_REFUSALS = {
    "--arg 100 --config 2": "no configuration 2; it has: 0: TILE=64, num_warps=2, ",
    "--arg 100 --config TILE=8": "no configuration {'TILE': 8}",
    "--arg 100 --config TILE": "--config takes a number such as 1, or NAME=VALUE",
    "--arg 100 --arg TILE=8": "leave it out of the call, or choose with --config",
    "": "missing n",
}


@pytest.mark.parametrize("more, said", CONFIG_REFUSALS.items())
def test_a_configuration_that_is_not_there_is_told_with_those_that_are(call, more, said):
    status, _, err = call("run", *TUNED_CALL, *more.split())
    assert status == 2 and said in err and "Traceback" not in err


@pytest.mark.parametrize(
    "given, said",
    [
        ("kernels.py:add --arg 9", "--config: chooses a configuration of @triton.autotune"),
        ("kernels.py:add_tiles --arg 9 --arg 32", "has no autotuner; leave out --config"),
        ("add.cu", "--config: chooses a configuration of @triton.autotune"),
    ],
)
def test_config_without_an_autotuner_is_refused(call, folder, given, said):
    (folder / "add.cu").write_text("__global__ void add() {}\n")
    name, *more = given.split()
    status, _, err = call("run", name, "--grid", "1", *ARRAYS, *more, "--config", "0")
    assert status == 2 and said in err


ARRAYS = "--arg normal:100 --arg ones:100 --arg output:100".split()


@pytest.mark.parametrize(
    "kernel", ["add --block 32 --arg 101", "add_tiles --arg 101 --arg TILE=32"]
)
def test_check_names_the_line_and_the_array_of_an_overrun(call, kernel):
    name, *more = kernel.split()
    status, out, _ = call("check", f"kernels.py:{name}", "--grid", "4", *ARRAYS, *more)
    assert status == 1 and "error: out-of-bounds, line " in out
    assert "writes element 100 of z, which has elements 0 to 99" in out


def test_arrays_of_any_dtype_and_of_files_and_the_result_for_machines(call, folder):
    np.save(folder / "y.npy", np.arange(100.0))
    arrays = "--arg ones:100:float16 --arg y.npy --arg output:100:float64 --arg n=99".split()
    call_of = ("run", "kernels.py:add", "--grid", "4", "--block", "32", *arrays)
    status, out, _ = call(*call_of, "--out", "arrays.npz", "--json", "-")
    assert status == 1  # the last element stays unwritten
    record = json.loads(out)
    assert record["arguments"]["x"] == "ones:100:float16" and record["kernel"] == "add"
    assert record["arrays"][2]["first_unwritten"] == [99]
    with np.load(folder / "arrays.npz") as saved:
        assert saved["x"].dtype == np.float16 and (saved["z"][:99] == np.arange(1, 100)).all()


def test_constants_are_literals_of_python(call, folder):
    (folder / "acts.py").write_text(
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        "def act(x, n, ACT: tl.constexpr, MINUS: tl.constexpr, SIZE: tl.constexpr):\n"
        "    at = tl.arange(0, SIZE)\n"
        "    v = tl.load(x + at, mask=at < n)\n"
        "    if ACT == 'relu':\n        v = tl.maximum(v, 0.0)\n"
        "    if MINUS:\n        v = -v\n"
        "    tl.store(x + at, v, mask=at < n)\n",
        encoding="utf-8",
    )
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    np.save(folder / "x.npy", x)
    given = ["--arg", "x.npy", "--arg", "5", "--arg", "ACT='relu'", "--arg", "MINUS=True"]
    status, text, _ = call("run", "acts.py:act", "--grid", "1", *given, "--arg", "SIZE=8")
    assert status == 0 and "-0 -0 -0 -0.5" in text
    no_quotes = "--arg ACT=relu --arg MINUS=0 --arg SIZE=8".split()
    status, _, error = call("run", "acts.py:act", "--grid", "1", *given[:4], *no_quotes)
    assert status == 2 and "a string in quotes of its own" in error


def test_signatures_of_decorators_need_no_gpu(call):
    assert call("run", "signed.py", "--grid", "1", "--block", "1", "--arg", "zeros:3")[0] == 0


ADD, TILES = "kernels.py:add --grid 1", "kernels.py:add_tiles --grid 1"
REFUSALS = {
    "kernels.py:ad --grid 1": "kernels.py has no function 'ad' (did you mean 'add'?); its kernels",
    "kernels.py:tl --grid 1": "tl of kernels.py is no kernel of Numba or Triton but of type module",
    "kernels.py --grid 1": "kernels.py has the kernels add, add_tiles: name one",
    "none.py --grid 1": "none.py has no kernel",
    "gone.py:add --grid 1": "no Python file 'gone.py'",
    "raises.py:k --grid 1": "cannot be imported: line 3: ValueError: math domain error",
    "lacks.py:k --grid 1": "line 1: ModuleNotFoundError: No module named 'no_such_package'",
    "syntax.py:k --grid 1": "cannot be imported: line 1: SyntaxError",
    "leaves.py:k --grid 1": "cannot be imported: line 1: SystemExit: 3",
    f"{ADD} --arg 1": "add(x, y, z, n) takes one --arg for each parameter: missing",
    f"{ADD} --arg m=1 --arg x=1 --arg y=1 --arg z=1 --arg n=1": "unexpected keyword argument 'm'",
    "kernels.py:add --arg 1 --arg 1 --arg 1 --arg 1": "add(x, y, z, n) needs --grid",
    f"{ADD} --arg one:3 --arg 1 --arg 1 --arg 1": "--arg one:3 for x: a parameter",
    f"{ADD} --arg ones:3:f5 --arg 1 --arg 1 --arg 1": "'f5' is no dtype",
    f"{ADD} --arg null --arg 1 --arg 1 --arg 1": "argument x: got NoneType",
    f"{ADD} --option a=1 --arg 1 --arg 1 --arg 1 --arg 1": "of @cuda.jit in the file",
    f"{TILES} --block 3 --arg 1 --arg 1 --arg 1 --arg 1 --arg 1": "a Triton kernel has no --bl",
    "kernels.py:add --backend gpu --grid 1": "on a GPU launch its kernel from Python",
}


@pytest.mark.parametrize("arguments", REFUSALS)
def test_a_refusal_is_one_line(call, arguments):
    status, out, error = call("run", *arguments.split())
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert REFUSALS[arguments] in error


def test_the_help_says_that_the_module_is_executed(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "executes its code in this process" in " ".join(capsys.readouterr().out.split())
