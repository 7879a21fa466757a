"""ncu's output read, records kept and judged stale, comparisons judged; all without a GPU."""

import json
import sys

import pytest
from kernelscope.watch.counters.counters import Counters
from record_harness import stamped

from attn_course.cli import main
from attn_course.ladder.steps import Device, Geometry, Problem, step
from attn_course.measure import records as results
from attn_course.measure.hardware import nsight
from attn_course.measure.records import RecordError, caption, is_current, stale_kernels
from attn_devtools.profile import ncu
from attn_devtools.profile.command import target_of
from attn_devtools.record import compare_counters, counter_probes

# As `ncu --csv --page raw --print-units base` prints it: its own remarks, a line of names, a line
# of units, a line a launch; thousands are set apart in some locales.
CSV = """==PROF== Connected to process 4242 (/usr/bin/python3.12)
==PROF== Profiling "scores_naive" - 0: 0%....50%....100% - 3 passes
==PROF== Profiling "scores_tiled" - 1: 0%....50%....100% - 3 passes
==PROF== Disconnected from process 4242
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",\
"Grid Size","Device","CC","gpu__time_duration.sum",\
"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",\
"smsp__inst_executed.sum"
"","","","","","","","","","","","ns","sector","inst"
"0","4242","python3.12","127.0.0.1","scores_naive","1","7","(32, 32, 1)","(7, 7, 24)","0","9.0",\
"260,123","61,114,368","n/a"
"1","4242","python3.12","127.0.0.1","scores_tiled(const float *, int)","1","7","(16, 16, 1)",\
"(13, 13, 24)","0","9.0","29888.5","978432","1234"
"""
LAUNCHES = [
    Geometry("scores_naive", (7, 7, 24), (32, 32, 1)),
    Geometry("scores_tiled", (13, 13, 24), (16, 16, 1)),
]
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"


def test_ncu_rows_become_profiles():
    first, second = ncu.parse_csv(CSV)
    assert first.kernel == "scores_naive" and first.grid == (7, 7, 24)
    assert first.block == (32, 32, 1)
    # "n/a" was not measured and is left out.
    assert first.metrics == {"gpu__time_duration.sum": 260123, SECTORS: 61114368}
    assert second.kernel == "scores_tiled"
    assert second.metrics["gpu__time_duration.sum"] == 29888.5
    assert isinstance(second.metrics[SECTORS], int)


def test_profiles_must_be_of_the_launches_asked_for():
    profiles = ncu.parse_csv(CSV)
    assert ncu.match(profiles, LAUNCHES) == profiles
    with pytest.raises(ncu.ProfilerError, match="expected were"):
        ncu.match(profiles, LAUNCHES[::-1])
    with pytest.raises(ncu.ProfilerError, match="expected were"):
        ncu.match(profiles[:1], LAUNCHES)
    wrong = [LAUNCHES[0], Geometry("scores_tiled", (13, 13, 23), (16, 16, 1))]
    with pytest.raises(ncu.ProfilerError, match="asked for was"):
        ncu.match(profiles, wrong)
    with pytest.raises(ncu.ProfilerError, match="no table"):
        ncu.parse_csv("==ERROR== nothing")


def test_metrics_that_ncu_does_not_know_are_found_in_its_complaint():
    asked = ["smsp__inst_executed.sum", "smsp__made_up.sum"]
    complaint = "==ERROR== Failed to find metric smsp__made_up.sum\n"
    assert ncu.unknown_metrics(complaint, asked) == asked[1:]
    complaint = "==ERROR== Failed to find metric regex:^smsp__made_up\\.sum\\.(sum|min)$\n"
    assert ncu.unknown_metrics(complaint, asked) == asked[1:]
    assert ncu.unknown_metrics("==PROF== smsp__made_up.sum profiled\n", asked) == []


