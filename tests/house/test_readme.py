"""The generated tables of README and docs are current, and what they name exists."""

import json
import re
from pathlib import Path

import measured_tables
import pytest
import readme_tables
from kernelscope.settings import ALIASES
from record_harness import NOT_TIMED, stamped, timing

import attn_course
from attn_course.cli.main import all_commands, name_of
from attn_course.ladder.steps import LADDER
from attn_course.measure.candidates import BACKENDS
from attn_devtools.bench.peers import ATTENTION as ATTENTION_PEERS
from attn_devtools.book import ATTENTION, LAYERS

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
} | {f"docs/{path.name}": path.read_text(encoding="utf-8") for path in ROOT.glob("docs/*.md")}
README = PAGES["README.md"]
MOST_WORDS = 1500  # of the first screen and what follows it


@pytest.mark.parametrize("page", readme_tables.TABLES)
def test_the_tables_are_current(page):
    assert readme_tables.renewed(page, PAGES[page]) == PAGES[page], "run `make readme`"


def test_a_stale_ladder_is_renewed():
    page = "docs/ladder.md"
    stale = PAGES[page].replace(LADDER[0].idea, "another idea")
    assert stale != PAGES[page]
    assert readme_tables.renewed(page, stale) == PAGES[page]


def test_the_readme_is_short_and_leads_to_every_page():
    assert len(README.split()) <= MOST_WORDS
    missing = [name for name in PAGES if name != "README.md" and f"]({name})" not in README]
    assert not missing


def test_the_version_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {attn_course.__version__}\n" in citation
    assert f"## [{attn_course.__version__}]" in PAGES["CHANGELOG.md"]


def test_every_lesson_is_in_the_tables():
    start = readme_tables.START.read_text(encoding="utf-8")
    assert readme_tables.renewed_start(start) == start, "run `make readme`"
    for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"):
        assert f"](../notebooks/{path.name})" in PAGES["docs/lessons.md"]
        assert f"]({path.name})" in start


def test_the_hours_are_those_that_the_lessons_state(monkeypatch):
    minutes = {"00_a": (50, 10), "01_b": (60, 0), "05_c": (100, 20)}
    monkeypatch.setattr(readme_tables, "study_minutes", lambda: minutes)
    rows = readme_tables.paths().splitlines()
    assert rows[2] == "| a weekend | 00, 01, 02, 03, 04, 06, 08, 09 | 2 | 0 |"
    assert rows[-1] == "| the whole | 00, 01, 05 | 4 | 0 |"


def test_the_methods_are_ranked_against_the_best_peer(monkeypatch, tmp_path):
    monkeypatch.setattr(measured_tables, "GPU_RECORDS", tmp_path)
    assert "`attn-course record ladder`" in measured_tables.methods()
    times = {"naive": 400.0, "auto": 50.0, "torch_eager": 100.0}
    row = {
        **NOT_TIMED,
        "label": "1,16,1024,64",
        "shape": [1, 16, 1024, 64],
        "causal": False,
        "best_peer": "torch_eager",
        "best_backend": None,
        "best_method": "naive",
        "auto_picks": "naive",
        "timings": {name: timing(us, name, relative_error=1e-6) for name, us in times.items()},
    }
    suite = {"suite": "ladder", "about": "all", "torch": "2.9", "clocks": {}, "rows": [row]}
    (tmp_path / "bench_ladder.json").write_text(json.dumps(stamped("bench_ladder", **suite)))
    lines = [line for line in measured_tables.methods().splitlines() if line.startswith("| `")]
    assert lines[0] == "| `naive` | 400.0 | 2.00 | 25 | 1.0e-06 |"
    assert lines[-1].startswith("| `auto` | 50.0 | 2.00 | 200 |")


