"""Two lessons and two kernels as a site: links, folds, search, sizes; then in a browser."""

import json
import os
import re
import subprocess
from pathlib import Path

import nbformat
import pytest
from chromium_harness import chromium

from attn_course import folders
from attn_devtools.site import build_site
from attn_devtools.site import published as published_at
from attn_devtools.site.build import DOCUMENTS, run_sphinx
from attn_devtools.site.lessons import ask, fold_answers, page_glossary
from attn_devtools.site.runs import kernel_run

pytestmark = [
    pytest.mark.system,
    pytest.mark.turns(23),
    # MyST's use of Sphinx's names
    pytest.mark.filterwarnings("ignore:.*MystReferenceResolver:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*MystReferenceResolver:PendingDeprecationWarning"),
]

ROOT = Path(__file__).resolve().parents[3]
LESSONS = ("01_attention_by_hand", "02_threads_blocks_tiles")
KERNELS = ("01_scores_naive", "05_softmax_warp")  # that run
MOST_BYTES = 2_000_000  # of a page


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = build_site(folder / "out", LESSONS, (*KERNELS, "include/tile"), workers=0)
    assert [path.name for path in folder.iterdir()] == ["out"]
    return built


def text_of(report, place):
    return (report.folder / place).read_text(encoding="utf-8")


def article(report, place):
    """The page's own part, without the theme's."""
    return re.search(r"<article.*</article>", text_of(report, place), re.DOTALL)[0]


def documents():
    """The Markdown files of the course and of the engine, each with its folder."""
    return [(name, path) for name in DOCUMENTS for path in (ROOT / name).glob("*.md")]


def sections(report):
    """What the search shows: page -> [anchor, title, text] of each section."""
    text = text_of(report, "_static/sections.js")
    return json.loads(text.removeprefix("const SECTIONS = ").rstrip(";\n"))


def test_no_link_is_broken_and_pages_are_small(report):
    assert not report.faults
    wanted = [f"notebooks/{name}.html" for name in LESSONS]
    wanted += [f"kernels/{name}{end}" for name in KERNELS for end in (".html", ".steps.html")]
    wanted += ["index.html", "notebooks/glossary.html", "kernels/include/tile.html"]
    wanted += [f"{name}/{path.stem}.html" for name, path in documents()]
    assert set(wanted) <= set(report.pages)
    assert max(report.pages.values()) < MOST_BYTES


def test_no_page_loads_anything_from_another_host(report):
    loads = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)=["'](?:https?:)?//""")
    for path in report.folder.rglob("*.html"):
        assert not loads.search(path.read_text(encoding="utf-8")), path
    for path in report.folder.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", path.read_text()), path


def test_answers_are_folded_and_questions_are_not(report):
    for name in LESSONS:
        text = article(report, f"notebooks/{name}.html")
        visible = re.sub(r"<details class=\"[^\"]*hide.*?</details>", "", text, flags=re.DOTALL)
        assert "what do you predict?" in visible
        assert "your prediction" not in text and "none yet" not in text
        assert text.count("  this run  ") > 2 and "this run" not in visible
        assert "Show the answer" in text and "<details open" not in text


def test_a_fold_covers_outputs_between_question_and_answer():
    def cell(output):
        outputs = [nbformat.v4.new_output("stream", text=output)] if output else []
        return nbformat.v4.new_code_cell("x", outputs=outputs)

    asked = cell("sum: your prediction is none yet\n")
    between, free = cell("12\n"), cell("3\n")
    answered = cell("sum\n  your prediction  none yet\n  this run         12\n")
    notebook = nbformat.v4.new_notebook(cells=[asked, between, answered, free])
    fold_answers(notebook)
    folded = ["hide-output" in one.metadata.get("tags", ()) for one in notebook.cells]
    assert folded == [False, True, True, False]


def test_a_page_asks_for_predictions_and_has_no_column_of_none():
    card = "question  your prediction  this run\n--------  ---------------  --------\n"
    card += "sum       none yet         12\n"
    texts = ["sum: your prediction is none yet\n", "sum\n  your prediction  none yet\n", card]
    outputs = [nbformat.v4.new_output("stream", text=text) for text in texts]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x", outputs=outputs)])
    ask(notebook)
    assert [one.text for one in notebook.cells[0].outputs] == [
        "sum: what do you predict?\n",
        "sum\n",
        "question  this run\n--------  --------\nsum       12\n",
    ]


def test_solutions_are_folded_and_cuda_is_coloured(report):
    text = article(report, f"notebooks/{LESSONS[1]}.html")
    assert text.count("<summary>Solution</summary>") == 3
    assert '<span class="kr">__global__</span>' in text and "<math" not in text
    assert "mount(document" in text  # the stepper of the lesson's widget
    assert text.count("tag_exercise") > 3


