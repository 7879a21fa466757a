"""Ablations compute what the whole kernel computes, and times come from a GPU or its record."""

import sys
from pathlib import Path

import numpy as np
import pytest
import record_ablations

from attn_course import Sanitizer
from attn_course.engine.events import observe
from attn_course.engine.watch.counters.counters import Counters
from attn_course.ladder.steps import Device, step
from attn_course.measure import ablations, records
from attn_course.measure.ablations import (
    ABLATIONS,
    PROBLEMS,
    Ablation,
    AblationError,
    Variant,
    ablation,
    all_variants,
    difference,
    measure,
    options_for,
    record_caption,
    record_is_current,
    row_of,
    source,
    source_hash,
    variants,
    whole,
    worths,
)
from attn_course.measure.suites import float64_attention
from attn_course.measure.timing import Replay, TimingError
from attn_course.reference.inputs import seeded_qkv

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


def counted(one, q, k, v, **options):
    seen = Counters()
    made = Variant(one, q, k, v, backend="simulator", **options)
    with observe(seen):
        made.call()
    return seen.totals


# -- source ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("one", ABLATIONS, ids=LABELS)
def test_an_ablation_differs_from_its_kernel(one):
    text = source(whole(one.kernel))
    assert bool(one.edits) != bool(one.options)
    assert (source(one) != text) == bool(one.edits)
    assert source_hash(one) != source_hash(whole(one.kernel))
    for old, new in one.edits:
        assert old in text and new in source(one)
        assert max(map(len, new.splitlines())) <= 100
    if one.edits:
        removed = [line[1:] for line in difference(one).splitlines() if line.startswith("-")]
        assert removed and all(line in text for line in removed)
    else:
        assert difference(one) == " ".join(one.options)


def test_names_are_unique_and_lead_to_their_ablation():
    assert len(set(LABELS)) == len(LABELS)
    assert all(ablation(one.kernel, one.name) is one for one in ABLATIONS)
    with pytest.raises(KeyError, match="flash_async without lanes"):
        ablation("flash_async", "luck")
    assert [one.label for one in all_variants()] == [
        *(one.label for one in variants("flash_async")),
        *(one.label for one in variants("flash_split")),
    ]
    assert all_variants()[0].label == "flash_async"


@pytest.mark.parametrize("old", ["no such line", "__syncthreads();"])
def test_an_edit_must_fit_exactly_once(old):
    with pytest.raises(AblationError, match="flash_async without it: .* not once"):
        source(Ablation("flash_async", "it", "", "", ((old, ""),)))


# -- right results ---------------------------------------------------------------------------------
@pytest.mark.parametrize("one", ABLATIONS, ids=LABELS)
@pytest.mark.parametrize(
    ("shape", "keys", "causal"),
    [((1, 2, 37, 20), 41, False), ((2, 1, 45, 64), 45, True), ((1, 1, 18, 6), 33, True)],
)
def test_an_ablation_computes_attention(one, shape, keys, causal):
    q, k, v = seeded_qkv(shape, kv_length=keys)
    expected = float64_attention(q, k, v, causal=causal)
    for options in TILES[one.kernel]:
        made = Variant(one, q, k, v, causal=causal, backend="simulator", options=options)
        assert not made.compare(expected).agrees, "nothing has been written"
        made.call()
        assert made.compare(expected).agrees
        made.poison()
        assert np.isnan(made.out).all()


@pytest.mark.parametrize("one", ABLATIONS, ids=LABELS)
def test_an_ablation_has_no_race(one):
    q, k, v = seeded_qkv((1, 1, 18, 16), kv_length=40)
    for options in TILES[one.kernel]:
        made = Variant(one, q, k, v, causal=True, backend="simulator", options=options)
        with observe(Sanitizer()) as report:
            made.call()
        assert report.findings == []


