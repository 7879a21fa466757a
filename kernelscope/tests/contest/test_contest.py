"""Contests with a clock that says what each call takes; the GPU side with a stub of CuPy."""

import math
import subprocess
import sys
import types

import numpy as np
import pytest
from kernelscope.contest import turns as timing


class FakeClock:
    """A launch says itself how long it takes; `order` keeps who was timed when."""

    def __init__(self, drift=0.0):
        self.now = 0.0
        self.drift = drift  # how much slower everything gets with each sample
        self.order = []

    def time_us(self, launch):
        name, length = launch()
        self.order.append(name)
        self.now += self.drift
        return length * (1 + self.now)


@pytest.fixture(autouse=True)
def no_nvidia_smi(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(subprocess, "run", missing)
    monkeypatch.setattr(subprocess, "Popen", missing)
    monkeypatch.setattr(timing, "gpu_count", lambda: 0)


def lasting(name, *lengths):
    """A launch that takes these lengths in turn, the last one for ever."""
    left = list(lengths)
    return lambda: (name, left.pop(0) if len(left) > 1 else left[0])


# -- the contest -----------------------------------------------------------------------------------
def test_candidates_take_turns_and_warm_up_turns_do_not_count():
    clock = FakeClock()
    found = timing.contest(
        {"a": timing.Replay(lasting("a", 900.0, 800.0, 40.0), 20), "b": (lasting("b", 9.0), 1)},
        iterations=3,
        warmup=2,
        clock=clock,
    )
    turns = [clock.order[i : i + 2] for i in range(0, 10, 2)]
    assert all(sorted(turn) == ["a", "b"] for turn in turns)
    assert found.timings["a"].samples_us == (2.0, 2.0, 2.0)  # 40 us for 20 calls
    assert found.timings["b"].samples_us == (9.0, 9.0, 9.0)
    assert found.timings["a"].how == "graph" and found.timings["a"].calls_a_sample == 20
    assert found.ratio("a", "b").value == 4.5
    assert found.clocks == {"before": {}, "after": {}}


def test_no_candidate_always_follows_the_same_one():
    """What runs before heats the chip: one of three would profit from a fixed place."""
    clock, names = FakeClock(), "abc"
    replays = {name: (lasting(name, 9.0), 1) for name in names}
    timing.contest(replays, iterations=40, warmup=0, clock=clock)
    turns = ["".join(clock.order[i : i + 3]) for i in range(0, 120, 3)]
    assert len(set(turns)) == 6
    for first in names:
        assert 7 <= sum(turn[0] == first for turn in turns) <= 20


def test_a_drift_shared_by_both_leaves_the_ratio_alone():
    clock = FakeClock(drift=0.01)
    found = timing.contest(
        {"a": (lasting("a", 10.0), 1), "b": (lasting("b", 20.0), 1)}, iterations=50, clock=clock
    )
    a, b = (found.timings[name] for name in "ab")
    assert a.p80_us > 1.3 * a.p20_us  # the drift is there
    ratio = found.ratio("a", "b")
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.value == pytest.approx(2, rel=0.02) and ratio.high - ratio.low < 0.03
    # Drawn each on its own, the same samples give a wide interval.
    apart = timing.bootstrap_ratio(a, timing.Timing("b", "graph", b.samples_us[:-1]))
    assert apart.high - apart.low > 5 * (ratio.high - ratio.low)


def test_nothing_to_time_is_refused():
    for replays, iterations in (({}, 5), ({"a": (lasting("a", 1.0), 1)}, 0)):
        with pytest.raises(timing.TimingError, match="at least one"):
            timing.contest(replays, iterations=iterations, clock=FakeClock())


def test_a_cold_graph_holds_one_call():
    replays = {"warm": timing.Replay(lasting("warm", 1.0), 20)}
    with pytest.raises(ValueError, match="warm has more"):
        timing.contest(replays, flush_l2=True, clock=FakeClock())
    found = timing.contest({"one": (lasting("one", 7.0), 1)}, flush_l2=True, clock=FakeClock())
    assert found.timings["one"].how == "cold"


def test_summary_of_samples():
    samples = tuple(float(value) for value in range(1, 102))  # 1 .. 101
    found = timing.Timing("kernel", "graph", samples[::-1], 20)
    assert (found.median_us, found.p20_us, found.p80_us) == (51, 21, 81)
    assert found.record() == {
        "name": "kernel",
        "how": "graph",
        "median_us": 51.0,
        "p20_us": 21.0,
        "p80_us": 81.0,
        "samples": 101,
        "calls_a_sample": 20,
    }


def test_one_outlier_moves_neither_median_nor_ratio():
    steady, slow = [10.0] * 99, [20.0] * 99
    found = timing.Contest(
        {
            "a": timing.Timing("a", "graph", (*steady, 1e6)),
            "b": timing.Timing("b", "graph", (*slow, 20.0)),
        }
    )
    ratio = found.ratio("a", "b")
    assert (ratio.value, ratio.low, ratio.high) == (2, 2, 2)


@pytest.mark.turns(23)
@pytest.mark.system
def test_the_interval_holds_the_truth_and_narrows_with_samples():
    rng = np.random.default_rng(5)
    widths = []
    for size in (20, 2000):
        a = timing.Timing("a", "graph", tuple(rng.lognormal(2, 0.2, size)))
        b = timing.Timing("b", "graph", tuple(1.5 * rng.lognormal(2, 0.2, size + 1)))
        ratio = timing.bootstrap_ratio(a, b)
        assert ratio.low < 1.5 < ratio.high
        widths.append(ratio.high - ratio.low)
    assert widths[1] < widths[0] / 4
    assert timing.bootstrap_ratio(a, b) == timing.bootstrap_ratio(a, b)  # seeded
    assert math.isclose(timing.bootstrap_ratio(b, a).value, 1 / ratio.value)


@pytest.mark.parametrize(
    ("call_us", "calls"),
    [(1.0, 20), (25.0, 20), (100.0, 5), (130.0, 4), (499.0, 2), (500.0, 1), (1e6, 1), (0.0, 20)],
)
def test_long_calls_need_few_in_a_graph(call_us, calls):
    assert timing.calls_for(call_us) == calls


# -- the simulator is not timed --------------------------------------------------------------------
@pytest.mark.parametrize(
    "attempt",
    [
        lambda: timing.GpuClock(),
        lambda: timing.capture(print),
        lambda: timing.contest({"a": (print, 1)}),
        lambda: timing.measure("a", print, "wall"),
        lambda: timing.first_calls(print, 3),
    ],
)
def test_the_simulator_is_not_timed(monkeypatch, attempt):
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")
    with pytest.raises(timing.TimingError, match="simulator's seconds say nothing"):
        attempt()


# -- the GPU side, with CuPy's calls written down --------------------------------------------------
class FakeEvent:
    count = 0

    def __init__(self):
        self.number = FakeEvent.count
        FakeEvent.count += 1

    def record(self, stream=None):
        LOG.append(f"event {self.number}")

    def synchronize(self):
        LOG.append("wait")


class FakeStream:
    def __init__(self, non_blocking=False):
        assert non_blocking

    def __enter__(self):
        LOG.append("enter")

    def __exit__(self, *_):
        LOG.append("leave")

    def synchronize(self):
        LOG.append("stream wait")

    def begin_capture(self):
        LOG.append("capture")

    def end_capture(self):
        LOG.append("captured")
        return types.SimpleNamespace(launch=lambda: LOG.append("graph"))


LOG = []


@pytest.fixture
def gpu(monkeypatch):
    """A stub of CuPy that logs what is asked of it; an event pair is 0.25 ms apart."""
    LOG.clear()
    FakeEvent.count = 0
    timing._hold_kernel.cache_clear()
    cuda = types.SimpleNamespace(
        Stream=FakeStream,
        Event=FakeEvent,
        get_elapsed_time=lambda start, end: 0.25 * (end.number - start.number),
        Device=lambda: types.SimpleNamespace(synchronize=lambda: LOG.append("device wait")),
    )
    scratch = types.SimpleNamespace(fill=lambda value: LOG.append("flush"))
    cupy = types.SimpleNamespace(
        cuda=cuda,
        float32=np.float32,
        empty=lambda count, dtype: scratch,
        RawKernel=lambda code, name: lambda grid, block, args: LOG.append(name),
    )
    monkeypatch.setitem(__import__("sys").modules, "cupy", cupy)
    monkeypatch.setattr(timing, "resolve_backend", lambda *_: "gpu")
    yield cupy
    timing._hold_kernel.cache_clear()


def test_a_sample_is_queued_behind_a_held_gpu_and_a_flush(gpu):
    clock = timing.GpuClock(flush_l2=True)
    LOG.clear()
    assert clock.time_us(lambda: LOG.append("launch")) == 250.0
    assert LOG == ["enter", "flush", "hold", "event 0", "launch", "event 1", "wait", "leave"]
    LOG.clear()
    timing.GpuClock().time_us(lambda: LOG.append("launch"))
    assert "flush" not in LOG and LOG.index("hold") < LOG.index("launch")


def test_a_graph_is_captured_after_a_call_that_warms_up(gpu):
    def call():
        LOG.append("call")

    replay = timing.capture(call, 3)
    queued = "device wait, enter, call, stream wait, capture, call, call, call, captured, leave"
    assert LOG == queued.split(", ")
    assert replay.calls == 3 and replay.launch.keeps is call
    LOG.clear()
    replay.launch()
    assert LOG == ["graph"]


def test_every_way_of_timing_gives_as_many_samples_as_asked_for(gpu, monkeypatch):
    def benchmark(call, n_repeat, n_warmup):
        for _ in range(n_repeat + n_warmup):
            call()
        return types.SimpleNamespace(gpu_times=np.full((1, n_repeat), 3e-6))

    profiler = types.SimpleNamespace(benchmark=benchmark)
    monkeypatch.setitem(__import__("sys").modules, "cupyx.profiler", profiler)
    expected = {"graph": 12.5, "single": 250.0, "cold": 250.0, "events": 250.0, "benchmark": 3.0}
    for how in timing.HOW:
        calls = []
        found = timing.measure(
            "one", lambda calls=calls: calls.append(1), how, iterations=4, warmup=2
        )
        assert found.how == how and len(found.samples_us) == 4
        assert how not in expected or found.samples_us == pytest.approx([expected[how]] * 4)
        assert len(calls) == {"graph": 21, "single": 2, "cold": 2}.get(how, 6)
    with pytest.raises(ValueError, match="by eye"):
        timing.measure("one", print, "by eye")


def test_first_calls_are_not_warmed_up(monkeypatch):
    seconds = iter(range(100))
    now = types.SimpleNamespace(value=0.0)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now.value)
    lengths = iter([5.0, 0.25, 0.25])
    waits = []

    def call():
        now.value += next(lengths)

    assert timing.first_calls(call, 3, lambda: waits.append(next(seconds))) == [5e6, 0.25e6, 0.25e6]
    assert len(waits) == 6  # idle before and after each


