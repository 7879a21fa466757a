"""The comparison with compute-sanitizer: what is run, how its output is read, the verdicts."""

from collections import Counter
from dataclasses import replace

import pytest
from kernelscope.compile import with_headers

from attn_course import Counters, observe
from attn_course.backward import BACKWARD
from attn_course.backward import METHODS as BACKWARD_METHODS
from attn_course.clinic import prepare
from attn_course.ladder.steps import FUSED, LADDER
from attn_course.layers import LAYERS
from attn_course.layers.verify import layer_case
from attn_course.measure import records
from attn_course.measure.records import caption, is_current
from attn_devtools.defects import WRONG_RESULT, broken_kernels
from attn_devtools.record import compare_sanitizer as tool
from attn_devtools.record import sanitizer_runs as runs
from attn_devtools.record.sanitizer_runs import Job, Report
from attn_devtools.shares import in_turns

pytestmark = pytest.mark.system

FUSED_STEPS = [step for step in LADDER if step.computes == FUSED and "bias" in step.arguments]
MEMCHECK = """\
outcome x.cu: error: cudaErrorLaunchFailure: unspecified launch failure
========= COMPUTE-SANITIZER
========= Invalid __shared__ read of size 12 bytes
=========     at rows_atomic+0x2f80 in b539defc6f83.cubin.cu:75
=========     by thread (32,0,0) in block (0,0,0)
=========     Access to 0x4a0 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel [0x38ecf6] in libcuda.so.1
=========         Host Frame: main in run.py:12
=========
========= ERROR SUMMARY: 513 errors
"""
RACECHECK = """\
========= Error: Race reported between Write access at scores_tiled+0x420 in 3f23.cubin.cu:67
=========     and Read access at scores_tiled+0x430 in 3f23.cubin.cu:74 [5932 hazards]
=========     and Read access at scores_tiled+0x450 in 3f23.cubin.cu:74 [5930 hazards]
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""
INITCHECK = """\
========= Uninitialized access to 0x7f7552808400 on access by cudaMemcpy source
========= ERROR SUMMARY: 2 errors
"""
SYNCCHECK = """\
========= Barrier error detected. Divergent thread(s) in block.
=========     at scores_tiled+0x2450 in 2ac2.cubin.cu:78
========= ERROR SUMMARY: 34 errors
"""
REFUSED = """\
========= Program hit CUDA_ERROR_INVALID_VALUE (error 1) due to "invalid argument" on CUDA API \
call to cuLaunchKernel.
========= ERROR SUMMARY: 1 error
"""


@pytest.mark.parametrize(
    ("text", "kinds", "errors"),
    [
        (MEMCHECK, {"out-of-bounds": [75]}, 513),
        (RACECHECK, {"race": [67, 74]}, 2),
        (INITCHECK, {"uninitialised-read": []}, 2),
        (SYNCCHECK, {"divergent-barrier": [78]}, 34),
        (REFUSED, {"bad-launch": []}, 1),
        ("========= ERROR SUMMARY: 0 errors\n", {}, 0),
        ("Invalid __global__ read, as the program itself prints it\n", {}, 0),
    ],
)
def test_reading_a_tool(text, kinds, errors):
    report = runs.parse(text, "memcheck", "debug")
    assert (report.kinds, report.errors) == (kinds, errors)
    assert report.is_silent == (not kinds)


# -- what is run -----------------------------------------------------------------------------------
def test_every_kernel_meets_every_tool_once():
    jobs = tool.plan(runs.all_subjects())
    runs_of = Counter((name, job.tool, job.build) for job in jobs for name in job.names)
    assert set(runs_of.values()) == {1}
    for name in (*runs.broken_subjects(), *runs.clean_subjects()):
        met = {(who, build) for one, who, build in runs_of if one == name}
        assert len(met) == len(runs.TOOLS) * len(runs.BUILDS)
    assert {step.path.name for step in (*LADDER, *LAYERS, *BACKWARD)} <= set(runs.clean_subjects())


@pytest.mark.turns(41)
@pytest.mark.parametrize(
    "path", in_turns(sorted({step.path for step in LAYERS}), 6), ids=lambda path: path.name
)
def test_kernels_of_the_layers_are_silent_and_right(path, monkeypatch):
    subject = runs.clean_subjects()[path.name]
    assert {case.step for case in subject.cases} == {step for step in LAYERS if step.path == path}
    assert tool.simulate(subject) == {"kinds": {}, "right": True, "messages": []}

    def other_tokens(step, tokens, heads):
        case = layer_case(step, tokens, heads)
        inputs = {
            name: None if one is None or name == "token" else one[..., :-1].copy()
            for name, one in case.inputs.items()
        }
        return replace(case, inputs=inputs)

    monkeypatch.setattr(runs, "layer_case", other_tokens)
    found = tool.simulate(replace(subject, cases=subject.cases[:1]))
    assert "out-of-bounds" in found["kinds"] and found["right"] is False


@pytest.mark.turns(41)
@pytest.mark.parametrize("method", in_turns([*BACKWARD_METHODS], 4))
def test_methods_of_the_backward_pass_are_silent_and_right(method):
    subject = runs.clean_subjects()[BACKWARD_METHODS[method].steps[-1].path.name]
    assert tool.simulate(subject) == {"kinds": {}, "right": True, "messages": []}


def test_kernels_that_may_fault_run_alone():
    faulting = {runs.name_of(b.path) for b in broken_kernels() if b.kind != WRONG_RESULT}
    jobs = tool.plan(runs.all_subjects())
    assert all(len(job.names) == 1 for job in jobs if faulting & set(job.names))


def test_the_quick_form_takes_both_sides_of_the_same_few_kernels():
    chosen = tool.chosen_subjects(10)
    assert tool.EXACT in chosen and len(chosen) < len(runs.all_subjects()) / 5
    assert {name for job in tool.plan(chosen) for name in job.names} == set(chosen)


def test_a_group_is_split_where_something_is_found(monkeypatch):
    asked = []

    def process(job, executable):
        asked.append(job.names)
        done = "".join(f"outcome {name}: right\n" for name in job.names)
        return done + (SYNCCHECK if "b" in job.names else "")

    monkeypatch.setattr(runs, "run_process", process)
    found = runs.run_job(Job("synccheck", "debug", ("a", "b", "c")), "tool")
    assert asked == [("a", "b", "c"), ("a",), ("b",), ("c",)]
    assert [name for name, one in found.items() if one.kinds] == ["b"]
    assert {one.outcome for one in found.values()} == {"right"}
    asked.clear()
    assert set(runs.run_job(Job("synccheck", "debug", ("a", "c")), "tool")) == {"a", "c"}
    assert asked == [("a", "c")]


def test_a_group_is_split_where_a_kernel_ends_the_context(monkeypatch):
    def process(job, executable):
        broken = "error: unspecified launch failure"
        seen = job.names[:1] if len(job.names) > 1 else job.names
        return "".join(f"outcome {n}: {broken if n == 'a' else 'right'}\n" for n in seen)

    monkeypatch.setattr(runs, "run_process", process)
    found = runs.run_job(Job("memcheck", "debug", ("a", "b")), "tool")
    assert found["a"].outcome.startswith("error") and found["b"].outcome == "right"


def test_a_process_that_does_not_end(monkeypatch, tmp_path):
    """It is killed, and the kernel that it was at is said to hang."""
    script = tmp_path / "tool"
    script.write_text("#!/bin/sh\necho 'outcome a: right'\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(runs, "TIMEOUT_S", 0.5)
    text = runs.run_process(Job("memcheck", "debug", ("a", "b")), str(script))
    assert dict(runs._OUTCOME.findall(text)) == {"a": "right", "b": "hangs"}


# -- verdicts --------------------------------------------------------------------------------------
def ours(kinds=(), right=False):
    return {"kinds": {kind: [1] for kind in kinds}, "right": right, "messages": []}


def theirs(*kinds, lines=(1,)):
    return [tool.as_record(Report("memcheck", "debug", {kind: list(lines) for kind in kinds}))]


@pytest.mark.parametrize(
    ("defect", "mine", "tools", "verdict"),
    [
        ("race", ours(["race"]), theirs("race"), tool.SAME),
        ("race", ours(["race"]), theirs("out-of-bounds"), tool.OURS),
        ("race", ours(["out-of-bounds"]), theirs("race"), tool.TOOLS_ONLY),
        ("race", ours(), theirs(), tool.NEITHER),
        ("race", ours(["race"]), [], tool.NOT_RUN),
        (WRONG_RESULT, ours(), theirs(), tool.NUMBERS),
        (WRONG_RESULT, ours(right=True), theirs(), tool.NEITHER),
        (WRONG_RESULT, ours(), theirs("uninitialised-read", lines=()), tool.OTHER_MEANS),
        (WRONG_RESULT, ours(), theirs("uninitialised-read"), tool.TOOLS_ONLY),
        (WRONG_RESULT, ours(), theirs("out-of-bounds", lines=()), tool.TOOLS_ONLY),
    ],
)
def test_verdicts(defect, mine, tools, verdict):
    assert tool.judge(defect, mine, tools) == verdict


def test_what_initcheck_does_not_see_of_wgmma_is_no_alarm():
    def row(name, **found):
        report = {"tool": "initcheck", "build": "debug", "errors": 9, "outcome": "right"}
        tools = [report | {"kinds": {"uninitialised-read": []}} | found]
        return [{"file": name, "ours": {"kinds": {}, "right": True}, "tools": tools}]

    known = row("18_flash_wgmma.cu")
    assert tool.alarms(known) == [] and tool.unseen(known) == ["18_flash_wgmma.cu"]
    for spoilt in (
        row("14_flash_mma.cu"),
        row("18_flash_wgmma.cu", tool="memcheck"),
        row("18_flash_wgmma.cu", outcome="wrong"),
        row("18_flash_wgmma.cu", kinds={"uninitialised-read": [7]}),
    ):
        assert tool.alarms(spoilt) and not tool.unseen(spoilt)


def test_what_racecheck_does_not_follow_is_no_alarm():
    def row(name, **found):
        report = {"tool": "racecheck", "build": "debug", "errors": 2, "outcome": "right"}
        tools = [report | {"kinds": {"race": [22, 99]}} | found]
        return [{"file": name, "ours": {"kinds": {}, "right": True}, "tools": tools}]

    for name, (lines, reason) in tool.FALSE_ALARMS.items():
        known = {"kinds": {"race": sorted(lines)}}
        assert tool.alarms(row(name, **known)) == []
        assert tool.false_alarms(row(name, **known)) == {name: reason}
        for spoilt in (
            row("14_flash_mma.cu", **known),
            row(name, tool="memcheck", **known),
            row(name, outcome="wrong", **known),
            row(name, kinds=known["kinds"] | {"out-of-bounds": [3]}),
            row(name, kinds={"race": [*lines, 7]}),
        ):
            assert tool.alarms(spoilt) and not tool.false_alarms(spoilt)


def test_each_reason_is_of_a_file_that_there_is():
    subjects = set(runs.all_subjects())
    assert {*(name for name, _ in tool.REASONS_OF_FILES), *tool.FALSE_ALARMS} <= subjects


def test_a_verdict_without_a_reason_is_shown():
    row = tool.row_of("broken/tile_64.cu", "bad-launch", 30, ours(), [Report("memcheck", "debug")])
    assert row["verdict"] == tool.NEITHER and row["why"] is None
    assert "NOT UNDERSTOOD" in tool.reasons([row])


@pytest.mark.turns(37)
@pytest.mark.parametrize("step", in_turns(FUSED_STEPS, 2), ids=lambda s: s.entry)
def test_the_cases_reach_what_a_kernel_can_do(step):
    """A bias, which the result needs; and copies past the registers where it has any."""
    (biased,) = (case for case in runs.ATTENTION if case.problem.biased)
    trial = prepare(step.path, biased, backend="simulator")
    trial.run()
    assert trial.judge().agrees, trial.judge().message
    if "cp.async" in with_headers(step.path.read_text(), step.path.parent):
        assert any(copies_in(step, case) for case in runs.ATTENTION)


def copies_in(step, case):
    """How often a kernel copies past the registers at a case."""
    with observe(Counters()) as seen:
        prepare(step.path, case, backend="simulator").run()
    return seen.totals["async_copy_requests"]


@pytest.mark.turns(23)
def test_our_side_at_several_cases():
    subject = runs.clean_subjects()["09_rows_online.cu"]
    few = subject.cases[::4]  # the clinic's tests examine it at cases like the others
    assert len(few) == 2
    found = tool.simulate(replace(subject, cases=few))
    assert found == {"kinds": {}, "right": True, "messages": []}
    exact = tool.simulate(runs.all_subjects()[tool.EXACT])
    assert exact["kinds"] == {} and exact["right"]


# -- the record ------------------------------------------------------------------------------------
def test_record(monkeypatch, tmp_path):
    gpu = {"gpu": "NVIDIA H200", "driver": "580", "cuda": "13.0"}
    monkeypatch.setattr(records, "gpu_identity", lambda: gpu)
    good, bad = "01_scores_naive.cu", "broken/lost_update.cu"
    sections = {
        "broken": [tool.row_of(bad, "race", 40, ours(["race"]), [Report("racecheck", "debug")])],
        "clean": [
            tool.clean_row(
                good,
                ours(right=True),
                [Report("memcheck", "debug", {"out-of-bounds": [7]}, 1, "wrong")],
            )
        ],
        "machine_code": [],
    }
    record = tool.record_of(sections, 12.3)
    assert record["kind"] == "sanitizer" and record["seconds"] == 12
    assert record["missed"] == record["unexplained"] == []
    assert record["broken"][0]["verdict"] == tool.OURS and record["broken"][0]["why"]
    assert record["alarms"] == [f"memcheck (debug): {good}: out-of-bounds@7, wrong"]
    assert is_current(record) and is_current(record, bad) and is_current(record, good)
    assert "NVIDIA H200" in caption(record) and "STALE" not in caption(record)
    record["kernels"][bad] = "0" * 64
    assert not is_current(record) and is_current(record, good)
    assert f"since: {bad}" in caption(record)
