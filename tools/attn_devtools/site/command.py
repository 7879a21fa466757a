"""`attn-course site`: the course as a static site, which opens from disk and needs no network."""

import time
from importlib.util import find_spec

from kernelscope.cli.arguments import natural, printer, write_json
from kernelscope.errors import InputError

from attn_course.cli.arguments import output_folder
from attn_course.cli.course.lessons import lesson_name
from attn_course.lessons.working_copy import lessons


def add(parsers) -> None:
    parser = parsers.add_parser(
        "site",
        help="write the course as a static site: lessons, kernels, glossary, documents",
        description="Writes the executed lessons, a page with source, counters and a stepper for "
        "every kernel, the glossary and the documents as HTML that opens from disk, and checks "
        "every link. Exit status 1 where a link leads nowhere, or a kernel disagrees with float64.",
    )
    parser.add_argument(
        "--folder", type=output_folder, default="site", help="where to write (default: site)"
    )
    parser.add_argument(
        "--lesson",
        action="append",
        metavar="NAME",
        help="only this lesson, by its name or number; can be repeated",
    )
    parser.add_argument(
        "--kernel", action="append", metavar="NAME", help="only this kernel; can be repeated"
    )
    parser.add_argument(
        "--workers",
        type=natural,
        default=2,
        metavar="N",
        help="processes that run kernels and write pages (default 2)",
    )


def execute(arguments) -> int:
    if not find_spec("myst_nb"):
        raise InputError("the site needs Sphinx: `make site`, or pip install 'attn-course[site]'")
    from attn_devtools.site import build_site  # takes long to import

    start = time.perf_counter()
    found = lessons()
    only = arguments.lesson and [lesson_name(name, found) for name in arguments.lesson]
    report = build_site(arguments.folder, only, arguments.kernel, arguments.workers)
    seconds = time.perf_counter() - start
    say, size = printer(arguments.json), sum(report.pages.values()) / 1e6
    say("\n".join(report.faults), end="\n" if report.faults else "")
    say(
        f"site: {len(report.pages)} pages, {size:.1f} MB, {len(report.faults)} faults, "
        f"{seconds:.0f} s; open {arguments.folder / 'index.html'}"
    )
    record = {"folder": str(arguments.folder), "pages": report.pages, "faults": report.faults}
    write_json(arguments.json, record)
    return 1 if report.faults else 0
