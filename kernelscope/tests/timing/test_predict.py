"""`kernelscope predict`: its answer, and what it says where no machine code can be had."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernelscope.cli import main
from kernelscope.errors import BackendError, InputError, UnknownNameError
from kernelscope.timing import Time, model
from kernelscope.timing.gpus import gpu
from kernelscope.timing.machine_code import cubin
from kernelscope.timing.report import WIDTH, text

KERNELSCOPE = Path(__file__).parents[2]
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


@pytest.mark.turns(11)
@pytest.mark.system
def test_the_page_shows_an_answer(monkeypatch, capsys):
    monkeypatch.chdir(KERNELSCOPE)
    shown = (KERNELSCOPE / "docs/time.md").read_text().split("```console\n$ ")[1].split("```")[0]
    shown = shown.replace("\\\n", "")
    call, answer = shown.split("\n", 1)
    assert main.main(call.split()[1:]) == 0
    assert capsys.readouterr().out == answer


@pytest.mark.turns(3)
@pytest.mark.parametrize(("options", "ways"), [([], "newer"), (["--option=-arch=sm_80"], "older")])
def test_a_file_is_compiled_for_the_gpu_that_is_named(tmp_path, capsys, options, ways):
    """Where no option names an architecture; its blocks may have an H200's shared memory then."""
    path = tmp_path / "ways.cu"
    path.write_text(
        """#if __CUDA_ARCH__ >= 900
extern "C" __global__ void newer(float* y) { y[threadIdx.x] = 1; }
#else
extern "C" __global__ void older(float* y) { y[threadIdx.x] = 2; }
#endif
"""
    )
    more = ["--shared-mem", "200000"] if ways == "newer" else []
    call = ["predict", str(path), "--grid", "1", "--block", "32", "--arg", "output:32"]
    assert main.main([*call, *options, *more]) == 0
    assert f"{ways} on NVIDIA H200" in capsys.readouterr().out


@pytest.mark.turns(11)
@pytest.mark.system
def test_the_answer_has_time_bounds_and_lines(predict, tmp_path):
    status, said = predict("--blocks", "16", "--json", str(tmp_path / "out.json"))
    assert status == 0
    assert re.search(r"scale on NVIDIA H200: [\d.]+ us \([\d.]+ us to [\d.]+ us\)", said.out)
    assert "16 of 264 blocks were run and stand for all" in said.out
    assert "line 4: y[i] = by * x[i];" in said.out
    (launch,) = json.loads((tmp_path / "out.json").read_text())["launches"]
    assert launch["low"] < launch["us"] < launch["high"]
    units = {n: us for n, us in launch["bounds"].items() if n not in (*model.WAITS, *model.IDLE)}
    assert max(units.values()) < model.BUSY * launch["us"]  # of 8 MiB in L2: no unit is busy
    assert launch["limit"] == max(model.WAITS, key=launch["bounds"].get)


@pytest.mark.turns(13)
@pytest.mark.system
def test_another_gpu_has_other_constants(predict):
    """Of 8 MiB in L2: an H100's L2 is slower."""
    us = {}
    for name in ("H200", "H100"):
        _, said = predict("--blocks", "16", "--gpu", name.lower())
        us[name] = float(re.search(rf"scale on NVIDIA {name}.*: ([\d.]+) us \(", said.out)[1])
    assert us["H200"] < us["H100"] < 1.5 * us["H200"]


def prediction():
    bounds = {"L2": 10.0}
    return model.Prediction("k", "a GPU", *3 * [10.0], bounds, "L2", blocks=1, sms=9)


