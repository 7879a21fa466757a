"""A kernel of a file: run, count, check and trace, and what is refused."""

import json
import re
import warnings

import numpy as np
import pytest
from kernelscope import RawModule
from kernelscope.cli import main
from kernelscope.errors import (
    ArgumentError,
    InputError,
    KernelNotFoundError,
    UnknownNameError,
)

ADD = r"""
__global__ void add(const float* x, const float* y, float* z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = x[i] + y[i];
}
"""
MANY = r"""
template <typename T> __global__ void root(T* x) { x[threadIdx.x] = sqrtf(x[threadIdx.x] - TWO); }
extern "C" __global__ void mix(const unsigned char* a, long long* b, double d, bool f) {
    extern __shared__ int held[];
    held[threadIdx.x] = a[threadIdx.x];
    b[threadIdx.x] = f ? held[threadIdx.x] * d : -1;
}
extern "C" __global__ void odd(const uint3* a, void* b, float3 c) {}
"""
LATE = r"""
__global__ void late(const float* x, float* out, int n) {
    float value = x[threadIdx.x];
    if (blockIdx.x == 0) out[n + threadIdx.x + 5] = value;
    out[threadIdx.x] = value;
}
"""
CALL = "--grid 4 --block 32 --arg normal:10x10 --arg ones:100 --arg output:10x10".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "add.cu").write_text(ADD)
    (folder / "many.cu").write_text(MANY)
    (folder / "late.cu").write_text(LATE)
    return folder


@pytest.fixture
def call(capsys, monkeypatch, folder):
    """Run a command in the folder of the files: (exit status, output, error)."""
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")
    monkeypatch.chdir(folder)

    def run(*arguments):
        try:
            status = main.main(list(arguments))
        except SystemExit as end:
            status = end.code
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


def test_run_shows_what_each_array_became(call, folder):
    status, out, _ = call("run", "add.cu", *CALL, "--arg", "100", "--out", "arrays.npz")
    assert status == 0
    assert "add of add.cu, grid 4, block 32, backend simulator" in out
    assert "0 of 100" in out and "100 of 100" in out and "not written" not in out
    saved = np.load(folder / "arrays.npz")
    assert saved["z"].shape == (10, 10)
    assert np.array_equal(saved["z"], saved["x"] + 1)
    again = call("run", "./add.cu", *CALL, "--arg", "100", "--seed", "1", "--json", "-")[1]
    assert json.loads(again)["arrays"][0]["first"] != saved["x"].reshape(-1)[:4].tolist()


@pytest.mark.parametrize("command", ["run", "count", "check"])
def test_what_a_kernel_prints_is_not_among_the_json(call, folder, command):
    text = 'extern "C" __global__ void say() { printf("hello\\n"); }'
    (folder / "say.cu").write_text(text)
    status, out, error = call(command, "say.cu", "--grid", "1", "--json", "-")
    assert status == 0 and "hello" in error and json.loads(out)


def test_elements_that_stay_unwritten_are_named(call):
    status, out, _ = call("run", "add.cu", *CALL, "--arg", "93")
    assert status == 1 and "z: 7 of 100 elements were not written, the first is z[9][3]" in out
    status, out, _ = call("run", "add.cu", *CALL, "--arg", "93", "--json", "-")
    record = json.loads(out)
    z = record["arrays"][2]
    assert (z["unwritten"], z["first_unwritten"], z["changed"], z["nans"]) == (7, [9, 3], 93, 0)
    assert record["kernel"] == "add" and record["arguments"]["n"] == "93"


def test_elements_that_atomics_add_to_are_written(call, folder):
    text = """extern "C" __global__ void add(float* z, double* y, float* x) {
        atomicAdd(z, 1.0f); atomicAdd(y, 1.0); x[1] = x[0]; }"""
    (folder / "sum.cu").write_text(text)
    outputs = "--arg output:1 --arg output:1 --arg output:2".split()
    status, out, _ = call("run", "sum.cu", "--grid", "1", *outputs)
    assert status == 1 and "x: 2 of 2 elements were not written" in out
    assert "z:" not in out and "y:" not in out and out.count("1 of 1    1  nan") == 2