# -- clocks ----------------------------------------------------------------------------------------
READING = {"sm_mhz": 1980.0, "memory_mhz": 3201.0, "power_w": 412.55, "temperature_c": 41.0}


@pytest.fixture
def two_of_three(monkeypatch):
    """A process sees two of three GPUs, in another order than nvidia-smi; its second is current."""

    class Device:
        def __init__(self, number=1):
            self.id, self.pci_bus_id = number, ("0000:cb:00.0", "0000:5d:00.0")[number]

    cuda = types.SimpleNamespace(Device=Device)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(timing, "gpu_count", lambda: 2)


def test_clocks_as_nvidia_smi_prints_them(monkeypatch):
    printed = types.SimpleNamespace(stdout="00000000:5D:00.0, 1980, 3201, 412.55, 41\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: printed)
    assert timing.clocks() == READING
    printed.stdout = "00000000:5D:00.0, [N/A], 3201, 412.55, 41\n"
    assert timing.clocks() == {}


def test_clocks_are_the_current_gpus(monkeypatch, two_of_three):
    lines = (
        "00000000:18:00.0, 345, 3201, 75.1, 25",
        "00000000:5D:00.0, 1980, 3201, 412.55, 41",
        "00000000:CB:00.0, 1700, 3201, 300, 39",
    )
    printed = types.SimpleNamespace(stdout="\n".join(lines))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: printed)
    assert timing.clocks() == READING