def test_the_barrier_that_late_v_saves_is_needed_without_it():
    late = ablation("flash_async", "late V")
    edits = [
        (old, "\n".join(line for line in new.splitlines() if "next V tile" not in line) + "\n")
        for old, new in late.edits
    ]
    q, k, v = seeded_qkv((1, 1, 18, 16), kv_length=40)
    made = Variant(
        Ablation("flash_async", "it", "", "", tuple(edits)),
        q,
        k,
        v,
        backend="simulator",
        options=TILES["flash_async"][1],
    )
    with observe(Sanitizer()) as report:
        made.call()
    assert "race" in {finding.kind for finding in report.findings}


def test_rows_that_see_no_key_are_zeros():
    q, k, v = seeded_qkv((1, 1, 40, 8), kv_length=9)
    for one in all_variants():
        made = Variant(one, q, k, v, causal=True, backend="simulator", options=TILES[one.kernel][0])
        made.call()
        assert not made.out[0, 0, :31].any() and made.out[0, 0, 31:].any(), one.label


# -- what each costs on counters -------------------------------------------------------------------
QKV = seeded_qkv((1, 2, 64, 64))
TILE = ("-DROWS=4", "-DKEYS=4", "-DROW_WARPS=1", "-DKEY_WARPS=1")


def test_pairs_of_lanes_halve_the_wavefronts_of_k_and_v():
    before, after = (
        counted(one, *QKV, options=TILE)
        for one in (ablation("flash_async", "lanes"), whole("flash_async"))
    )
    # Per 4 floats of a tile's rows: 4 loads of K by each warp, and as many of Q; the same of P V.
    loads = before["shared_load_requests"]
    assert after["shared_load_requests"] == loads
    k_and_v = 2 * 4 * (64 // 4) * 2 * 2 * 4  # loads a tile, tiles, heads, blocks of 16 rows
    saved = before["shared_load_wavefronts"] - after["shared_load_wavefronts"]
    assert saved == 2 * k_and_v


def test_pointers_and_barriers_show_in_the_counters():
    full = counted(whole("flash_async"), *QKV, options=TILE)
    pointers = counted(ablation("flash_async", "pointers"), *QKV, options=TILE)
    late = counted(ablation("flash_async", "late V"), *QKV, options=TILE)
    assert pointers["instructions"] > full["instructions"]
    blocks, tiles = 8, 2
    assert late["barriers"] - full["barriers"] == blocks * tiles
    for name in ("turn", "last rows"):
        other = counted(ablation("flash_async", name), *QKV, options=TILE)
        assert other["ffma_thread_instructions"] == full["ffma_thread_instructions"]


# -- launches and measuring ------------------------------------------------------------------------
@pytest.mark.parametrize("one", all_variants(), ids=lambda one: one.label)
def test_every_problem_fits_an_h200(one):
    for shape, causal in PROBLEMS:
        names = [option.partition("=")[0] for option in options_for(one, shape, causal, HOPPER)]
        assert len(set(names)) == len(names) and "-DROWS" in names
        assert set(one.options) <= set(options_for(one, shape, causal, HOPPER))
        launch = ablations.tuned_launch(one, _problem(shape, causal), HOPPER)
        assert launch.shared_bytes <= HOPPER.shared_bytes


def _problem(shape, causal):
    b, h, n, d = shape
    return ablations.Problem(b * h, n, n, d, h, h, causal)


def test_the_tool_compiles_what_is_timed():
    wanted = record_ablations.wanted(HOPPER)
    assert {(kernel, name) for kernel, name, _ in wanted} == {
        (one.kernel, one.name) for one in all_variants()
    }
    assert len(set(wanted)) == len(wanted) < len(all_variants()) * len(PROBLEMS)


class Clock:
    """Runs what it times; a launch lasts as long as the ablation's place says."""

    def __init__(self, lasts):
        self.lasts = lasts

    def synchronize(self):
        pass

    def time_us(self, launch):
        launch()
        return self.lasts(launch.__self__.ablation)


@pytest.fixture
def simulated(monkeypatch):
    monkeypatch.setenv("ATTN_COURSE_BACKEND", "simulator")
    monkeypatch.setattr(ablations, "capture", lambda call, calls: Replay(call, calls))
    monkeypatch.setattr(ablations, "calls_for", lambda call_us: 1)
    monkeypatch.setattr(ablations, "ITERATIONS", 3)


def test_measuring_checks_and_relates_to_the_whole_kernel(simulated):
    place = {one.label: float(at) for at, one in enumerate(all_variants(), start=10)}
    row = measure((1, 1, 20, 16), True, Clock(lambda one: place[one.label]), "simulator")
    assert row["wrong"] == {} and list(row["variants"]) == list(place)
    one = row["variants"]["flash_async without lanes"]
    assert one["median_us"] == 11 and one["over_whole"]["value"] == 1.1
    split = row["variants"]["flash_split without cluster"]
    assert "-DCLUSTER=1" in split["options"] and "-DCLUSTER=2" not in split["options"]
    found = {"rows": [row]}
    (first, *_), others = (
        worths(found, kernel, (1, 1, 20, 16), True) for kernel in ("flash_async", "flash_split")
    )
    assert (first.ablation.name, first.median_us, first.whole_us) == ("lanes", 11, 10)
    assert first.ratio == 1.1 and first.is_clear
    assert [one.ablation.name for one in others] == ["cluster", "relaxed"]
    assert others[0].whole_us == place["flash_split"]
    with pytest.raises(KeyError, match="causal False"):
        row_of(found, (1, 1, 20, 16))


def test_a_wrong_ablation_is_named_and_not_timed(simulated, monkeypatch):
    broken = Ablation("flash_async", "scale", "", "", (("s[j] *= scale;", ";"),))
    monkeypatch.setattr(ablations, "ABLATIONS", (broken, ABLATIONS[0]))
    row = measure((1, 1, 20, 16), False, Clock(lambda one: 5.0), "simulator")
    assert list(row["wrong"]) == ["flash_async without scale"]
    assert list(row["variants"]) == ["flash_async", "flash_async without lanes"]
    (left,) = worths({"rows": [row]}, "flash_async", (1, 1, 20, 16))
    assert left.ratio == 1 and not left.is_clear


def made_up_record(**changed):
    files = {f"{step(kernel).file}.cu" for kernel in ("flash_async", "flash_split")}
    return {
        "kind": "ablations",
        "gpu": "G",
        "driver": "1",
        "cuda": "1",
        "date": "2026-01-02",
        "commit": "a",
        "kernels": {file: records.kernel_hash(file) for file in files},
        "sources": {one.label: source_hash(one) for one in all_variants()},
    } | changed


def test_a_record_is_stale_when_a_kernel_or_an_edit_has_changed():
    assert record_is_current(made_up_record())
    assert "STALE" not in record_caption(made_up_record())
    other = made_up_record(sources=made_up_record()["sources"] | {LABELS[0]: "other"})
    assert not record_is_current(other) and "edits changed" in record_caption(other)
    older = made_up_record(kernels={"12_flash_async.cu": "other"})
    assert not record_is_current(older)
    assert record_caption(older).endswith("STALE, changed since: 12_flash_async.cu")


def test_the_record_has_no_wrong_variant():
    found = ablations.newest_record()
    if found is None:
        pytest.skip("no record: tools/record_ablations.py makes one on a GPU")
    assert [(tuple(row["shape"]), row["causal"]) for row in found["rows"]] == list(PROBLEMS)
    assert not any(row["wrong"] for row in found["rows"])


def test_recording_needs_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTN_COURSE_BACKEND", "simulator")
    with pytest.raises(TimingError):
        ablations.record()
    monkeypatch.setattr(sys, "argv", ["record_ablations.py", str(tmp_path)])
    assert record_ablations.main() == 2 and not list(Path(tmp_path).iterdir())
