"""Predictions of kernels whose time is known by one constant, from both sides; and their parts."""

import json
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from held_out_set import FOLDERS, held_out
from kernelscope import RawKernel, RawModule, observe
from kernelscope.errors import InputError, UnknownNameError
from kernelscope.timing import Time, measure
from kernelscope.timing.gpus import gpu, names
from kernelscope.timing.memory.traffic import copy_bytes
from kernelscope.timing.model import (
    FABRIC,
    FABRIC_NAME,
    IDLE,
    LAST_WARP,
    NAMES,
    WAITS,
    predict,
    sharpness_of,
    smooth_max,
    units_together,
)
from kernelscope.timing.work import DRAM_SPREAD, UNITS, LaunchShape, LaunchWork

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import time_model  # noqa: E402 - a tool, in no package

H200 = gpu("h200")
START_US = H200.launch_us + 1e6 * H200.start_clocks / H200.hz
KERNELSCOPE = Path(__file__).parents[2]
BOUNDED = tuple(FOLDERS)[:3]  # the rules were corrected for these
STEPS = 64
ATOMICS = """extern "C" __global__ void add_up(float* sums, int apart)
{
    atomicAdd(sums + apart * (blockIdx.x * blockDim.x + threadIdx.x), 1.0f);
}"""


def launched(known, kernel, blocks, threads, *arguments, run=None):
    with observe(Time(known, blocks=run)) as seen:
        kernel((blocks,), (threads,), arguments)
    return seen.launches[0]


@pytest.fixture(scope="module")
def probe():
    module = RawModule(path=str(measure.PROBES), backend="simulator")

    def predicted(name, blocks, threads, *arguments, run=None, known=H200):
        return launched(known, module.get_function(name), blocks, threads, *arguments, run=run)

    return predicted


@pytest.fixture(scope="module")
def copied(probe):
    """Two arrays of 32 MiB each, of which 16 blocks are copied."""
    first, second = (np.zeros(1 << 23, np.float32) for _ in range(2))

    def predicted(known=H200):
        blocks = first.size // 4096
        return probe("copy", blocks, 256, first, second, run=16, known=known)

    return predicted


@pytest.mark.turns(23)
@pytest.mark.system
def test_a_copy_takes_its_bytes_over_the_bandwidth(copied):
    found = copied()
    shortest = 2 * (1 << 25) / H200.dram_gbps / 1e3
    assert found.limit == FABRIC_NAME
    assert shortest < found.us < 1.2 * shortest + START_US
    assert found.low < found.us < found.high
    assert found.bounds["DRAM"] == pytest.approx(shortest)
    crossed = 2 * (1 << 25) / (FABRIC * H200.l2_gbps) / 1e3
    assert found.bounds[FABRIC_NAME] == pytest.approx(crossed)
    assert "16 of 2048 blocks were run" in found.notes[0]


def test_reading_alone_is_faster_than_copying():
    """The bus turns around between reads and writes: as many bytes take longer half and half."""
    for read, written, gbps in (
        (1e9, 0.0, H200.read_gbps),
        (5e8, 5e8, H200.dram_gbps),
        (0.0, 1e9, H200.dram_gbps),
    ):
        found = copy_bytes(H200, read, written) / H200.dram_gbps
        assert found == pytest.approx(1e9 / gbps)


@pytest.mark.turns(23)
@pytest.mark.system
def test_half_the_bandwidth_is_twice_the_time(copied):
    slow = replace(H200, dram_gbps=H200.dram_gbps / 2)
    assert copied(slow).limit == "DRAM"
    assert 1.7 < copied(slow).us / copied().us < 2.05


@pytest.mark.turns(23)
@pytest.mark.system
def test_a_copy_without_its_loads_or_stores_is_shorter(copied):
    found = copied()
    lines = measure.PROBES.read_text().splitlines()
    load, store = (next(i for i, s in enumerate(lines, 1) if t in s) for t in ("= from[", "to[f"))
    for line in (load, store):
        assert 0.3 * found.us < found.without_line[line] < 0.8 * found.us


