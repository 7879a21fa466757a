"""The layers' suites on the simulator with a made-up clock: all of a GPU run but the time."""

from dataclasses import replace

import numpy as np
import pytest
from fixed_clock import FixedClock
from kernelscope.contest import turns as timing
from record_harness import stamped

from attn_course.cli import main
from attn_course.measure import records
from attn_devtools.bench import LAYER_SUITES, layers
from attn_devtools.bench import command as bench
from attn_devtools.bench.layers import LayerRow
from attn_devtools.record import schema
from attn_devtools.record.command import faults_of

pytestmark = pytest.mark.system

ROWS = {
    "layernorm": LayerRow((2, 3, 40)),
    "gelu": LayerRow((2, 3, 40), approximate="tanh"),
    "mlp": LayerRow((2, 3, 24), 50),
    "block": LayerRow((2, 5, 24), 40, 3),
    "swin": LayerRow((2, 8, 8, 12), 20, 2, side=4, blocks=2),
}


def row_record(kind: str, wrong=()) -> dict:
    """A row's record without baselines, which need PyTorch and a GPU."""
    suite = LAYER_SUITES["block" if kind == "swin" else kind]
    makers, expected = suite.problem(ROWS[kind])
    ours = {name: make for name, make in makers.items() if not name.startswith("torch")}
    assert len(makers) > len(ours)
    if wrong:
        right, expected = expected, lambda x: right(x) + 1
    alone = replace(suite, problem=lambda row: (ours, expected))
    return alone.run_row(ROWS[kind], (), iterations=2, warmup=0, clock=FixedClock())


@pytest.mark.turns(29)
@pytest.mark.parametrize("kind", ROWS)
def test_a_row(kind, made_up_gpu):
    found = row_record(kind)
    assert found["wrong"] == found["refused"] == {} and found["best_peer"] is None
    alone = {"layernorm": "layer_norm", "gelu": "bias_gelu"}
    names = {alone[kind]} if kind in alone else {f"{kind}_{p}" for p in layers.OURS}
    assert set(found["timings"]) == set(found["launches"]) == names
    assert all("product" in calls for calls in found["launches"].values()) == (kind not in alone)
    suite = "block" if kind == "swin" else kind
    record = stamped(f"bench_{suite}", suite=suite, about="all", torch="", clocks={}, rows=[found])
    text = bench.report(record)
    assert found["label"].split(" windows")[0] in text and "recorded 2026-01-02" in text


def test_a_wrong_layer_is_not_timed(made_up_gpu):
    with pytest.raises(timing.TimingError, match="no candidate is left: layer_norm.*are wrong"):
        row_record("layernorm", wrong=True)


def test_a_record_is_written_and_shown(made_up_gpu, tmp_path, capsys):
    row = row_record("mlp") | {"wrong": {"torch": "torch: wrong", "mlp_fp32": "mlp: wrong"}}
    fields = {"suite": "mlp", "about": "all", "torch": "2.9", "clocks": {}, "rows": [row]}
    record = stamped("bench_mlp", **fields)
    assert len(faults_of(record)) == 1
    records.write_record(record, "bench_mlp", tmp_path)
    assert main.main(["bench", "mlp", "--results", str(tmp_path)]) == 0
    assert "mlp_tf32x3" in capsys.readouterr().out
    assert main.main(["bench", "mlp", "--methods", "naive", "--results", str(tmp_path)]) != 0
    row["timings"]["mlp_fp32"].pop("median_us")
    with pytest.raises(records.RecordError, match="median_us"):
        schema.write(record, "bench_mlp", tmp_path)


def test_rows_are_checked_at_even_distances():
    x = np.arange(30_000, dtype=np.float32).reshape(10_000, 3)
    found = layers.sampled_rows(x)
    assert 4096 <= len(found) <= 5000 and found[0].tolist() == x[-1].tolist()
    assert layers.sampled_rows(np.ones((2, 3, 4))).shape == (6, 4)


def test_a_nan_in_a_row_that_is_not_compared_shows(made_up_gpu, monkeypatch):
    monkeypatch.setattr(layers, "ROWS_CHECKED", 1)
    assert len(layers.sampled_rows(np.ones((2, 3, 40)))) == 1
    assert row_record("layernorm")["wrong"] == {}
    output = layers.Planned.output

    def spoilt(self):
        out = output(self).copy()
        out[0, 0, 1] = np.nan
        return out

    monkeypatch.setattr(layers.Planned, "output", spoilt)
    with pytest.raises(timing.TimingError, match="layer_norm, elements that are finite: 1 of 240"):
        row_record("layernorm")


def test_the_rows_are_those_of_the_reports():
    shapes = {name: [row.shape for row in suite.rows] for name, suite in LAYER_SUITES.items()}
    assert shapes["layernorm"][:3] == [(8, 256, 512), (4, 512, 768), (8, 128, 1024)]
    assert shapes["mlp"] == [(4, 128, 512), (8, 256, 512)]
    assert layers.work_of(LAYER_SUITES["mlp"].rows[0])["operations"] == 2 * 512 * 2 * 512 * 2048
    *_, last = LAYER_SUITES["block"].files(())
    assert {"22_heads", "32_split_halves"} < {*LAYER_SUITES["block"].files(())} and last[:2] == "33"


def test_recorded_layers_hold_what_is_claimed_of_them():
    """Each stored record: every timed output checked, a baseline in each row; the newest: all rows.

    Others may be from before a suite had all its rows.
    """
    for name, suite in LAYER_SUITES.items():
        newest = records.newest_record(f"bench_{name}")
        for record in records.records(f"bench_{name}"):
            there = [row["label"] for row in record["rows"]]
            rows = [row.label for row in suite.rows]
            assert there == (rows if record == newest else [one for one in rows if one in there])
            assert there
            assert faults_of(record) == []
            for row in record["rows"]:
                assert row["best_peer"] and set(row["ratios"]) == set(row["launches"])
                for one in row["ratios"]:
                    layer, _, precision = one.partition("_")
                    bound = layers.OURS.get(precision, layers.NORM_RELATIVE)
                    bound = layers.BLOCK_RELATIVE if layer in ("block", "swin") else bound
                    bound = layers.GELU_RELATIVE if one == "bias_gelu" else bound
                    assert row["timings"][one]["relative_error"] < bound
