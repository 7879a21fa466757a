"""The step-through view of a trace: a page of its own, HTML in a notebook, and a plain table.

All logic is in stepper_page/*.js, which get the recordings as one compressed string, so the
widget works without a running kernel too.
"""

import base64
import gzip
import html
import json
import uuid
from pathlib import Path

_STATIC = Path(__file__).parent / "stepper_page"
_ROWS_IN_TABLE = 200
STYLE = (_STATIC / "stepper.css").read_text(encoding="utf-8")
SCRIPT = "\n".join(  # one module: widgets and single pages cannot import a second file
    (_STATIC / name).read_text(encoding="utf-8")
    for name in ("1_data.js", "2_engines.js", "2_parts.js", "2_product.js", "3_stepper.js")
)


class StaticStepper:
    """The same view as HTML that needs no kernel, no extension and no network."""

    def __init__(self, tracer, step: int | None = None):
        self.recordings, self.step = tracer.recordings, step

    def _repr_html_(self) -> str:
        return fragment(self.recordings, self.step)

    def __repr__(self) -> str:
        return text(self.recordings)


def opening(recordings, step: int | None = None) -> dict[str, int]:
    """Return the recording and the step that a view opens at: the first finding, where one is.

    step: of the first recording, where it is given.
    """
    if step is None:
        for number, recording in enumerate(recordings):
            for finding in recording.findings:
                return {"step": finding["step"], "recording": number}
    return {"step": step or 0, "recording": 0}


def to_html(tracer, path=None, step: int | None = None, title: str | None = None) -> str:
    """One self-contained page; written to `path` (UTF-8) if given. Returns its text.

    step: as in show().
    """
    recordings = tracer.recordings
    title = title or f"{tracer.recording.kernel}, step by step"
    page = _PAGE.format(title=html.escape(title), body=fragment(recordings, step))
    if path is not None:
        Path(path).write_text(page, encoding="utf-8")
    return page


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ margin: 0; padding: 18px; background: #eef1f4; font-family: system-ui, sans-serif; }}
h1, p {{ max-width: 1180px; margin: 0 auto .6rem; }}
h1 {{ font-size: 1.25rem; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #0d1013; color: #e6ebf0; }} }}
.acs {{ margin: 0 auto; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>Each step is one source line of one thread block, as the simulator ran it: its threads'
variables, what they read and wrote, and how the memory served them. The arrow keys step, space
plays, b goes to the next barrier, f to the next finding; a click on a line goes to its next
step.</p>
{body}
</body>
</html>
"""


def fragment(recordings, step: int | None = None) -> str:
    """HTML that shows the table until its script replaces it with the stepper."""
    return packed_fragment(pack(recordings), table(recordings), opening(recordings, step))


def packed_fragment(
    packed: str, shown: str, opens: dict[str, int], script: str = SCRIPT, style: str = STYLE
) -> str:
    """The same of recordings that are packed; `shown`: HTML until the script has run.

    opens: as opening() returns it.
    script, style: of the version that packed them, where it is another; a saved widget has them.
    """
    name = f"stepper-{uuid.uuid4().hex}"
    return (
        f'<style>{style}</style>\n<div id="{name}">{shown}</div>\n'
        f'<script type="module">\n{script}\n'
        f'mount(document.getElementById("{name}"), "{packed}", {json.dumps(opens)});\n'
        "</script>"
    )


def pack(recordings) -> str:
    """The recordings as base64 of gzipped JSON: frames of large blocks hold thousands of values."""
    data = json.dumps([recording.plain() for recording in recordings], separators=(",", ":"))
    return base64.b64encode(gzip.compress(data.encode(), 6, mtime=0)).decode()


# -- where scripts do not run ---------------------------------------------------------------
def table(recordings) -> str:
    """Every step as a row of an HTML table, the first of them where there are very many."""
    left = ' style="text-align:left"'
    parts = []
    for recording in recordings:
        rows = recording.rows()
        body = "".join(
            f"<tr><td>{step}</td><td>{line}</td><td{left}><code>{html.escape(source)}</code></td>"
            f"<td{left}>{html.escape(what)}</td></tr>"
            for step, line, source, what in rows[:_ROWS_IN_TABLE]
        )
        parts.append(
            f"<p>{html.escape(_title(recording))}</p><table><thead><tr><th>step</th><th>line</th>"
            f"<th{left}>source</th><th{left}>first active thread</th></tr></thead>"
            f"<tbody>{body}</tbody></table>{_rest(rows, '<p>', '</p>')}"
        )
    return "".join(parts)


def text(recordings) -> str:
    """The same table for a terminal."""
    parts = []
    for recording in recordings:
        rows = recording.rows()
        lines = [
            f"{step:>5} {line:>5}  {source[:60]:60}  {what}".rstrip()
            for step, line, source, what in rows[:_ROWS_IN_TABLE]
        ]
        head = f"{'step':>5} {'line':>5}  {'source':60}  first active thread"
        rest = _rest(rows, "", "")
        parts.append("\n".join([_title(recording), head, *lines, *([rest] if rest else [])]))
    return "\n\n".join(parts)


def _title(recording) -> str:
    note = f"; {recording.truncated}" if recording.truncated else ""
    return (
        f"{recording.kernel}, block {recording.block} of {recording.grid}, "
        f"{len(recording.frames)} steps{note}"
    )


def _rest(rows: list, before: str, after: str) -> str:
    hidden = len(rows) - _ROWS_IN_TABLE
    return f"{before}and {hidden} more steps{after}" if hidden > 0 else ""