@pytest.mark.turns(11)
@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "clocks", "limit", "extra"),
    [
        ("fma_rate", 16 * 1024 / 128, "issue", (np.float32(0.5),)),
        ("mufu_rate", 16 * 1024 / 16, "MUFU", ()),
        ("shared_rate", 16 * 32, "shared memory and L1", ()),
        ("mma_f16", 8 * 32 * 16 * 8 * 16 / H200.mma_per_clock, "tensor cores", ()),
    ],
)
def test_a_unit_at_its_rate(probe, name, clocks, limit, extra):
    """Blocks of 1,024 threads keep one unit busy: its clocks, and little more."""
    arrays = np.zeros(1, np.int64), np.zeros(64, np.float32)
    found = probe(name, 1, 1024, *arrays, *extra, np.int32(STEPS))
    shortest = 1e6 * STEPS * clocks / H200.hz
    assert shortest < found.us < 1.3 * shortest + START_US
    assert found.busiest == limit
    assert found.limit == "few blocks"  # a single one


@pytest.mark.system
def test_idle_sms_limit_a_launch(probe):
    """One block beyond a wave: a tail as long as a block. Fewer blocks than SMs: no tail."""
    arguments = np.zeros(264, np.int64), np.zeros(64, np.float32), np.float32(0.5), np.int32(STEPS)
    most = 2 * H200.sms
    found = {
        blocks: probe("fma_rate", blocks, 1024, *arguments, run=1)
        for blocks in (4, H200.sms, H200.sms + 1, most)
    }
    block_us = 1e6 * STEPS * 16 * 1024 / 128 / H200.hz
    few, full, one_more, twice = found.values()
    assert one_more.limit == "tail" and few.limit == "few blocks"
    assert block_us < one_more.bounds["tail"] < 1.3 * block_us
    assert (
        0.8 * block_us < few.bounds["few blocks"] < block_us
    )  # less a warp's latency, which stays
    assert few.bounds["tail"] == one_more.bounds["few blocks"] == 0
    for one in (full, twice):
        assert one.limit == "issue" and one.bounds["tail"] == one.bounds["few blocks"] == 0
    assert few.us == pytest.approx(full.us, rel=0.02)


def test_unequal_blocks_have_a_tail_on_few_sms_too():
    """Four blocks, one with most of the work: beside the idle SMs the others wait for it."""
    text = """extern "C" __global__ void some(float* out, float a, int steps) {
        float value = threadIdx.x;
        for (int i = 0; i < (blockIdx.x ? 1 : 40) * steps; ++i) value = a * value + 1.0f;
        out[blockIdx.x * blockDim.x + threadIdx.x] = value;
    }"""
    kernel = RawKernel(text, "some", backend="simulator")
    out = np.zeros(4 * 1024, np.float32)
    bounds = launched(H200, kernel, 4, 1024, out, np.float32(0.5), np.int32(STEPS)).bounds
    assert bounds["tail"] > 2 * bounds["few blocks"] > 0


def test_a_chain_of_loads_takes_their_latency(probe):
    steps = 1024
    arguments = np.zeros(1, np.int64), np.zeros(1, np.uint32), np.int32(steps)
    found = probe("chase_shared", 1, 32, *arguments)
    shortest = 1e6 * steps * H200.shared_clocks / H200.hz
    assert found.limit == "latency"
    assert found.bounds["few blocks"] < 0.1 * shortest  # one warp: no SM could help it
    assert shortest < found.us < 1.2 * shortest + START_US


def test_barriers_take_their_clocks(probe):
    found = probe("barrier_cost", 1, 256, np.zeros(1, np.int64), np.int32(STEPS))
    shortest = 1e6 * 16 * STEPS * H200.barrier_clocks / H200.hz
    assert shortest < found.us < 1.5 * shortest + START_US