def test_a_file_of_arrays_and_numbers_of_every_kind(call, folder):
    np.save(folder / "b.npy", np.zeros(3, np.int64))
    values = "--arg arange:3 --arg b.npy --arg -1e1 --arg true".split()
    options = "--grid 1 --block 3 --option -DTWO=2 --kernel mix --shared-mem 12 --json -".split()
    status, out, _ = call("run", "many.cu", *options, *values)
    record = json.loads(out)
    assert status == 0 and record["shared_bytes"] == 12 and record["options"] == ["-DTWO=2"]
    assert record["arrays"][1]["first"] == [0, -10, -20]
    assert not np.load(folder / "b.npy").any()


def test_a_template_by_its_name_and_nans_are_counted(call):
    options = "--grid 1 --block 3 --option -DTWO=2 --kernel root<float> --arg zeros:3".split()
    status, out, _ = call("run", "many.cu", *options)
    assert status == 0 and "3 of 3    3  nan nan nan" in out


def test_count_check_and_trace(call, folder):
    status, out, _ = call("count", "add.cu", *CALL, "--arg", "100")
    assert status == 0 and "global_load_sectors" in out and "z[i] = x[i] + y[i]" in out
    assert "_Z3add" not in out
    status, out, _ = call("check", "add.cu", *CALL, "--arg", "100")
    assert status == 0 and "add.cu: no findings" in out
    status, out, _ = call("check", "add.cu", *CALL, "--arg", "120", "--json", "-")
    record = json.loads(out)
    assert status == 1 and {f["kind"] for f in record["kernels"][0]["findings"]} == {
        "out-of-bounds"
    }
    status, out, _ = call("check", "add.cu", *CALL, "--arg", "90")
    assert status == 1 and "no findings" in out and "10 of 100 elements were not written" in out
    page = "--html page.html --at 3".split()
    status, out, _ = call("trace", "add.cu", *CALL, "--arg", "100", *page)
    assert status == 0 and "steps written to page.html" in out
    assert "step by step" in (folder / "page.html").read_text()
    status, out, _ = call("trace", "add.cu", *CALL, "--arg", "120", *page)
    step = re.search(r"step (\d+), line \d+: out-of-bounds", out)[1]
    assert status == 1 and "steps written to page.html" in out
    assert f'{{"step": {step}, "recording": 0}}' in (folder / "page.html").read_text()
    status, out, _ = call("trace", "add.cu", *CALL, "--arg", "120")
    assert status == 1 and "--at 3,0,0 traces it" in out


def test_trace_tells_every_error(call):
    """One in the traced block that no kept step has; and one elsewhere, beside a warning here."""
    given = "--grid 2 --block 32 --arg ones:32 --arg output:32 --arg 32".split()
    status, out, _ = call("trace", "late.cu", *given, "--limit", "2")
    assert status == 1 and "no recorded step, line 4: out-of-bounds" in out and "--at" not in out
    status, out, _ = call("trace", "late.cu", *given, "--at", "1")
    assert status == 1 and re.search(r"step \d+, line 5: race", out)
    assert out.count("--at 0,0,0 traces it") == 1


WRONG = [
    ((), ("--grid", "4 parameters", "const float* x", "int n  ", "a number")),
    (("--grid", "4"), ("4 parameters, not 0", "float* z")),
    ((*CALL, "--arg", "1.5"), ("int n", "whole number")),
    ((*CALL[:4], *"--arg 3 --arg ones:9 --arg ones:9 --arg 3".split()), ("float* x", "KIND:SHAPE")),
    (("--kernel", "sub", "--grid", "1"), ("no kernel 'sub'", "it has: add.")),
    (("--grid", "0"), ("at least 1",)),
    ((*CALL, "--arg", "1", "--out", "no/where.npz"), ("no folder",)),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG)
def test_a_wrong_call_says_what_the_kernel_takes(call, arguments, words):
    status, out, err = call("run", "add.cu", *arguments)
    assert status == 2 and not out and "Traceback" not in err
    assert all(word in err for word in words)


VALUES = [
    ("mix", ("normal:3", "zeros:3", "1", "0"), ("unsigned char* a", "normal makes floats")),
    ("mix", ("ones:3", "zeros:0", "1", "0"), ("long long* b", "0 elements")),
    (
        "mix",
        ("ones:3", "none.npy", "1", "0"),
        ("none.npy for long long* b: no such file", "KIND:SHAPE"),
    ),
    ("mix", ("ones:3", "null", "x", "0"), ("double d", "a number such as 0.5")),
    ("odd", ("arange:3", "null", "0"), ("float3 c", "struct")),
    ("odd", ("arange:3", "zeros:3", "0"), ("void* b", "FILE.npy")),
]


