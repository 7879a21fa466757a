"""The kernels' pages: header, constants, source, counters and steps."""

import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from attn_course.ladder.headers import (
    KERNEL_FOLDER,
    HeaderError,
    field_title,
    read_constants,
    read_header,
)
from attn_course.lessons.show import show_diff

from .markdown import SiteMap, highlighted, relative

GROUPS = {  # folder below kernels/ -> its heading
    "": "The ladder and the layers",
    "include": "Device helpers",
    "experiments": "Experiments",
    "broken": "Broken kernels",
    "broken/clean": "Their clean twins",
    "probes": "Probes",
}
_INCLUDE = re.compile(r'(<span class="cpf">&quot;)(include/[\w.]+)(&quot;</span>)')


def kernel_files() -> list[str]:
    """Return all files of kernels/ that get a page, in the order of GROUPS."""
    found = []
    for group in GROUPS:
        paths = (KERNEL_FOLDER / group).glob("*.cu*")
        found += sorted(path.relative_to(KERNEL_FOLDER).as_posix() for path in paths)
    return found


def page_of(file: str) -> str:
    """'include/tile.cuh' -> 'kernels/include/tile.html'."""
    return f"kernels/{file.rpartition('.')[0]}.html"


def steps_page(file: str) -> str:
    """'01_scores_naive.cu' -> 'kernels/01_scores_naive.steps.html'."""
    return f"kernels/{file.rpartition('.')[0]}.steps.html"


def kernel_facts(file: str, site: SiteMap, lessons: Iterable[tuple[str, str, str]]) -> dict:
    """Return what the template `kernel.html.j2` shows of a file, but for its run.

    lessons: (title, page, text) of every lesson; those that name the kernel are listed.
    """
    path, page, file_in_course = KERNEL_FOLDER / file, page_of(file), f"kernels/{file}"
    text = path.read_text(encoding="utf-8")
    name = file.rpartition(".")[0]
    fields, before = header_fields(path)
    used = re.compile(rf"\b{re.escape(Path(name).name)}\b")
    return {
        "name": name,
        "fields": fields,
        "constants": read_constants(path) if path.suffix == ".cu" and fields else {},
        "source": source_html(text, file, site),
        "lines": len(text.splitlines()),
        "before": (before, site.address(relative(before, file), file_in_course, page))
        if before
        else None,
        "diff": highlighted(show_diff(before[:-3], name, context=3).text, "diff") if before else "",
        "lessons": [
            (title, relative(place, page)) for title, place, text in lessons if used.search(text)
        ],
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


def source_html(text: str, file: str, site: SiteMap) -> str:
    """Return CUDA C as HTML: every line an anchor, an included header a link to its page."""
    body = highlighted(
        text, "cuda", linenos="table", anchorlinenos=True, lineanchors="line", wrapcode=True
    )
    page = page_of(file)

    def linked(found: re.Match) -> str:
        target = site.pages.get(f"kernels/{found[2]}")
        if target is None:
            return found[0]
        return f'{found[1]}<a href="{relative(target, page)}">{found[2]}</a>{found[3]}'

    return _INCLUDE.sub(linked, body)
