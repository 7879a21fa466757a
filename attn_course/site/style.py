"""Colours of highlighted source, light and dark, from two styles of Pygments."""

from pygments.styles import get_style_by_name
from pygments.token import STANDARD_TYPES, Token

LIGHT, DARK = "default", "github-dark"
_QUIET = {"#bbbbbb": "#6b7781"}  # too pale on white


def highlight_css() -> str:
    """Return rules for the classes that Pygments gives tokens."""
    light, dark = get_style_by_name(LIGHT), get_style_by_name(DARK)
    ink = "#1f2328", "#e6edf3"
    rules = []
    for token, name in STANDARD_TYPES.items():
        if not name or token is Token.Error:
            continue
        pair = [style.style_for_token(token) for style in (light, dark)]
        colours = [
            f"#{found['color']}" if found["color"] else rest
            for found, rest in zip(pair, ink, strict=True)
        ]
        declared = []
        if tuple(colours) != ink:
            first, second = (_QUIET.get(colour, colour) for colour in colours)
            declared.append(f"color: light-dark({first}, {second})")
        if pair[0]["bold"]:
            declared.append("font-weight: 600")
        if pair[0]["italic"]:
            declared.append("font-style: italic")
        if declared:
            rules.append(f".highlight .{name} {{ {'; '.join(declared)} }}")
    return "\n".join(["", *rules, ""])
