"""Counts beside the source: a table in a notebook, aligned text in a terminal."""

import html
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernelscope.ptx.demangle import demangle

from ...errors import UnknownNameError

# Head of a column, the counter it shows, and the counter whose mean a request stands beside it.
_SHOWN = (
    ("instructions", "instructions", None),
    ("tensor cores", "tensor_instructions", None),
    ("wgmma bytes", "wgmma_shared_bytes", None),
    ("global loads x sectors", "global_load_requests", "global_load_sectors"),
    ("global stores x sectors", "global_store_requests", "global_store_sectors"),
    ("shared loads x wavefronts", "shared_load_requests", "shared_load_wavefronts"),
    ("conflicts", "shared_load_conflicts", None),
    ("merged", "shared_loads_merged", None),
    ("shared stores x wavefronts", "shared_store_requests", "shared_store_wavefronts"),
    ("conflicts", "shared_store_conflicts", None),
    ("merged", "shared_stores_merged", None),
    ("async copies", "async_copy_requests", None),
    ("bulk copies", "bulk_copy_requests", None),
    ("cluster", "cluster_shared_requests", None),
    ("atomics", "atomic_requests", None),
    ("barriers", "barriers", None),
    ("branches", "branches", None),
    ("divergent", "divergent_branches", None),
)
_SOURCE_WIDTH = (56, 64)  # characters of source text in it, least and most
# Heads wrap, and source lines take the room that the counts leave: the counts are what is read.
_STYLE = (
    "<style>.counts th{font-size:11px;white-space:normal;vertical-align:bottom;padding:1px 3px}"
    ".counts th.source{min-width:20ch}.counts td{font-size:11px;text-align:right;"
    "font-family:monospace;white-space:pre;padding:1px 3px}"
    ".counts td.source{text-align:left;width:100%;max-width:0;overflow:hidden;"
    "text-overflow:ellipsis}.counts .idle{opacity:.55}</style>"
)


@dataclass(frozen=True)
class Line:
    """One source line: its number (0: no line of this file), text, and counter name -> count."""

    number: int
    text: str
    counts: Mapping[str, int]

    def __getitem__(self, name: str) -> int:
        return self.counts[name]

    def per_request(self, name: str) -> float:
        """A sector or wavefront counter divided by its requests; NaN where there are none."""
        requests = self.counts[name.rsplit("_", 1)[0] + "_requests"]
        return self.counts[name] / requests if requests else float("nan")


@dataclass(frozen=True)
class KernelLines:
    """One kernel's counts. totals: counter -> count; lines: line number -> counter -> count."""

    kernel: str
    source_name: str
    source_lines: tuple[str, ...]
    build: str
    launches: int
    totals: dict[str, int]
    lines: dict[int, dict[str, int]]

    def line(self, number: int) -> Line:
        known = 0 < number <= len(self.source_lines)
        return Line(number, self.source_lines[number - 1] if known else "", self.lines[number])

    def shown(self) -> list[tuple[int, str, dict[str, int] | None]]:
        """(number, text, counts or None) from the first counted line to the last."""
        counted = [number for number in self.lines if number]
        rows = [(0, "(no source line)", self.lines[0])] if 0 in self.lines else []
        for number in range(min(counted, default=1), max(counted, default=0) + 1):
            known = number <= len(self.source_lines)
            text = self.source_lines[number - 1] if known else ""
            rows.append((number, text, self.lines.get(number)))
        return rows


def _cell(counts: Mapping[str, int], name: str, each: str | None) -> str:
    if not counts[name]:
        return ""
    return f"{counts[name]:,}" + (f" x {counts[each] / counts[name]:.3g}" if each else "")


class LineTable(Mapping):
    """Source line -> :class:`Line`, for the kernels of one observation.

    Keys are (source name, line number) pairs; `table[27]` also works where one file alone has
    counts on line 27. Kernels of one file add up. `text()` and a notebook show the source.
    """

    def __init__(self, kernels: tuple[KernelLines, ...]):
        self.kernels = kernels
        self._lines: dict[tuple[str, int], Line] = {}
        for kernel in kernels:
            for number in kernel.lines:
                key, line = (kernel.source_name, number), kernel.line(number)
                if key in self._lines:
                    old = self._lines[key].counts
                    line = Line(number, line.text, {n: old[n] + c for n, c in line.counts.items()})
                self._lines[key] = line

    def __getitem__(self, key) -> Line:
        if isinstance(key, tuple):
            return self._lines[key]
        found = [line for (_, number), line in self._lines.items() if number == key]
        if len(found) == 1:
            return found[0]
        files = sorted({name for name, _ in self._lines})
        if found:
            raise UnknownNameError(
                f"line {key} is in several files: ask for (file, {key}), of {files}"
            )
        raise UnknownNameError(f"nothing was counted on line {key} of {files}")

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def rows(self) -> list[Line]:
        """The counted lines, kernel by kernel in the order of their first launch."""
        return list(self._lines.values())

    # -- reports --------------------------------------------------------------------------------
    def __str__(self) -> str:
        return self.text()

    def text(self, columns: int = 120) -> str:
        """Every kernel's source with its counts beside it, in lines of at most so many columns."""
        return "\n\n".join(_text(kernel, columns) for kernel in self.kernels) or "no kernel ran"

    def _repr_html_(self) -> str:
        return _STYLE + ("".join(_html(kernel) for kernel in self.kernels) or "no kernel ran")


