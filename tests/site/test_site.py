"""Two lessons and two kernels as a site: links, folds, search, sizes; then in a browser."""

import json
import os
import re
import subprocess
from pathlib import Path

import nbformat
import pytest
from chromium_harness import chromium

from attn_course.site import build_site, check_links, markdown
from attn_course.site import published as published_at
from attn_course.site.lessons import fold_answers
from attn_course.site.markdown import PageRenderer, SiteMap, mathml
from attn_course.site.pages import read_page
from attn_course.site.runs import kernel_run

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ("01_attention_by_hand", "02_threads_blocks_tiles")
KERNELS = ("01_scores_naive", "05_softmax_warp")
MOST_BYTES = 2_000_000  # of a page


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return build_site(tmp_path_factory.mktemp("site") / "out", LESSONS, KERNELS, workers=0)


def text_of(report, place):
    return (report.folder / place).read_text(encoding="utf-8")


def test_no_link_is_broken_and_pages_are_small(report):
    assert report.sound, [*map(str, report.broken), *report.disagreeing]
    wanted = [f"lessons/{name}.html" for name in LESSONS]
    wanted += [f"kernels/{name}{end}" for name in KERNELS for end in (".html", ".steps.html")]
    wanted += ["index.html", "glossary.html", "docs/engine.html", "kernels/include/tile.html"]
    assert set(wanted) <= set(report.pages)
    assert max(report.pages.values()) < MOST_BYTES


def test_answers_are_folded_and_questions_are_not(report):
    for name in LESSONS:
        text = text_of(report, f"lessons/{name}.html")
        visible = re.sub(r"<details class=\"answer\">.*?</details>", "", text, flags=re.DOTALL)
        assert "your prediction is none yet" in visible
        assert text.count("  this run  ") > 2 and "this run" not in visible
        assert "<details open" not in visible.replace("<details open><summary>On this page", "")


def test_a_fold_covers_outputs_between_question_and_answer():
    def cell(output):
        return nbformat.v4.new_code_cell(
            "x", outputs=[nbformat.v4.new_output("stream", text=output)] if output else []
        )

    asked = cell("sum: your prediction is none yet\n")
    between, free = cell("12\n"), cell("3\n")
    answered = cell("sum\n  your prediction  none yet\n  this run         12\n")
    notebook = nbformat.v4.new_notebook(cells=[asked, between, answered, free])
    assert fold_answers(notebook) == 2
    folded = ["folded" in one.metadata for one in notebook.cells]
    assert folded == [False, True, True, False]


def test_solutions_are_folded_and_cuda_is_coloured(report):
    text = text_of(report, f"lessons/{LESSONS[1]}.html")
    assert text.count("<summary>Solution</summary>") == 3
    assert '<span class="kt">float</span>' in text and "<math" not in text
    assert "mount(document" in text  # the stepper of the lesson's widget


def test_formulas_are_mathml(report):
    text = text_of(report, f"lessons/{LESSONS[0]}.html")
    assert text.count("<math") > 15 and "MathJax" not in text
    assert not re.search(r"\$[a-z]_|\\frac|\\sum", re.sub(r"<pre.*?</pre>", "", text, flags=re.S))
    assert "<mfrac>" in mathml(r"\frac{a}{b}", "block")


def test_a_kernel_page_has_header_counters_source_and_diff(report):
    text = text_of(report, f"kernels/{KERNELS[0]}.html")
    for word in ("One thread computes one score", "Launch", "agrees with float64", 'id="line-12"'):
        assert word in text
    run = kernel_run(KERNELS[0])
    # Kernel 01 at 196 x 196, d = 16: each of 196*196 threads makes 16 multiply-adds.
    assert run.totals["ffma_thread_instructions"] == 196 * 196 * 16
    assert f"{196 * 196 * 16:,}" in text
    assert "mount(document" in text_of(report, f"kernels/{KERNELS[0]}.steps.html")


def test_a_change_from_another_kernel_is_shown(report):
    text = text_of(report, f"kernels/{KERNELS[1]}.html")
    assert "What changes from 04_softmax_output_serial.cu" in text
    assert '<span class="gi">+' in text and 'href="04_softmax_output_serial.html"' not in text


def test_new_words_lead_to_the_glossary(report):
    text = text_of(report, f"lessons/{LESSONS[1]}.html")
    assert '<a href="../glossary.html#shared-memory">shared memory</a>' in text
    assert 'id="shared-memory"' in text_of(report, "glossary.html")