def test_formulas_are_mathml(report):
    text = article(report, f"notebooks/{LESSONS[0]}.html")
    assert text.count("<math") > 15 and "<mfrac>" in text and 'class="formula"' in text
    assert not re.search(r"\$[a-z]_|\\frac|\\sum", re.sub(r"<pre.*?</pre>", "", text, flags=re.S))


def test_a_kernel_page_has_header_counters_source_and_lessons(report):
    text = article(report, f"kernels/{KERNELS[0]}.html")
    for word in ("One thread computes one score", "Launch", "agrees with float64", 'id="line-12"'):
        assert word in text
    run = kernel_run(KERNELS[0])
    # Kernel 01 at 196 x 196, d = 16: each of 196*196 threads makes 16 multiply-adds.
    assert run.totals["ffma_thread_instructions"] == 196 * 196 * 16
    assert f"{196 * 196 * 16:,}" in text
    assert f'href="../notebooks/{LESSONS[0]}.html"' in text
    assert "mount(document" in article(report, f"kernels/{KERNELS[0]}.steps.html")


def test_a_change_from_another_kernel_is_shown(report):
    text = article(report, f"kernels/{KERNELS[1]}.html")
    assert "What changes from 04_softmax_output_serial.cu" in text
    # That kernel is left out, so that its name is no link.
    assert '<span class="gi">+' in text and 'href="04_softmax_output_serial.html"' not in text


def test_new_words_lead_to_the_glossary(report):
    text = article(report, f"notebooks/{LESSONS[1]}.html")
    assert 'href="glossary.html#term-shared-memory"' in text
    assert 'id="term-shared-memory"' in article(report, "notebooks/glossary.html")


def test_a_word_of_the_glossary_may_take_several_lines():
    text = page_glossary(
        "# G\n\n- **bank**: one of\n  32 parts. [L](l.ipynb)\n- **warp**: 32 threads.\n"
    )
    bank, warp = "bank\n  one of 32 parts. [L](l.ipynb)\n", "warp\n  32 threads.\n"
    assert text == f"# G\n\n```{{glossary}}\n{bank}\n{warp}\n```\n"


def test_every_document_is_in_the_navigation(report):
    text = text_of(report, "docs/index.html")
    for name, path in documents():
        start = "" if name == "docs" else f"../{name}/"
        assert f'href="{start}{path.stem}.html"' in text


def test_the_search_has_sections_and_words_but_no_answers(report):
    found = sections(report)
    titles = {title: (page, anchor) for page, all in found.items() for anchor, title, _ in all}
    assert titles["bank conflict"] == ("notebooks/glossary", "term-bank-conflict")
    assert titles["Four tokens, tiles of two"][0] == f"notebooks/{LESSONS[1]}"
    texts = {page: " ".join(text for *_, text in all) for page, all in found.items()}
    lesson = texts[f"notebooks/{LESSONS[1]}"]
    assert "Which thread has written it?" in lesson and "this run" not in lesson
    assert "const int out_row" not in lesson  # of a solution
    index = json.loads(text_of(report, "searchindex.js")[len("Search.setIndex(") : -1])
    assert "out_row" not in index["terms"] and "barrier" in index["terms"]


# -- faults ----------------------------------------------------------------------------------------
FAULTS = {
    "[a](gone.md)": "gone.md",
    "[a](#nowhere)": "nowhere",
    "[a](good.md#nowhere)": "nowhere",
    "[a](ftp://a.example/x)": "ftp://a.example/x",
    "![a](https://a.example/x.png)": "another host",
    "![a](gone.png)": "gone.png",
    "{term}`quark`": "quark",
    "$\\nonsense$": "nonsense",
    '<script src="https://a.example/x.js"></script>': "another host",
    '<a href="gone.html">a</a>': "HTML link",
}
GOOD = """# Good

[section](#below) [page](index.md) [host](https://a.example) $\\frac{a}{b}$

[kernel](kernels/01_scores_naive.cu) [kernels](kernels) [readme](README.md) [file](Makefile)

## Below
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A page for each fault and one without, built where the course is published."""
    folder = tmp_path_factory.mktemp("faulty")
    source = folder / "source"
    (source / "kernels").mkdir(parents=True)
    pages = {f"page_{i}": f"# {i}\n\n{text}\n" for i, text in enumerate(FAULTS)}
    pages |= {"good": GOOD, "kernels/01_scores_naive": "# Kernel\n", "kernels/index": "# All\n"}
    pages["index"] = "# Index\n\n```{toctree}\n" + "\n".join(pages) + "\n```\n"
    for name, text in pages.items():
        (source / f"{name}.md").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published_at, "REPOSITORY", "ann/course")
        warnings = run_sphinx(source, folder / "out", workers=0)
    return folder / "out", warnings