def _title(kernel: KernelLines) -> str:
    launches = "1 launch" if kernel.launches == 1 else f"{kernel.launches} launches"
    name = kernel.source_name.replace("\\", "/").rsplit("/", 1)[-1]
    text = f"{demangle(kernel.kernel)} ({name}), {launches}"
    text += f", counted on the simulator, {kernel.build} build"
    for kind in ("load", "store"):
        merged = kernel.totals[f"shared_{kind}s_merged"]
        if merged:
            asked = merged + kernel.totals[f"shared_{kind}_requests"]
            text += f"; of {asked:,} shared {kind}s {merged:,} were merged into wider ones"
    return text


def _table(kernel: KernelLines) -> tuple[list[str], list[list[str]]]:
    """Heads, and a row of cells for each line: number, source, counts; the totals come last."""
    columns = [column for column in _SHOWN if kernel.totals[column[1]]]
    heads = ["line", "source", *(head for head, _, _ in columns)]
    rows = []
    for number, source, counts in kernel.shown():
        cells = [_cell(counts, name, each) if counts else "" for _, name, each in columns]
        rows.append([str(number or ""), source, *cells])
    totals = [_cell(kernel.totals, name, each) for _, name, each in columns]
    return heads, [*rows, ["", "(all lines)", *totals]]


def _text(kernel: KernelLines, columns: int) -> str:
    heads, rows = _table(kernel)
    split = [[*head.split(" x ", 1), ""][:2] for head in heads]  # "a x b" over two lines
    top = [[head for head, _ in split], [f"x {tail}" if tail else "" for _, tail in split]]
    widths = [max(len(row[i]) for row in (*top, *rows)) for i in range(len(heads))]
    room = columns - widths[0] - sum(2 + width for width in widths[2:]) - 2
    least = min(_SOURCE_WIDTH[0], columns // 2)
    widths[1] = min(widths[1], max(least, min(_SOURCE_WIDTH[1], room)))
    lines = textwrap.wrap(_title(kernel), columns)
    for part in _parts(widths, columns):
        shown = rows
        if part[2] > 2:  # the rest of the columns: only lines that have one of them
            shown = [row for row in rows if any(row[i] for i in part[2:])]
            lines.append("")
        for row in (*top, *shown):
            lines.append("  ".join(_placed(row[i], widths[i], i == 1) for i in part).rstrip())
    return "\n".join(lines)


def _parts(widths: list[int], columns: int) -> Iterator[list[int]]:
    """Columns of counts that fit beside the source, group by group, with the first two columns."""
    part = [0, 1]
    for column in range(2, len(widths)):
        if sum(2 + widths[i] for i in (*part, column)) - 2 > columns and len(part) > 2:
            yield part
            part = [0, 1]
        part.append(column)
    if len(part) > 2:
        yield part


def _placed(cell: str, width: int, is_source: bool) -> str:
    if not is_source:
        return cell.rjust(width)
    if len(cell) > width:
        cell = cell.split("  //")[0]
    return (cell if len(cell) <= width else cell[: width - 3] + "...").ljust(width)


def _html(kernel: KernelLines) -> str:
    heads, rows = _table(kernel)
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in heads)
    head = head.replace("<th>source", '<th class="source">source', 1)
    lines = []
    for number, code, *counts in rows:
        idle = "" if any(counts) else ' class="idle"'
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in counts)
        whole = f'title="{html.escape(code.strip())}"'
        text = f'<td class="source" {whole}>{html.escape(code)}</td>'
        lines.append(f"<tr{idle}><td>{number}</td>{text}{cells}</tr>")
    return (
        '<div style="overflow-x:auto"><table class="counts">'
        f"<caption>{html.escape(_title(kernel))}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
