"""Ablations compute what the whole kernel computes, and times come from a GPU or its record."""

import numpy as np
import pytest
from kernelscope.contest import Replay
from kernelscope.events import observe
from kernelscope.watch.counters.counters import Counters
from record_harness import stamped

from attn_course import Sanitizer, reference
from attn_course.clinic import ablations
from attn_course.clinic.ablations import (
    ABLATIONS,
    HOPPER_ABLATIONS,
    Ablation,
    all_variants,
    variants,
)
from attn_course.clinic.edits import EditError, edited
from attn_course.ladder.steps import Device, Problem, step
from attn_course.lessons import lesson10_ablations as lesson
from attn_course.measure import benchmarks, candidates, records
from attn_course.measure.benchmarks import float64_attention
from attn_course.reference.comparison import compare
from attn_course.reference.dtypes import DTYPES
from attn_course.reference.inputs import seeded_qkv
from attn_devtools.record import ablation_times, report
from attn_devtools.shares import in_turns

pytestmark = pytest.mark.system

HOPPER = Device("H200", (9, 0), 132, 227 * 1024)
LABELS = [one.label for one in ABLATIONS]
# One warp along the rows, and four along the keys that join their parts.
TILES = {
    "flash_async": (
        ("-DROWS=2", "-DKEYS=2", "-DROW_WARPS=1", "-DKEY_WARPS=1"),
        ("-DROWS=1", "-DKEYS=2", "-DROW_WARPS=2", "-DKEY_WARPS=2"),
    ),
    "flash_split": (("-DROWS=1", "-DKEYS=2", "-DROW_WARPS=1", "-DKEY_WARPS=2"),),
}


def agrees(made, expected):
    return compare(made.output(), expected, relative=made.relative).agrees


def counted(one, q, k, v, **options):
    seen = Counters()
    made = lesson.variant(one, q, k, v, backend="simulator", **options)
    with observe(seen):
        made.call()
    return seen.totals


# -- source ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("one", ABLATIONS, ids=LABELS)
def test_an_ablation_differs_from_its_kernel(one):
    full = Ablation(one.kernel)
    assert bool(one.edits) != bool(one.options)
    assert (one.source() != full.source()) == bool(one.edits)
    assert one.source_hash() != full.source_hash()
    for old, new in one.edits:
        assert old in full.source() and new in one.source()
        assert max(map(len, new.splitlines())) <= 100


def test_a_comment_makes_no_record_old(monkeypatch):
    one = ABLATIONS[0]
    before, text = one.source_hash(), one.source()
    monkeypatch.setattr(Ablation, "source", lambda self: text + "// more\n")
    assert one.source_hash() == before
    monkeypatch.setattr(Ablation, "source", lambda self: text + "int more;\n")
    assert one.source_hash() != before


def test_names_are_unique_and_lead_to_their_ablation():
    assert len(set(LABELS)) == len(LABELS)
    assert all(variants(one.kernel)[one.name] is one for one in ABLATIONS)
    assert list(all_variants().values()) == [
        *variants("flash_async").values(),
        *variants("flash_split").values(),
    ]
    assert next(iter(all_variants())) == "flash_async"


@pytest.mark.parametrize("old", ["no such line", "__syncthreads();"])
def test_an_edit_must_fit_exactly_once(old):
    with pytest.raises(EditError, match="flash_async without it: .* not once"):
        Ablation("flash_async", "it", ((old, ""),)).source()


@pytest.mark.parametrize("edits", ["ab", [("a", 1)], [None], ("a", "b", "c")])
def test_an_edit_is_a_pair_of_texts(edits):
    with pytest.raises(EditError, match="a kernel: an edit is a pair of texts"):
        edited("abc", edits, "a kernel")


def test_edits_are_made_in_order_one_or_several():
    assert edited("abc", ("b", "x"), "") == "axc"
    assert edited("abc", [("b", "x"), ("ax", "y")], "") == "yc"
    assert edited("abc", (), "") == "abc"
    with pytest.raises(EditError, match="0 times"):
        edited("abc", ("", "x"), "")


# -- right results ---------------------------------------------------------------------------------
@pytest.mark.turns(23)
@pytest.mark.parametrize("one", ABLATIONS, ids=LABELS)
def test_an_ablation_computes_attention(one):
    q, k, v = seeded_qkv((1, 2, 37, 22), kv_length=41)
    expected = float64_attention(q, k, v, causal=True)
    options = TILES[one.kernel][0]
    made = lesson.variant(one, q, k, v, causal=True, backend="simulator", options=options)
    assert not agrees(made, expected), "nothing has been written"
    made.call()
    assert agrees(made, expected)
    made.poison()
    assert np.isnan(made.out).all()


