"""The book reads records: best peers, ratios and rates, and it names what is missing."""

import json
import shutil

import pytest

from attn_course.cli.main import main
from attn_course.ladder.attention import METHODS
from attn_course.measure import book
from attn_course.measure.records import RESULTS_FOLDER


def made_up(**timings) -> dict:
    row = {"label": "1,1,2,4", "shape": [1, 1, 2, 4], "operations": 6000, "bytes": 3000}
    row["timings"] = {name: {"median_us": us} for name, us in timings.items()}
    other = row | {"label": "8,1,2,4", "timings": {"tiled": {"median_us": 5.0}}}
    stamp = {"gpu": "NVIDIA H200", "driver": "1", "cuda": "13.0", "date": "2026-01-02"}
    stamp |= {"commit": "abc", "kernels": {}, "torch": "2"}
    return stamp | {"suite": "seeds_fp32", "about": "a suite", "rows": [row, other]}


def test_a_page_compares_with_the_best_of_all_peers():
    page = book.page_of(made_up(tiled=4.0, auto=2.0, torch_eager=3.0, torch_math=9.0))
    assert page.peers == {"torch_eager", "torch_math"} and page.best(page.peers) == (3.0, None)
    assert page.over_best_peer() == {"tiled": (0.75, None), "auto": (1.5, None)}
    assert page.rates(["auto"]) == {
        "GFLOP/s": {"auto": (3.0, None), book.BEST_PEER: (2.0, None)},
        "GB/s": {"auto": (1.5, None), book.BEST_PEER: (1.0, None)},
    }
    grown = book.growth(page, ((8, 1, 2, 4), (1, 1, 2, 4)), ["tiled"])
    assert grown == {"tiled": (5.0, 4.0), book.BEST_PEER: (None, 3.0)}
    assert "2026-01-02 on NVIDIA H200" in page.source


def test_without_peers_a_page_has_no_ratios():
    page = book.page_of(made_up(tiled=4.0))
    assert page.with_best_peer(["tiled"]) == {"tiled": (4.0, 5.0)} and not page.peers
    assert page.over_best_peer() == {}


def test_methods_stand_under_the_roof_with_the_bytes_that_their_kernels_move():
    record = made_up(tiled=4.0, flash_rows=2.0, torch_math=9.0, auto=2.0)
    record["rows"] = record["rows"][:1]
    points, roofs = book.under_the_roof(record)
    assert set(points) == {"tiled", "flash_rows"} <= set(METHODS)
    assert points["tiled"][0] < points["flash_rows"][0] and roofs["tflops"] == 67
    assert points["flash_rows"][1] == pytest.approx(2 * points["tiled"][1])


def test_the_command_draws_what_is_recorded_and_names_what_is_not(tmp_path, capsys):
    records = tmp_path / "results" / "h200"
    records.mkdir(parents=True)
    shutil.copy(RESULTS_FOLDER / "h200" / "bench_ladder.json", records)
    found = tmp_path / "book.json"
    call = ["book", "--folder", str(tmp_path / "out"), "--records", str(records.parent)]
    assert main([*call, "--json", str(found)]) == 0
    assert "attn-course record mlp" in capsys.readouterr().out
    said = json.loads(found.read_text())
    assert said["figures"] == ["roofline"] and "seeds_fp32" in said["missing"]
    for suffix in ("png", "svg"):
        assert (tmp_path / "out" / f"roofline.{suffix}").stat().st_size > 10_000
    index = (tmp_path / "out" / "README.md").read_text()
    assert "](roofline.png)" in index and "no record of it yet" in index
    assert main(["book", "--folder", str(tmp_path / "out"), "--records", str(tmp_path)]) == 1


def test_one_suite_on_two_gpus(tmp_path):
    recorded = json.loads((RESULTS_FOLDER / "h200" / "bench_mlp.json").read_text())
    label, *_ = labels = [row["label"] for row in recorded["rows"]]

    def add(folder: str, gpu: str, date: str, us: float) -> None:
        recorded["rows"][0]["timings"]["mlp_fp32"]["median_us"] = us
        path = tmp_path / folder / "bench_mlp.json"
        path.parent.mkdir()
        path.write_text(json.dumps(recorded | {"gpu": gpu, "date": date}))

    add("1", "NVIDIA H200", "2026-01-02", 2.0)
    assert book.times_on_each_gpu("mlp", "mlp_fp32", tmp_path) == {}
    add("2", "NVIDIA H100", "2026-01-02", 3.0)
    found = book.times_on_each_gpu("mlp", "mlp_fp32", tmp_path)
    assert list(found) == labels and found[label] == {"NVIDIA H200": 2.0, "NVIDIA H100": 3.0}
    assert book.newest("mlp", tmp_path)["gpu"] == "NVIDIA H200"  # of one day, the course's
    assert book.times_on_each_gpu("mlp", "no_such_layer", tmp_path) == {}
    del recorded["rows"][1]
    add("3", "NVIDIA H100", "2026-01-03", 4.0)
    found = book.times_on_each_gpu("mlp", "mlp_fp32", tmp_path)
    assert found == {label: {"NVIDIA H100": 4.0, "NVIDIA H200": 2.0}}
    assert book.newest("mlp", tmp_path)["gpu"] == "NVIDIA H100"
    recorded["rows"][0]["label"] = "another"
    add("4", "NVIDIA A100", "2026-01-01", 5.0)  # a record of other rows takes none away
    assert book.times_on_each_gpu("mlp", "mlp_fp32", tmp_path) == found
