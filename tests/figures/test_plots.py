"""Figures show what they were given: read back from the drawn artists, not from pixels."""

import numpy as np
import pytest

from attn_course import figures

RNG = np.random.default_rng(3)
IMAGE = RNG.integers(0, 900, (64, 64)).astype(np.uint16)
ORIGINS = np.array([(3, 5), (30, 36)])


def weights(heads=6, grid=(4, 4)):
    found = RNG.random((heads, grid[0] * grid[1], grid[0] * grid[1]))
    return found / found.sum(-1, keepdims=True)


def all_axes(figure):
    return [axes for axes in figure.get_axes()]


def test_attention_maps_are_those_of_the_query():
    given = weights()
    figure = figures.attention_over_slice(
        IMAGE, ORIGINS, given, window=1, query=6, heads=(0, 5), grid=(4, 4), token_pixels=3
    )
    titled = {axes.get_title("left"): axes for axes in all_axes(figure)}
    for head in (0, 5):
        under, over = titled[f"head {head}"].get_images()
        np.testing.assert_array_equal(under.get_array(), IMAGE[30:42, 36:48])
        np.testing.assert_array_equal(over.get_array()[::3, ::3], given[head, 6].reshape(4, 4))
    limits = {titled[f"head {head}"].get_images()[1].get_clim() for head in (0, 5)}
    assert len(limits) == 1  # one colour bar serves both


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights": np.ones((2, 16, 15))}, "weights must be"),
        ({"window": 2}, "window 2"),
        ({"query": 16}, "query 16"),
        ({"heads": (9,)}, "heads"),
        ({"heads": ()}, "no head"),
    ],
)
def test_attention_maps_refuse_what_does_not_fit(change, words):
    call = {"image": IMAGE, "origins": ORIGINS, "weights": weights(), "grid": (4, 4)} | change
    with pytest.raises(ValueError, match=words):
        figures.attention_over_slice(**call)


def test_tile_grid_shows_values_and_the_chosen_tile():
    values = np.arange(15.0).reshape(3, 5)
    figure = figures.tile_grid(values, 2, highlight=(1, 2))
    axes = all_axes(figure)[0]
    np.testing.assert_array_equal(axes.get_images()[0].get_array(), values)
    assert [text.get_text() for text in axes.texts] == [f"{v:g}" for v in values.ravel()]
    chosen = [p for p in axes.patches if not p.get_fill()]
    assert [(p.get_y() + 0.5, p.get_x() + 0.5, p.get_width()) for p in chosen] == [(2, 4, 2)]
    outside = {
        (p.get_y() + 0.5, p.get_x() + 0.5, p.get_height(), p.get_width())
        for p in axes.patches
        if p.get_hatch()
    }
    assert outside == {(0, 5, 4, 1), (3, 0, 1, 5)}  # a column and a row that no value fills


@pytest.mark.parametrize(
    ("values", "tile", "highlight"),
    [(np.ones(3), 2, None), (np.ones((2, 2)), 0, None), (np.ones((4, 4)), 2, (2, 0))],
)
def test_tile_grid_refuses_what_does_not_fit(values, tile, highlight):
    with pytest.raises(ValueError):
        figures.tile_grid(values, tile, highlight=highlight)


def test_bars_write_their_values():
    axes = all_axes(figures.bars(["a", "b"], [16896, 1.5], unit="loads"))[0]
    assert [text.get_text() for text in axes.texts] == ["16,896", "1.5"]
    with pytest.raises(ValueError, match="2 labels for 1"):
        figures.bars(["a", "b"], [1.0], unit="us")


def test_error_profile_has_a_named_row_of_quantiles_for_each_run():
    errors = np.arange(101.0).reshape(1, 101) * 1e-8
    figure = figures.error_profile(["one", "zeros"], [errors, np.zeros(3)])
    (axes,) = all_axes(figure)
    reach, half, dot, *zeros = axes.lines
    np.testing.assert_allclose(reach.get_xdata(), [1e-8, 1e-6])
    np.testing.assert_allclose(half.get_xdata(), [2.5e-7, 7.5e-7])
    np.testing.assert_allclose(dot.get_xdata(), [5e-7])
    for line in zeros:  # drawn at the smallest error that is not 0
        np.testing.assert_allclose(line.get_xdata(), 1e-8)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "zeros"]


@pytest.mark.parametrize("errors", [[np.array([np.nan])], [np.array([-1.0])], []])
def test_error_profile_refuses_what_is_no_error(errors):
    with pytest.raises(ValueError):
        figures.error_profile(["one"], errors)