def test_the_search_index_has_lessons_kernels_and_words(report):
    text = text_of(report, "assets/search_index.js")
    entries = json.loads(text.removeprefix("window.searchIndex = ").rstrip(";\n"))
    assert {entry[0] for entry in entries} == {"lesson", "kernel", "glossary", "page"}
    titles = {entry[2]: entry[3] for entry in entries}
    assert titles["bank conflict"] == "glossary.html#bank-conflict"
    assert titles["Four tokens, tiles of two"].startswith(f"lessons/{LESSONS[1]}.html#")
    assert titles["01_scores_naive"].startswith("kernels/01_scores_naive.html")
    assert not any("this run" in entry[4] for entry in entries if entry[0] == "lesson")


def test_what_is_loaded_from_another_host_is_broken(tmp_path):
    text = '<script src="https://cdn.example/x.js"></script><a href="https://a.example">a</a>'
    (broken,) = check_links(tmp_path, {"a.html": read_page(text)})
    assert broken.link == "https://cdn.example/x.js" and "another host" in broken.why


@pytest.mark.parametrize(
    ("link", "why"),
    [("b.html", "file"), ("a.html#nowhere", "anchor"), ("#nowhere", "anchor"), ("ftp://x", "kind")],
)
def test_a_broken_link_is_found(tmp_path, link, why):
    text = f'<main><h1 id="top">A</h1><a href="{link}">x</a><a href="#top">y</a></main>'
    (tmp_path / "a.html").write_text(text)
    (broken,) = check_links(tmp_path, {"a.html": read_page(text)})
    assert broken.link == link and why in broken.why


def test_links_between_files_become_links_between_pages(tmp_path):
    (tmp_path / "results").mkdir()
    site = SiteMap(tmp_path, {"notebooks/02.ipynb": "lessons/02.html", "docs/a.md": "docs/a.html"})
    renderer = PageRenderer(site, "notebooks/01.ipynb", "lessons/01.html")
    html = renderer.html("[a](02.ipynb#x) [b](../docs/a.md) [c](../results) [d](gone.ipynb)")
    assert 'href="02.html#x"' in html and 'href="../docs/a.html"' in html
    assert "results" not in html and 'href="gone.ipynb"' in html  # the link check names it


def test_a_link_out_of_an_installed_course_is_no_broken_one(tmp_path, monkeypatch):
    """A wheel holds no tests: the text of such a link stays, until the course is published."""
    text, place = "[a](../tests/x.py) [b](gone.md)", ("docs/a.md", "docs/a.html")
    site = SiteMap(tmp_path, dict([place]))
    assert 'href="../tests/x.py"' in PageRenderer(site, *place).html(text)
    monkeypatch.setattr(markdown, "checkout", lambda: None)
    html = PageRenderer(site, *place).html(text)
    assert "tests" not in html and 'href="gone.md"' in html
    monkeypatch.setattr(published_at, "REPOSITORY", "ann/course")
    assert "ann/course" in PageRenderer(site, *place).html(text)


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
    assert set(files.stdout.split()) <= {"attn_course/site/published.py", "README.md"}


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
    browser.get((report.folder / place).as_uri())


def brightness(browser):
    colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_the_pages_in_a_browser(browser, report, width, scheme):
    from selenium.webdriver.support.ui import WebDriverWait

    waiting = WebDriverWait(browser, 20)
    places = ["index.html", f"lessons/{LESSONS[1]}.html", f"kernels/{KERNELS[0]}.steps.html"]
    for place in places:
        opened(browser, report, place, width, scheme)
        widths = "return [document.documentElement.scrollWidth, innerWidth]"
        wide, room = browser.execute_script(widths)
        assert wide <= room, f"{place} is {wide} wide, the screen {room}"
        assert (brightness(browser) > 128) == (scheme == "light")
    waiting.until(lambda b: b.find_elements("css selector", ".acs[data-step]"))

    field = browser.find_element("css selector", ".search input")
    field.send_keys("softmax warp")
    first = waiting.until(lambda b: b.find_element("css selector", ".found a"))
    assert KERNELS[1] in first.text
    first.click()
    waiting.until(lambda b: f"kernels/{KERNELS[1]}.html" in b.current_url)

    was = brightness(browser)
    browser.find_element("css selector", "button.theme").click()
    assert (brightness(browser) > 128) != (was > 128)
    browser.find_element("css selector", "button.theme").click()
    assert brightness(browser) == was and not browser.execute_script("return localStorage.length")
    severe = [one for one in browser.get_log("browser") if one["level"] == "SEVERE"]
    assert not severe
