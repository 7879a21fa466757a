"""Lesson 13's predictions, and what it reads from records, stale and missing ones included."""

from record_harness import stamped

from attn_course.lessons import lesson13_profile
from attn_course.measure.hardware import nsight
from attn_course.measure.records import kernel_hash

SMALL = nsight.Target(3, (2, 61, 77, 37))


def case(target, metrics, counters=None):
    return {
        "label": target.label,
        "file": f"{target.file}.cu",
        "kernel": target.launch.entry,
        "problem": list(target.problem),
        "options": list(target.options),
        "grid": list(target.launch.grid),
        "block": list(target.launch.block),
        "metrics": metrics,
        "counters": counters or {},
    }


def record(*cases, kernel=kernel_hash):
    kernels = {one["file"]: kernel(one["file"]) for one in cases}
    return stamped(lesson13_profile.KIND, cases=list(cases), kernels=kernels)


def test_a_prediction_needs_no_gpu():
    found = lesson13_profile.predict_target(SMALL)
    launch = SMALL.launch
    assert found.blocks == launch.grid[0] * launch.grid[1] * launch.grid[2]
    assert found.totals["shared_load_wavefronts"] > 0
    waves = found.totals["shared_load_wavefronts"] + found.totals["shared_store_wavefronts"]
    assert (
        waves
        < found.turns
        < waves
        + 32 * found.totals["global_load_requests"]
        + 32 * (found.totals["global_store_requests"])
    )
    assert found.occupancy.warps_a_block == 8 and 16 < found.registers <= 64
    assert lesson13_profile.shared_bytes(SMALL) == 2 * 16 * (4 * 16 + 4) * 4


def test_a_case_is_found_by_target():
    other = nsight.Target(3, (1, 61, 77, 37))
    found = record(case(other, {nsight.TIME: 1000}), case(SMALL, {nsight.TIME: 2500}))
    assert lesson13_profile.time_us(found, SMALL) == 2.5
    assert lesson13_profile.case_of(found, nsight.Target(3, SMALL.problem, ("-DTILE=8",))) is None
    assert lesson13_profile.time_us(None, SMALL) is None


def test_a_stale_case_is_not_used():
    found = record(case(SMALL, {nsight.TIME: 2500}), kernel=lambda file: "another text")
    assert (
        lesson13_profile.case_of(found, SMALL) is None
        and lesson13_profile.time_us(found, SMALL) is None
    )


def test_a_metric_comes_from_the_first_record_that_has_it():
    first, second = record(case(SMALL, {"a": 1})), record(case(SMALL, {"a": 2, "b": 3}))
    assert lesson13_profile.metric(SMALL, "a", first, second) == 1
    assert lesson13_profile.metric(SMALL, "b", None, first, second) == 3
    assert lesson13_profile.metric(SMALL, "c", first) is None


def test_the_smallest_limit_decides_what_fits():
    limits = dict(zip(lesson13_profile.LIMITS, (8, 32, 4, 10), strict=True))
    assert lesson13_profile.blocks_that_fit(SMALL, record(case(SMALL, limits))) == 4
    del limits[lesson13_profile.LIMITS[0]]
    assert lesson13_profile.blocks_that_fit(SMALL, record(case(SMALL, limits))) is None


def test_waits_add_up_by_meaning():
    metrics = {
        nsight.STALL_METRICS["long_scoreboard"]: 2.0,
        nsight.STALL_METRICS["lg_throttle"]: 1.5,
        nsight.STALL_METRICS["mio_throttle"]: 1.0,
    }
    found = lesson13_profile.waits(record(case(SMALL, metrics)), SMALL)
    assert list(found.items()) == [("a full memory queue", 2.5), ("global memory", 2.0)]
    assert lesson13_profile.waits(None, SMALL) == {}


def test_every_wait_is_a_reason_that_is_asked_for():
    reasons = [reason for names in lesson13_profile.WAITS.values() for reason in names]
    assert len(set(reasons)) == len(reasons) and set(reasons) <= set(nsight.STALLS)
    assert set(lesson13_profile.UNITS) <= set(nsight.SPEED_METRICS)


def test_a_record_keeps_what_it_asked_for(monkeypatch):
    def collect(targets, metrics):
        assert set(nsight.PROFILING) <= set(metrics)
        everything = dict.fromkeys(metrics, 1) | {"launch__sm_count": 7, "of no use": 1}
        return [
            nsight.Profile(t.launch.entry, t.launch.grid, t.launch.block, everything)
            for t in targets
        ]

    monkeypatch.setattr(lesson13_profile, "collect", collect)
    monkeypatch.setattr(
        lesson13_profile,
        "new_record",
        lambda kind, files, **parts: {
            "kind": kind,
            "kernels": {file: kernel_hash(file) for file in files},
            **parts,
        },
    )
    found = lesson13_profile.record()
    assert len(found["cases"]) == len(lesson13_profile.TARGETS) and len(found["kernels"]) == 6
    for target in lesson13_profile.TARGETS:
        metrics = lesson13_profile.case_of(found, target)["metrics"]
        assert metrics["launch__sm_count"] == 7 and "of no use" not in metrics