@pytest.mark.parametrize(("kernel", "texts", "words"), VALUES)
def test_a_wrong_value_names_its_parameter(call, kernel, texts, words):
    values = [part for text in texts for part in ("--arg", text)]
    options = ("--grid", "1", "--kernel", kernel, "--option", "-DTWO=2")
    status, _, err = call("run", "many.cu", *options, *values)
    assert status == 2 and all(word in err for word in words)


@pytest.mark.parametrize("command", ["run", "count", "check", "trace"])
def test_a_file_that_is_not_there_is_named(call, command):
    status, _, err = call(command, "none.cu", "--grid", "1")
    assert status == 2 and "no kernel file 'none.cu'; . has: add.cu, late.cu, many.cu" in err
    status, _, err = call(command, "add.cu")
    assert status == 2 and "--grid" in err and "float* z" in err


@pytest.mark.parametrize("command", ["count", "check", "trace"])
def test_what_a_gpu_does_not_show_is_refused(call, command):
    status, _, err = call(command, "add.cu", *CALL, "--arg", "100", "--backend", "gpu")
    assert status == 2 and "GPU" in err and "Traceback" not in err


def test_a_file_of_ptx(call, folder):
    ptx = RawModule(ADD, backend="simulator").ptx()
    (folder / "add.ptx").write_text(ptx)
    for name, array in (("x", np.ones(100)), ("z", np.zeros(100))):
        np.save(folder / f"{name}.npy", array.astype(np.float32))
    values = "--arg x.npy --arg x.npy --arg z.npy --arg 100".split()
    status, out, _ = call("run", "add.ptx", "--grid", "4", "--block", "32", *values)
    assert status == 0 and "100 of 100" in out and "2 2 2 2" in out


def unpacks_three():
    x, y = (1, 2, 3)
    return x, y


def raises(error):
    raise error


FAULTS = {
    "too many values to unpack": unpacks_three,
    "int() argument must be": lambda: int(None),
    "'of ours'": lambda: {}["of ours"],
    "No module named 'kernelscope.nothing'": lambda: __import__("kernelscope.nothing"),
    "[Errno 104] reset": lambda: raises(ConnectionResetError(104, "reset")),
}


@pytest.mark.parametrize("words", FAULTS)
def test_a_fault_of_the_program_is_a_traceback_and_asks_for_a_report(call, monkeypatch, words):
    monkeypatch.setattr(main.run, "execute", lambda _: FAULTS[words]())
    status, out, err = call("run", "add.cu")
    assert status == 70 and not out and err.startswith("Traceback ") and words in err
    assert err.splitlines()[-1] == f"kernelscope: {main.FAULT}" and "report" in main.FAULT


class CUDARuntimeError(RuntimeError):
    __module__ = "cupy_backends.cuda.api.runtime"


REFUSED = {
    "no such option": lambda: raises(InputError("no such option")),
    "no name 'x'": lambda: raises(UnknownNameError("no name 'x'")),
    "[Errno 2] No such file or directory: '/no/such'": lambda: open("/no/such"),
    "[Errno 28] No space left on device": lambda: raises(OSError(28, "No space left on device")),
    "tomlkit is not installed; install it with pip": lambda: raises(
        ModuleNotFoundError("No module named 'tomlkit'", name="tomlkit")
    ),
    "cudaErrorIllegalAddress": lambda: raises(CUDARuntimeError("cudaErrorIllegalAddress")),
}


@pytest.mark.parametrize("words", REFUSED)
def test_an_error_for_the_user_is_one_line(call, monkeypatch, words):
    monkeypatch.setattr(main.run, "execute", lambda _: REFUSED[words]())
    assert call("run", "add.cu") == (2, "", f"kernelscope: {words}\n")
    monkeypatch.setenv(main.TRACEBACK, "1")
    status, _, err = call("run", "add.cu")
    assert status == 2 and err.startswith("Traceback ") and err.endswith(f"kernelscope: {words}\n")


