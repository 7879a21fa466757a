"""What figures share: legible colours, captions, rows of bars."""

import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter

from attn_course.figures import described, style, table
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


def test_a_described_figure_is_an_image_with_alternative_text():
    figure = style.new_figure(1, 1)
    figure.add_subplot().plot(np.arange(3))
    shown, _ = DisplayFormatter().format(described(figure, 'bars of "two"\n  kinds'))
    assert set(shown) == {"text/html", "text/plain"}
    assert shown["text/plain"] == 'figure: bars of "two" kinds'
    assert shown["text/html"].startswith('<img alt="bars of &quot;two&quot; kinds"')
    assert "data:image/png;base64,iVBOR" in shown["text/html"]


def test_a_wide_table_is_folded_in_its_widest_text():
    words = " ".join(f"word{n}" for n in range(30))
    lines = table(("name", "text", "count"), [("a", words, "7"), ("b", "short", "8")], (2,)).split(
        "\n"
    )
    assert max(map(len, lines)) <= 120
    assert " ".join(" ".join(lines).replace("7", "", 1).split()).count("word") == 30
    assert [line for line in lines if line.startswith("b")] == [lines[-1]]
    narrow = table(("a", "b"), [("x", "y")])
    assert narrow == "a  b\n-  -\nx  y"