def fake_ncu(folder, body):
    """An executable `ncu` that behaves as the Python lines say; `metrics` are those asked for."""
    path, program = folder / "ncu", folder / "ncu.py"
    program.write_text(
        "import os, sys\nargs = sys.argv[1:]\n"
        "metrics = args[args.index('--metrics') + 1].split(',')\n" + body
    )
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}" "$@"\n')  # blanks in paths
    path.chmod(0o755)
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="needs executable scripts")
def test_a_run_drops_unknown_metrics_and_reads_the_rest(tmp_path, monkeypatch):
    fake = fake_ncu(
        tmp_path,
        f"""
if 'smsp__made_up.sum' in metrics:
    print('==ERROR== Failed to find metric smsp__made_up.sum'); sys.exit(1)
assert '--clock-control' in args and args[args.index('--clock-control') + 1] == 'none'
assert args[args.index('--kernel-name') + 1] == 'regex:^(scores_naive|scores_tiled)$'
assert args[-2:] == ['program', 'plan']
print({CSV!r})
""",
    )
    monkeypatch.setattr(ncu, "find_ncu", lambda: fake)
    asked = [SECTORS, "smsp__made_up.sum"]
    found = ncu.run_ncu(["program", "plan"], LAUNCHES, asked)
    assert [profile.metrics[SECTORS] for profile in found] == [61114368, 978432]


@pytest.mark.skipif(sys.platform == "win32", reason="needs executable scripts")
def test_a_refused_or_missing_ncu_is_one_clear_error(tmp_path, monkeypatch):
    fake = fake_ncu(tmp_path, "print('==ERROR== ERR_NVGPUCTRPERM - no permission'); sys.exit(1)")
    monkeypatch.setattr(ncu, "find_ncu", lambda: fake)
    with pytest.raises(ncu.ProfilerError, match="administrator"):
        ncu.run_ncu(["x"], LAUNCHES, [SECTORS])
    monkeypatch.setattr(ncu, "find_ncu", lambda: None)
    with pytest.raises(ncu.ProfilerError, match="not on the PATH"):
        ncu.run_ncu(["x"], LAUNCHES, [SECTORS])


def test_every_target_runs_on_the_simulator_as_it_would_under_ncu():
    for number in range(1, 7):
        totals = compare_counters.simulate(nsight.Target(number, (2, 5, 7, 6)))
        assert totals["global_store_requests"] > 0, number


def test_a_copy_copies():
    x, out = nsight.CopyTarget(1001).run("simulator")  # the last block is ragged
    assert (out == x).all() and x[-1] == 4003


def test_a_plan_names_every_kind_of_target():
    targets = [nsight.Target(2, (1, 2, 3, 4), ("-DPAD=0",)), nsight.CopyTarget(7)]
    assert ncu.planned(ncu.plan_of(targets)) == targets


# -- records ---------------------------------------------------------------------------------------
@pytest.fixture
def project(tmp_path):
    """(kernel folder, results folder, a record of both kernels)."""
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    for name in ("01_a.cu", "02_b.cu"):
        (kernels / name).write_text(f"int x;  // {name}\n")
    hashes = {name: results.kernel_hash(name, kernels) for name in ("01_a.cu", "02_b.cu")}
    launch = {"problem": [4], "options": [], "grid": [1], "block": [32], "metrics": {}}
    case = {"file": "01_a.cu", "kernel": "a", **launch}
    record = stamped("profile", cases=[case], kernels=hashes)
    return kernels, tmp_path / "results", record


def test_a_record_is_written_by_gpu_and_read_back(project, monkeypatch):
    _, root, record = project
    path = results.write_record(record, "profile", root)
    assert path == root / "h200" / "profile.json"
    assert results.read_record(path) == record
    results.write_record(record | {"date": "2026-03-01", "gpu": "Tesla T4"}, "profile", root)
    results.write_record(record | {"kind": "times"}, "times", root)
    # that of the course's GPU, however old
    assert [r["gpu"] for r in results.records("profile", root)] == ["NVIDIA H200", "Tesla T4"]
    monkeypatch.setattr(results, "gpu_count", lambda: 1)
    monkeypatch.setattr(results, "gpu_identity", lambda: {"gpu": "Tesla T4"})
    assert results.newest_record("profile", root)["gpu"] == "Tesla T4"  # this machine's