def test_clocks_without_nvidia_smi():
    assert timing.clocks() == {}
    with timing.ClockWatch() as watch:
        pass
    assert watch.readings == [] and watch.record() == {}


def watched(monkeypatch, text):
    """A watch whose nvidia-smi prints a text until it is ended."""

    class Process:
        def __init__(self, command, **_):
            assert "--loop-ms=50" in command

        def terminate(self):
            self.ended = True

        def communicate(self, timeout):
            assert self.ended
            return text, ""

    monkeypatch.setattr(subprocess, "Popen", Process)
    with timing.ClockWatch(every_ms=50) as watch:
        pass
    return watch


def test_a_watch_keeps_whole_readings(monkeypatch):
    found = ("1600, 3201, 300, 40", "1980, 3201, 500, 42", "1700, 3201, 400, 41", "17")
    watch = watched(monkeypatch, "\n".join(f"00000000:5D:00.0, {one}" for one in found))
    assert watch.record()["sm_mhz"] == [1600, 1700, 1980]
    assert watch.record()["power_w"] == [300, 400, 500] and len(watch.readings) == 3


def test_a_watch_mixes_no_gpus(monkeypatch, two_of_three):
    found = (
        "18:00.0, 345, 3201, 75, 25",
        "5D:00.0, 1980, 3201, 500, 42",
        "CB:00.0, 1700, 3201, 300, 39",
        "18:00.0, 345, 3201, 75, 25",
        "5D:00.0, 1960, 3201, 480, 41",
    )
    watch = watched(monkeypatch, "\n".join(f"00000000:{one}" for one in found))
    assert [one["sm_mhz"] for one in watch.readings] == [1980, 1960]
    record = watch.record()
    assert record["sm_mhz"] == [1960, 1970, 1980] and record["power_w"] == [480, 490, 500]
    assert record["sm_mhz of GPU 0"] == [1700, 1700, 1700] and len(record) == 8


def test_a_gpu_without_a_known_place_is_the_first_that_nvidia_smi_lists(monkeypatch):
    watch = watched(monkeypatch, "a:b, 1980, 3201, 500, 42\nc:d, 345, 3201, 75, 25\n")
    assert watch.record()["sm_mhz"] == [1980, 1980, 1980] and not watch.others
