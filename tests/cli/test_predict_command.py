"""`attn-course predict`: times, bounds and lines of a method, a kernel and a file of one's own."""

import json
import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from kernelscope.timing import gpu as known_gpu

from attn_course import attention
from attn_course.cli import main, predict
from attn_course.ladder.choose import device_number, simulating
from attn_course.ladder.problem import Device, Problem
from attn_course.ladder.steps import step
from attn_course.measure.records import RESULTS_FOLDER, times_of
from attn_course.reference.inputs import seeded_qkv

ADD = """__global__ void add(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1.0f;
}
"""


def shown(capsys, *arguments):
    """Run the command: (exit status, output, error)."""
    try:
        status = main.main(["predict", *arguments])
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.fixture(scope="module")
def tiled(tmp_path_factory):
    """The record of one prediction of three kernels, and what the command printed."""
    path = tmp_path_factory.mktemp("predict") / "tiled.json"
    with pytest.MonkeyPatch.context() as patch:
        said = []
        patch.setattr(predict, "printer", lambda _: lambda text, **_: said.append(text))
        assert main.main(["predict", "tiled", "--blocks", "4", "--json", str(path)]) == 0
    return json.loads(path.read_text()), "\n".join(said)


@pytest.mark.turns(29)
@pytest.mark.system
def test_a_method_has_a_prediction_for_each_kernel(tiled):
    record, said = tiled
    assert [one["kernel"] for one in record["launches"]] == [
        "scores_tiled",
        "softmax_warp",
        "output_tiled",
    ]
    assert record["total_us"] == pytest.approx(sum(one["us"] for one in record["launches"]))
    for one in record["launches"]:
        assert one["low"] < one["us"] < one["high"]
        for bound in ("DRAM", "L2", "issue", "FMA", "tensor cores", "MUFU", "latency", "tail"):
            assert bound in one["bounds"]
        assert re.search(rf"{one['kernel']} on NVIDIA H200: .* limited by {one['limit']}", said)
    assert "line 69: score = fmaf(" in said


def test_what_is_predicted_is_what_that_gpu_would_launch():
    """Its tiles, its limit of shared memory and its code, and nothing of them afterwards."""
    q, k, v = seeded_qkv((2, 12, 196, 64))

    def made(gpu=None):
        with simulating(predict.device_of(gpu)) if gpu else nullcontext():
            plan = attention.plan(q, k, v, method="flash_async", backend="simulator")
            return plan.launches[0].geometry, plan.launches[0].kernel.module.arch

    (simulated, plain), (modelled, hopper), (again, _) = made(), made(known_gpu("h200")), made()
    wanted = step(12).launch(Problem(24, 196, 196, 64), (), predict.device_of(known_gpu("h200")))
    assert modelled == wanted != simulated == again
    assert modelled.shared_bytes > Device().shared_bytes and (plain, hopper) == (
        "compute_80",
        "compute_90",
    )


def test_a_call_is_not_that_of_another_gpu():
    """attention() keeps the calls that it has made, by this number among others."""

    def number(name):
        with simulating(predict.device_of(known_gpu(name))):
            return device_number("simulator")

    assert len({device_number("simulator"), number("h200"), number("h100")}) == 3
    assert number("h200") == number("h200")


@pytest.mark.turns(29)
@pytest.mark.system
def test_recorded_times_stand_beside(tiled):
    """They are those of the newest records with this method, shape and dtype, one of a GPU."""
    record, said = tiled
    expected = {}
    for path in sorted(RESULTS_FOLDER.glob("*/bench_*.json")):
        stored = json.loads(path.read_text())
        for row in stored["rows"]:
            if row["label"] == "2,12,196,64" and row.get("dtype") == "float32":
                found = {stored["date"]: row["timings"]["tiled"]["median_us"]}
                expected.setdefault(stored["gpu"], {}).update(found)
    assert "NVIDIA H200" in expected
    assert {one["gpu"]: one["us"] for one in record["recorded"]} == {
        gpu: dates[max(dates)] for gpu, dates in expected.items()
    }
    for one in record["recorded"]:
        assert f"{one['us']:.4g} us recorded on {one['gpu']}, {one['date']}" in said
    assert said.count("the prediction is") == 1  # the GPU that is predicted for
    (measured,) = (one["us"] for one in record["recorded"] if one["gpu"] == "NVIDIA H200")
    how = "longer" if record["total_us"] > measured else "shorter"
    assert f"the prediction is {abs(record['total_us'] / measured - 1):.0%} {how}" in said


