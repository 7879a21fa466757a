"""Rows of a suite: who takes part, who is left out and why, and what the record says of it."""

import json
import types

import numpy as np
import pytest
from kernelscope.contest import Contest, Timing
from record_harness import NOT_TIMED, stamped

from attn_course.cli import main
from attn_course.ladder.methods import METHODS, dtypes_of
from attn_course.measure import candidates, records
from attn_course.measure.benchmarks import BenchmarkResult, Entrants
from attn_course.reference.dtypes import TOLERANCES
from attn_devtools.bench import ATTENTION_SUITES as SUITES
from attn_devtools.bench import Suite, attention, peers, problems, suite
from attn_devtools.bench import command as bench
from attn_devtools.bench.attention import AttentionSuite, SuiteRow


def field_of(**times) -> Entrants:
    return Entrants(candidates={name: name for name in times}, call_us=dict(times))


def test_the_fastest_has_the_least_median():
    steady, slow = [10.0] * 99, [20.0] * 99
    times = {"a": (*steady, 1e6), "b": (*slow, 20.0)}
    found = Contest({name: Timing(name, "graph", samples) for name, samples in times.items()})
    assert suite.fastest(found, "ba") == "a" and suite.fastest(found, "b") == "b"


# -- the suites ------------------------------------------------------------------------------------
def test_suites_hold_the_shapes_they_are_about():
    labels = [row.label for row in SUITES["seeds_fp32"].rows]
    small = "1,1,128,64 4,1,128,64 8,1,128,64 4,1,256,64 4,1,512,64 4,1,128,128 8,1,256,64"
    wide = "2,12,196,64 1,4,64,512 1,4,64,2048 1,4,64,4096 1,1,16,8192"
    assert labels[:12] == [*small.split(), *wide.split()]
    assert [row.pipelines for row in SUITES["seeds_fp32"].rows].count(True) == 1
    assert all(row.shape[2] * row.shape[3] > 10_000 for row in SUITES["ladder"].rows)
    assert [suite.name for suite in SUITES.values() if suite.all_methods] == ["ladder"]
    assert [row.label for row in SUITES["long_fp32"].rows][:4] == [
        "4,16,2048,64",
        "4,16,2048,64 causal",
        "4,16,2048,128",
        "4,16,2048,128 causal",
    ]
    halves = SUITES["long_bf16"]
    assert halves.dtype == "bfloat16" and halves.sampled
    *rows, beside_float32, _ = halves.rows
    assert (beside_float32.shape, False) in [
        (row.shape, row.causal) for row in SUITES["long_fp32"].rows
    ]
    assert {(row.shape[2:], row.causal) for row in rows} == {
        ((n, d), causal)
        for n in (1024, 4096, 16384)
        for d in (64, 128, 256)
        for causal in (False, True)
    }
    assert all(np.prod(row.shape[:3]) <= 2**18 for suite in SUITES.values() for row in suite.rows)


def test_candidates(monkeypatch):
    full, halves = SUITES["seeds_fp32"], SUITES["long_bf16"]
    methods = tuple(method for method in METHODS if "float32" in dtypes_of(method))
    monkeypatch.setattr(candidates, "available", lambda: True)
    assert full.candidates() == (*methods, "auto", *peers.ATTENTION)
    fast = ("flash_wmma", "flash_mma", "flash_wgmma", "auto")
    assert halves.candidates() == (*fast, *peers.ATTENTION)
    assert halves.peers(halves.rows[0], ["auto", "torch_flex"]) == ["torch_flex"]
    monkeypatch.setattr(candidates, "available", lambda: False)
    assert full.candidates() == (*methods, "auto")
    assert halves.candidates() == ("flash_wmma", "flash_mma", "flash_wgmma", "auto")
    assert full.candidates(["auto", "naive", "auto"]) == ("auto", "naive")
    with pytest.raises(ValueError, match="abacus.*naive.*torch_math"):
        full.candidates(["abacus"])