@pytest.mark.parametrize("seed", range(20))
def test_the_limit_is_the_longest_bar_of_its_kind(seed):
    """A unit that is busy for 60 % of the time, else the longest wait; the answer says which."""
    others = (*model.WAITS, *model.IDLE)
    us, names = 10.0, [*model.NAMES.values(), "L2", model.FABRIC_NAME, "DRAM", *others]
    lengths = np.random.default_rng(seed).uniform(0.1, 6.0 + seed % 2, len(names))
    bounds = dict(zip(names, map(float, lengths), strict=True))
    limit = model.limit_of(bounds, us)
    shown = text(replace(prediction(), bounds=bounds, limit=limit))
    head, _, bars = shown.partition("  each unit alone:\n")
    units, waits = bars.split("  waits:\n")
    waits, idle = waits.split("  SMs without a block:\n")
    waiting = max(us for name, us in bounds.items() if name in units) < 0.6 * us
    group = idle if limit in model.IDLE else waits if waiting else units
    assert group.startswith(f"  {limit} ")
    assert not waiting or bounds[limit] == max(bounds[name] for name in others)
    assert head.startswith(f"k on a GPU: 10 us (10 us to 10 us), limited by {limit}\n")
    assert ("it waits: " in head) == waiting == (limit in others)
    assert (f"  {limit}: 1 block on 9 SMs; " in head) == (limit in model.IDLE)
    longer = [name for name in model.WAITS if bounds[name] > bounds[limit] and not waiting]
    assert (f"  {' and '.join(longer)} ha" in head) == ("a longer bar" in head) == bool(longer)
    lengths = [line.count("#") for line in units.splitlines()]
    assert lengths == sorted(lengths, reverse=True)


def test_a_unit_that_limits_beside_a_longer_wait_says_so():
    bounds = {"L2": 6.95, "atomics": 9.9, "latency": 7.0, "launch and starts": 2.0}
    shown = text(replace(prediction(), bounds=bounds)).splitlines()
    assert shown[1] == (
        "  latency and atomics have a longer bar; L2 is named, as a unit is that is busy for 60% "
        "or more, here 69%"
    )
    alone = text(replace(prediction(), bounds=bounds | {"latency": 1.0})).splitlines()
    assert alone[1].startswith("  atomics has a longer bar; L2 is named, ")
    assert "longer bar" not in text(replace(prediction(), bounds=bounds | {"L2": 9.95}))


@pytest.mark.parametrize("blocks", [0, -3, 2.5, "many"])
def test_blocks_are_a_whole_number(blocks):
    with pytest.raises(InputError, match="blocks is .*; give a whole number of at least 1"):
        Time("h200", blocks=blocks)


def test_a_gpu_has_a_full_name_too():
    assert gpu("NVIDIA H200") == gpu("h200") == gpu("nvidia h200")
    assert gpu("NVIDIA H100") == gpu("h100") == gpu("NVIDIA H100 80GB HBM3")
    with pytest.raises(UnknownNameError, match="no GPU 'NVIDIA'; there are: h100, h200"):
        gpu("NVIDIA")


def test_a_long_line_is_cut_where_one_sees_it():
    one = replace(prediction(), _without=lambda: {1: 1.0, 2: 1.5})
    shown = text(one, ["a" * WIDTH, "b" * (WIDTH + 1)]).splitlines()
    assert shown[-2].split() == ["1", "us", "(9", "us", "less)", "line", "1:", WIDTH * "a"]
    assert "(8.5 us less)" in shown[-1]
    assert shown[-1].endswith("  line 2: " + (WIDTH - 3) * "b" + "...")


def test_an_unknown_gpu_is_refused(predict):
    status, said = predict("--gpu", "h2000")
    assert status == 2 and "no GPU 'h2000'" in said.err and "h200" in said.err


@pytest.mark.turns(23)
@pytest.mark.system
def test_without_nvdisasm_the_answer_says_so(predict, monkeypatch):
    """Machine code is guessed from PTX, and the time is of the same size."""
    us = []
    for missing in (False, True):
        if missing:
            monkeypatch.setattr(cubin, "disassembled", _missing)
        _, said = predict("--blocks", "16")
        assert ("guessed from PTX" in said.out) == missing
        us.append(float(re.search(r"H200: ([\d.]+) us", said.out)[1]))
    assert 0.5 < us[1] / us[0] < 2


def _missing(*_):
    raise BackendError("no nvdisasm")
