"""Every broken kernel is found by the right means at the right line; its clean twin never is."""

import difflib
import re

import numpy as np
import pytest
from kernelscope.compile import with_headers
from kernelscope.events import observe
from kernelscope.watch import Sanitizer
from kernelscope.watch.sanitizer.findings import KINDS

from attn_course import clinic
from attn_course.clinic import Case, prepare
from attn_course.clinic.families import clean_step
from attn_course.ladder.headers import kernel_path
from attn_course.ladder.matrix_tiles import MATRIX_TILES
from attn_course.ladder.steps import FUSED, LADDER, Problem
from attn_course.ladder.verify import FORMULAS
from attn_devtools.defects import WRONG_RESULT, broken_kernels, clean_kernels
from attn_devtools.shares import crossed, in_turns

pytestmark = pytest.mark.system

BROKEN = broken_kernels()
# Extents that divide no tile, and the smallest of each.
RAGGED = [Problem(1, 1, 1, 1), Problem(2, 5, 7, 3), Problem(3, 33, 18, 20), Problem(1, 18, 70, 35)]
# The same for rows that bulk copies take, of a multiple of 16 bytes.
BULK = [Problem(1, 1, 4, 8), Problem(2, 5, 12, 24), Problem(3, 70, 200, 40), Problem(1, 64, 64, 64)]
STEPS = [step.path for step in LADDER if step.computes in FORMULAS and step.computes != FUSED]
CLEAN = sorted({*clean_kernels(), *STEPS})
# The kernels of tensor cores are examined in tests/kernels.
ATTENTION = [
    step.path
    for step in LADDER
    if step.computes == FUSED and step.entry not in MATRIX_TILES and not step.maps
]
SMALLEST = Case(Problem(1, 1, 1, 1), causal=True)
# Rows that no vector load fits; several tiles of keys and grouped heads under the causal mask; more
# queries than keys, so that some rows see none.
ATTENTION_CASES = (
    SMALLEST,
    Case(Problem(1, 33, 37, 35)),
    Case(Problem(2, 5, 150, 36, heads=2), causal=True),
    Case(Problem(4, 13, 9, 36, heads=2), causal=True),
)


def sanitize(path, case, options=()):
    """(trial, findings) of one launch of a kernel file on the simulator."""
    trial = prepare(path, case, backend="simulator", options=options)
    with observe(Sanitizer(trial.uninitialised)) as report:
        trial.run()
    return trial, report.findings


@pytest.mark.parametrize("broken", in_turns(BROKEN, 6), ids=lambda broken: broken.name)
def test_defect_is_found(broken):
    trial, findings = sanitize(broken.path, broken.case)
    if broken.kind == WRONG_RESULT:
        assert findings == [], "the sanitizer sees nothing wrong here; only the numbers are"
        assert not trial.judge().agrees
        return
    assert findings, "nothing was found"
    places = {(f.kind, f.line) for f in findings if f.severity == "error"}
    assert (broken.kind, broken.found_line) in places, places
    for finding in findings:
        assert finding.message and finding.remedy and finding.kind in KINDS
        if finding.kind != "bad-launch":  # nothing ran, so no source came with it
            assert finding.line_text == source_line(broken.path, finding.line)


def source_line(path, number):
    return path.read_text().splitlines()[number - 1].strip() if number else ""


@pytest.mark.turns(37)
@pytest.mark.parametrize("broken", in_turns(BROKEN, 5), ids=lambda broken: broken.name)
def test_twin_is_clean_where_the_defect_shows(broken):
    """At the very launch that shows the defect, the clean twin has no finding and is right."""
    if broken.case.is_partial:
        return  # its arrays are cut short on purpose; see the test of the index below
    trial, findings = sanitize(broken.clean, broken.case)
    assert findings == []
    assert trial.judge().agrees, trial.judge().message


@pytest.mark.turns(37)
@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (path, (BULK if clean_step(path).flags else RAGGED)[which])
        for path, which in in_turns(crossed(CLEAN, range(4), each=2), 4)
    ],
    ids=lambda one: getattr(one, "stem", str(one)),
)
def test_clean_kernels_have_no_findings(path, problem):
    trial, findings = sanitize(path, Case(problem))
    assert findings == []
    assert trial.judge().agrees, trial.judge().message


@pytest.mark.turns(41)
@pytest.mark.parametrize(
    ("path", "case"),
    in_turns(crossed(ATTENTION, ATTENTION_CASES, each=2), 6),
    ids=lambda one: getattr(one, "stem", str(one)),
)
def test_kernels_of_all_attention_have_no_findings(path, case):
    trial, findings = sanitize(path, case)
    assert findings == []
    assert trial.judge().agrees, trial.judge().message