def test_what_is_no_record_is_refused_by_name(project, tmp_path):
    _, root, record = project
    record.pop("driver")
    with pytest.raises(RecordError, match="missing required field `driver`"):
        results.write_record(record, "profile", root)
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(RecordError, match="broken.json is not a record: .*truncated"):
        results.read_record(broken)


def test_a_corrupt_file_is_named_and_skipped(project, caplog):
    _, root, record = project
    results.write_record(record, "profile", root)
    (root / "h200" / "cut.json").write_text('{"kind": "profile", ')
    (root / "h200" / "half.json").write_text('{"kind": "profile", "gpu": "G"}')
    (root / "h200" / "list.json").write_text("[1]")
    assert results.records("profile", root) == [record]
    assert results.newest_record("profile", root) == record
    assert results.newest_record("times", root) is None
    for name in ("cut", "half", "list"):  # each named, and once only
        assert caplog.text.count(f"{name}.json is not a record: ") == 1


def test_what_is_measured_now_is_measured_once_and_says_so(project, no_gpu, monkeypatch):
    _, root, record = project
    calls = []
    measure = lambda: calls.append(1) or record  # noqa: E731
    monkeypatch.setattr(results, "_measured_now", {})
    with pytest.raises(RecordError, match="no record of it yet.*`attn-course record profile`"):
        results.recorded("profile", measure, root)
    results.write_record(record, "profile", root)
    assert results.recorded("profile", measure, root) == record and not calls
    with pytest.raises(RecordError, match="no record of it yet"):
        results.recorded("profile", measure, root, lambda one: one["gpu"] == "another")
    monkeypatch.setattr(results, "resolve_backend", lambda: "gpu")
    for _ in range(2):
        found = results.recorded("profile", measure, root)
    assert len(calls) == 1 and caption(found) == "measured now on NVIDIA H200"
    assert results.recorded("profile", None, root) == record  # a lesson that does not measure


@pytest.mark.parametrize("kind", ["bench_mlp", "memory_lesson", "experiments"])
def test_a_missing_record_is_named_with_its_command(kind, no_gpu, tmp_path):
    name = {"bench_mlp": "mlp", "memory_lesson": "memory"}.get(kind, kind)
    with pytest.raises(RecordError, match=f"`attn-course record {name}` makes one"):
        results.recorded(kind, root=tmp_path)


def test_a_row_is_found_by_its_shape_and_fields():
    rows = [{"shape": [1, 2], "causal": causal} for causal in (True, False)]
    record = {"rows": rows, "tiles": {"shape": [3, 4]}}
    assert results.row_of(record, (1, 2)) is rows[0]
    assert results.row_of(record, (1, 2), causal=False) is rows[1]
    assert results.row_of(record, (3, 4)) is record["tiles"]
    with pytest.raises(KeyError, match="no row of shape .*, causal False"):
        results.row_of(record, (3, 4), causal=False)


def test_a_changed_kernel_makes_its_record_stale(project):
    kernels, _, record = project
    assert is_current(record, folder=kernels) and stale_kernels(record, kernels) == []
    assert "STALE" not in caption(record, kernels)
    (kernels / "02_b.cu").write_text("int another;\n")
    assert stale_kernels(record, kernels) == ["02_b.cu"]
    assert not is_current(record, folder=kernels)
    assert is_current(record, "01_a", kernels) and not is_current(record, "02_b", kernels)
    assert caption(record, kernels).endswith("STALE, changed since: 02_b.cu")
    (kernels / "01_a.cu").unlink()
    assert stale_kernels(record, kernels) == ["01_a.cu", "02_b.cu"]
    assert not is_current(record, "03_c", kernels)  # never measured


