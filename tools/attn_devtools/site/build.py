"""The site: the course's files laid out for Sphinx, which makes the pages and checks the links."""

import io
import multiprocessing
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from kernelscope.errors import InputError, did_you_mean
from kernelscope.watch import DESCRIPTIONS
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from attn_course.folders import course_folder
from attn_course.lessons.working_copy import GLOSSARY, NOTEBOOKS, Lesson, lessons
from attn_devtools.questions import question_of

from . import kernels, published
from .lessons import page_glossary, page_notebook
from .runs import KernelRun, kernel_run, shown_steps

ROOM = Path(__file__).parent
MARK = ".attn-course-site"  # stands in a folder that a build made, and may therefore replace
PICTURE = "attention_window_0.png"
DOCUMENTS = ("docs", "kernelscope/docs")
WORKERS = 2
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


@dataclass
class SiteReport:
    """A built site: its folder, its pages by place with their bytes, and its faults in words.

    A fault is a link that leads nowhere, another warning of Sphinx's, or a kernel that disagrees
    with float64.
    """

    folder: Path
    pages: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def build_site(
    folder: Path,
    only_lessons: Collection[str] | None = None,
    only_kernels: Collection[str] | None = None,
    workers: int = WORKERS,
) -> SiteReport:
    """Write the site into a folder and check all its links.

    folder: new, empty, or made by an earlier build, which is replaced.
    only_lessons, only_kernels: names such as "02_threads_blocks_tiles", "01_scores_naive" and
    "include/tile"; all where None. A link to a page that is left out becomes text.
    workers: processes that run kernels and write pages; 0: none beside this one.

    Raises ValueError for a folder that holds other files, or an unknown name.
    """
    every = {lesson.name: lesson for lesson in lessons()}
    shown = [every[name] for name in chosen(every, only_lessons, "lesson")]
    pages = {file.rpartition(".")[0]: file for file in kernels.kernel_files()}
    files = [pages[name] for name in chosen(pages, only_kernels, "kernel")]
    run = [step.file for step in shown_steps() if f"{step.file}.cu" in files]
    report = SiteReport(Path(folder))
    prepare(report.folder)
    with TemporaryDirectory() as temporary:
        source = SiteSource(Path(temporary, "source"))
        runs = kernel_runs(run, workers)
        source.write_lessons(shown)
        source.write_kernels(files, runs, shown)
        source.write_documents()
        source.write_index(shown, len(run))
        report.faults += [f"{name} {runs[name].verdict}" for name in run if not runs[name].agrees]
        report.faults += run_sphinx(source.folder, report.folder, workers)
    if published.is_published():
        write_colab_copies(report.folder / "colab", shown)
    for path in sorted(report.folder.rglob("*.html")):
        if "_static" not in path.parts:
            report.pages[path.relative_to(report.folder).as_posix()] = path.stat().st_size
    return report


def chosen(known: Iterable[str], wanted: Collection[str] | None, what: str) -> list[str]:
    """Return the wanted names in the order of the known ones. ValueError: an unknown name."""
    names = list(known)
    if wanted is None:
        return names
    if unknown := sorted(set(wanted) - set(names)):
        near = did_you_mean(unknown[0], names)
        raise InputError(f"no {what} {unknown[0]!r}{near}; there are: {', '.join(names)}")
    return [name for name in names if name in wanted]


