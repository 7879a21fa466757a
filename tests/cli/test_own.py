"""A kernel file of the user's own in place of a method."""

import pytest

from attn_course.cli import main

ADD = r"""
__global__ void add(const float* x, const float* y, float* z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = x[i] + y[i];
}
"""
CALL = "--grid 4 --block 32 --arg normal:10x10 --arg ones:100 --arg output:10x10".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "add.cu").write_text(ADD)
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


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("run", "100 of 100"),
        ("count", "global_load_sectors"),
        ("check", "add.cu: no findings"),
        ("trace", "z[i] = x[i] + y[i]"),
        ("predict", "add on NVIDIA H200"),
    ],
)
def test_each_command_takes_a_file(call, command, shown):
    status, out, _ = call(command, "add.cu", *CALL, "--arg", "100")
    assert status == 0 and shown in out and "add of add.cu, grid 4, block 32" in out
    status, out, _ = call(command, "add.cu", *CALL, "--arg", "120")
    assert status == (1 if command in ("check", "trace") else 2), out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--causal",), ("--causal", "add.cu")), (("--shape", "1,1,4,4"), ("--shape", "method"))],
)
def test_options_of_methods_are_refused(call, arguments, words):
    status, out, err = call("run", "add.cu", *arguments)
    assert status == 2 and not out and all(word in err for word in words)


def test_a_kernel_of_the_course_is_called_as_said_where_a_grid_is_given(call):
    status, _, err = call("count", "broken/lost_update", "--grid", "1")
    assert status == 2 and "output_split needs one --arg for each" in err


@pytest.mark.parametrize("command", ["run", "count", "check", "trace", "predict"])
def test_the_two_kinds_of_call_are_kept_apart(call, command):
    status, _, err = call(command, "naive", "--grid", "1")
    assert status == 2 and "--grid: only for a kernel file" in err
    status, _, err = call(command, "none.cu", "--grid", "1")
    assert status == 2 and "no kernel file 'none.cu'" in err
    status, _, err = call(command, "add.cu")
    assert status == 2 and "--grid" in err and "float* z" in err