def test_a_record_names_the_files_its_candidates_are_made_of():
    small = AttentionSuite("small", "", (SuiteRow((1, 1, 4, 4)),))
    assert small.files(["naive", "torch_math"]) == [
        "01_scores_naive",
        "04_softmax_output_serial",
    ]
    piped = AttentionSuite("piped", "", (SuiteRow((1, 1, 4, 4), pipelines=True),))
    assert set(piped.files([])) == {
        "01_scores_naive",
        "02_scores_tiled",
        "04_softmax_output_serial",
        "05_softmax_warp",
        "06_output_tiled",
    }
    assert "12_flash_async" in small.files(["auto"])
    taken = [{"auto_picks": "rows_warp"}, {"auto_picks": "rows_warp"}]
    assert small.files(["auto"], taken) == ["08_rows_warp"] and small.files([], taken) == []
    halves = SUITES["long_bf16"].files(["auto"])
    assert halves == [
        "13_flash_wmma",
        "14_flash_mma",
        "18_flash_wgmma",
        "23_decode",
        "34_decode_cluster",
    ]


# -- who is left out -------------------------------------------------------------------------------
def test_methods_far_slower_than_the_best_peer_are_left_out():
    found = field_of(naive=201.0, tiled=199.0, auto=1e6, torch_math=900.0, torch_eager_compile=10.0)
    attention.leave_out_slow(found)
    assert list(found.skipped) == ["naive"] and "201 us" in found.skipped["naive"]
    assert set(found.candidates) == {"tiled", "auto", "torch_math", "torch_eager_compile"}
    assert set(found.call_us) == set(found.candidates)


def test_a_row_keeps_slow_methods_that_it_names():
    rows = {row.shape: row for row in SUITES["seeds_fp32"].rows}
    assert all(rows[shape].kept == ("naive",) for shape in attention.BLOCK_SHAPES)
    found = field_of(naive=999.0, tiled=999.0, torch_math=1.0)
    attention.leave_out_slow(found, rows[attention.BLOCK_SHAPES[0]].kept)
    assert list(found.skipped) == ["tiled"]


def test_without_peers_the_best_of_ours_is_the_measure():
    found = field_of(naive=21.0, tiled=1.0)
    attention.leave_out_slow(found)
    assert list(found.skipped) == ["naive"]


# -- the record ------------------------------------------------------------------------------------
def measured(**medians) -> Contest:
    return Contest(
        {name: Timing(name, "graph", (median,) * 9, 20) for name, median in medians.items()}
    )


ROW = SuiteRow((2, 3, 100, 64))


@pytest.fixture
def record_of(monkeypatch):
    """The function of candidates' medians that returns a row's record; auto takes "tiled"."""
    monkeypatch.setattr(attention, "pick", lambda *_: "tiled")
    found = Entrants(
        skipped={"naive": "999 us a call, more than 20 times the best peer"},
        refused={"torch_flash": "no float32"},
    )

    def record(**medians) -> dict:
        right = {name: types.SimpleNamespace(relative_error=1e-7) for name in medians}
        result = BenchmarkResult(found, measured(**medians), right, 9)
        monkeypatch.setattr(suite, "run_benchmark", lambda **how: result)
        return AttentionSuite("one", "", (ROW,)).run_row(ROW, ())

    return record


def test_a_row_says_how_auto_stands(record_of):
    times = {"torch_math": 30.0, "torch_eager": 99.0, "torch_sdpa_autotune": 21.0}
    row = record_of(auto=10.5, tiled=10.0, flash_fp32=12.0, **times)
    assert (row["best_method"], row["best_backend"], row["best_peer"]) == (
        "tiled",
        "torch_math",
        "torch_sdpa_autotune",
    )
    assert row["ratio_peer"]["value"] == 2.0 and row["ratio_peer"]["peer"] == "torch_sdpa_autotune"
    assert row["ratio_backend"]["value"] == pytest.approx(30 / 10.5, abs=1e-4)
    assert row["auto_over_best"] == 1.05 and row["auto_within_margin"] is True
    operations = 4 * 6 * 100 * 100 * 64
    assert row["operations"] == operations
    assert row["timings"]["auto"]["tflops"] == pytest.approx(operations / 10.5e6, abs=1e-3)
    json.dumps(row)


def test_auto_beyond_its_margin_is_a_problem(record_of):
    row = record_of(auto=11.1, tiled=10.0)
    assert row["auto_within_margin"] is False and row["best_peer"] is None
    row["wrong"] = {"naive": "naive: 3 of 9 elements are wrong", "torch_math": "torch_math: wrong"}
    found = problems({"rows": [row]})
    assert len(found) == 2 and "naive" in found[0] and "1.11 times the tiled" in found[1]
    assert problems({"rows": [record_of(auto=10.9, tiled=10.0)]}) == []