def prepare(folder: Path) -> None:
    """Make the folder, empty. ValueError: it holds files that are not of a site."""
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / MARK).is_file():
            raise InputError(
                f"{str(folder)!r} holds files that are not of a site: choose another folder, or "
                "empty it"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text("made by `attn-course site`\n", encoding="utf-8")
    (folder / ".nojekyll").write_text("", encoding="utf-8")


def kernel_runs(names: Collection[str], workers: int) -> dict[str, KernelRun]:
    """Return the runs of kernels by file, made by worker processes."""
    if not workers:
        return {name: kernel_run(name) for name in names}
    context = multiprocessing.get_context("spawn")  # NVRTC's server does not survive a fork
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        return dict(zip(names, pool.map(kernel_run, names), strict=True))


def run_sphinx(source: Path, folder: Path, workers: int) -> list[str]:
    """Build the pages into a folder; return Sphinx's warnings, a line each."""
    warnings = io.StringIO()
    streams = {"status": None, "warning": warnings}
    made, read = source.parent / "made", source.parent / "read"  # MyST-NB writes beside the former
    with patch_docutils(), docutils_namespace():
        app = Sphinx(source, ROOM, made, read, "html", parallel=max(1, workers), **streams)
        app.build()
    shutil.copytree(made, folder, dirs_exist_ok=True)
    text = _COLOUR.sub("", warnings.getvalue()).replace(f"{source.resolve()}/", "")
    return text.splitlines()


def write_colab_copies(folder: Path, shown: Iterable[Lesson]) -> None:
    """Write the notebooks that Colab opens."""
    folder.mkdir()
    for lesson in shown:
        text = published.colab_notebook(notebook(lesson).read_text(encoding="utf-8"))
        (folder / f"{lesson.name}.ipynb").write_text(text, encoding="utf-8")


class SiteSource:
    """The folder that Sphinx reads: files at their places in the course, and pages from templates.

    A kernel's page stands beside where the kernel is, so that links between files hold.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.templates = Environment(
            loader=FileSystemLoader(ROOM / "templates"),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters["md"] = escaped

    def write(self, place: str, text: str) -> None:
        path = self.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def page(self, place: str, template: str, **values) -> None:
        """Write a page of a template, `kernel` for `templates/kernel.md.j2`."""
        self.write(place, self.templates.get_template(f"{template}.md.j2").render(**values))

    def write_lessons(self, shown: Iterable[Lesson]) -> None:
        """Write the lessons, their list and the glossary."""
        for lesson in shown:
            text = page_notebook(notebook(lesson).read_text(encoding="utf-8"))
            self.write(f"notebooks/{lesson.name}.ipynb", text)
        self.page("notebooks/index.md", "list", title="Lessons", pages="[0-9]*")
        glossary = (NOTEBOOKS / GLOSSARY).read_text(encoding="utf-8")
        self.write(f"notebooks/{GLOSSARY}", page_glossary(glossary))

    def write_kernels(
        self, files: Iterable[str], runs: Mapping[str, KernelRun], shown: Iterable[Lesson]
    ) -> None:
        """Write a page for each kernel, one for the steps of each run, and their list."""
        texts = {
            one: (NOTEBOOKS / f"{one.name}.ipynb").read_text(encoding="utf-8") for one in shown
        }
        groups: dict[str, list[dict]] = {heading: [] for heading in kernels.GROUPS.values()}
        for file in files:
            facts = kernels.kernel_facts(file)
            name, run = facts["name"], runs.get(file.removesuffix(".cu"))
            word = re.compile(rf"\b{re.escape(Path(name).name)}\b")
            used = [(one.title, one.name) for one, text in texts.items() if word.search(text)]
            facts |= {"run": run, "lessons": used, "meanings": DESCRIPTIONS}
            self.page(f"kernels/{name}.md", "kernel", **facts)
            if run:
                self.page(f"kernels/{name}.steps.md", "steps", name=name, run=run)
            groups[kernels.GROUPS[file.rpartition("/")[0]]].append(facts)
        listed = [(heading, rows) for heading, rows in groups.items() if rows]
        self.page("kernels/index.md", "kernels", groups=listed)

    def write_documents(self) -> None:
        """Copy the documents of the course and of the engine, and write their list."""
        for name in DOCUMENTS:
            shutil.copytree(course_folder(name), self.folder / name)
        pages = "\n".join(f"/{name}/*" for name in DOCUMENTS)
        self.page("docs/index.md", "list", title="Documents", pages=pages)

    def write_index(self, shown: Iterable[Lesson], kernel_count: int) -> None:
        self.page(
            "index.md",
            "index",
            lessons=shown,
            question_of=question_of,
            kernels=kernel_count,
            elsewhere=published.elsewhere,
            picture=PICTURE if (course_folder("docs") / PICTURE).is_file() else "",
        )


def notebook(lesson: Lesson) -> Path:
    """Return the file of a lesson."""
    return NOTEBOOKS / f"{lesson.name}.ipynb"


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#$|~])", r"\\\1", text)