@pytest.mark.turns(11)
@pytest.mark.system
def test_atomics_on_one_address_wait_for_each_other():
    """The hottest address counts, not the number of atomics."""
    kernel = RawKernel(ATOMICS, "add_up", backend="simulator")
    sums, blocks = np.zeros(1 << 16, np.float32), 256
    one = launched(H200, kernel, blocks, 256, sums, np.int32(0), run=32)
    apart = launched(H200, kernel, blocks, 256, sums, np.int32(1), run=32)
    assert one.bounds["atomics"] == pytest.approx(1e-3 * H200.atomic_ns * blocks * 256)
    assert one.limit == "atomics" and one.us > one.bounds["atomics"]
    assert apart.bounds["atomics"] < 0.1 and apart.us < 0.1 * one.us


def test_units_disturb_each_other_by_what_they_do_not_share():
    """Multiply-adds alone take their issue; an MUFU that is as long makes both longer."""
    busy = np.zeros(len(UNITS))
    busy[UNITS.index("issue")] = busy[UNITS.index("fma")] = 8.0
    assert units_together(busy) == 8.0
    busy[UNITS.index("mufu")] = 8.0
    assert 8.5 < units_together(busy) < 10.0  # most of its time it issues nothing


def test_what_is_written_makes_the_loads_of_dram_wait_longer():
    """A chain of 100 loads, all of which DRAM has; with barriers the last warp's load counts."""
    shape = LaunchShape(132, 8, 0, 1, 1.0)
    some = (np.zeros(1, int), np.ones(1, int), np.zeros((1, len(UNITS))))
    chain = ({1: 100 * H200.dram_clocks},)
    alone = LaunchWork(shape, 8, *some, chain, {}, {}, {}, {}, False, 1.0, 32, ({1: 100.0},))
    writing = replace(alone, dram_written=1e7)
    meeting = replace(alone, meetings=100.0)
    us = [predict(work, H200, "k").us for work in (alone, writing, meeting)]
    assert us[1] > 1.02 * us[0] and us[2] > 1.02 * us[0]
    clocks = (us[2] - us[0]) * 1e-6 * H200.hz
    assert clocks == pytest.approx(100 * LAST_WARP * 3 * DRAM_SPREAD, rel=0.1)


def record_on(name):
    return json.loads((KERNELSCOPE / f"results/{name}/time_model.json").read_text())


def parts_of(record):
    """Folder of kernels -> what the record has of the model as it is now."""
    parts = {"held_out": record}
    for name, last in time_model.AGAIN.items():
        if name in record:
            parts[time_model.FOLDER_OF[name]] = record.get(last, record[name])
    return parts


@pytest.fixture(scope="module")
def record():
    return record_on("h200")


