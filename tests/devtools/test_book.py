"""The book reads records: best baselines, ratios and rates, and it names what is missing."""

import itertools
import json
import shutil
from functools import cache

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from attn_course import figures
from attn_course.cli.main import main
from attn_course.measure import times_on_each_gpu
from attn_course.measure.hardware.devices import peak_of
from attn_course.measure.records import RESULTS_FOLDER, write_record
from attn_devtools import book
from attn_devtools.book.command import pages
from attn_devtools.shares import in_turns

pytestmark = pytest.mark.system


def made_up(**timings) -> dict:
    row = {"label": "1,1,2,4", "shape": [1, 1, 2, 4], "operations": 6000, "bytes": 3000}
    row["timings"] = {name: {"median_us": us} for name, us in timings.items()}
    other = row | {"label": "8,1,2,4", "timings": {"tiled": {"median_us": 5.0}}}
    stamp = {"gpu": "NVIDIA H200", "driver": "1", "cuda": "13.0", "date": "2026-01-02"}
    stamp |= {"commit": "abc", "kernels": {}, "torch": "2"}
    return stamp | {"suite": "seeds_fp32", "about": "a suite", "rows": [row, other]}


def test_a_page_compares_with_the_best_of_all_peers():
    page = book.page_of(made_up(tiled=4.0, auto=2.0, torch_eager=3.0, torch_math=9.0))
    assert page.baselines == {"torch_eager", "torch_math"} and page.best(page.baselines) == (
        3.0,
        None,
    )
    assert page.over_best_baseline() == {"tiled": (0.75, None), "auto": (1.5, None)}
    assert page.rates(["auto"]) == {
        "GFLOP/s": {"auto": (3.0, None), book.BEST_BASELINE: (2.0, None)},
        "GB/s": {"auto": (1.5, None), book.BEST_BASELINE: (1.0, None)},
    }
    grown = book.growth(page, ((8, 1, 2, 4), (1, 1, 2, 4)), ["tiled"])
    assert grown == {"tiled": (5.0, 4.0), book.BEST_BASELINE: (None, 3.0)}
    assert "2026-01-02 on NVIDIA H200" in page.source


def test_without_peers_a_page_has_no_ratios():
    page = book.page_of(made_up(tiled=4.0))
    assert page.with_best_baseline(["tiled"]) == {"tiled": (4.0, 5.0)} and not page.baselines
    assert page.over_best_baseline() == {}


def test_methods_stand_under_the_roof_with_the_bytes_that_their_kernels_move(tmp_path):
    record = made_up(tiled=4.0, flash_rows=2.0, torch_math=9.0, auto=2.0)
    record["rows"] = record["rows"][:1]
    points, roofs = book.under_the_roof(record, tmp_path)
    tiled, flash = "02, 05, 06 tiled", "10 flash_rows"
    assert set(points) == {tiled, flash} and roofs["tflops"] == 67 and not roofs["others"]
    assert points[tiled][0] < points[flash][0]
    assert points[flash][1] == pytest.approx(2 * points[tiled][1])
    assert "no record of 13, 14 and 16" in roofs["source"].replace("\n", " ")


def test_every_kernel_stands_under_the_roof_of_its_own_units():
    points, roofs = book.under_the_roof(recorded("ladder"))
    numbers = {name.split(" ")[0] for name in points}
    assert {"11", "12", "13", "14", "15", "16", "19", "20"} <= numbers
    own = {name: unit for unit, (_, names) in roofs["others"].items() for name in names}
    assert own == {
        "13 flash_wmma": "16-bit tensor cores",
        "14 flash_mma": "16-bit tensor cores",
        "15 flash_tf32x3": "TF32 tensor cores / 3",
        "18 flash_wgmma": "16-bit tensor cores",
        "29 split_tf32x3": "TF32 tensor cores / 3",
    }
    gpu = peak_of(recorded("ladder")["gpu"])
    rates = {unit: rate for unit, (rate, _) in roofs["others"].items()}
    assert rates == {
        "16-bit tensor cores": gpu.tensor_tflops,
        "TF32 tensor cores / 3": gpu.tf32_tflops / 3,
    }
    row = next(one for one in recorded("long_bf16")["rows"][::-1] if not one["causal"])
    work = row["operations"] / row["bytes"], row["operations"]
    us = row["timings"]["flash_mma"]["median_us"]
    assert points["14 flash_mma"] == pytest.approx((work[0], work[1] / us / 1e6))
    norm = recorded("layernorm")["rows"][-1]
    gbps = norm["work"]["bytes"] / norm["timings"]["layer_norm"]["median_us"] / 1e3
    intensity, rate = points["16 layer_norm"]
    assert rate / intensity * 1e3 == pytest.approx(gbps)  # its share of the roof is that of bytes
    assert intensity == 1  # 8 operations on a number that is read and written
    for word in ("bfloat16", "17, whose erf", "22, which no suite"):
        assert word in roofs["source"].replace("\n", " ")