USAGE = {
    "rn add.cu": ("COMMAND: 'rn' is not known (did you mean 'run'?)", ""),
    "run add.cu --gird 4": ("no option '--gird' (did you mean '--grid'?)", " run"),
    "check add.cu more": ("'more' is one argument too many", " check"),
    "run add.cu --backend gpuu": ("--backend: 'gpuu' is not known (did you mean 'gpu'?)", " run"),
    "trace": ("arguments are required: FILE", " trace"),
}


@pytest.mark.parametrize("words", USAGE)
def test_a_usage_error_is_one_line_that_leads_to_the_help(call, words):
    said, command = USAGE[words]
    status, out, err = call(*words.split())
    (line,) = err.splitlines()
    assert (status, out) == (2, "") and said in line
    assert line.endswith(f"; see kernelscope{command} --help")


def test_python_is_advised_in_python_and_a_shell_in_options(call, folder):
    np.save(folder / "doubles.npy", np.ones(100))
    module = RawModule(path=folder / "add.cu", backend="simulator", strict=True)
    with pytest.raises(ArgumentError, match=r"Pass \.astype\(np\.float32\)$"):
        kernel = module.get_function("_Z3addPKfS0_Pfi")
        kernel((4,), (32,), (np.ones(100), np.ones(100), np.ones(100), 100))
    values = "--arg doubles.npy --arg ones:9 --arg ones:9 --arg 9".split()
    _, _, err = call("run", "add.cu", "--grid", "4", *values)
    assert err.endswith("Save the file with .astype(np.float32)\n")
    with pytest.raises(KernelNotFoundError, match=r"name_expressions=\('root<float>',\)"):
        RawModule(path=folder / "many.cu", backend="simulator").get_function("root")
    _, _, err = call("run", "many.cu", "--option", "-DTWO=2", "--kernel", "root")
    assert err.endswith("It is a template: give --kernel 'root<float>'\n")
    _, _, err = call("run", "add.cu", *CALL, "--arg", "100", "--block", "2048")
    assert "--block 256 and a larger --grid" in err and "grid (" not in err


FILES = {  # text of a file -> how the message goes on
    "": "has no kernel: it needs a function that is `__global__ void`",
    "template <class T, int N> __global__ void __launch_bounds__(N) g(T* x) {}": (
        "has templates of kernels only: give --kernel 'g<float, 32>'"
    ),
}


@pytest.mark.parametrize("text", FILES)
def test_a_file_without_a_kernel_says_what_it_needs(call, folder, tmp_path, text):
    (tmp_path / "file.cu").write_text(text)
    status, _, err = call("run", str(tmp_path / "file.cu"), "--grid", "1")
    assert (status, err) == (2, f"kernelscope: file.cu {FILES[text]}\n")


def test_no_command_shows_the_help(call):
    status, _, err = call()
    assert status == 2 and all(name in err for name in ("run", "count", "check", "trace"))


WARNED = {
    "portable.cu": (
        "// sums\n#include <cmath>\n"
        'extern "C" __global__ void k(float* y) { y[threadIdx.x] = std::sqrt(2.0f); }\n',
        "portable.cu:2: <cmath> is of nvcc",
    ),
    "shuffle.cu": (
        'extern "C" __global__ void k(float* y) {\n'
        "    y[threadIdx.x] = __shfl_sync(~0u, y[threadIdx.x], 20);\n}\n",
        "k, shuffle.cu:2 `y[threadIdx.x] = __shfl_sync(~0u, y[threadIdx.x], 20);`: block",
    ),
}


@pytest.mark.parametrize("name", WARNED)
def test_a_warning_names_the_users_file_and_line(call, folder, name):
    text, said = WARNED[name]
    (folder / name).write_text(text)
    given = ("run", str(folder / name), "--grid", "1", "--block", "8", "--arg", "zeros:8")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        status, _, err = call(*given)
    assert status == 0 and err.splitlines() == [err.strip()]
    assert err.startswith(f"kernelscope: warning: {said}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        status, _, err = call(*given)
    assert status == 2 and err.startswith(f"kernelscope: {said}") and "Traceback" not in err


def test_warnings_of_others_are_shown_as_python_shows_them(call, monkeypatch):
    def work(arguments):
        warnings.warn_explicit("old", UserWarning, "theirs.py", 3)
        return 0

    monkeypatch.setattr(main.run, "execute", work)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        status, _, err = call("run", "x.cu")
    assert status == 0 and not err
    assert [(one.filename, one.lineno) for one in heard] == [("theirs.py", 3)]
