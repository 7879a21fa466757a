"""Peers are compiled in processes of their own: with work that needs neither PyTorch nor a GPU."""

import os
import signal
import sys
import threading
import time
import types

import pytest
from compiling_work import fails, group, locks, remember

from attn_course.cli import main
from attn_course.measure import candidates
from attn_devtools.bench import SUITES, compile_first, peers

MLP = SUITES["mlp"]
LABELS = [row.label for row in MLP.rows]


@pytest.fixture
def with_torch(monkeypatch):
    monkeypatch.setattr(candidates, "available", lambda: True)


def test_the_jobs_are_the_compiled_peers_of_every_row(with_torch):
    compiled = ["torch_autotune", "torch_compile"]  # the longest first
    assert set(compiled) == {name for name, peer in peers.LAYER.items() if peer.mode}
    assert compile_first.jobs_of(MLP) == [(MLP, row, name) for name in compiled for row in (0, 1)]
    assert compile_first.jobs_of(MLP, quick=True) == [(MLP, 0, name) for name in compiled]
    small = compile_first.jobs_of(SUITES["ladder"], ["auto", "torch_math", "torch_flex"])
    assert [job[1:] for job in small] == [(0, "torch_flex"), (1, "torch_flex")]


@pytest.mark.turns(41)
@pytest.mark.system
def test_a_peer_that_hangs_fails_or_ends_its_process_is_refused_alone(with_torch):
    jobs = [(MLP, row, name) for row in (0, 1) for name in ("torch_compile", "torch_autotune")]
    started = time.monotonic()
    told = {}
    compile_first.compile_all(jobs, 1, lambda job, why: told.update({job[1:]: why}), 8.0, fails)
    assert told == {
        (0, "torch_compile"): "the process that compiled it ended",
        (0, "torch_autotune"): "not compiled within 8 s",
        (1, "torch_compile"): "",
        (1, "torch_autotune"): "mlp: no kernel",
    }
    assert time.monotonic() - started < 60


@pytest.mark.turns(11)
@pytest.mark.system
def test_each_process_is_prepared_with_one_lock():
    jobs = [(MLP, row, "torch_compile") for row in (0, 1)]
    found = []
    compile_first.compile_all(jobs, 2, lambda job, why: found.append(why), 60.0, locks, remember)
    assert found == ["['gpu.lock']"] * 2


def test_outcomes_are_told_one_at_a_time(monkeypatch):
    """Of four processes that are done at once; what is told meanwhile would be lost on disk."""
    done, inside, met = threading.Barrier(4), [], []

    class Worker:
        def __init__(self, *how):
            done.wait(10)

        def ask(self, job, seconds):
            return "", True

        def end(self):
            pass

    def keep(job, why):
        met.append(len(inside))
        inside.append(job)
        time.sleep(0.02)
        inside.pop()

    monkeypatch.setattr(compile_first, "_Worker", Worker)
    compile_first.compile_all([(MLP, row, "torch_compile") for row in (0, 1)] * 2, 4, keep)
    assert met == [0] * 4


@pytest.mark.turns(11)
@pytest.mark.system
def test_who_stops_it_waits_for_what_is_under_way_alone():
    """No peer fails of a signal that the terminal sends, and few are begun after it."""
    told = []

    def keep(job, why):
        told.append(int(why))
        if len(told) == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    jobs = [(MLP, row, "torch_compile") for row in (0, 1)] * 4
    # a shell lets programs in the background ignore the signal
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            compile_first.compile_all(jobs, 1, keep, 60.0, group)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(told) <= 3 and os.getpgrp() not in told


def test_without_pytorch_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(candidates, "available", lambda: False)
    assert compile_first.compile_first(MLP) == {}


def refuse_one(jobs, keep):
    for job in jobs:
        keep(job, "no kernel" if job[1:] == (0, "torch_compile") else "")


def test_what_was_refused_is_told(with_torch, monkeypatch, capsys):
    asked = []

    def compile_all(jobs, processes, keep):
        asked.append((len(jobs), processes))
        refuse_one(jobs, keep)

    monkeypatch.setattr(compile_first, "compile_all", compile_all)
    monkeypatch.setattr(compile_first, "processes_for", lambda jobs: 3)
    assert compile_first.compile_first(MLP) == {(LABELS[0], "torch_compile"): "no kernel"}
    assert asked == [(4, 3)] and "3 of 4 peers of mlp compiled in 0 s" in capsys.readouterr().err


def test_what_was_compiled_before_is_not_compiled_again(with_torch, monkeypatch, capsys, tmp_path):
    asked = []

    def compile_all(jobs, processes, keep):
        asked.append([job[1:] for job in jobs])
        refuse_one(jobs, keep)

    cache = types.ModuleType("cache")
    cache.cache_dir = lambda: str(tmp_path / "inductor")
    monkeypatch.setitem(sys.modules, compile_first._CACHE, cache)
    monkeypatch.setattr(compile_first, "gpu_identity", lambda: {"gpu": "one"})
    monkeypatch.setattr(compile_first, "compile_all", compile_all)
    first = compile_first.compile_first(MLP, quick=True)
    assert asked == [[(0, "torch_autotune"), (0, "torch_compile")]]
    assert compile_first.compile_first(MLP) == first and len(asked) == 2
    assert asked[1] == [(1, "torch_autotune"), (1, "torch_compile")]
    assert "3 of 4 peers of mlp compiled in 0 s, 2 of them before" in capsys.readouterr().err
    assert compile_first.compile_first(MLP) == first and len(asked) == 2
    monkeypatch.setattr(compile_first, "gpu_identity", lambda: {"gpu": "another"})
    compile_first.compile_first(MLP)
    assert len(asked) == 3 and len(asked[2]) == 4


