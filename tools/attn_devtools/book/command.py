"""`attn-course book`: the benchmark book, figures and tables drawn from the records."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

from kernelscope.cli.arguments import printer, write_json
from kernelscope.errors import InputError

from attn_course import figures
from attn_course.cli.arguments import output_folder
from attn_course.measure.records import RESULTS_FOLDER, no_record
from attn_devtools import book

SHOWN = 5  # of the course's candidates in a figure; with more, only MAIN_METHODS
COLUMNS = 84  # of a caption
LABEL = 30  # letters of a line of a row's label
MAIN_METHODS = ("naive", "three_kernels", "tiled", "flash_fp32", "auto")


def add(parsers) -> None:
    parser = parsers.add_parser(
        "book",
        help="draw the benchmark book from the records: figures as PNG and SVG, and an index",
        description="Draws times, ratios to the best peer, rates, growth with batch and length, a "
        "summary of each suite, and every kernel under the roofs of its GPU, from the records of "
        "results/. Needs no GPU. A suite without a record is named, with the command for it.",
    )
    parser.add_argument(
        "--folder", type=output_folder, default="book", help="where to write (default: book/)"
    )
    parser.add_argument(
        "--records",
        type=Path,
        default=RESULTS_FOLDER,
        metavar="DIR",
        help="folder of records (default: results/)",
    )


def execute(arguments) -> int:
    """Run `book`; 0, or 1 where there is no record at all."""
    if not arguments.records.is_dir():
        raise InputError(f"--records {arguments.records}: there is no such folder")
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    lines, drawn, missing = ["# The benchmark book", ""], [], []
    for suite in (*book.ATTENTION, *book.LAYERS):
        record = book.newest(suite, arguments.records)
        if record is None:
            missing.append(suite)
            lines += [f"## {suite}", "", f"{no_record(suite)}.", ""]
            continue
        page = book.page_of(record)
        lines += [f"## {suite}", "", f"{page.about}; {page.source}.", "", *markdown(page), ""]
        for name, alt, figure in pages(record, page):
            drawn.append(save(folder, f"{suite}_{name}", figure))
            lines += [f"![{alt}]({drawn[-1]}.png)", ""]
    ladder = book.newest(book.LADDER, arguments.records)
    if ladder:
        points, roofs = book.under_the_roof(ladder, arguments.records)
        drawn.append(save(folder, "roofline", figures.roofline(points, **roofs)))
        alt = f"Rates under their roofs: {', '.join(points)}"
        lines += ["## Roofline", "", roofs["source"], "", f"![{alt}]({drawn[-1]}.png)", ""]
    else:
        missing.append(book.LADDER)
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")
    say = printer(arguments.json)
    say(f"{len(drawn)} figures, each as PNG and SVG, and README.md in {folder}")
    for suite in missing:
        say(f"{suite}: {no_record(suite)}")
    write_json(arguments.json, {"folder": str(folder), "figures": drawn, "missing": missing})
    return 0 if drawn else 1


def save(folder: Path, name: str, figure) -> str:
    """Write a figure as PNG and SVG; return its name."""
    for suffix in ("png", "svg"):
        figure.savefig(folder / f"{name}.{suffix}")
    return name


def pages(record: dict, page: book.Page) -> Iterator[tuple[str, str, object]]:
    """Yield name, description and figure, one by one, of a suite."""
    from attn_devtools.book import drawing  # matplotlib: `attn-course --help` loads this module

    shown, source = candidates(page), textwrap.fill(page.source, COLUMNS)
    labels = [textwrap.fill(label, LABEL) for label in page.shapes]
    times = page.with_best_baseline(shown)
    rows = "input" if page.suite in book.LAYERS else "(B, H, L, D)"
    yield (
        "times",
        f"Times of {', '.join(times)} by shape",
        figures.times_by_shape(labels, times, source=source, title=page.suite, rows=rows),
    )
    over = {name: row for name, row in page.over_best_baseline().items() if name in shown}
    if page.baselines:
        yield (
            "speedups",
            "Speed relative to the best peer, by shape",
            drawing.ratios(labels, over, to="the best peer", source=source, title=page.suite),
        )
    counted = "\n".join(filter(None, (textwrap.fill(page.counted, COLUMNS), source)))
    if panels := page.rates(shown):
        yield (
            "efficiency",
            f"{' and '.join(panels)} by shape",
            drawing.rates(labels, panels, source=counted, title=page.suite),
        )
    if page.suite == "seeds_fp32":
        grown = {
            "batch size, 128 tokens": (book.BATCHES, 0),
            "tokens, batch size 4": (book.LENGTHS, 2),
        }
        sizes = {
            what: ([shape[axis] for shape in shapes], book.growth(page, shapes, shown))
            for what, (shapes, axis) in grown.items()
        }
        yield (
            "scaling",
            "Time against batch size and against length",
            drawing.scaling(sizes, source=source, title="How time grows"),
        )
    yield (
        "summary",
        "The best of ours beside the best peer",
        drawing.summary(*summary(page), source=source),
    )


def candidates(page: book.Page) -> list[str]:
    """Return the course's candidates that a figure shows: all, or of many the baselines."""
    ours = [name for name in page.times if name not in page.baselines]
    return [name for name in ours if name in MAIN_METHODS] if len(ours) > SHOWN else ours


def summary(page: book.Page) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows: a shape, the best of ours and of the baselines, and the ratio."""
    heads = ["shape", "ours", "us", "best peer", "us", "speed, peer = 1"]
    ours = [name for name in page.times if name not in page.baselines]
    rows = []
    for at, shape in enumerate(page.shapes):
        mine, theirs = (fastest(page, names, at) for names in (ours, page.baselines))
        ratio = f"{theirs[1] / mine[1]:.2f}" if mine and theirs else "-"
        cells = (
            (found[0], f"{found[1]:,.2f}") if found else ("none", "-") for found in (mine, theirs)
        )
        rows.append([shape, *(cell for pair in cells for cell in pair), ratio])
    return heads, rows


def fastest(page: book.Page, names, at: int) -> tuple[str, float] | None:
    """Return the fastest of some candidates in a row and its time, None where none ran."""
    ran = [(page.times[name][at], name) for name in names if page.times[name][at] is not None]
    return (min(ran)[1], min(ran)[0]) if ran else None


def markdown(page: book.Page) -> list[str]:
    """Return the summary as lines of a Markdown table."""
    heads, rows = summary(page)
    lines = [heads, ["---", "---", "--:", "---", "--:", "--:"], *rows]
    return [f"| {' | '.join(line)} |" for line in lines]
