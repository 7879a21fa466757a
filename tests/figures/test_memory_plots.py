"""Figures of memory traffic and profiles show the numbers they were given."""

import numpy as np
import pytest

from attn_course import figures

USED = np.array([[4, 0, 32], [4, 0, 0]])


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_a_sector_map_writes_the_bytes_used():
    figure = figures.sector_maps({"one": USED, "two": 0 * USED + 4}, rows="r", columns="c")
    first, second = figure.get_axes()
    assert texts(first) == ["4", "32", "4"] and texts(second) == ["4"] * 6
    assert "3 sectors,\n40 of 96 bytes" in first.get_title(loc="left")
    assert len(first.patches) == 6


@pytest.mark.parametrize("maps", [{}, {"a": USED, "b": USED[:1]}, {"a": USED * 9}, {"a": USED[0]}])
def test_sector_maps_that_can_not_be(maps):
    with pytest.raises(ValueError):
        figures.sector_maps(maps, rows="r", columns="c")


def test_a_bank_map_names_the_busiest_bank():
    lanes = np.arange(32)
    figure = figures.bank_maps(
        {
            "column": (lanes, 128 * lanes, 4),
            "padded": (lanes, 132 * lanes, 4),
            "wide": (lanes[:4], 128 * lanes[:4], 16),
            "alike": (lanes, 0 * lanes, 4),
        }
    )
    titles = [axes.get_title(loc="left") for axes in figure.get_axes()]
    assert "up to 32 words of one bank" in titles[0] and "one word a bank" in titles[1]
    assert "up to 4 words" in titles[2] and "one word a bank" in titles[3]
    every_fourth = ["0", "4", "8", "12", "16", "20", "24", "28"]
    assert texts(figure.get_axes()[0]) == texts(figure.get_axes()[1]) == every_fourth
    assert texts(figure.get_axes()[2]) == ["0", "1", "2", "3"]  # a number for the lane's four words
    words = [len(axes.patches) - 1 for axes in figure.get_axes()]
    assert words == [32, 32, 16, 1]


@pytest.mark.parametrize(
    "access",
    [
        (np.arange(2), np.array([0, 2]), 4),
        (np.arange(2), np.array([0]), 4),
        (np.arange(1), np.array([0]), 2),
    ],
)
def test_accesses_that_can_not_be_drawn(access):
    with pytest.raises(ValueError):
        figures.bank_maps({"x": access})


def test_passes_and_times_write_their_sums():
    figure = figures.passes_and_times(
        ["a", "b"], {"x": [1, 2], "y": [3, 4]}, [10.0, 20.5], passes_unit="turns", source="GPU, day"
    )
    left, right = figure.get_axes()
    assert texts(left) == ["4", "6"] and texts(right) == ["10", "20.5"]
    assert "GPU, day" in right.get_xlabel()
    with pytest.raises(ValueError):
        figures.passes_and_times(["a"], {"x": [1]}, [1, 2], passes_unit="turns")


def test_the_stair_has_every_size():
    sizes, clocks = [4096, 1 << 20, 1 << 30], [33, 260, 800]
    figure = figures.latency_by_size(sizes, clocks, shared_clocks=23, marks={"L2": 1 << 24})
    (axes,) = figure.get_axes()
    stair, shared, mark = axes.lines
    assert stair.get_xdata().tolist() == sizes and stair.get_ydata().tolist() == clocks
    assert set(shared.get_ydata()) == {23} and set(mark.get_xdata()) == {1 << 24}
    assert "1 GB" in [label.get_text() for label in axes.get_xticklabels()]
    with pytest.raises(ValueError):
        figures.latency_by_size([1, 2], [1])


def test_ratios_of_counts():
    figure = figures.count_ratios({"x": ([1, 20], [1, 22]), "y": ([4], [4]), "none": ([], [])})
    (axes,) = figure.get_axes()
    first, second = axes.collections
    assert first.get_offsets()[:, 0].tolist() == [1, 1.1]
    assert second.get_offsets().tolist() == [[1, 1]]
    assert texts(axes) == ["1 of 2 at 1", "1 of 1 at 1"]
    for wrong in ({}, {"x": ([1], [])}, {"x": ([0], [1])}):
        with pytest.raises(ValueError):
            figures.count_ratios(wrong)


def test_percentages_are_written():
    figure = figures.percentages(["a", "b"], {"SM": [12.4, 99.0], "L1": [float("nan"), 0]})
    assert texts(figure.get_axes()[0]) == ["12", "-", "99", "0"]
    with pytest.raises(ValueError):
        figures.percentages(["a"], {"SM": [1, 2]})


def test_stacked_bars_write_their_sum():
    figure = figures.stacked(["a", "b"], [{"x": 1, "y": 5, "z": 0}, {"y": 2}], unit="clocks")
    (axes,) = figure.get_axes()
    assert texts(axes) == ["6", "2"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["y", "x"]
    with pytest.raises(ValueError):
        figures.stacked(["a"], [{}], unit="clocks")