@pytest.mark.parametrize("text", FAULTS)
def test_a_fault_is_found(faulty, text):
    page = f"page_{list(FAULTS).index(text)}.md"
    found = [line for line in faulty[1] if line.startswith(page)]
    assert found and FAULTS[text] in " ".join(found)


def test_good_links_are_no_faults_and_lead_to_pages_or_the_repository(faulty):
    folder, warnings = faulty
    assert not [line for line in warnings if not line.startswith("page_")]
    text = (folder / "good.html").read_text()
    pages = {"kernel": "kernels/01_scores_naive.html", "kernels": "kernels/index.html"}
    pages |= {"readme": "index.html", "file": "https://github.com/ann/course/blob/HEAD/Makefile"}
    for word, link in pages.items():
        assert re.search(rf'href="{link}"[^>]*>(<span[^>]*>)?{word}<', text), word


def test_a_file_that_is_no_page_is_no_link_before_publication(report):
    text = article(report, "docs/classroom.html")
    assert "CONTRIBUTING" in text and not re.search(r'href="[^"]*CONTRIBUTING', text)


@pytest.mark.parametrize("repository", [published_at.REPOSITORY, "ann/course"])
def test_a_link_out_of_an_installed_course_is_no_fault(tmp_path, monkeypatch, repository):
    """A wheel holds no tests: the text of such a link stays, until the course is published."""
    monkeypatch.setattr(folders, "checkout", lambda: None)
    monkeypatch.setattr(published_at, "REPOSITORY", repository)
    (tmp_path / "source" / "docs").mkdir(parents=True)
    (tmp_path / "source" / "index.md").write_text("# I\n\n```{toctree}\ndocs/a\n```\n")
    (tmp_path / "source" / "docs" / "a.md").write_text("# A\n\n[x](../tests/x.py) [y](gone.md)\n")
    (warning,) = run_sphinx(tmp_path / "source", tmp_path / "out", workers=0)
    assert warning.startswith("docs/a.md") and "gone.md" in warning
    text = (tmp_path / "out" / "docs" / "a.html").read_text()
    linked = 'href="https://github.com/ann/course/blob/HEAD/tests/x.py"' in text
    assert linked == published_at.is_published() and ("tests/x.py" in text) == linked


# -- the folder, and where the course is published -------------------------------------------------
def test_a_folder_of_other_files_is_not_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="not of a site"):
        build_site(tmp_path, LESSONS, KERNELS, workers=0)
    with pytest.raises(ValueError, match="no lesson '99'.*01_attention"):
        build_site(tmp_path / "new", ["99"], KERNELS, workers=0)


def test_a_published_course_opens_on_colab_and_binder(monkeypatch):
    monkeypatch.setattr(published_at, "REPOSITORY", "ann/course")
    assert "/github/ann/course/blob/gh-pages/colab/00_start_here.ipynb" in published_at.badges()
    source = (ROOT / "notebooks" / "00_start_here.ipynb").read_text(encoding="utf-8")
    notebook = json.loads(published_at.colab_notebook(source))
    nbformat.validate(notebook)
    first, *rest = notebook["cells"]
    assert "git+https://github.com/ann/course" in "".join(first["source"])
    assert len(rest) == len(json.loads(source)["cells"])
    assert not any(cell.get("outputs") for cell in rest)


def test_binder_installs_the_course():
    script = ROOT / ".binder" / "postBuild"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    text = script.read_text(encoding="utf-8")
    assert (ROOT / re.search(r"cp -r (\S+)", text)[1] / "package.json").is_file()


def test_placeholders_stand_in_one_place():
    files = subprocess.run(
        ["git", "grep", "-l", published_at.PLACEHOLDER], cwd=ROOT, capture_output=True, text=True
    )
    if files.returncode > 1:
        pytest.skip("not a git checkout")
    assert set(files.stdout.split()) <= {"tools/attn_devtools/site/published.py", "README.md"}


# -- in a browser ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def opened(browser, report, place, width, scheme):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wanted = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wanted]})
    browser.get(
        (report.folder / place.partition("?")[0]).as_uri() + "".join(place.partition("?")[1:])
    )


