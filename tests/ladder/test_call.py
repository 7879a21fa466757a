"""Calls and plans: what they launch, when they look at files, and the work of a warm call."""

import os
import re
import shutil
import sys
import types
import weakref
from dataclasses import replace
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
from kernelscope.backend import BackendError
from kernelscope.module import ArgumentError
from kernelscope.module.repeats import Repeat, can_repeat

from attn_course import Counters, attention, observe, reference
from attn_course.ladder import Plan, Problem, Request, call_steps, kept, methods, run_steps, step
from attn_course.ladder.call import StepLaunch, numbers_of
from attn_course.ladder.headers import KERNEL_FOLDER
from attn_course.ladder.methods import run_request
from attn_course.reference.inputs import seeded_qkv
from attn_devtools.agreement import assert_agrees

from .conftest import FakeKernel

SHAPE = (1, 2, 9, 20)


@pytest.fixture(autouse=True)
def nothing_cached(monkeypatch):
    monkeypatch.setattr(kept, "_cached", {})


def arrays(gpu, shape=SHAPE, count=3):
    return [gpu.array(shape) for _ in range(count)]


def functions_called(call) -> int:
    """How many functions a call calls, those of Python and those written in C; not the fakes'."""
    events = []
    sys.setprofile(lambda frame, event, what: events.append((frame.f_code.co_filename, event)))
    try:
        call()
    finally:
        sys.setprofile(None)
    return sum(
        event in ("call", "c_call") and Path(file).name != "conftest.py" for file, event in events
    )


# -- one launch ------------------------------------------------------------------------------------
def test_a_launch_puts_its_numbers_into_the_parameters_types_and_runs_again():
    q, k, _ = (array[0] for array in seeded_qkv(SHAPE))
    call = call_steps([step(1)], {"q": q, "k": k}, 1.0, backend="simulator")
    (made,) = call.launches
    launch = StepLaunch(made.step, made.geometry, made.kernel, numbers_of(call.problem, 1.0))
    launch.run(call.arrays)
    assert launch.again and type(launch.numbers["n"]) is np.int32
    scores = call.arrays["s"].copy()
    call.arrays["s"].fill(np.nan)
    launch.run(call.arrays)
    np.testing.assert_array_equal(call.arrays["s"], scores)
    np.testing.assert_allclose(scores, q @ k.swapaxes(1, 2), rtol=1e-5, atol=1e-5)


# -- a warm call on a GPU --------------------------------------------------------------------------
def test_a_warm_call_launches_the_same_on_new_arrays(gpu):
    first, second = arrays(gpu), arrays(gpu)
    attention(*first, method="flash_async", causal=True, scale=0.3)
    out, lse = attention(*second, method="flash_async", causal=True, scale=0.3, return_lse=True)
    warm, again = (
        attention(*pair, method="flash_async", causal=True, scale=0.3) for pair in (second, first)
    )
    cold, with_lse, new, old = gpu.log
    assert with_lse.args[5] is lse and with_lse.args[4] is out and cold.args[5] is None
    for launched, given in ((new, (*second, warm)), (old, (*first, again))):
        *inputs, bias, written = launched.args[:5]
        assert (*inputs, written) == tuple(one.data.ptr for one in given) and bias is None
    assert new[:2] == cold[:2] and new.shared_mem == cold.shared_mem > 0
    assert [type(value) for value in new.args[6:]] == [type(value) for value in cold.args[6:]]
    assert new.args[6:] == cold.args[6:] and new.args[13] == np.float32(0.3)


@pytest.mark.parametrize(
    ("method", "most"), [("auto", 65), ("flash_async", 65), ("rows_warp", 65), ("tiled", 105)]
)
def test_a_warm_call_does_little(gpu, method, most):
    """A function costs 0.1 to 0.3 us: so many are far below the 40 us that a call may take."""
    inputs, bias = arrays(gpu), gpu.array(SHAPE[:3] + SHAPE[2:3])
    options = {"bias": bias} if method == "flash_async" else {}
    attention(*inputs, method=method, **options)
    assert functions_called(lambda: attention(*inputs, method=method, **options)) <= most