@pytest.mark.turns(47)
@pytest.mark.parametrize("one", in_turns(ABLATIONS, 2), ids=lambda one: one.label)
def test_an_ablation_has_no_race(one):
    q, k, v = seeded_qkv((1, 1, 18, 16), kv_length=40)
    options = TILES[one.kernel][-1]
    made = lesson.variant(one, q, k, v, causal=True, backend="simulator", options=options)
    with observe(Sanitizer()) as report:
        made.call()
    assert report.findings == []
    assert agrees(made, float64_attention(q, k, v, causal=True))


@pytest.mark.turns(23)
def test_the_barrier_that_late_v_saves_is_needed_without_it():
    late = variants("flash_async")["late V"]
    edits = [
        (old, "\n".join(line for line in new.splitlines() if "next V tile" not in line) + "\n")
        for old, new in late.edits
    ]
    q, k, v = seeded_qkv((1, 1, 18, 16), kv_length=40)
    made = lesson.variant(
        Ablation("flash_async", "it", tuple(edits)),
        q,
        k,
        v,
        backend="simulator",
        options=TILES["flash_async"][1],
    )
    with observe(Sanitizer()) as report:
        made.call()
    assert "race" in {finding.kind for finding in report.findings}


@pytest.mark.turns(23)
def test_rows_that_see_no_key_are_zeros():
    q, k, v = seeded_qkv((1, 1, 40, 8), kv_length=9)
    for one in all_variants().values():
        made = lesson.variant(
            one, q, k, v, causal=True, backend="simulator", options=TILES[one.kernel][0]
        )
        made.call()
        assert not made.out[0, 0, :31].any() and made.out[0, 0, 31:].any(), one.label


# -- what each costs on counters -------------------------------------------------------------------
QKV = seeded_qkv((1, 1, 64, 32))
TILE = ("-DROWS=4", "-DKEYS=4", "-DROW_WARPS=1", "-DKEY_WARPS=1")


