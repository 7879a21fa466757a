"""The site: which pages there are, how each is made, and the check of all links."""

import json
import multiprocessing
import shutil
from collections.abc import Collection, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from kernelscope.watch import DESCRIPTIONS

from attn_course.folders import course_folder, home
from attn_course.lessons.working_copy import GLOSSARY, NOTEBOOKS, Lesson, lessons

from . import kernels, markdown, published
from .lessons import TEMPLATES, lesson_body
from .pages import BrokenLink, ReadPage, check_links, read_page, search_index
from .runs import KernelRun, kernel_run, shown_steps

ASSETS = Path(__file__).parent / "assets"
MARK = ".attn-course-site"  # stands in a folder that a build made, and may therefore replace
PARTS = (
    ("Lessons", "index.html"),
    ("Kernels", "kernels/index.html"),
    ("Glossary", "glossary.html"),
    ("Engine", "docs/engine.html"),
)
PICTURE = "attention_window_0.png"
WORKERS = 2
_CONTENTS_LEVELS = (2, 3)


@dataclass
class SiteReport:
    """A built site: its folder, its pages by place with their bytes, what is broken."""

    folder: Path
    pages: dict[str, int] = field(default_factory=dict)
    broken: list[BrokenLink] = field(default_factory=list)
    disagreeing: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether every link leads somewhere and every kernel agreed with float64."""
        return not self.broken and not self.disagreeing


def build_site(
    folder: Path,
    only_lessons: Collection[str] | None = None,
    only_kernels: Collection[str] | None = None,
    workers: int = WORKERS,
) -> SiteReport:
    """Write the site into a folder and check all its links.

    folder: new, empty, or made by an earlier build, which is replaced.
    only_lessons, only_kernels: names such as "02_threads_blocks_tiles" and "01_scores_naive"; all
    where None. A link to a page that is left out becomes text.
    workers: processes that run kernels; 0: none beside this one.

    Raises ValueError for a folder that holds other files, or an unknown name.
    """
    builder = _Builder(Path(folder), only_lessons, only_kernels)
    builder.prepare()
    files = [f"{step.file}.cu" for step in builder.steps]
    if not workers:
        builder.write_lessons()
        builder.write_rest({file: kernel_run(file[:-3]) for file in files})
    else:
        context = multiprocessing.get_context("spawn")  # NVRTC's server does not survive a fork
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            found = pool.map(kernel_run, [file[:-3] for file in files])
            builder.write_lessons()  # meanwhile
            builder.write_rest(dict(zip(files, found, strict=True)))
    return builder.finish()


def chosen(known: Iterable[str], wanted: Collection[str] | None, what: str) -> list[str]:
    """Return the wanted names in the order of the known ones. ValueError: an unknown name."""
    names = list(known)
    if wanted is None:
        return names
    if unknown := sorted(set(wanted) - set(names)):
        raise ValueError(f"no {what} {unknown[0]!r}; there are: {', '.join(names)}")
    return [name for name in names if name in wanted]


class _Builder:
    """One build: the plan of the pages, then the pages, then their check."""

    def __init__(self, folder: Path, only_lessons, only_kernels):
        self.folder = folder
        every = {lesson.name: lesson for lesson in lessons()}
        self.lessons: list[Lesson] = [every[n] for n in chosen(every, only_lessons, "lesson")]
        steps = {step.file: step for step in shown_steps()}
        self.steps = [steps[name] for name in chosen(steps, only_kernels, "kernel")]
        kept = {f"{step.file}.cu" for step in self.steps}
        left_out = {f"{name}.cu" for name in steps} - kept
        self.kernel_files = [file for file in kernels.kernel_files() if file not in left_out]
        folders = (course_folder("docs"), course_folder("kernelscope/docs"))
        documents = [path for folder in folders for path in folder.glob("*.md")]
        self.documents = sorted(documents, key=lambda path: path.name)
        pages = {f"notebooks/{GLOSSARY}": "glossary.html", "README.md": "index.html"}
        pages |= {f"notebooks/{one.name}.ipynb": _lesson_page(one) for one in self.lessons}
        pages |= {f"kernels/{file}": kernels.page_of(file) for file in self.kernel_files}
        pages |= {
            path.relative_to(home()).as_posix(): f"docs/{path.stem}.html" for path in self.documents
        }
        self.site = markdown.SiteMap(home(), pages)
        self.templates = Environment(
            loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, autoescape=True
        )
        self.report = SiteReport(folder)
        self.read: dict[str, ReadPage] = {}

    def prepare(self) -> None:
        """Make the folder, empty, with the assets."""
        if self.folder.is_dir() and any(self.folder.iterdir()):
            if not (self.folder / MARK).is_file():
                raise ValueError(
                    f"{str(self.folder)!r} holds files that are not of a site: choose another "
                    "folder, or empty it"
                )
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / MARK).write_text("made by `attn-course site`\n", encoding="utf-8")
        (self.folder / ".nojekyll").write_text("", encoding="utf-8")
        shutil.copytree(ASSETS, self.folder / "assets")
        with (self.folder / "assets" / "site.css").open("a", encoding="utf-8") as style:
            style.write(markdown.highlight_css())
        picture = course_folder("docs") / PICTURE
        if picture.is_file():
            shutil.copyfile(picture, self.folder / "assets" / PICTURE)

    # -- pages -------------------------------------------------------------------------------------
    def write_rest(self, runs: dict[str, KernelRun]) -> None:
        """Write all pages but the lessons; runs: of the kernels that have one, by file."""
        self.write_kernels(runs)
        self.write_documents()
        self.write_index()

    def page(self, place: str, title: str, body: str, part: str = "", **more) -> None:
        """Write a page with the site's frame around its body, and read it back."""
        contents = [one for one in more.pop("contents", ()) if one[0] in _CONTENTS_LEVELS]
        values = {"before": None, "after": None, "broad": False} | more
        text = self.templates.get_template("page.html.j2").render(
            title=title,
            body=body,
            part=part,
            parts=PARTS,
            contents=contents,
            root="../" * place.count("/"),
            **values,
        )
        path = self.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        self.report.pages[place] = len(text.encode())
        self.read[place] = read_page(text)

    def write_lessons(self) -> None:
        words = markdown.glossary_words((NOTEBOOKS / GLOSSARY).read_text(encoding="utf-8"))
        pages = [(one.title, _lesson_page(one)) for one in self.lessons]
        for number, lesson in enumerate(self.lessons):
            path, place = NOTEBOOKS / f"{lesson.name}.ipynb", _lesson_page(lesson)
            source = f"notebooks/{path.name}"
            body, renderer = lesson_body(path, source, place, self.site, words)
            self.page(
                place,
                lesson.title,
                body,
                "Lessons",
                contents=renderer.contents,
                **_neighbours(pages, number, place),
            )
            if published.is_published():
                notebook = published.colab_notebook(path.read_text(encoding="utf-8"))
                target = self.folder / "colab" / path.name
                target.parent.mkdir(exist_ok=True)
                target.write_text(notebook, encoding="utf-8")

    def write_kernels(self, runs: dict[str, KernelRun]) -> None:
        texts = [
            (one.title, _lesson_page(one), _sources(NOTEBOOKS / f"{one.name}.ipynb"))
            for one in self.lessons
        ]
        template = self.templates.get_template("kernel.html.j2")
        listed: dict[str, list[dict]] = {}
        pages = [(file.rpartition(".")[0], kernels.page_of(file)) for file in self.kernel_files]
        for number, file in enumerate(self.kernel_files):
            facts = kernels.kernel_facts(file, self.site, texts)
            run, place = runs.get(file), kernels.page_of(file)
            steps = kernels.steps_page(file) if run else None
            facts |= {"run": run, "steps": steps and markdown.relative(steps, place)}
            totals = run.totals.items() if run else ()
            facts["counters"] = [(one, f"{count:,}", DESCRIPTIONS[one]) for one, count in totals]
            self.page(
                place,
                facts["name"],
                template.render(**facts),
                "Kernels",
                broad=True,
                **_neighbours(pages, number, place),
            )
            row = {"name": facts["name"], "idea": facts["fields"].get("Idea", "")}
            row["idea"] = row["idea"] or next(iter(facts["fields"].values()), "")
            row |= {"page": markdown.relative(place, "kernels/"), "steps": steps and steps[8:]}
            listed.setdefault(file.rpartition("/")[0], []).append(row)
            if run:
                self.write_steps(file, run)
        groups = [(kernels.GROUPS[g], markdown.slug(kernels.GROUPS[g]), listed[g]) for g in listed]
        body = self.templates.get_template("kernels.html.j2").render(groups=groups)
        self.page("kernels/index.html", "Kernels", body, "Kernels")

    def write_steps(self, file: str, run: KernelRun) -> None:
        """Write the page of a kernel's stepper."""
        place, name = kernels.steps_page(file), file.rpartition(".")[0]
        kernel = markdown.relative(kernels.page_of(file), place)
        body = self.templates.get_template("steps.html.j2").render(
            name=name, run=run, kernel=kernel
        )
        self.page(place, f"{name}, step by step", body, "Kernels", broad=True)
        if "DISAGREES" in run.verdict:
            self.report.disagreeing.append(f"{name} {run.verdict}")

    def write_documents(self) -> None:
        places = [("Glossary", NOTEBOOKS / GLOSSARY, "glossary.html")]
        places += [("", path, f"docs/{path.stem}.html") for path in self.documents]
        for part, path, place in places:
            source = path.relative_to(home()).as_posix()
            renderer = markdown.PageRenderer(self.site, source, place)
            text = path.read_text(encoding="utf-8")
            body = markdown.glossary_html(text, renderer) if part else renderer.html(text)
            part = part or ("Engine" if path.stem == "engine" else "")
            self.page(place, _title(path), body, part, contents=renderer.contents)

    def write_index(self) -> None:
        listed = [
            {
                "title": one.title,
                "page": _lesson_page(one),
                "question": one.question.replace("*", ""),
                "minutes": one.minutes,
                "exercises": len(one.exercises),
                "elsewhere": published.elsewhere(one.name),
            }
            for one in self.lessons
        ]
        steps = [
            {
                "file": step.file,
                "page": kernels.page_of(f"{step.file}.cu"),
                "idea": step.idea,
                "steps": kernels.steps_page(f"{step.file}.cu"),
            }
            for step in self.steps
        ]
        more = [("Glossary", "glossary.html")]
        more += [(_title(path), f"docs/{path.stem}.html") for path in self.documents]
        picture = (self.folder / "assets" / PICTURE).is_file() and f"assets/{PICTURE}"
        body = self.templates.get_template("index.html.j2").render(
            lessons=listed, steps=steps, more=more, picture=picture
        )
        self.page("index.html", "How attention runs on a GPU", body, "Lessons")

    def finish(self) -> SiteReport:
        """Write the search index, check all links, and return the report."""
        entries = search_index(self.read)
        text = f"window.searchIndex = {json.dumps(entries, ensure_ascii=False)};\n"
        (self.folder / "assets" / "search_index.js").write_text(text, encoding="utf-8")
        self.report.broken += check_links(self.folder, self.read)
        return self.report


def _lesson_page(lesson: Lesson) -> str:
    return f"lessons/{lesson.name}.html"


def _sources(notebook: Path) -> str:
    """The text of a notebook's cells, without outputs."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells)


def _neighbours(pages: list[tuple[str, str]], number: int, place: str) -> dict[str, tuple | None]:
    """The pages before and after the one of a number: title, and address from `place`."""
    at = {"before": number - 1, "after": number + 1}
    known = {key: pages[i] for key, i in at.items() if 0 <= i < len(pages)}
    return {key: (title, markdown.relative(page, place)) for key, (title, page) in known.items()}


def _title(path: Path) -> str:
    """The first heading of a document."""
    return path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