def test_a_roofline_counts_from_its_first_level_and_dashes_the_others():
    figure = figures.roofline(
        {"near": (1.0, 0.5), "far": (100.0, 10.0)}, tflops=20, gbps={"L2": 2000, "memory": 1000}
    )
    (axes,) = figure.axes
    assert [line.get_ydata().max() for line in axes.lines[:2]] == [20, 20]
    assert axes.lines[0].get_ydata()[0] == 2 * axes.lines[1].get_ydata()[0]
    assert [line.get_linestyle() for line in axes.lines[:2]] == ["-", "--"]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["L2: 2,000 GB/s", "memory: 1,000 GB/s"]
    said = {text.get_text() for text in axes.texts}
    assert said == {"float32: 20 TFLOP/s", "near: 25 %", "far: 50 %"}
    for rates in ({}, {"L2": 0}):
        with pytest.raises(ValueError, match="level of memory"):
            figures.roofline({"near": (1, 1)}, tflops=20, gbps=rates)


def test_a_kernel_of_tensor_cores_is_judged_by_their_roof():
    others = {"tensor": (80, ["matrices"])}
    points = {"plain": (100.0, 10.0), "matrices": (100.0, 20.0)}
    figure = figures.roofline(points, tflops=20, gbps={"memory": 1000}, others=others)
    (axes,) = figure.axes
    said = {text.get_text() for text in axes.texts}
    roofs = {"float32: 20 TFLOP/s", "tensor: 80 TFLOP/s"}
    assert said == roofs | {"plain: 50 %", "matrices: 25 %"}
    for wrong in ({"tensor": (80, ["absent"])}, {"tensor": (0, ["matrices"])}):
        with pytest.raises(ValueError, match="other roof"):
            figures.roofline(points, tflops=20, gbps={"memory": 1000}, others=wrong)


def test_times_by_work_stand_over_the_lines_of_empty_kernels():
    figure = figures.time_by_work(
        {"ours": [(1.0, 5.0), (10.0, 50.0)]},
        floors={"floor": 2.0},
        launches={"one": 0.5, "three": 1.5},
    )
    (axes,) = figure.axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert drawn["ours"] == [5, 50] and drawn["one"] == [0.5] * 2 and drawn["three"] == [1.5] * 2


def test_each_row_of_a_spread_has_a_scale_of_its_own():
    figure = figures.spread({"wide": [1.0, 2.0, 9.0], "narrow": [4.0, 4.001, 4.002]})
    wide, narrow = (axes.get_xlim() for axes in figure.axes)
    assert wide[1] - wide[0] > 3 > 0.01 > narrow[1] - narrow[0]


def test_a_curve_that_would_hide_another_one_is_dashed():
    x = np.arange(1.0, 5)
    by_name = {"one": x, "the same": x * 1.001, "another": x**2}
    lines = figures.curves(x, by_name, labels=("x", "y")).axes[0].lines
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-"]


def test_names_of_predictions_that_are_close_stand_below_each_other():
    measured, predicted = {"a": 80.0, "b": 85.0, "c": 10.0}, {"a": 50.0, "b": 49.0, "c": 30.0}
    how = {"named": {"a": "one", "b": "two", "c": "far"}, "band": 0.3, "source": ""}
    texts = {
        one.get_text(): one for one in figures.predictions(measured, predicted, **how).axes[0].texts
    }
    assert texts["one"].xyann[1] == texts["far"].xyann[1] == 0 > texts["two"].xyann[1]
    assert [texts[name].get_ha() for name in ("one", "far")] == ["left", "right"]


def test_predictions_has_a_dot_a_case_and_refuses_what_does_not_fit():
    measured, predicted = {"a": 2.0, "b": 50.0}, {"a": 3.0, "b": 5.0}
    how = {"band": 0.3, "source": "s"}
    axes = figures.predictions(measured, predicted, named={"b": "bad"}, **how).axes[0]
    dots = axes.collections[-1].get_offsets()
    assert sorted(map(tuple, dots)) == [(2.0, 3.0), (50.0, 5.0)]
    assert [text.xy for text in axes.texts if text.get_text() == "bad"] == [(50.0, 5.0)]
    assert axes.get_xlim() == axes.get_ylim() and axes.get_xlim()[0] < 2 < 50 < axes.get_xlim()[1]
    with pytest.raises(ValueError, match="named"):
        figures.predictions(measured, predicted, named={"c": "no"}, **how)
    with pytest.raises(ValueError, match="cases"):
        figures.predictions(measured, {"a": 1.0}, named={}, **how)