def test_a_row_with_a_mask_is_not_under_the_roof(tmp_path):
    record = recorded("long_bf16")
    plain, masked = record["rows"][:2]
    assert masked["causal"] and not plain["causal"]
    write_record(record | {"rows": [plain, masked]}, "bench_long_bf16", tmp_path)
    points, roofs = book.under_the_roof(recorded("ladder"), tmp_path)
    us = plain["timings"]["flash_mma"]["median_us"]
    assert points["14 flash_mma"][1] == pytest.approx(plain["operations"] / us / 1e6)
    assert f"13 and 14 at {plain['label']} in" in roofs["source"]


def test_a_kernel_whose_roof_is_not_known_is_named_and_left_out(tmp_path):
    record = made_up(flash_rows=2.0, flash_tf32x3=1.0) | {"gpu": "Tesla T4"}
    record["rows"] = record["rows"][:1]
    points, roofs = book.under_the_roof(record, tmp_path)
    assert set(points) == {"10 flash_rows"} and not roofs["others"]
    assert "15 flash_tf32x3 left out" in roofs["source"].replace("\n", " ")


def recorded(suite: str) -> dict:
    return json.loads((RESULTS_FOLDER / "h200" / f"bench_{suite}.json").read_text())


def test_layers_have_rates_of_what_their_records_count():
    norm, _, mlp, block = (book.page_of(recorded(suite)) for suite in book.LAYERS)
    (row,) = [one for one in recorded("layernorm")["rows"] if one["label"] == norm.shapes[-1]]
    rates = norm.rates(["layer_norm"])
    assert list(rates) == ["GB/s"]
    us = row["timings"]["layer_norm"]["median_us"]
    assert rates["GB/s"]["layer_norm"][-1] == pytest.approx(row["work"]["bytes"] / us / 1e3)
    assert list(mlp.rates(["mlp_fp32"])) == list(block.rates(["block_fp32"])) == ["GFLOP/s"]
    assert "attention itself" in block.counted and "not counted" in block.counted


ROOFLINE = "roofline"


@cache
def made(suite: str) -> dict:
    """The figures of the recorded book by name, made once; not drawn, which takes seconds."""
    if suite == ROOFLINE:
        points, roofs = book.under_the_roof(recorded("ladder"))
        return {suite: figures.roofline(points, **roofs)}
    record = recorded(suite)
    return {name: figure for name, _, figure in pages(record, book.page_of(record))}


@pytest.mark.turns(41)
@pytest.mark.parametrize("suite", in_turns([*book.ATTENTION, *book.LAYERS], 6))
def test_every_suite_has_a_figure_of_its_rates(suite):
    caption = made(suite)["efficiency"].get_supxlabel().replace("\n", " ")
    assert "recorded" in caption and (suite != "block" or "attention itself" in caption)


@pytest.mark.turns(41)
@pytest.mark.parametrize("suite", in_turns([*book.ATTENTION, *book.LAYERS, ROOFLINE], 6))
def test_no_text_of_the_book_reaches_outside_its_figure_and_no_labels_overlap(suite):
    for name, figure in made(suite).items():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        renderer = canvas.get_renderer()
        inside = figure.bbox.padded(1)  # pixels are rounded
        written, hidden = set(figure.findobj(Text)), out_of_view(figure)
        for axes in (one for one in figure.axes if one.axison):
            labels = [label for label in axes.get_xticklabels() if label.get_text()]
            boxes = [one.get_window_extent(renderer) for one in labels if one not in hidden]
            for left, right in itertools.pairwise(sorted(boxes, key=lambda box: box.x0)):
                assert left.x1 < right.x0, (name, labels)
        for text in written - hidden:
            if text.get_visible() and text.get_text():
                box = text.get_window_extent(renderer)
                across = inside.x0 <= box.x0 and box.x1 <= inside.x1
                assert across and inside.y0 <= box.y0 and box.y1 <= inside.y1, (name, text)


def out_of_view(figure) -> set[Text]:
    """Labels of ticks that are not drawn, since they lie past the ends of their axis."""
    hidden = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        past = (tick for tick in ticks if not low <= tick.get_loc() <= high)
        hidden |= {label for tick in past for label in (tick.label1, tick.label2)}
    return hidden


@pytest.mark.turns(23)
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
    assert times_on_each_gpu("mlp", "mlp_fp32", tmp_path) == {}
    add("2", "NVIDIA H100", "2026-01-02", 3.0)
    found = times_on_each_gpu("mlp", "mlp_fp32", tmp_path)
    assert list(found) == labels and found[label] == {"NVIDIA H200": 2.0, "NVIDIA H100": 3.0}
    assert book.newest("mlp", tmp_path)["gpu"] == "NVIDIA H200"
    assert times_on_each_gpu("mlp", "no_such_layer", tmp_path) == {}
    del recorded["rows"][1]
    add("3", "NVIDIA H100", "2026-01-03", 4.0)
    found = times_on_each_gpu("mlp", "mlp_fp32", tmp_path)
    assert found == {label: {"NVIDIA H100": 4.0, "NVIDIA H200": 2.0}}
    assert book.newest("mlp", tmp_path)["gpu"] == "NVIDIA H200"  # the course's, however old
    recorded["rows"][0]["label"] = "another"
    add("4", "NVIDIA A100", "2026-01-01", 5.0)  # a record of other rows takes none away
    assert times_on_each_gpu("mlp", "mlp_fp32", tmp_path) == found