@pytest.mark.turns(11)
@pytest.mark.system
@pytest.mark.parametrize(
    "change",
    [
        {"method": "rows_warp"},
        {"causal": True},
        {"scale": 0.5},
        {"options": ("-DROWS=1", "-DROW_WARPS=1")},
        {"shape": (2, 1, 9, 20)},
        {"shape": (1, 2, 9, 24)},
        {"bias": (9, 9)},
        {"bias": (2, 9, 9)},
        {"return_lse": True},
        {"device": 1},
    ],
    ids=str,
)
def test_another_form_is_another_launch(gpu, change):
    """Whatever changes the launch must not meet the launch of another call."""
    asked = {"method": "flash_async"} | change
    inputs = arrays(gpu, asked.pop("shape", SHAPE))
    gpu.device = asked.pop("device", 0)
    if "bias" in asked:
        asked["bias"] = gpu.array(asked["bias"])
    attention(*inputs, **asked)
    expected = gpu.log.pop()
    kept._cached.clear()
    gpu.device = 0
    attention(*arrays(gpu), method="flash_async")  # the usual form is ready
    gpu.device = change.get("device", 0)
    attention(*inputs, **asked)
    found = gpu.log.pop()
    assert found[:2] == expected[:2] and found.shared_mem == expected.shared_mem
    assert found.args[6:] == expected.args[6:] and len(kept._cached) == 2


def test_wrong_arrays_are_named_after_a_warm_call(gpu):
    q, k, v = arrays(gpu)
    for _ in range(2):
        attention(q, k, v, method="flash_async")
    for wrong, error, message in [
        (gpu.array(SHAPE, np.float64), TypeError, "k is float64"),
        (gpu.array(SHAPE, c_contiguous=False), ValueError, "k is not C-contiguous"),
        (gpu.array(SHAPE[1:]), ValueError, "k has shape"),
        (np.zeros(SHAPE, np.float32), TypeError, "k is numpy.ndarray.*cupy.asarray"),
        (SHAPE, TypeError, "k is builtins.tuple"),
    ]:
        with pytest.raises(error, match=message):
            attention(q, wrong, v, method="flash_async")
    with pytest.raises(methods.UnknownMethod, match="flash_async"):
        attention(q, k, v, method="flash_asink")
    with pytest.raises(ValueError, match="float"):
        attention(q, k, v, method="flash_async", scale="large")
    out = gpu.array(SHAPE)
    assert attention(q, k, v, method="flash_async", out=out) is out
    with pytest.raises(ValueError, match="out shares memory with v"):
        attention(q, k, v, method="flash_async", out=v)
    assert len(gpu.log) == 3


def test_observers_are_refused_on_a_warm_gpu(gpu):
    inputs = arrays(gpu)
    attention(*inputs, method="flash_async")
    with observe(Counters()), pytest.raises(BackendError, match="Counters.*see nothing"):
        attention(*inputs, method="flash_async")


def test_the_number_of_forms_kept_is_bounded(gpu, monkeypatch):
    monkeypatch.setattr(kept, "MOST_CACHED", 3)
    inputs = arrays(gpu)
    for scale in range(1, 8):
        attention(*inputs, method="flash_async", scale=scale)
    assert len(kept._cached) == 3


def test_a_repeat_writes_arrays_numbers_and_tensor_maps_where_the_driver_reads(gpu):
    """A pointer, a number and 128 bytes by value; a grid of one extent; the caller's stream."""
    arrays, image = (gpu.array((4,)), gpu.array((4,))), np.arange(128, dtype=np.uint8)
    values = [arrays[0], None, np.float32(0.5), np.int64(-3), image]
    kernel = FakeKernel(gpu.log)
    kernel((2,), (32,), values)
    assert can_repeat(kernel, values, (0, 4))
    for wrong in ([np.zeros(129, np.uint8)], [5], [arrays[0]]):  # no room; no known bytes
        assert not can_repeat(kernel, wrong, ())
    raw = types.SimpleNamespace(raw=kernel)
    repeat = Repeat(raw, (2,), (32,), values, 7, (0, 4))
    repeat([arrays[1], image[::-1].copy()], 77)
    repeat([1 << 41, image])
    first, second = gpu.log[1:]
    assert first[:2] == ((2, 1, 1), (32, 1, 1)) and (first.shared_mem, first.stream) == (7, 77)
    assert first.args[:4] == (arrays[1].data.ptr, None, np.float32(0.5), np.int64(-3))
    assert second.args[0] == 1 << 41 and second.stream == 0
    assert first.args[4] == int.from_bytes(image[::-1].tobytes(), "little")
    assert second.args[4] == int.from_bytes(image.tobytes(), "little")


def test_a_kept_form_keeps_no_arrays():
    inputs = seeded_qkv(SHAPE)
    q = inputs[0].copy()
    alive = weakref.ref(q)
    attention(q, *inputs[1:], method="flash_async", backend="simulator")
    assert kept._cached
    del q
    assert alive() is None