def suite_record(*rows) -> dict:
    fields = {"suite": "seeds_fp32", "about": "small problems", "torch": "2.9", "rows": list(rows)}
    return stamped("bench_seeds_fp32", clocks={"sm_mhz": [345, 1900, 1980]}, **fields)


# -- the command -----------------------------------------------------------------------------------
def test_without_a_gpu_the_records_are_shown(capsys, tmp_path, monkeypatch, record_of):
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")
    call = ["bench", "seeds_fp32", "--results", str(tmp_path)]
    assert main.main(call) == 1
    said = capsys.readouterr().out
    assert "no record of seeds_fp32" in said and "none taken: no GPU here" in said
    records.write_record(suite_record(record_of(auto=1.0, tiled=1.0)), "bench_seeds_fp32", tmp_path)
    assert main.main([*call, "--json", str(tmp_path / "shown.json")]) == 0
    out = capsys.readouterr().out
    assert "recorded 2026-01-02 on NVIDIA H200" in out and "recorded results, no GPU here" in out
    shown = json.loads((tmp_path / "shown.json").read_text())
    assert shown["results"][0]["rows"][0]["label"] == ROW.label
    assert main.main(["bench", "long_fp32", "--results", str(tmp_path)]) == 1


def test_on_a_gpu_the_suite_runs_and_is_recorded(capsys, tmp_path, monkeypatch, record_of):
    asked = {}

    def run(self, methods, **options):
        asked.update(options, name=self.name, methods=methods)
        list(options["progress"](self.rows))
        return suite_record(record_of(auto=12.0, tiled=10.0))

    monkeypatch.setattr(Suite, "run", run)
    monkeypatch.setattr(bench, "resolve_backend", lambda: "gpu")
    options = "--iterations 7 --warmup 0 --methods auto tiled".split()
    status = main.main(["bench", "seeds_fp32", "--results", str(tmp_path), *options])
    assert status == 1  # auto is beyond its margin
    assert (asked["name"], asked["iterations"], asked["warmup"]) == ("seeds_fp32", 7, 0)
    assert asked["methods"] == ["auto", "tiled"]
    out = capsys.readouterr().out
    assert "auto takes 1.20 times the tiled method" in out
    assert (tmp_path / "h200" / "bench_seeds_fp32.json").is_file()


def test_recorded_suites_hold_what_is_claimed_of_them():
    """Each stored record: the rows, every timed output checked, auto within its margin."""
    for name, tested in SUITES.items():
        for record in records.records(f"bench_{name}"):
            recorded = [row["label"] for row in record["rows"]]
            rows = [row.label for row in tested.rows]
            if "H200" not in record["gpu"]:  # it may be of before the last rows were added
                rows = [label for label in rows if label in recorded]
            assert recorded == rows
            assert problems(record) == []
            for row in record["rows"]:
                assert "auto" in row["timings"] and row["best_peer"]
                allowed = TOLERANCES[tested.dtype]
                for name, one in row["timings"].items():
                    slack = candidates.EAGER_SLACK if name.startswith("torch_eager") else 1
                    assert one["relative_error"] < allowed * slack
                best = min(
                    one["median_us"]
                    for name, one in row["timings"].items()
                    if name in peers.ATTENTION
                )
                assert row["timings"][row["best_peer"]]["median_us"] == best
                ratio = row["ratio_peer"]
                assert ratio["low"] <= ratio["value"] <= ratio["high"]
                assert ratio["value"] == pytest.approx(
                    best / row["timings"]["auto"]["median_us"], rel=1e-3
                )


def test_bench_all_shows_every_suite_and_fails_where_one_has_no_record(tmp_path, capsys):
    picks = dict.fromkeys(("best_peer", "best_backend", "best_method"))
    row = NOT_TIMED | picks | {"label": "1,2,3,4", "shape": [1, 2, 3, 4], "causal": False}
    rows = [row | {"timings": {}}]
    written = stamped("bench_ladder", suite="ladder", about="few", torch="2", clocks={}, rows=rows)
    records.write_record(written, "bench_ladder", tmp_path)
    call = ["bench", "all", "--recorded", "--results", str(tmp_path)]
    assert main.main(call) == 1
    said = capsys.readouterr().out
    assert "recorded results, as asked for" in said and "no record of mlp" in said
    assert main.main(["bench", "all", "--methods", "tiled"]) == 2