@pytest.mark.turns(37)
@pytest.mark.system
@pytest.mark.filterwarnings("ignore::kernelscope.errors.ArgumentWarning")  # measured so
@pytest.mark.parametrize(
    ("name", "place"), [("h200", "best"), ("h200", "median"), ("h200", "worst"), ("h100", "worst")]
)
def test_the_record_is_of_this_model(name, place):
    """Small held-out kernels get the times that the judgement has, bad ones too."""
    record = record_on(name)
    assert record["blocks"] == time_model.BLOCKS
    for folder, part in parts_of(record).items():
        cases = {one.label: one for one in held_out(folder)}
        labels = {row["label"] for row in part["rows"]}
        assert labels == set(cases) - {*part.get("left_out", ())}
        assert len({one.name for one in cases.values()}) >= 20
        for file, digest in part["kernels"].items():
            assert sha256((FOLDERS[folder] / file).read_bytes()).hexdigest() == digest
        small = [
            row
            for row in part["rows"]
            if np.prod(cases[row["label"]].grid) <= 512 and row["measured_us"] < 4
        ]
        row = small[{"best": -1, "median": len(small) // 2, "worst": len(small) // 8}[place]]
        one = cases[row["label"]]
        predicted = time_model.predicted(one, name)
        assert predicted["predicted_us"] == pytest.approx(row["predicted_us"], rel=0.05)


@pytest.mark.parametrize("name", names())
def test_the_page_has_the_record(name):
    """The errors stand in docs/time.md, and every launch that loses."""
    tables = time_model.markdown(record_on(name))
    assert tables in (KERNELSCOPE / "docs/time.md").read_text()
    for part in time_model.parts_of(record_on(name)).values():
        for row in part["rows"]:
            loses = abs(row["error"]) >= 0.15 or not row.get("limit_is_right", True)
            assert f"| {row['label']} | {row['measured_us']:.4g} |" in tables or not loses


def test_the_page_counts_the_rows():
    """How often the interval holds, how many times are far off, and the sets' first judgements."""
    page = " ".join((KERNELSCOPE / "docs/time.md").read_text().split())
    h200, h100 = record_on("h200"), record_on("h100")
    sets = ("twelfth", "thirteenth", "fourteenth", "fifteenth")
    sets += ("sixteenth", "seventeenth", "eighteenth", "nineteenth")
    held = {
        part: sum(r["low_us"] <= r["measured_us"] <= r["high_us"] for r in h200[part]["rows"])
        for part in sets
    }
    assert f"it held {held['twelfth']} of 48 times of the twelfth set of kernels" in page
    for part in sets[1:]:
        assert f"{held[part]} of 48 of the {part}" in page
    last = [row for part in held for row in h200[part]["rows"]]
    near = sum(abs(row["error"]) <= 0.3 for row in last)
    right = sum(row["limit_is_right"] for row in last)
    assert f"eight sets {near} of {len(last)} were within 30 %" in page
    assert f"and the limit was right for {right}." in page
    two = ("eighteenth", "nineteenth")
    both = [row for part in two for row in h200[part]["rows"]]
    near = sum(abs(row["error"]) <= 0.3 for row in both)
    assert f"{near} of {len(both)} times were within 30 % of an H200's" in page
    assert f"limit was right for {sum(row['limit_is_right'] for row in both)}." in page
    for part in two:
        off = (100 * h200[part]["summary"][name] for name in ("median", "p90", "worst"))
        assert (
            "within {:.0f} %, nine of ten within {:.0f} %, all within {:.0f} %".format(*off) in page
        )
    for part in time_model.LATER:
        one = h200[part]["summary"]
        errors = f"| {100 * one['median']:.1f} % | {100 * one['p90']:.0f} % "
        errors += f"| {100 * one['worst']:.0f} % | {one['kendall_tau']:.2f} "
        errors += f"| {100 * one['right_limits']:.0f} % |"
        assert f"| {part} | {one['count'] // 2} {errors}" in page
    again = [part for part in time_model.AGAIN.values() if part in h200]  # of all but the newest
    rows = [row for part in again for row in h200[part]["rows"]]
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight")
    far = words[sum(abs(row["error"]) > 0.3 for row in rows)]
    assert f"{far} of the {len(rows)} corrected times" in page
    wrong = sum(not row["limit_is_right"] for row in rows)
    assert f"**Wrong limits** are {wrong} of {len(rows)}" in page
    second, third = (h100[part]["summary"] for part in ("second", "third"))
    medians = f"{100 * second['median']:.0f} and {100 * third['median']:.0f} %"
    limits = f"{100 * second['right_limits']:.0f} and {100 * third['right_limits']:.0f} %"
    assert f"the medians were {medians} and the limits right for {limits}" in page


@pytest.mark.parametrize("name", names())
def test_held_out_errors_stay_below(name):
    """What the judgement found: a model that gets worse must be judged, and documented, again."""
    for folder, part in parts_of(record_on(name)).items():
        if folder in BOUNDED:
            assert part["summary"]["median"] < 0.15 and part["summary"]["p90"] < 0.5
        errors = [abs(row["predicted_us"] / row["measured_us"] - 1) for row in part["rows"]]
        assert part["summary"]["median"] == pytest.approx(np.median(errors), abs=1e-3)


def test_a_kernel_that_changes_its_data_is_predicted_with_what_replays_find(monkeypatch):
    """The keys are sorted by a launch before: fewer sectors are stored then."""
    case = next(one for one in held_out("held_out_second") if one.changes_its_data)
    case = replace(case, shape={"n": 2048, "size": 2048, "step": 4}, grid=(4,))
    sectors = []

    class Counting(Time):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, **keywords)
            sectors.append(self)

    monkeypatch.setattr(time_model, "Time", Counting)
    for changes in (True, False):
        time_model.predicted(replace(case, changes_its_data=changes), "h200")
    stored = [seen.totals["global_store_sectors"] for seen in sectors]
    assert stored[0] == 0 < stored[1]


def test_a_judgement_names_what_it_left_out(record):
    """Of the rows of the first set it makes the record's first part again, as these are."""
    times = {key: record[key] for key in (*time_model.STAMP, "how")} | {"folder": "held_out"}
    part = time_model.judgement(times, record["rows"])
    assert part == {key: record[key] for key in part}
    less = time_model.judgement(times, record["rows"][1:])
    labels = {*part.get("left_out", ()), record["rows"][0]["label"]}
    assert set(less["left_out"]) == labels and len(less["rows"]) == len(part["rows"]) - 1


def test_a_record_keeps_the_judgement_that_came_before_anybody_looked():
    first, before, after = ({"summary": {"median": value}} for value in (0.1, 0.2, 0.3))
    new = time_model.with_earlier({"first": first, "second": before}, {})
    assert new == {"first": first, "second": before}
    record = time_model.record_of(new, [], "")
    for earlier in (record, record | {"corrected": first}):
        again = time_model.with_earlier({"first": first, "second": after}, earlier)
        assert again == {"first": first, "second": before, "corrected": after}
    assert time_model.with_earlier({"first": first}, record) == {"first": first, "second": before}


@pytest.fixture
def judge(tmp_path, monkeypatch):
    """Judge made-up times of a set on an H100; every prediction is `ratio` times as long."""
    path, page, times = (tmp_path / name for name in ("record.json", "time.md", "times.json"))
    path.write_text(json.dumps(record_on("h100")))
    page.write_text((KERNELSCOPE / "docs/time.md").read_text())

    def judged(times, *_):
        cases = held_out(times["folder"])
        long = {"predicted_us": ratio, "limit": "DRAM"}
        return [
            time_model.row_of(c.file, {"median_us": 1.0}, {"label": c.label} | long) for c in cases
        ]

    def judge(folder, by, on="NVIDIA H100 80GB HBM3", of=None, with_page=()):
        nonlocal ratio
        ratio = by
        stamp = dict.fromkeys((*time_model.STAMP, "how"), "") | {"gpu": on}
        times.write_text(json.dumps(stamp | {"folder": of or folder, "rows": []}))
        words = ["", path, "--set", folder, times, "--gpu", "h100", *with_page]
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        time_model.main()
        return json.loads(path.read_text())

    ratio = 1.0
    judge.page = page
    monkeypatch.setattr(time_model, "judged", judged)
    return judge


@pytest.mark.parametrize(
    ("name", "count"),
    [("third", 80), ("twelfth", 48), ("nineteenth", 48)],
)
def test_a_later_set_is_judged_beside_the_others(judge, capsys, name, count):
    """Its first judgement stays, and so does all that the record had."""
    corrected = f"{name}_corrected"
    before = record_on("h100")
    before = {key: before[key] for key in before.keys() - {name, corrected}}
    once = judge(f"held_out_{name}", 2.0)
    first = once[name]
    again = judge(f"held_out_{name}", 1.1)
    assert once.get(corrected, first)["summary"]["median"] == 1.0
    assert again[name] == first
    assert again[corrected]["summary"]["median"] == pytest.approx(0.1)
    assert before == {key: again[key] for key in before}
    said = capsys.readouterr().out
    assert f"| held out, {name} set |" in said
    assert f"| the {name} set, corrected after that | {count} | 10.0% |" in said


def test_the_page_gets_the_tables_of_a_new_judgement(judge, capsys):
    """All else stays, and a page that does not have the record's tables is refused."""
    old, former = time_model.markdown(record_on("h100")), judge.page.read_text()
    record = judge("held_out_twelfth", 1.5, with_page=("--page", judge.page))
    assert judge.page.read_text() == former.replace(old, time_model.markdown(record)) != former
    judge.page.write_text(former)
    with pytest.raises(SystemExit):
        judge("held_out_twelfth", 1.5, with_page=("--page", judge.page))
    assert "does not have the tables" in capsys.readouterr().err
    assert judge.page.read_text() == former


@pytest.mark.parametrize(
    ("folder", "other", "words"),
    [
        ("held_out_third", {"on": "NVIDIA H200"}, "of another GPU"),
        ("held_out_third", {"of": "held_out_second"}, "has times of held_out_second"),
        ("held_out_none", {}, "there are held_out, held_out_second, held_out_third"),
        ("held_out", {"with_page": ("--set", "held_out", "FILE")}, "a set twice"),
    ],
)
def test_times_of_another_gpu_or_set_are_refused(judge, capsys, folder, other, words):
    with pytest.raises(SystemExit):
        judge(folder, 1.0, **other)
    assert words in capsys.readouterr().err


def metrics(**busy):
    """Percent of one metric of each unit, as ncu has them."""
    return {names[0]: busy.get(unit, 1.0) for unit, names in time_model.NCU_UNITS.items()}


@pytest.mark.parametrize(
    ("busy", "verdicts"),
    [
        ({"DRAM": 90.0, "L2": 60.0}, ["DRAM"]),
        ({"DRAM": 90.0, "L2": 85.0}, ["DRAM", "L2"]),
        ({"issue": 65.0}, ["issue", "latency"]),
        ({"issue": 55.0}, ["latency", "issue"]),
        ({"issue": 40.0, "L2": 39.0}, ["latency"]),
    ],
)
def test_the_verdict_of_counters(busy, verdicts):
    """The busiest unit from 60 % on, else latency; what is nearer than 10 % counts as well."""
    assert time_model.ncu_verdicts(metrics(**busy)) == verdicts


def test_the_second_metric_of_a_unit_counts_where_it_is_higher():
    of_l2 = time_model.NCU_UNITS["L2"]
    assert time_model.ncu_verdicts(metrics() | {of_l2[1]: 80.0}) == ["L2"]
    assert time_model.ncu_verdicts({}) == []


def test_every_bound_has_a_unit_of_ncu():
    assert {*NAMES.values(), *WAITS, *IDLE, "L2", FABRIC_NAME, "DRAM"} == set(time_model.OF_BOUND)
    assert set(time_model.OF_BOUND.values()) - {"latency"} == set(time_model.NCU_UNITS)


def test_nothing_but_the_judgement_reads_the_held_out_kernels():
    """No source, and no GPU's constants, name them."""
    sources = [p for kind in ("py", "json") for p in (KERNELSCOPE / "src").rglob(f"*.{kind}")]
    texts = {path: path.read_text() for path in sources}
    assert len(texts) > 200
    assert not [path for path, text in texts.items() if "time_model" in text or "held_out" in text]


def test_fitted_and_held_out_kernels_are_apart(record):
    fitted = {row["label"].split()[0] for row in record["fitted"]}
    assert len(record["fitted"]) > 100
    held = {one.name for folder in FOLDERS for one in held_out(folder)}
    assert not fitted & held and len(held) >= 160


def test_a_file_that_is_not_there_or_none_of_measure_gpu_is_named(tmp_path):
    with pytest.raises(UnknownNameError, match="no file .*none.json: `kernelscope measure-gpu"):
        gpu(str(tmp_path / "none.json"))
    (tmp_path / "empty.json").write_text('{"gpu": {}}')
    with pytest.raises(InputError, match="empty.json is no file of measure-gpu.*'constants'"):
        gpu(str(tmp_path / "empty.json"))


def test_more_work_takes_no_less_time():
    """The bounds of a launch of one round, both as long, through what is short."""
    longer = [smooth_max(us, us, sharpness=sharpness_of(us)) for us in np.arange(1, 12, 0.25)]
    assert (np.diff(longer) > 0).all() and longer[0] == pytest.approx(2**0.5)