# -- edited kernels --------------------------------------------------------------------------------
@pytest.fixture
def own_file(tmp_path, monkeypatch):
    """A copy of kernel 12 that the ladder uses, and a function that edits it."""
    row = step("flash_async")
    path = tmp_path / row.path.name
    shutil.copytree(KERNEL_FOLDER, tmp_path, dirs_exist_ok=True)
    monkeypatch.setitem(vars(row), "path", path)

    def edit(old, new):
        text, before = path.read_text(), path.stat().st_mtime_ns
        assert old in text
        path.write_text(text.replace(old, new))
        os.utime(path, ns=(before + 1000, before + 1000))

    return edit


def test_an_edited_kernel_is_seen_within_a_second_on_a_gpu(gpu, own_file, monkeypatch):
    now = 100.0
    monkeypatch.setattr(kept, "monotonic", lambda: now)
    inputs = arrays(gpu)
    made = []
    for now in (100.0, 100.5, 100.9, 101.1, 101.2):
        if now == 100.5:
            own_file("#define KEYS", "#define  KEYS")
        attention(*inputs, method="flash_async")
        made.append(gpu.log[-1].kernel)
    assert made[0] is made[1] is made[2]
    assert made[3] is made[4] is not made[0]


def test_an_edited_kernel_stays_edited_until_a_call_is_made_of_it(gpu, own_file, monkeypatch):
    now = 100.0
    monkeypatch.setattr(kept, "monotonic", lambda: now)
    request = Request(*arrays(gpu), method="flash_async", backend="gpu")
    run_request(request)
    old, form = request.cached()
    own_file("#define KEYS", "#define  KEYS")
    now += 2
    assert not old.is_current() and not old.is_current()
    run_request(request)
    assert kept.kept_call(form) is not old and kept.kept_call(form).is_current()


@pytest.mark.turns(23)
@pytest.mark.system
def test_an_edited_kernel_is_seen_at_once_on_the_simulator(own_file):
    q, k, v = seeded_qkv(SHAPE)
    attend = {"method": "flash_async", "backend": "simulator"}
    first = attention(q, k, v, **attend)
    own_file("float scale, int causal)\n{", "float scale, int causal)\n{ scale = -scale;")
    np.testing.assert_array_equal(attention(-q, k, v, **attend), first)


# -- plans -----------------------------------------------------------------------------------------
def test_a_plan_replays_a_graph_of_its_launches(gpu):
    inputs, out = arrays(gpu), gpu.array(SHAPE)
    prepared = attention.plan(*inputs, method="tiled", out=out)
    assert isinstance(prepared, Plan) and len(gpu.log) == 3  # the run before the capture
    assert [launch.step.number for launch in prepared.launches] == [2, 5, 6]
    assert prepared.out is out and prepared.method == "tiled" and prepared.lse is None
    assert prepared.problem == Problem(2, 9, 9, 20, 2, 2)
    del gpu.log[:]
    for _ in range(2):
        assert prepared() is out
    (_, captured), again = gpu.log
    assert (
        again == ("graph", captured) and [launch.args[-1] for launch in captured[::2]] == [20] * 2
    )
    given = [*inputs[:2], out]
    written = [*captured[0].args[:2], captured[2].args[2]]
    assert written == [one.data.ptr for one in given]
    assert functions_called(prepared) <= 8


def test_a_plan_reads_its_arrays_again():
    q, k, v = seeded_qkv(SHAPE, seed=1)
    prepared = attention.plan(q, k, v, method="auto", return_lse=True, backend="simulator")
    for seed in (1, 2):
        for array, new in zip((q, k, v), seeded_qkv(SHAPE, seed=seed), strict=True):
            array[...] = new
        assert prepared() is prepared.out
        assert_agrees(prepared.out, reference.attention(q, k, v), relative=2e-6)
        again = attention(q, k, v, method=prepared.method, return_lse=True, backend="simulator")
        np.testing.assert_array_equal(prepared.lse, again[1])


def test_a_plan_is_asked_as_attention_is():
    """The signatures that help() shows: beyond the arrays, a plan takes keywords alone."""
    asked, plans = signature(attention).parameters, signature(attention.plan).parameters
    assert list(asked) == list(plans) == list(Request.__struct_fields__)
    assert {name: one.default for name, one in plans.items()} == {
        name: one.default for name, one in asked.items()
    }
    keywords = [name for name, one in plans.items() if one.kind is one.KEYWORD_ONLY]
    assert keywords == list(asked)[3:]
    q, k, v = seeded_qkv(SHAPE)
    with pytest.raises(TypeError, match="unexpected keyword argument 'metod'"):
        attention.plan(q, k, v, metod="tiled")
    with pytest.raises(TypeError, match="positional"):
        attention.plan(q, k, v, "tiled")


