"""What figures share: legible colours, captions, rows of bars."""

import pytest
from matplotlib.axes import Axes

from attn_course.figures import style
from attn_course.figures.style import INK, PALETTE, PAPER


def contrast(one: str, other: str) -> float:
    """WCAG 2's contrast ratio, 1 to 21, written out for hexadecimal colours."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colour", [*PALETTE, "#FFFFFF", "#000000"])
def test_text_on_a_colour_has_the_larger_contrast(colour):
    chosen = style.ink_on(colour)
    assert contrast(chosen, colour) == max(contrast(INK, colour), contrast(PAPER, colour))
    assert contrast(chosen, colour) >= 3


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (12, "12 B"),
        (1024, "1 KB"),
        (1536, "1.5 KB"),
        (64 << 10, "64 KB"),
        (50 << 20, "50 MB"),
        (1 << 30, "1 GB"),
    ],
)
def test_sizes_have_a_unit(count, text):
    assert style.bytes_text(count) == text


def test_a_source_stands_under_its_label():
    assert style.with_source("us", "a GPU, today") == "us\na GPU, today"
    assert style.with_source("us", "") == "us"


def new_axes() -> Axes:
    return style.new_figure(3, 2).subplots()


def test_rows_of_bars_begin_at_the_top_and_keep_their_values():
    axes = new_axes()
    axes.barh(range(2), [3, 1])
    style.rows_of_bars(axes, ["first", "second"])
    style.write_values(axes, [3, 1], ["3.0", "1.0"])
    low, high = axes.get_ylim()
    assert low > high
    assert [label.get_text() for label in axes.get_yticklabels()] == ["first", "second"]
    assert [(note.get_text(), note.xy) for note in axes.texts] == [("3.0", (3, 0)), ("1.0", (1, 1))]


def test_panels_that_share_rows_are_turned_over_once():
    left, right = style.new_figure(4, 2).subplots(1, 2, sharey=True)
    for axes, labels in ((left, ["a", "b"]), (right, None)):
        axes.barh(range(2), [3, 1])
        style.rows_of_bars(axes, labels)
    assert right.get_ylim() == left.get_ylim() and left.get_ylim()[0] > left.get_ylim()[1]


def test_the_style_holds_while_a_figure_is_drawn():
    axes = style.styled(new_axes)()
    assert not axes.spines["top"].get_visible() and new_axes().spines["top"].get_visible()


def test_a_figure_without_a_title_has_none():
    figure = style.new_figure(3, 2)
    style.headline(figure, "")
    assert figure.get_suptitle() == ""
    style.headline(figure, "what is drawn")
    assert figure.get_suptitle() == "what is drawn"
