"""Feedback as HTML pages: one a submission for the student, one of the class for the instructor.

Everything that comes from a submission is escaped, and the pages allow no script; the steps of a
failing case are a page beside it, made by the course's stepper.
"""

import html
from collections.abc import Iterable, Mapping, Sequence

from kernelscope.ptx import lines_of

from attn_course.exercises.judgement import CONTEXT, PROPERTIES

from .gradebook import GRADED, printable, remarks_of, state_of, total
from .store import NO_SET, page_name

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --good: #1a7f37; --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --good: #4cc26a; --bad: #ff8a80; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.25rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; margin: .75rem 0; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; }
th, td { border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
pre { background: var(--soft); padding: .6rem; overflow-x: auto; margin: .4rem 0; }
pre, code { font: 13px/1.45 ui-monospace, monospace; }
pre.why { white-space: pre-wrap; background: none; padding: 0; }
td.state { white-space: nowrap; } .good { color: var(--good); } .bad { color: var(--bad); }
.at { display: block; background: #e5a50a33; } .sum { font-size: 1.15rem; margin-top: .2rem; }
"""
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def escape(text: object) -> str:
    """Return a text for HTML; control characters other than line ends become blanks."""
    lines = str(text).split("\n")
    return html.escape("\n".join(map(printable, lines)), quote=True)


def feedback(result: Mapping) -> str:
    """Return a student's page."""
    title = f"{result['student']}: {result['set'] or NO_SET}"
    parts = [f"<h1>{escape(title)}</h1>"]
    if state_of(result) != GRADED:
        why = result["unreadable"] or result.get("failed", "")
        parts.append(f'<p class="sum bad">Not graded: {escape(why)}.</p>')
    else:
        earned, possible = total(result)
        parts.append(f'<p class="sum"><b>{earned} of {possible} points</b></p>')
    parts += [_problem(problem, result["pages"]) for problem in result["problems"]]
    if remarks := remarks_of(result):
        rows = [(kind, cell, text) for kind, cell, text in remarks]
        parts.append("<h2>Remarks</h2>" + _table(("about", "cell", "remark"), rows))
    if errors := result["notebook"].get("errors"):
        rows = [(one["cell"], one["error"], one["text"]) for one in errors]
        note = "<p>What the notebook itself did when it was executed; it costs no points.</p>"
        parts.append(f"<h2>Errors of the notebook</h2>{note}")
        parts.append(_table(("cell", "error", "message"), rows))
    return _PAGE.format(title=escape(title), style=_STYLE, body="\n".join(parts))


def overview(
    results: Sequence[Mapping],
    link,
    sandboxes: Iterable[str],
    not_taken: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the instructor's page. link(result) is the address of a student's page.

    not_taken: (file, reason) of what is in no submission.
    """
    rows = []
    for result in sorted(results, key=lambda one: (one["set"], one["student"])):
        state = state_of(result)
        earned, possible = total(result) if state == GRADED else ("", "")
        kind = "good" if state == GRADED else "bad"
        notebook = result["notebook"].get("ended", "not executed")
        rows.append(
            f'<tr><td>{escape(result["set"])}</td><td><a href="{escape(link(result))}">'
            f'{escape(result["student"])}</a></td><td class="state {kind}">{escape(state)}</td>'
            f'<td class="n">{earned}</td><td class="n">{possible}</td><td>{escape(notebook)}</td>'
            f'<td class="n">{len(remarks_of(result))}</td></tr>'
        )
    heads = ("problem set", "student", "state", "points", "of", "notebook", "remarks")
    numbers = ("points", "of", "remarks")
    head = "".join(f"<th{' class=n' if one in numbers else ''}>{one}</th>" for one in heads)
    confined = "".join(f"<p>Executed under: {escape(one)}.</p>" for one in sorted(sandboxes))
    graded = sum(state_of(result) == GRADED for result in results)
    body = (
        f"<h1>{len(results)} submissions, {graded} graded</h1>{confined}"
        f"<table><tr>{head}</tr>{''.join(rows)}</table>"
    )
    if not_taken:
        body += "<h2>Files that are not taken</h2>" + _table(("file", "reason"), not_taken)
    return _PAGE.format(title="Grades", style=_STYLE, body=body)


def _problem(problem: Mapping, pages: Sequence[str]) -> str:
    rows = problem["rows"]
    earned, possible = (sum(row[key] for row in rows) for key in ("earned", "possible"))
    lines = []
    for row in rows:
        good = row["earned"] == row["possible"]
        mark = '<span class="good">&#10003;</span>' if good else '<span class="bad">&#10007;</span>'
        about = PROPERTIES.get(row["property"], "the counter reaches the goal")
        lines.append(
            f"<tr><td>{mark}</td><td><b>{escape(row['property'])}</b><br>{escape(about)}</td>"
            f'<td class="n">{row["earned"]} of {row["possible"]}</td></tr>'
        )
    parts = [
        f"<h2>{escape(problem['name'])}: {earned} of {possible} points</h2>",
        f"<table>{''.join(lines)}</table>",
    ]
    parts += _reasons(problem)
    if problem["name"] in pages:
        page = escape(page_name(problem["name"]))
        parts.append(f'<p><a href="{page}">The failing case, step by step</a></p>')
    if problem["source"]:
        source = f"<pre>{escape(problem['source'])}</pre>"
        parts.append(f"<details><summary>The kernel that was judged</summary>{source}</details>")
    return "\n".join(parts)


def _reasons(problem: Mapping) -> Iterable[str]:
    """Yield each different reason for lost points once, with the lines that it is about."""
    reasons: dict[str, tuple[Mapping, list[str]]] = {}
    for row in problem["rows"]:
        if row["reason"]:
            reasons.setdefault(row["reason"], (row, []))[1].append(row["property"])
    for reason, (row, (first, *others)) in reasons.items():
        if len(others) + 1 == len(problem["rows"]):
            first, others = "All properties", []
        where = f", case {row['label']}" if row["label"] else ""
        hidden = " (a hidden case)" if row["hidden"] else ""
        yield f"<h3>{escape(first)}{escape(where)}{hidden}</h3>"
        yield f'<pre class="why">{escape(reason)}</pre>'
        if others:
            yield f"<p>Not earned for the same reason: {escape(', '.join(others))}.</p>"
        if row["line"] and problem["source"]:
            yield _lines(problem["source"], row["line"])


def _lines(source: str, line: int) -> str:
    """Return the lines around one line of the kernel."""
    text = lines_of(source)
    shown = []
    for number in range(max(1, line - CONTEXT), min(len(text), line + CONTEXT) + 1):
        content = f"{number:4}  {escape(text[number - 1])}"
        shown.append(f'<span class="at">{content}</span>' if number == line else content + "\n")
    return f"<pre>{''.join(shown)}</pre>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{one}</th>" for one in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