@pytest.mark.turns(23)
@pytest.mark.system
def test_a_recorded_time_is_that_of_the_mask_the_keys_and_the_dtype():
    def label(text, dtype="bfloat16", method="flash_mma"):
        return {record["gpu"]: us for record, us in times_of(method, text, dtype)}

    plain, causal = label("4,16,1024,64"), label("4,16,1024,64 causal")
    assert plain["NVIDIA H200"] > causal["NVIDIA H200"] > 0
    assert label("8,32,1,128 keys 8192")["NVIDIA H200"] > 0
    assert not label("4,16,1024,64", "float16") and not label("4,16,1024,64", method="none")


def test_a_kernel_alone_has_the_time_of_the_pipelines(capsys, tmp_path):
    path = tmp_path / "one.json"
    status, out, _ = shown(capsys, "02_scores_tiled", "--blocks", "2", "--json", str(path))
    (row,) = [
        row
        for row in json.loads((RESULTS_FOLDER / "h200/pipeline.json").read_text())["rows"]
        if row["shape"] == [2, 12, 196, 64]
    ]
    us = row["kernels"]["02 scores"]["median_us"]
    assert status == 0 and f"{us:.4g} us recorded on NVIDIA H200" in out
    assert json.loads(path.read_text())["recorded"][0]["us"] == us
    status, out, _ = shown(capsys, "02_scores_tiled", "--blocks", "2", "--shape", "1,1,40,64")
    assert status == 0 and "recorded" not in out


@pytest.mark.turns(11)
@pytest.mark.system
def test_a_file_of_ones_own_is_predicted(capsys, tmp_path):
    (tmp_path / "add.cu").write_text(ADD)
    call = f"{tmp_path}/add.cu --grid 4 --block 32 --arg normal:100 --arg output:100 --arg 100"
    status, out, _ = shown(capsys, *call.split(), "--gpu", "h100")
    assert status == 0 and "add on NVIDIA H100" in out and "line 3: if (i < n)" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tiled", "--gpu", "h2000"], "no GPU 'h2000'; there are: h100, h200"),
        (["tiled", "--backend", "gpu"], "attn-course bench"),
        (["tilde"], "did you mean 'tiled'?"),
        (["tiled", "--grid", "4"], "--grid: only for a kernel file"),
        (["decode", "--dtype", "float32"], "float32"),
    ],
)
def test_what_cannot_be_predicted_is_refused(capsys, arguments, words):
    status, out, err = shown(capsys, *arguments)
    assert status == 2 and not out and words in err


@pytest.mark.turns(29)
@pytest.mark.system
@pytest.mark.parametrize(
    ("method", "shape", "how", "label"),
    [
        ("flash_mma", (4, 16, 1024, 64), {}, "4,16,1024,64"),
        ("flash_mma", (4, 16, 1024, 64), {"causal": True}, "4,16,1024,64 causal"),
        ("decode", (8, 32, 1, 128), {"kv_length": 8192}, "8,32,1,128 keys 8192"),
        ("decode", (8, 32, 1, 128), {}, None),
    ],
)
def test_the_row_of_a_record_is_found_by_all_options(method, shape, how, label):
    given = {"method": method, "shape": shape, "causal": False, "kv_length": None} | how
    expected = times_of(method, label, "bfloat16") if label else []
    for asked, picked in ((method, ""), ("auto", f"{method}: its reason")):
        call = SimpleNamespace(facts={"dtype": "bfloat16"}, parts=(), name=asked, picked=picked)
        seen = predict.recorded(SimpleNamespace(**given | {"method": asked}), call)
        found = {one["gpu"]: one["us"] for one in seen}
        assert bool(found) == bool(label)
        assert found == {record["gpu"]: us for record, us in expected}


@pytest.mark.turns(23)
@pytest.mark.system
def test_a_time_of_a_kernel_that_has_changed_since_is_stale(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(predict, "is_current", lambda record, file: file != "02_scores_tiled.cu")
    path = tmp_path / "one.json"
    for kernel, stale in (("02_scores_tiled", True), ("01_scores_naive", False)):
        _, out, _ = shown(capsys, kernel, "--blocks", "1", "--json", str(path))
        assert json.loads(path.read_text())["recorded"][0]["stale"] == stale
        assert ("STALE, the kernel has changed since" in out) == stale
