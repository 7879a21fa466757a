"""What a kernel's page tells of its file: header, constants, source and the change it makes."""

import re
from dataclasses import asdict
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import CudaLexer

from attn_course.ladder.headers import (
    KERNEL_FOLDER,
    HeaderError,
    field_title,
    read_constants,
    read_header,
)
from attn_course.lessons.show import show_diff

GROUPS = {  # folder below kernels/ -> its heading
    "": "The ladder and the layers",
    "include": "Device helpers",
    "experiments": "Experiments",
    "broken": "Broken kernels",
    "broken/clean": "Their clean twins",
    "probes": "Probes",
}
_INCLUDE = re.compile(r'#include "(include/[\w.]+)"')


def kernel_files() -> list[str]:
    """Return all files of kernels/ that get a page, in the order of GROUPS."""
    found = []
    for group in GROUPS:
        paths = (KERNEL_FOLDER / group).glob("*.cu*")
        found += sorted(path.relative_to(KERNEL_FOLDER).as_posix() for path in paths)
    return found


def kernel_facts(file: str) -> dict:
    """Return what the template `kernel.md.j2` shows of a file, but for its run and its lessons."""
    path = KERNEL_FOLDER / file
    text = path.read_text(encoding="utf-8")
    name = file.rpartition(".")[0]
    fields, before = header_fields(path)
    idea = fields.pop("Idea", "") or next(iter(fields.values()), "")
    return {
        "name": name,
        "idea": idea,
        "fields": fields,
        "constants": read_constants(path) if path.suffix == ".cu" and fields else {},
        "includes": _INCLUDE.findall(text),
        "source": source_html(text),
        "lines": len(text.splitlines()),
        "before": before,
        "diff": show_diff(before[:-3], name, context=3).text if before else "",
    }


def header_fields(path: Path) -> tuple[dict[str, str], str]:
    """Return the fields of a file's header, and the file that it changes from, or ""."""
    try:
        header = read_header(path)
    except HeaderError:  # headers of device helpers and broken kernels have fields of their own
        return loose_fields(path.read_text(encoding="utf-8")), ""
    fields = {field_title(name): value for name, value in asdict(header).items() if value}
    before = (path.parent / header.changes_from).resolve()
    known = header.changes_from.endswith(".cu") and before.is_file()
    return fields, before.relative_to(KERNEL_FOLDER.resolve()).as_posix() if known else ""


def loose_fields(text: str) -> dict[str, str]:
    """Return the fields `// Name: text` of a file's first comment, with lines that continue."""
    fields: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        if found := re.match(r"//\s?([A-Z][A-Za-z ]*?):\s+(\S.*)", line):
            name, fields[found[1]] = found[1], found[2]
        elif name:
            fields[name] += " " + line[2:].strip()
    return fields


def source_html(text: str) -> str:
    """Return CUDA C as HTML: every line number is an anchor, `line-12`, and a link to itself."""
    style = HtmlFormatter(linenos="table", anchorlinenos=True, lineanchors="line", wrapcode=True)
    return highlight(text, CudaLexer(stripnl=False), style)