def test_what_was_compiled_is_kept_where_the_rest_is_not_waited_for(
    with_torch, monkeypatch, tmp_path
):
    """Two of four jobs are done when the process is stopped."""
    monkeypatch.setattr(compile_first, "kept_outcomes", lambda suite: tmp_path / "kept.json")

    def stopped(jobs, processes, keep):
        refuse_one(jobs[:2], keep)
        raise KeyboardInterrupt

    monkeypatch.setattr(compile_first, "compile_all", stopped)
    with pytest.raises(KeyboardInterrupt):
        compile_first.compile_first(MLP)
    asked = []

    def the_rest(jobs, processes, keep):
        asked.extend(job[1:] for job in jobs)
        refuse_one(jobs, keep)

    monkeypatch.setattr(compile_first, "compile_all", the_rest)
    compile_first.compile_first(MLP)
    assert asked == [(0, "torch_compile"), (1, "torch_compile")]


def test_without_inductors_benchmarker_one_process_compiles(monkeypatch):
    monkeypatch.setattr(compile_first.os, "cpu_count", lambda: 12)
    monkeypatch.setitem(sys.modules, compile_first._BENCHMARKING, None)
    assert compile_first.processes_for(99) == 1
    monkeypatch.setitem(sys.modules, compile_first._BENCHMARKING, types.ModuleType("found"))
    assert compile_first.processes_for(99) == 9 and compile_first.processes_for(2) == 2


def test_inductor_benchmarks_while_it_holds_the_lock(monkeypatch):
    held = []

    class FileLock:
        def __init__(self, path):
            self.path = path

        def __enter__(self):
            held.append(self.path)

        def __exit__(self, *_):
            held.append("free")

    class Benchmarker:
        def benchmark_gpu(self, function, times=1):
            return function(times)

    found = types.ModuleType("benchmarking")
    found.benchmarker = Benchmarker()
    monkeypatch.setitem(sys.modules, compile_first._BENCHMARKING, found)
    monkeypatch.setitem(sys.modules, "filelock", types.SimpleNamespace(FileLock=FileLock))
    compile_first.time_in_turns("gpu.lock")
    assert found.benchmarker.benchmark_gpu(lambda times: [times, *held], times=3) == [3, "gpu.lock"]
    assert held == ["gpu.lock", "free"]


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Peers made on a GPU with plenty of memory; the messages of those that fail are settable."""
    state = types.SimpleNamespace(refused={}, freed=[])
    pool = types.SimpleNamespace(free_all_blocks=lambda: state.freed.append("cupy"))
    xp = types.SimpleNamespace(asarray=lambda array: array, get_default_memory_pool=lambda: pool)
    cuda = types.SimpleNamespace(empty_cache=lambda: state.freed.append("torch"))
    monkeypatch.setattr(compile_first, "array_module", lambda backend: xp)
    monkeypatch.setattr(compile_first, "forget_compiled", lambda: None)
    monkeypatch.setattr(compile_first, "torch_module", lambda: types.SimpleNamespace(cuda=cuda))

    def gather(makers, inputs):
        (name,) = makers
        return types.SimpleNamespace(refused=dict(state.refused))

    monkeypatch.setattr(compile_first, "gather", gather)
    return state


@pytest.mark.turns(29)
@pytest.mark.system
def test_short_of_memory_is_tried_again_by_the_process_that_times(on_a_gpu):
    how = ("seeds_fp32", 0, "torch_flex")
    assert compile_first.compile_peer(*how) == "" and on_a_gpu.freed == ["torch", "cupy"]
    on_a_gpu.refused["torch_flex"] = "No valid triton configs"
    assert compile_first.compile_peer(*how) == "No valid triton configs"
    on_a_gpu.refused["torch_flex"] = "CUDA out of memory. Tried to allocate 2 GiB"
    assert compile_first.compile_peer(*how) == ""


def test_compile_only_compiles_suites_alone(monkeypatch, capsys):
    monkeypatch.setattr(candidates, "torch_module", lambda: None)
    monkeypatch.setattr(
        "attn_devtools.record.command.compile_first",
        lambda suite, chosen, quick: {(LABELS[0], "torch_compile"): "no kernel"},
    )
    assert main.main(["record", "mlp", "--compile-only"]) == 0
    assert f"mlp: {LABELS[0]}: torch_compile: no kernel" in capsys.readouterr().out
    assert main.main(["record", "tiles", "--compile-only"]) == 2
    assert "tiles is none" in capsys.readouterr().err
