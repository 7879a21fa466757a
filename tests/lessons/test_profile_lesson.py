"""Lesson 13's predictions, and what it reads from records, stale and missing ones included."""

from record_harness import stamped

from attn_course.lessons import lesson13_profile
from attn_course.measure.hardware import nsight
from attn_course.measure.records import kernel_hash
from attn_devtools.profile import ncu
from attn_devtools.record import profile_metrics, schema

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
        < found.wavefronts
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


def test_a_stale_case_is_not_used():
    found = record(case(SMALL, {nsight.TIME: 2500}), kernel=lambda file: "another text")
    assert (
        lesson13_profile.case_of(found, SMALL) is None
        and lesson13_profile.time_us(found, SMALL) is None
    )


def test_a_metric_comes_from_the_first_record_that_has_it():
    first, second = record(case(SMALL, {"a": 1})), record(case(SMALL, {"a": 2, "b": 3}))
    assert lesson13_profile.metric(SMALL, "a", first, second) == 1
    assert lesson13_profile.metric(SMALL, "b", first, second) == 3
    assert lesson13_profile.metric(SMALL, "c", first) is None


def test_the_smallest_limit_decides_what_fits():
    limits = dict(zip(lesson13_profile.LIMITS, (8, 32, 4, 10), strict=True))
    assert lesson13_profile.blocks_that_fit(SMALL, record(case(SMALL, limits))) == 4
    del limits[lesson13_profile.LIMITS[0]]
    assert lesson13_profile.blocks_that_fit(SMALL, record(case(SMALL, limits))) is None


def test_a_record_keeps_what_it_asked_for(monkeypatch):
    def collect(targets, metrics):
        assert set(nsight.PROFILING) <= set(metrics)
        everything = dict.fromkeys(metrics, 1) | {"launch__sm_count": 7, "of no use": 1}
        return [
            ncu.Profile(t.launch.entry, t.launch.grid, t.launch.block, everything) for t in targets
        ]

    monkeypatch.setattr(profile_metrics, "collect", collect)
    monkeypatch.setattr(
        profile_metrics,
        "new_record",
        lambda kind, files, **parts: {
            "kind": kind,
            "kernels": {file: kernel_hash(file) for file in files},
            **parts,
        },
    )
    found = stamped(**profile_metrics.record())
    targets = (*lesson13_profile.TARGETS, *lesson13_profile.LARGE.values())
    assert len(found["cases"]) == len(targets)
    schema.check(found)  # it fits the schema of its kind
    for target in targets:
        metrics = lesson13_profile.case_of(found, target)["metrics"]
        assert metrics["launch__sm_count"] == 7 and "of no use" not in metrics


def test_a_report_shows_each_launch_and_its_longest_stalls():
    metrics = {
        nsight.TIME: 2500,
        nsight.SPEED_METRICS["L1"]: 71.6,
        nsight.STALL_METRICS["mio_throttle"]: 3.0,
        nsight.STALL_METRICS["lg_throttle"]: 4.5,
        nsight.STALL_METRICS["selected"]: 9.0,
    }
    copy = lesson13_profile.LARGE["copy"]
    lines = profile_metrics.report(record(case(copy, metrics))).splitlines()
    (line,) = [line for line in lines if line.startswith("copy, large")]
    assert line.split()[2:5] == ["2.5", "-", "72"] and line.endswith(
        "lg_throttle 4.5, mio_throttle 3.0"
    )
    assert sum(line.startswith("05_softmax_warp") for line in lines) == 2