def brightness(browser):
    colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_the_pages_in_a_browser(browser, report, width, scheme):
    from selenium.webdriver.support.ui import WebDriverWait

    waiting = WebDriverWait(browser, 20)
    places = ["index.html", f"notebooks/{LESSONS[1]}.html", f"kernels/{KERNELS[0]}.steps.html"]
    for place in places:
        opened(browser, report, place, width, scheme)
        widths = "return [document.documentElement.scrollWidth, innerWidth]"
        wide, room = browser.execute_script(widths)
        assert wide <= room, f"{place} is {wide} wide, the screen {room}"
        assert (brightness(browser) > 128) == (scheme == "light")
    waiting.until(lambda b: b.find_elements("css selector", ".acs[data-step]"))
    # The stepper follows the theme's switch.
    for theme in ("light", "dark"):
        browser.execute_script(f"document.documentElement.dataset.theme = '{theme}'")
        light = "return document.body.dataset.jpThemeLight"
        waiting.until(
            lambda b, light=light, is_light=theme == "light": (
                b.execute_script(light) == str(is_light).lower()
            )
        )
    severe = [one for one in browser.get_log("browser") if one["level"] == "SEVERE"]
    assert not severe


CUT = """
const wide = [...document.querySelectorAll("article *")].filter((box) =>
  box.scrollWidth > box.clientWidth + 2 && box.checkVisibility() &&
  ["auto", "scroll"].includes(getComputedStyle(box).overflowX) &&
  !box.className.includes('acs-'));
return wide.map((box) => [box.tagName + "." + box.className, box.matches(".cut"),
  !!box.closest(".cell_input") ||
    getComputedStyle(box.previousElementSibling).display !== "none"]);
"""
PICTURES = """
return [...document.querySelectorAll("article img")].map((img) => [
  img.getBoundingClientRect().width, img.naturalWidth, getComputedStyle(img).backgroundColor,
  parseFloat(getComputedStyle(img).paddingLeft), getComputedStyle(img).filter]);
"""


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("place", [f"notebooks/{LESSONS[1]}.html", f"kernels/{KERNELS[0]}.html"])
def test_what_a_telephone_cuts_says_so_until_it_is_scrolled(browser, report, place):
    from selenium.webdriver.support.ui import WebDriverWait

    opened(browser, report, place, 390, "light")
    waiting = WebDriverWait(browser, 20)
    waiting.until(lambda b: b.find_elements("css selector", ".cut"))
    boxes = browser.execute_script(CUT)
    assert boxes
    for what, cut, hint in boxes:
        assert cut and hint, what
    browser.execute_script(
        "const b = document.querySelector('.cut'); b.scrollLeft = 1e5; b.id = 'b'"
    )
    waiting.until(lambda b: not b.find_elements("css selector", "#b.cut"))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_table_of_counters_fits_a_telephone_and_a_name_breaks_at_an_underscore(browser, report):
    opened(browser, report, f"kernels/{KERNELS[0]}.html", 390, "light")
    widths = "const t = document.querySelector('.counters table').parentElement;"
    wide, room = browser.execute_script(widths + "return [t.scrollWidth, t.clientWidth]")
    assert wide <= room
    parts = "return [...document.querySelector('h1').childNodes].map((n) => n.data ?? n.tagName)"
    assert browser.execute_script(parts)[:5] == ["01_", "WBR", "scores_", "WBR", "naive"]
    listing = "return document.querySelectorAll('.source wbr').length"
    assert browser.execute_script(listing) == 0


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("place", ["index.html", f"notebooks/{LESSONS[1]}.html"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_are_light_cards_of_a_readable_size(browser, report, place, scheme):
    for width in (390, 820, 1440):
        opened(browser, report, place, width, scheme)
        pictures = browser.execute_script(PICTURES)
        assert pictures
        for shown, natural, colour, padding, dimmed in pictures:
            assert shown >= min(natural, 660) and colour == "rgb(255, 255, 255)" and padding == 10
            assert dimmed == ("brightness(0.9)" if scheme == "dark" else "none")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("query", "title", "text", "target"),
    [
        ("softmax+warp", "05_softmax_warp", "shuffles combine", f"kernels/{KERNELS[1]}.html#"),
        ("bank+conflict", "bank conflict · Glossary", "wavefront", "glossary.html#term-bank-"),
        ("Four+tokens", "Four tokens, tiles of two", "K say where", f"{LESSONS[1]}.html#four-"),
        ("sofmax", "softmax · Glossary", "scores into weights", "glossary.html#term-softmax"),
    ],
)
def test_the_search_in_a_browser(browser, report, query, title, text, target):
    from selenium.webdriver.support.ui import WebDriverWait

    opened(browser, report, f"search.html?q={query}", 1280, "light")
    shown = "#search-results ul.search li:first-child"
    waiting = WebDriverWait(browser, 20)
    first = waiting.until(lambda b: b.find_element("css selector", f"{shown}:has(p.context)"))
    assert title in first.text and text in first.text
    assert target in first.find_element("css selector", "a").get_attribute("href")
    severe = [one for one in browser.get_log("browser") if one["level"] == "SEVERE"]
    assert not severe