def test_the_headline_names_the_peers_of_each_record(monkeypatch, tmp_path):
    monkeypatch.setattr(measured_tables, "GPU_RECORDS", tmp_path)

    def write(suite, best, value, *names):
        row = {"timings": dict.fromkeys(names), "best_peer": best, "ratio_peer": {"value": value}}
        fields = {"suite": suite, "about": "all", "torch": "2.9", "rows": [row]}
        path = tmp_path / f"bench_{suite}.json"
        path.write_text(json.dumps(stamped(f"bench_{suite}", **fields)))

    write("old", "torch_eager", 2.0, "auto", "torch_eager", *BACKENDS)
    write("new", "torch_flex", 0.9, *ATTENTION_PEERS)
    kept = "eager PyTorch and SDPA's backends"
    assert measured_tables.best_peers(["old"]) == (
        f"2.00 to 2.00 times as fast, at 1 shapes, as the best of {kept} "
        "(not timed: torch.compile and compiled flex_attention). The best is `eager` at 1"
    )
    both = measured_tables.best_peers(["old", "new"])
    assert f"at 1 shapes of `old`, as the best of {kept} (not timed: torch.compile" in both
    assert "; 0.90 to 0.90 times as fast, at 1 shapes of `new`, as the best of eager" in both
    assert both.endswith("`eager` at 1 and `flex` at 1; the 1 rows that lose stay")


def test_the_headline_has_the_worst_and_the_best_rows(monkeypatch, tmp_path):
    monkeypatch.setattr(measured_tables, "GPU_RECORDS", tmp_path)

    def write(suite, rows):
        fields = {"suite": suite, "about": "all", "torch": "2.9", "rows": rows}
        path = tmp_path / f"bench_{suite}.json"
        path.write_text(json.dumps(stamped(f"bench_{suite}", **fields)))

    def gradients(name, ratio):
        timed = dict.fromkeys((name, "torch_math_backward"), {})
        return {"ratios": {name: {"value": ratio}}, "timings": timed}

    of = ("backward_wgmma", 1.25), ("backward_wgmma", 0.9), ("backward_tf32x3", 1.5)
    write("backward", [gradients(*one) for one in of])
    write("decode", [{"ratio_peer": {"value": x}} for x in (0.7, 2.0, 1.0)])
    peer = {"torch_context_parallel": {"value": 1.1}}
    rings = [(4096, 0.5), (4096, 1.2), (8192, 1.3), (32768, 1.9)]

    def ring(tokens, gain, more=None):
        ratios = {"one_gpu": {"value": gain}} | (more or {})
        return {"shape": [1, 16, tokens, 128], "ratios": {"ring": ratios}}

    write("parallel", [ring(*one) for one in rings[:-1]] + [ring(*rings[-1], peer)])
    assert measured_tables.elsewhere() == (
        "the backward pass of kernel 25 is 0.90 to 1.25 times as fast as the best of its peers at "
        "2 shapes of bfloat16, that of kernel 30 1.50 to 1.50 times at 1 of float32 (not timed: "
        "eager PyTorch, torch.compile, compiled flex_attention, efficient, flash and cudnn); "
        "decoding 0.70 to 2.00 times at 3; a ring of two GPUs is 1.30 to 1.90 "
        "times as fast as one of them from 8,192 tokens on and slower at 1 of 2 shorter shapes "
        "(0.50 at worst), and 1.10 to 1.10 times as fast as PyTorch's context_parallel at 1 shapes"
    )
    write("parallel", [ring(8192, 0.8), ring(8192, 1.9, peer)])
    assert "a ring of two GPUs is 0.80 to 1.90 times as fast as one of them, and 1.10" in (
        measured_tables.elsewhere()
    )


def test_a_changed_kernel_makes_the_results_stale(tmp_path, monkeypatch):
    for path in measured_tables.GPU_RECORDS.glob("*.json"):
        record = json.loads(path.read_text())
        record["kernels"] = dict.fromkeys(record["kernels"], "0")
        (tmp_path / path.name).write_text(json.dumps(record))
    monkeypatch.setattr(measured_tables, "GPU_RECORDS", tmp_path)
    assert measured_tables.bench().count("STALE") == len(ATTENTION) + 1  # and decoding
    assert measured_tables.parallel().count("STALE") == 1
    assert measured_tables.elsewhere().count(", before the kernels last changed") == 3
    assert readme_tables.layers().count("STALE") == len(LAYERS)
    counters, results, _, sanitizer = measured_tables.checked().splitlines()
    assert all("STALE" in line for line in (counters, results, sanitizer))