# What may not be missing in the kernel whose copies go past the registers: the n-th of its kind.
COPIES = "12_flash_async"
SMALL_TILES = ("-DD=32", "-DROWS=4", "-DKEYS=1", "-DROW_WARPS=1", "-DKEY_WARPS=2")  # 16 keys each
SEVERAL_TILES = Case(Problem(1, 5, 60, 28), causal=True)
ALL_COPIED = Case(Problem(1, 20, 60, 32), causal=True)  # 16 bytes at a time, from rows of 16 bits
WAIT, BARRIER = "copies_arrived<0>();", "__syncthreads();"
NO_KEYS = Case(Problem(1, 70, 5, 32), causal=True)
FRAGMENT_TILES = ("-DD=32", "-DROW_TILES=1", "-DWARPS=2", "-DBC=16")
TWICE = [(WAIT, 0), (WAIT, 1), (BARRIER, 0), (BARRIER, 1)]  # those of the loop over key tiles
NEEDED = {
    COPIES: (
        SEVERAL_TILES,
        SMALL_TILES,
        [(WAIT, 0), (BARRIER, 0)],  # tests/kernels/test_clusters.py takes out each of them
    ),
    "14_flash_mma": (ALL_COPIED, FRAGMENT_TILES, TWICE),
    "15_flash_tf32x3": (ALL_COPIED, FRAGMENT_TILES, TWICE),
}
CASES = [(kernel, *one) for kernel, (_, _, needed) in NEEDED.items() for one in needed]
# A block without keys has copied Q all the same, and writes its output there.
CASES += [("14_flash_mma", WAIT, 2), ("14_flash_mma", BARRIER, 2)]


@pytest.mark.turns(37)
@pytest.mark.parametrize(("kernel", "statement", "number"), in_turns(CASES, 8))
def test_copies_need_their_waits_and_barriers(kernel, statement, number):
    """Without one of them there is a race; the wrong numbers come with a missing wait only."""
    path = kernel_path(kernel)
    case, tiles, needed = NEEDED[kernel]
    if (statement, number) not in needed:
        case = NO_KEYS
    parts = path.read_text().split(statement)
    assert len(parts) > number + 1
    text = statement.join(parts[: number + 1]) + statement.join(parts[number + 1 :])
    found = clinic.examine(path, case, code=text, options=tiles)
    assert {finding.kind for finding in found.errors} == {"race"}
    is_wait = statement != BARRIER
    assert any("cp.async" in finding.message for finding in found.errors) == is_wait
    # A copy that nobody waits for never lands here, so the output stays where it was the last use.
    assert found.comparison.agrees != (is_wait and case is not NO_KEYS)


@pytest.mark.turns(29)
def test_copies_without_any_wait():
    path = next(path for path in ATTENTION if path.stem == COPIES)
    text = with_headers(path.read_text(), path.parent)
    without = re.sub(r'asm volatile\("cp\.async\.wait_group.*', "", text)
    assert without != text
    found = clinic.examine(path, SEVERAL_TILES, code=without, options=SMALL_TILES)
    assert not found.comparison.agrees
    assert sum("cp.async" in finding.message for finding in found.errors) >= 3  # of Q, K and V


def test_grouped_heads_read_the_right_head():
    """The oracle of a case with kv_heads repeats each head of k and v, as the kernels do."""
    path = next(path for path in ATTENTION if path.stem.startswith("09"))
    case = clinic.read_case("BH=4, n=3, m=5, d=7, heads=4, kv_heads=2, causal")
    assert case == Case(Problem(4, 3, 5, 7, heads=4, kv_heads=2), causal=True)
    trial, findings = sanitize(path, case)
    assert trial.inputs["k"].shape == (2, 5, 7) and findings == []
    assert trial.judge().agrees
    swapped = {**trial.inputs, "k": trial.inputs["k"][::-1]}
    wrong = trial.formula.compute(swapped, trial.scale, True)["out"]
    assert not np.allclose(trial.outputs["out"], wrong, rtol=1e-3)