@pytest.mark.turns(17)
def test_pairs_of_lanes_halve_the_wavefronts_of_k_and_v():
    before, after = (
        counted(one, *QKV, options=TILE)
        for one in (variants("flash_async")["lanes"], Ablation("flash_async"))
    )
    # Per 4 floats of a tile's rows: 4 loads of K by each warp, and as many of Q; the same of P V.
    loads = before["shared_load_requests"]
    assert after["shared_load_requests"] == loads
    k_and_v = 2 * 4 * (32 // 4) * 2 * 4  # loads a tile, tiles, blocks of 16 rows
    saved = before["shared_load_wavefronts"] - after["shared_load_wavefronts"]
    assert saved == 2 * k_and_v


@pytest.mark.turns(97)
def test_pointers_and_barriers_show_in_the_counters():
    full = counted(Ablation("flash_async"), *QKV, options=TILE)
    pointers = counted(variants("flash_async")["pointers"], *QKV, options=TILE)
    late = counted(variants("flash_async")["late V"], *QKV, options=TILE)
    assert pointers["instructions"] > full["instructions"]
    blocks, tiles = 4, 2
    assert late["barriers"] - full["barriers"] == blocks * tiles
    for name in ("turn", "last rows"):
        other = counted(variants("flash_async")[name], *QKV, options=TILE)
        assert other["ffma_thread_instructions"] == full["ffma_thread_instructions"]


# -- launches and measuring ------------------------------------------------------------------------
@pytest.mark.parametrize("one", all_variants().values(), ids=all_variants())
def test_every_problem_fits_an_h200(one):
    for (b, h, n, d), causal in ablation_times.FLASH.problems:
        launch = lesson.part_of(one).launch(Problem(b * h, n, n, d, h, h, causal), HOPPER)
        names = [option.partition("=")[0] for option in launch.options()]
        assert len(set(names)) == len(names) and "-DROWS" in names
        assert set(one.options) <= set(launch.options(one.options))
        assert launch.shared_bytes <= HOPPER.shared_bytes


def test_all_that_is_timed_is_compiled_beforehand():
    wanted = ablation_times.FLASH.parts_to_compile(HOPPER)
    assert {(part.step, part.edits) for part in wanted} == {
        (one.kernel, one.edits) for one in all_variants().values()
    }
    assert len(wanted) < len(all_variants()) * len(ablation_times.FLASH.problems)


class Clock:
    """Runs what it times; a launch lasts as long as its candidate's name says."""

    def __init__(self, lasts):
        self.lasts = lasts

    def synchronize(self):
        pass

    def time_us(self, launch):
        launch()
        return self.lasts(launch.__self__.name)


@pytest.fixture
def simulated(monkeypatch):
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")
    monkeypatch.setattr(candidates, "capture", lambda call, calls: Replay(call, calls))
    monkeypatch.setattr(benchmarks, "calls_for", lambda call_us: 1)
    monkeypatch.setattr(benchmarks, "ESTIMATES", 1)


def measured(clock, causal=True):
    return ablation_times.FLASH.measure((1, 1, 20, 16), causal, 3, "simulator", clock)


@pytest.mark.turns(23)
def test_measuring_checks_and_relates_to_the_whole_kernel(simulated, monkeypatch):
    few = [one for one in ABLATIONS if one.name in ("lanes", "cluster", "relaxed")]
    monkeypatch.setattr(ablations, "ABLATIONS", tuple(few))
    place = {label: float(at) for at, label in enumerate(all_variants(), start=10)}
    row = measured(Clock(place.get))
    assert row["wrong"] == row["refused"] == {} and list(row["variants"]) == list(place)
    one = row["variants"]["flash_async without lanes"]
    assert one["median_us"] == 11 and one["over_whole"]["value"] == 1.1
    assert one["samples"] == 3 and one["relative_error"] < 1e-5 and one["registers"] > 0
    split = row["variants"]["flash_split without cluster"]
    assert "-DCLUSTER=1" in split["options"] and "-DCLUSTER=2" not in split["options"]
    found = {"rows": [row]}
    first, others = (
        lesson.worths(found, kernel, (1, 1, 20, 16), True)
        for kernel in ("flash_async", "flash_split")
    )
    assert list(first) == ["lanes"] and first["lanes"][0] == 1.1 and first["lanes"][1] > 1
    assert list(others) == ["cluster", "relaxed"]
    assert others["cluster"][0] == pytest.approx(13 / place["flash_split"], abs=1e-4)
    assert lesson.worths(found, "flash_mma", (1, 1, 20, 16), True) == {}
    assert "flash_async without lanes" in report.report(found)
    with pytest.raises(KeyError, match="causal False"):
        records.row_of(found, (1, 1, 20, 16), causal=False)


@pytest.mark.turns(23)
def test_a_wrong_ablation_is_named_and_not_timed(simulated, monkeypatch):
    broken = Ablation("flash_async", "scale", (("s[j] *= scale;", ";"),))
    monkeypatch.setattr(ablations, "ABLATIONS", (broken, ABLATIONS[0]))
    row = measured(Clock(lambda name: 5.0), causal=False)
    assert list(row["wrong"]) == ["flash_async without scale"]
    assert list(row["variants"]) == ["flash_async", "flash_async without lanes"]
    left = lesson.worths({"rows": [row]}, "flash_async", (1, 1, 20, 16))
    assert left == {"lanes": (1, 1, 1)}


def made_up_record(**changed):
    files = {f"{step(kernel).file}.cu" for kernel in ("flash_async", "flash_split")}
    kernels = {file: records.kernel_hash(file) for file in files}
    return stamped("ablations", kernels=kernels, sources=ablations.sources()) | changed


def test_a_record_is_stale_when_a_kernel_or_an_edit_has_changed():
    assert "STALE" not in lesson.caption(made_up_record())
    other = made_up_record(sources=made_up_record()["sources"] | {LABELS[0]: "other"})
    assert lesson.caption(other).endswith("STALE, edits changed since")
    older = made_up_record(kernels={"12_flash_async.cu": "other"})
    assert lesson.caption(older).endswith("STALE, changed since: 12_flash_async.cu")


def test_the_record_has_no_wrong_variant():
    found = records.newest_record(lesson.KIND)
    if found is None:
        pytest.skip("no record: `attn-course record ablations` makes one on a GPU")
    assert [(tuple(row["shape"]), row["causal"]) for row in found["rows"]] == list(
        ablation_times.FLASH.problems
    )
    assert not any(row["wrong"] for row in found["rows"])


@pytest.mark.turns(23)
@pytest.mark.parametrize("one", in_turns(HOPPER_ABLATIONS, 7), ids=lambda one: one.name)
def test_an_ablation_of_18_gives_the_same_attention(one):
    q, k, v = (array.astype(DTYPES["bfloat16"]) for array in seeded_qkv((1, 1, 300, 64)))
    made = lesson.variant(one, q, k, v, causal=True, backend="simulator")
    made.call()
    expected = reference.attention(q, k, v, causal=True)
    assert agrees(made, expected), one.label


def test_every_problem_of_18_fits_an_h200():
    for one in all_variants("hopper_ablations").values():
        for (b, h, n, d), causal in ablation_times.HOPPER.problems:
            problem = Problem(b * h, n, n, d, h, h, causal, dtype="bfloat16")
            launch = lesson.part_of(one).launch(problem, HOPPER)
            assert launch.shared_bytes <= HOPPER.shared_bytes
            assert set(one.options) <= set(launch.options(one.options))