def test_a_missed_counter_and_a_false_alarm_are_told(tmp_path, monkeypatch):
    for path in measured_tables.GPU_RECORDS.glob("*.json"):
        record = json.loads(path.read_text())
        if path.stem == "counters":
            record["missed"] = ["01: instructions"]
        elif path.stem == "sanitizer":
            record["alarms"] = ["05_softmax_warp.cu"]
            removed = record["clean"].pop(0)["file"]
            record["false_alarms"] = {"24_backward_mma.cu": "racecheck takes no order"}
        elif path.stem == "differential":
            record["sections"]["opcodes"]["agree"] -= 1
        (tmp_path / path.name).write_text(json.dumps(record))
    monkeypatch.setattr(measured_tables, "GPU_RECORDS", tmp_path)
    counters, results, _, sanitizer = measured_tables.checked().splitlines()
    assert " 1 unexplained" in counters and " 1 false alarms" in sanitizer
    assert removed in sanitizer.partition(" (the record lacks ")[2].partition(")")[0]
    assert "; in 24_backward_mma.cu racecheck takes no order; " in sanitizer
    agreeing, opcodes = re.search(r"([\d,]+) of ([\d,]+) PTX", results).groups()
    assert int(opcodes.replace(",", "")) - int(agreeing.replace(",", "")) == 1


@pytest.mark.turns(23)
@pytest.mark.system
def test_the_python_blocks_run(capsys, monkeypatch):
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")
    shown = []
    for page in ("docs/python.md", "docs/layers.md"):
        for block in re.findall(r"^```python\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL):
            exec(compile(block, page, "exec"), {})
            shown.append(capsys.readouterr().out)
    assert "error: out-of-bounds" in shown[0] and "z[i] = x[i] + y[i]" in shown[0]
    assert "3 x 4" in shown[0]  # three warps store four sectors each


def test_every_environment_variable_of_a_user_is_in_the_table():
    packages = (ROOT / "attn_course", ROOT / "kernelscope" / "src")
    paths = [path for package in packages for path in package.rglob("*.py")]
    source = "".join(path.read_text(encoding="utf-8") for path in paths)
    named = set(re.findall(r"\"(ATTN_COURSE_[A-Z_]+)\"", source)) | set(ALIASES)
    assert named == set(re.findall(r"^\| `([A-Z_]+)`", PAGES["docs/commands.md"], re.MULTILINE))


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)", text)
    assert targets or name.startswith("docs/")
    folder = (ROOT / name).parent
    missing = [t for t in targets if "://" not in t and not (folder / t).exists()]
    assert not missing


@pytest.mark.parametrize("name", PAGES)
def test_prose_has_at_most_100_columns(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    typed = re.sub(r"<!-- \w+: written by.*?<!-- end of", "", text, flags=re.DOTALL)
    assert not [line for line in typed.splitlines() if len(line) > 100 and line[0] != "|"]


def test_the_contributors_map_names_every_room():
    lines = PAGES["CONTRIBUTING.md"].split("```")[1].splitlines()
    engine = lines.index(next(line for line in lines if line.startswith("kernelscope/")))
    course = lines.index(next(line for line in lines if line.startswith("attn_course/")))
    maps = {
        "kernelscope/src/kernelscope": lines[engine:course],
        "attn_course": lines[course:],
        "tools/attn_devtools": lines[course:],
    }
    for folder, part in maps.items():
        rooms = {path.parent.name for path in (ROOT / folder).glob("*/__init__.py")}
        named = {word for line in part for word in re.findall(r"^ +(\w+)/ ", line)}
        assert rooms and not rooms - named, folder
    tops = [ROOT, ROOT / "kernelscope", *(ROOT / folder for folder in maps)]
    there = {path.name for top in tops for path in (*top.glob("*/"), *top.glob("*/*/"))}
    named = {word for line in lines for word in re.findall(r"^ *(\w+)/ ", line)}
    assert not named - there


@pytest.mark.parametrize("name", PAGES)
def test_subcommands_that_are_named_exist(name):
    known = set(map(name_of, all_commands()))
    assert set(re.findall(r"`(?:\.venv/bin/)?attn-course ([a-z]+)", PAGES[name])) <= known