def test_a_new_record_names_kernels_by_their_folders(project, monkeypatch):
    kernels, _, _ = project
    (kernels / "broken").mkdir()
    (kernels / "broken" / "01_a.cu").write_text("int broken;\n")
    identity = {"gpu": "NVIDIA Test", "driver": "1", "cuda": "13.0"}
    monkeypatch.setattr(results, "gpu_identity", lambda: identity)
    record = results.new_record("trial", ["01_a", "broken/01_a.cu", "01_a.cu"], kernels)
    assert list(record["kernels"]) == ["01_a.cu", "broken/01_a.cu"]
    assert is_current(record, folder=kernels)
    (kernels / "broken" / "01_a.cu").write_text("int fixed;\n")
    assert stale_kernels(record, kernels) == ["broken/01_a.cu"]


def test_line_ends_do_not_make_a_record_stale(project):
    kernels, _, record = project
    (kernels / "01_a.cu").write_bytes(b"int x;  // 01_a.cu\r\n")
    assert is_current(record, folder=kernels)


def test_a_probe_is_shown_beside_the_steps(capsys, tmp_path):
    case = {"kernel": "copy", "problem": [64], "options": [], "grid": [1], "block": [64]}
    case |= {"file": "probes/copy.cu", "label": "probes/copy", "metrics": {nsight.TIME: 2500}}
    hashes = {case["file"]: results.kernel_hash(case["file"])}
    record = stamped("profile_lesson", kernels=hashes, cases=[case])
    results.write_record(record, "profile_lesson", tmp_path)
    assert main.main(["profile", "--recorded", "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "probes/copy  " in out and "STALE" not in out


def recorded_profile(root, changed=()):
    """A record of steps 1 and 2 as they are, or as they were before a change."""
    files = ("01_scores_naive.cu", "02_scores_tiled.cu")
    hashes = {name: "0" if name in changed else results.kernel_hash(name) for name in files}
    metrics = {
        SECTORS: 1000,
        "gpu__time_duration.sum": 2500,
        "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": 1.5,
    }
    simulator = {"global_load_sectors": 1000}
    case = {"kernel": "k", "problem": [24, 196, 196, 64], "options": [], "grid": [1], "block": [1]}
    case |= {"metrics": metrics, "simulator": simulator}
    cases = [{"step": i + 1, "file": name} | case for i, name in enumerate(files)]
    record = stamped("profile", kernels=hashes, cases=cases)
    results.write_record(record, "profile", root)


@pytest.mark.parametrize("changed", [(), ("02_scores_tiled.cu",)])
def test_the_profile_command_never_shows_a_stale_record_as_current(tmp_path, capsys, changed):
    recorded_profile(tmp_path, changed)
    arguments = ["profile", "--recorded", "--results", str(tmp_path)]
    assert main.main([*arguments, "--json", str(tmp_path / "out.json")]) == 0
    out = capsys.readouterr().out
    shown = json.loads((tmp_path / "out.json").read_text())["profiles"][0]
    assert "barrier 1.50" in out and "1,000 / 1,000" in out and "2.5" in out
    assert ("02_scores_tiled (STALE)" in out) is bool(changed)
    assert "01_scores_naive (STALE)" not in out
    assert ("STALE" in shown["caption"]) is bool(changed)
    assert [case["current"] for case in shown["cases"]] == [True, not changed]


def test_the_profile_command_selects_steps_and_says_when_there_is_no_record(tmp_path, capsys):
    arguments = ["profile", "--recorded", "--results", str(tmp_path)]
    assert main.main(arguments) == 1
    assert "no recorded profile" in capsys.readouterr().out
    recorded_profile(tmp_path)
    assert main.main([*arguments, "2"]) == 0
    out = capsys.readouterr().out
    assert "02_scores_tiled" in out and "01_scores_naive" not in out


@pytest.mark.parametrize("steps", [(), ("2",)])
def test_the_profile_command_shows_the_lessons_profile_and_the_counters_too(
    tmp_path, capsys, steps
):
    for kind in ("profile_lesson", "counters"):
        record = json.loads((results.RESULTS_FOLDER / "h200" / f"{kind}.json").read_text())
        results.write_record(record, kind, tmp_path)
    path = tmp_path / "out.json"
    arguments = ["profile", *steps, "--recorded", "--results", str(tmp_path), "--json", str(path)]
    assert main.main(arguments) == 0
    lesson, counters = json.loads(path.read_text())["profiles"]
    assert (lesson["kind"], counters["kind"]) == ("profile_lesson", "counters")
    numbers = {case["step"] for case in lesson["cases"]}
    assert numbers == {2} if steps else numbers >= {1, 2, 3, 4, 5, 6, 10, 11, 12}
    case = counters["cases"][0]
    assert case["simulator"] == {n: both["simulator"] for n, both in case["counters"].items()}
    shown = capsys.readouterr().out
    assert "Counted: the hardware\n" in shown  # the lesson's record has no count of ours
    assert "02_scores_tiled K_TILE=0" in shown and lesson["caption"] in shown


def test_every_record_of_this_project_is_readable():
    for path in results.RESULTS_FOLDER.glob("*/*.json"):
        record = json.loads(path.read_text())
        if "kernels" in record:
            assert caption(results.read_record(path))


# -- the comparison --------------------------------------------------------------------------------
def judged(hardware, simulated, name, waves=0, expanding=(), retrying=()):
    return compare_counters.judge(name, hardware, simulated, waves, [*expanding], [*retrying])


def test_bars_of_the_comparison():
    assert judged(10, 10, "global_load_sectors") == "equal"
    assert judged(10, 11, "global_load_sectors") == "MISSED"
    assert judged(10_000, 10_150, "shared_load_wavefronts") == "within 2 %"
    assert judged(10_000, 10_300, "shared_load_wavefronts") == "MISSED"
    assert judged(150, 0, "shared_load_conflicts", waves=10_000) == "within 2 %"
    assert judged(250, 0, "shared_load_conflicts", waves=10_000) == "MISSED"
    assert judged(7, 5, "ffma_thread_instructions") == "MISSED"
    assert "div." in judged(7, 5, "ffma_thread_instructions", expanding=["div."])
    assert "PTX" in judged(7, 5, "instructions")
    assert judged(7, 5, "shared_load_requests") == "idle instructions"
    assert judged(5, 7, "shared_load_requests") == "MISSED"  # nothing idle makes fewer
    assert judged(900, 5, "shared_load_wavefronts", retrying=["atom.x"]) == "retries: atom.x"
    assert judged(900, 5, "shared_store_wavefronts", retrying=["atom.x"]) == "MISSED"


def test_every_verdict_has_its_reason():
    verdicts = {
        judged(7, 5, name, expanding=["div."], retrying=retrying)
        for name in Counters().totals
        for retrying in ([], ["atom.x"])
    }
    verdicts |= {judged(10_000, 10_150, "shared_load_wavefronts"), judged(7, 5, "instructions")}
    for verdict in verdicts - {"equal", "MISSED"}:
        assert any(verdict.startswith(name) for name in compare_counters.REASONS), verdict


def test_additions_of_floats_in_shared_memory_are_read_from_the_code():
    shape = (1, 4, 4, 4)
    assert compare_counters.retries(nsight.Target(7, shape)) == ["atom.shared.add.f32"]
    assert compare_counters.retries(nsight.Target(8, shape)) == []


def test_atomics_of_a_probe_are_compared_and_loops_are_named():
    def verdicts(probe, changed=0):
        totals = compare_counters.simulate(probe)
        metrics = {parts[-1]: totals[n] for n, parts in compare_counters.ATOMIC_METRICS.items()}
        metrics[compare_counters.ATOMIC_METRICS[f"{probe.space}_atomic_requests"][0]] = (
            totals[f"{probe.space}_atomic_requests"] + changed
        )
        if probe.space == "global":  # atomics and reductions add up
            metrics[compare_counters.ATOMIC_METRICS["global_atomic_requests"][1]] = 0
        profile = ncu.Profile("k", (1,), (1,), metrics)
        counters = compare_counters.compare(probe, profile, totals)["counters"]
        return {counters[name]["verdict"] for name in counters if "atomic" in name}

    floats = counter_probes.AtomicProbe("shared", "add float", "neighbours")
    ints = counter_probes.AtomicProbe("shared", "or int", "neighbours")
    reductions = counter_probes.AtomicProbe("global", "add float, unused", "one address")
    for probe in (floats, ints, reductions):
        assert verdicts(probe) == {"equal"}
    assert verdicts(floats, 1) == {"equal", "retries: atom.shared.add.f32"}
    assert verdicts(ints, 1) == verdicts(reductions, 1) == {"equal", "MISSED"}


def test_metrics_are_asked_of_ncu(monkeypatch, tmp_path):
    fake = tmp_path / "ncu"
    fake.write_text(
        "#!/bin/sh\necho 'Metric Name  Type'\necho 'l1tex__b_op_red  Counter'\n"
        "echo 'l1tex__a_op_atom  Counter'\necho 'smsp__inst_executed  Counter'\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(ncu, "find_ncu", lambda: fake)
    assert compare_counters.known_metrics("_op_(atom|red)") == [
        "l1tex__a_op_atom.sum",
        "l1tex__b_op_red.sum",
    ]
    monkeypatch.setattr(ncu, "find_ncu", lambda: None)
    with pytest.raises(ncu.ProfilerError, match="not on the PATH"):
        compare_counters.known_metrics("x")


def test_expanding_operations_are_read_from_the_code():
    shape = (1, 4, 4, 4)
    assert compare_counters.expands(nsight.Target(1, shape)) == []
    assert "ex2." in compare_counters.expands(nsight.Target(5, shape))


def profile_of(totals):
    metrics = {metric: totals[name] for name, metric in nsight.COUNTER_METRICS.items()}
    metrics["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"] += 5000  # arbitration
    return ncu.Profile("k", (1,), (1,), metrics)


def test_ldmatrix_counts_among_the_loads_of_shared_memory():
    totals = dict.fromkeys(nsight.COUNTER_METRICS, 0)
    totals |= {"shared_load_wavefronts": 9, "shared_load_conflicts": 2}
    waves, matrices = compare_counters.SASS_WAVEFRONTS, compare_counters.MATRICES
    loads = "shared_load_requests", "shared_load_wavefronts"
    metrics = {nsight.COUNTER_METRICS[loads[0]]: 3, matrices[loads[0]]: 2}
    metrics |= {waves[loads[1]]: 4, matrices[loads[1]]: 5}
    found = compare_counters.measured(ncu.Profile("k", (1,), (1,), metrics), totals)
    assert [found[name] for name in (*loads, "shared_load_conflicts")] == [5, 9, 2]


def test_pairs_of_halves_are_no_products_of_matrices():
    totals = dict.fromkeys(nsight.COUNTER_METRICS, 0)
    name = "tensor_instructions"
    metrics = {nsight.COUNTER_METRICS[name]: 9, compare_counters.PAIRS_OF_HALVES: 2}
    profile = ncu.Profile("k", (1,), (1,), metrics)
    assert compare_counters.measured(profile, totals)[name] == 7
    assert judged(7, 7, name) == "equal" and judged(9, 7, name) == "MISSED"


def test_the_probes_of_ldmatrix_differ_in_their_conflicts_alone():
    probes = [one for one in counter_probes.probes() if one.label.startswith("ldmatrix")]
    totals = [compare_counters.simulate(one) for one in probes]
    names = [one.name.removesuffix(" rows") for one in probes]
    warps = counter_probes.WARPS
    passes = {"plain": 8 * 4 * warps, "padded": 4 * warps, "swizzled": 4 * warps}
    found = [one["shared_load_wavefronts"] for one in totals]
    assert dict(zip(names, found, strict=True)) == passes


def test_a_comparison_names_what_it_missed_and_writes_both_sides(tmp_path, monkeypatch, capsys):
    cases = [nsight.Target(1, (1, 9, 5, 4)), counter_probes.Probe("neighbours", 16, 32)]
    totals = [compare_counters.simulate(case) for case in cases]
    profiles = [profile_of(one) for one in totals]
    identity = {"gpu": "NVIDIA Test", "driver": "1", "cuda": "13.0"}
    monkeypatch.setattr(results, "gpu_identity", lambda: identity)

    def finish():
        rows = [compare_counters.compare(*one) for one in zip(cases, profiles, totals, strict=True)]
        return compare_counters.finish(rows, tmp_path)

    assert finish() == 0
    profiles[0].metrics[SECTORS] += 1
    assert finish() == 1
    record = results.read_record(tmp_path / "test" / "counters.json")
    assert record["missed"] == ["01_scores_naive (1, 9, 5, 4): global_load_sectors"]
    assert list(record["kernels"]) == ["01_scores_naive.cu"]
    row = record["cases"][0]["counters"]["global_load_sectors"]
    assert row["hardware"] == row["simulator"] + 1
    assert record["probes"][0]["counters"]["shared_load_wavefronts"]["simulator"] == 4 * 64
    assert "1 bars missed" in capsys.readouterr().out


def test_a_record_keeps_the_cases_of_an_earlier_one_that_were_not_run_again():
    def record(commit, cases, kernels, gpu="A"):
        stamp = {"gpu": gpu, "date": commit, "commit": commit}
        return {**stamp, "kernels": kernels, "cases": cases, "probes": [], "missed": []}

    def case(label, problem, verdict):
        return {"label": label, "problem": problem, "counters": {"x": {"verdict": verdict}}}

    old = record("c", [case("a", (1,), "equal"), case("b", (1,), "MISSED")], {"a": "1", "b": "1"})
    new = record("d", [case("b", (1,), "equal"), case("b", (2,), "MISSED")], {"b": "2"})
    found = compare_counters.with_earlier_cases(new, old)
    assert [(one["label"], one.get("run", {}).get("commit")) for one in found["cases"]] == [
        ("a", "c"),
        ("b", None),
        ("b", None),
    ]
    assert found["kernels"] == {"a": "1", "b": "2"} and found["commit"] == "d"
    assert found["missed"] == ["b (2,): x"]
    with pytest.raises(ValueError, match="takes nothing"):
        compare_counters.with_earlier_cases(new, old | {"gpu": "B"})


def test_the_profile_command_uses_the_constants_of_the_device():
    shape, small, large = (2, 12, 196, 64), Device("s", (9, 0), 4), Device("l", (9, 0), 132, 232448)
    assert target_of(1, shape, large).options == ()  # nothing to tune
    few, many = (target_of(12, shape, device) for device in (small, large))
    assert few.problem == many.problem == (24, 196, 196, 64)
    assert few.launch.grid != many.launch.grid  # a GPU of few SMs gets larger tiles
    problem = Problem(24, 196, 196, 64)
    assert many.launch == step(12).launch(problem, (), large)


def test_without_a_case_nothing_is_profiled(capsys, monkeypatch):
    monkeypatch.setattr(compare_counters, "profile", lambda *_: pytest.fail("ncu was started"))
    assert compare_counters.main(["--only", "no such kernel"]) == 1
    assert "no case to run: none has this label" in capsys.readouterr().out
    monkeypatch.setattr(compare_counters, "cases", lambda *_: [])
    assert compare_counters.main([]) == 0
