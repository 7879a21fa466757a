"""`kernelscope predict`: its answer, and what it says where no machine code can be had."""

import json
import re

import pytest
from kernelscope.cli import main
from kernelscope.errors import BackendError
from kernelscope.timing import machine_code, model

SCALE = r"""
extern "C" __global__ void scale(const float* x, float* y, float by, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        y[i] = by * x[i];
    }
}
"""
N = 1 << 20


@pytest.fixture
def predict(tmp_path, capsys):
    path = tmp_path / "scale.cu"
    path.write_text(SCALE)
    call = ["predict", str(path), "--grid", "264", "--block", "256", "--arg", f"normal:{N}"]
    call += ["--arg", f"output:{N}", "--arg", "2", "--arg", str(N)]

    def run(*more):
        status = main.main([*call, *more])
        return status, capsys.readouterr()

    return run


@pytest.mark.system
def test_the_answer_has_time_bounds_and_lines(predict, tmp_path):
    status, said = predict("--blocks", "16", "--json", str(tmp_path / "out.json"))
    assert status == 0
    assert re.search(r"scale on NVIDIA H200: [\d.]+ us \([\d.]+ us to [\d.]+ us\)", said.out)
    assert "16 of 264 blocks were run and stand for all" in said.out
    assert "line 4: y[i] = by * x[i];" in said.out
    (launch,) = json.loads((tmp_path / "out.json").read_text())["launches"]
    assert launch["low"] < launch["us"] < launch["high"]
    units = {n: us for n, us in launch["bounds"].items() if n not in (*model.WAITS, "tail")}
    assert max(units.values()) < model.BUSY * launch["us"]  # of 8 MiB in L2: no unit is busy
    assert launch["limit"] == max(model.WAITS, key=launch["bounds"].get)


@pytest.mark.turns(6)
@pytest.mark.system
def test_another_gpu_has_a_wider_interval(predict):
    widths = []
    for name in ("h200", "h100"):
        _, said = predict("--blocks", "16", "--gpu", name)
        low, high = re.search(r"\(([\d.]+) us to ([\d.]+) us\)", said.out).groups()
        widths.append(float(high) / float(low))
    assert widths[0] < widths[1]


def test_an_unknown_gpu_is_refused(predict):
    status, said = predict("--gpu", "h2000")
    assert status == 2 and "no GPU 'h2000'" in said.err and "h200" in said.err


@pytest.mark.turns(6)
@pytest.mark.system
def test_without_nvdisasm_the_answer_says_so(predict, monkeypatch):
    """Machine code is guessed from PTX, and the time is of the same size."""
    us = []
    for missing in (False, True):
        if missing:
            monkeypatch.setattr(machine_code, "disassembled", _missing)
        _, said = predict("--blocks", "16")
        assert ("guessed from PTX" in said.out) == missing
        us.append(float(re.search(r"H200: ([\d.]+) us", said.out)[1]))
    assert 0.5 < us[1] / us[0] < 2


def _missing(*_):
    raise BackendError("no nvdisasm")