@pytest.mark.parametrize(
    "options",
    [("-DTILE=16", "-DK_TILE=0"), ("-DTILE=16", "-DK_TILE=1", "-DPAD=0"), ("-DTILE=5",)],
    ids=str,
)
def test_every_layout_of_the_tiled_kernel_is_clean(options):
    path = next(step.path for step in LADDER if step.number == 2)
    trial, findings = sanitize(path, Case(Problem(2, 19, 23, 21)), options)
    assert findings == [] and trial.judge().agrees


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_only_the_defect_differs(broken):
    """Between the headers and the marks, a broken kernel is its clean twin but for a few lines."""
    clean, bad = (body(path.read_text()) for path in (broken.clean, broken.path))
    changed = [line for line in difflib.ndiff(clean, bad) if line[0] in "+-"]
    assert 1 <= len(changed) <= 8, changed
    assert broken.found_line
    if broken.defect_line:
        marked = stripped(source_line(broken.path, broken.defect_line))
        assert any(line[2:].strip() == marked for line in changed), marked


def stripped(line):
    for mark in ("  // <- defect", "  // <- found here"):
        line = line.removesuffix(mark)
    return line.split("  //")[0].strip()


def body(text):
    """Code lines below the header comments, without marks and comments."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line and not line.startswith("//"))
    return [text for text in map(stripped, lines[start:]) if text]


def test_the_wrapped_index_is_named():
    """In 64 bits the same element has its true number; in 32 it is negative."""
    broken = next(b for b in BROKEN if b.name == "int32_overflow")
    first = broken.case.problem.n * broken.case.problem.m  # of head 1
    indices = {}
    for path in (broken.path, broken.clean):
        _, findings = sanitize(path, broken.case)
        indices[path] = [(f.kind, f.array, f.index) for f in findings]
    assert indices[broken.path] == [("out-of-bounds", "s", first - 2**32)]
    assert indices[broken.clean] == [("out-of-bounds", "s", first)]


@pytest.mark.turns(11)
def test_hidden_by_the_optimised_build():
    """Races do not always change the result: that is why they need a tool."""
    broken = next(b for b in BROKEN if b.name == "missing_first_barrier")
    trial, findings = sanitize(broken.path, broken.case)
    assert findings and trial.judge().agrees


def test_outputs_are_left_alone_by_a_launch_that_is_refused():
    broken = next(b for b in BROKEN if b.name == "tile_64")
    trial, _ = sanitize(broken.path, broken.case)
    assert np.isnan(trial.outputs["s"]).all()


def test_a_mended_text_passes():
    """What a learner does in the clinic: the text is changed, the case stays."""
    broken = next(b for b in BROKEN if b.name == "missing_second_barrier")
    text = broken.path.read_text()
    assert clinic.examine(broken.path).errors
    loop = text.index("tile_key[i][tx], score);")
    end = text.index("\n        }\n", loop) + len("\n        }\n")
    mended = text[:end] + "        __syncthreads();\n" + text[end:]
    found = clinic.examine(broken.path, code=mended)
    assert found.findings == [] and found.comparison.agrees


def test_notes_are_complete():
    names = {broken.name for broken in BROKEN}
    assert len(names) >= 17
    for broken in BROKEN:
        assert broken.kind in (*KINDS, WRONG_RESULT)
        assert broken.clean.is_file() and broken.symptom and broken.story


@pytest.mark.parametrize(
    ("text", "message"), [("// Clean:    01_scores_naive.cu\n", "Defect"), ("int x;\n", "Clean")]
)
def test_a_missing_note_is_named(tmp_path, text, message):
    path = tmp_path / "wrong.cu"
    path.write_text(text)
    with pytest.raises(clinic.ClinicError, match=f"'// {message}: "):
        clinic.read_broken(path)


def test_an_unknown_file_is_refused(tmp_path):
    with pytest.raises(clinic.ClinicError, match="how to launch"):
        path = tmp_path / "mine.cu"
        path.write_text("int x;\n")
        clinic.clean_step(path)


def test_shared_memory_ends_after_whole_vectors():
    """ptxas may read the last four of m weights at once; a case may ask for exactly m of them."""
    path = clinic.BROKEN_FOLDER / "clean" / "rows_atomic.cu"
    for m, size in ((37, 160), (40, 160), (41, 176)):
        problem = Problem(1, 2, m, 3)
        assert (
            prepare(path, Case(problem), backend="simulator").launch.geometry.shared_bytes == size
        )
    exact = Case(Problem(1, 2, 37, 3), shared_bytes=148)
    trial, findings = sanitize(path, exact)
    assert trial.launch.geometry.shared_bytes == 148 and findings == [] and trial.judge().agrees


def test_an_option_that_a_kernel_does_not_have_is_refused():
    path, case = kernel_path("02_scores_tiled"), Case(Problem(1, 4, 4, 4))
    with pytest.raises(ValueError, match="no constant NOPE; theirs, with the defaults, are TILE"):
        clinic.examine(path, case, options=["-DNOPE=3"])