def test_a_request_holds_what_attention_assumes():
    """The defaults stand twice, for help() and for calls that are only prepared."""
    usual = {name: one.default for name, one in signature(attention).parameters.items()}
    request = Request(*"qkv")
    assert {name: getattr(request, name) for name in list(usual)[3:]} == dict(
        list(usual.items())[3:]
    )


def test_a_plan_refuses_what_attention_refuses():
    q, k, v = seeded_qkv(SHAPE)
    for wrong, error, message in [
        ({"method": "fastest"}, methods.UnknownMethod, "fastest"),
        ({"causal": True}, methods.UnsupportedOption, "causal"),
        ({"out": q}, ValueError, "out shares memory with q"),
        ({"bias": q}, ValueError, "bias has shape"),
    ]:
        with pytest.raises(error, match=message):
            attention.plan(q, k, v, backend="simulator", **wrong)


# -- calls of steps --------------------------------------------------------------------------------
def test_a_call_of_steps_runs_as_often_as_wanted():
    q, k, v = (array[0] for array in seeded_qkv(SHAPE, kv_length=7))
    call = call_steps([step(1), step(4)], {"q": q, "k": k, "v": v}, 0.3, backend="simulator")
    expected = reference.attention(q[None], k[None], v[None], scale=0.3)[0]
    for _ in range(2):
        found = call.run()
        assert found is call.arrays and found["s"].shape == (2, 9, 7)
        assert_agrees(found["out"], expected)
        found["out"][...] = np.nan
    q[...] *= 2
    expected = run_steps([step(1), step(4)], {"q": q, "k": k, "v": v}, 0.3, backend="simulator")
    np.testing.assert_array_equal(call.run()["out"], expected["out"])


def test_a_call_checks_its_arrays():
    q, k, _ = (array[0] for array in seeded_qkv(SHAPE))
    with pytest.raises(ArgumentError, match="argument 2 .*float64"):
        call_steps([step(1)], {"q": q, "k": k.astype(np.float64)}, 1.0, backend="simulator")
    with pytest.raises(KeyError, match="v"):
        call_steps([step(6)], {"q": q, "k": k, "p": q}, 1.0, backend="simulator")


def test_a_step_may_have_another_text_or_another_place(tmp_path):
    """Edited in memory, or a file elsewhere: its constants hold, and its code runs."""
    row, (q, k, _) = step(2), (array[0] for array in seeded_qkv(SHAPE))
    text = row.path.read_text().replace("#define TILE 32", "#define TILE 8")
    text = text.replace("= score;", "= 2 * score;")
    place = tmp_path / "mine.cu"
    place.write_text(text)
    expected = 2 * (q @ k.swapaxes(1, 2))
    for other in (replace(row, text=text), replace(row, place=place)):
        call = call_steps([other], {"q": q, "k": k}, 1.0, backend="simulator")
        assert call.launches[0].geometry.block == (8, 8, 1)
        np.testing.assert_allclose(call.run()["s"], expected, rtol=1e-4, atol=1e-5)
    assert row.launch(call.problem).block == (32, 32, 1)


def test_options_win_over_the_tuning_of_a_call():
    q, k, v = seeded_qkv(SHAPE)
    options = ("-DROWS=2", "--extra-device-vectorization")
    call = Request(q, k, v, "flash_async", backend="simulator", options=options).call()
    (launch,) = call.launches
    assert launch.geometry.constants["ROWS"] == 2
    compiled_with = launch.kernel.module.options
    assert compiled_with.count("-DROWS=2") == 1 and options[1] in compiled_with
    assert len({option.partition("=")[0] for option in compiled_with}) == len(compiled_with)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (("-DTILES=8",), ValueError, "no constant TILES; theirs, with the defaults, are TILE=32"),
        (("-DTILE=wide",), ValueError, "TILE is an integer, 0 or more; its default is -DTILE=32"),
        (("-DTILE",), ValueError, "TILE is an integer"),
        (("-DTILE=-8",), ValueError, "0 or more"),
        (("-DTILE=0",), ValueError, "scores_tiled cannot be launched with TILE = 0"),
        (("-D", "TILE=8"), ValueError, "in one, as -DNAME=value"),
        (("--define-macro=TILE=8",), ValueError, "in one, as -DNAME=value"),
        ("-DTILE=8", TypeError, "not one string: pass ('-DTILE=8',)"),
    ],
)
def test_options_that_would_change_nothing_are_refused(options, error, says):
    q, k, v = seeded_qkv(SHAPE)
    with pytest.raises(error, match=re.escape(says)):
        Request(q, k, v, "tiled", backend="simulator", options=options).call()
