"""Kernels with one defect each, and clean twins: what the observers say of them."""

from pathlib import Path

import numpy as np
import pytest
import triton
import triton.language as tl
from kernelscope import Counters, Sanitizer, Tracer, observe
from kernelscope.errors import MemoryFault
from kernelscope.triton import compile, run
from triton_harness import normal, poisoned

FILE = "test_wrong_kernels.py"


def line_of(text: str) -> int:
    """The number of the only line of this file that begins with the text."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (found,) = [at for at, line in enumerate(lines, 1) if line.strip().startswith(text)]
    return found


def checked(fn, grid, *args, **kwargs) -> list:
    with observe(Sanitizer()) as found:
        run(fn, grid, *args, **kwargs)
    return found.findings


# -- out of bounds --------------------------------------------------------------------------------
@triton.jit
def copied(x, out, N, MASKED_LOAD: tl.constexpr, MASKED_STORE: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    if MASKED_LOAD:
        value = tl.load(x + at, mask=at < N)
    else:
        value = tl.load(x + at)  # bare
    if MASKED_STORE:
        tl.store(out + at, value, mask=at < N)
    else:
        tl.store(out + at, value)  # bare


CASES = {
    "load": ((False, True), "x", "value = tl.load(x + at)  # bare", "reads"),
    "store": ((True, False), "out", "tl.store(out + at, value)  # bare", "writes"),
}


@pytest.mark.parametrize(("masks", "array", "text", "verb"), CASES.values(), ids=CASES)
def test_an_access_without_a_mask(masks, array, text, verb):
    x, out = normal(90), poisoned(90)
    (found,) = checked(copied, (3,), x, out, 90, *masks, B=32, num_warps=1)
    assert (found.kind, found.array, found.index) == ("out-of-bounds", array, 90)
    assert found.line == line_of(text) and found.line_text == text
    assert found.valid_range == f"elements 0 to 89 of {array}" and found.count == 6
    with pytest.raises(MemoryFault, match=f"{FILE}:{found.line} .*{verb} element 90 of {array}"):
        run(copied, (3,), normal(90), out, 90, *masks, B=32, num_warps=1)


def test_masks_make_it_clean():
    x, out = normal(90), poisoned(90)
    assert not checked(copied, (3,), x, out, 90, True, True, B=32, num_warps=1)
    assert (out == x).all()


@triton.jit
def transposed(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    i, j = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    inside = (i < M) & (j < N)
    value = tl.load(x + i * N + j, mask=inside)
    tl.store(out + j * N + i, value, mask=inside)  # the step of out's rows is M


def test_a_wrong_stride_leaves_the_matrix():
    x, out = normal(5, 9), poisoned(9, 5)
    (found,) = checked(transposed, (1,), x, out, 5, 9, BM=8, BN=16, num_warps=1)
    assert (found.array, found.index) == ("out", 45)
    assert found.valid_range == "elements 0 to 44 of out"
    assert (
        found.line_text
        == "tl.store(out + j * N + i, value, mask=inside)  # the step of out's rows is M"
    )


@triton.jit
def looked_up(table, index, out, N, B: tl.constexpr):
    at = tl.arange(0, B)
    row = tl.load(index + at, mask=at < N)
    tl.store(out + at, tl.load(table + row, mask=at < N), mask=at < N)


def test_an_index_that_leaves_its_table():
    index, out = np.array([0, 3, -1, 2], np.int32), poisoned(4)
    (found,) = checked(looked_up, (1,), normal(4), index, out, 4, B=4, num_warps=1)
    assert (found.kind, found.array, found.index) == ("out-of-bounds", "table", -1)


@triton.jit
def optional(x, bias, out, N, B: tl.constexpr):
    at = tl.arange(0, B)
    value = tl.load(x + at, mask=at < N) + tl.load(bias + at, mask=at < N)
    tl.store(out + at, value, mask=at < N)


def test_a_missing_array_is_an_error_of_the_compiler():
    from kernelscope import CompileError

    with pytest.raises(CompileError, match=rf"optional: {FILE}:\d+ `value = tl.load"):
        run(optional, (1,), normal(8), None, poisoned(8), 8, B=8)


# -- races ----------------------------------------------------------------------------------------
@triton.jit
def summed(x, total, N, ATOMIC: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    part = tl.sum(tl.load(x + at, mask=at < N, other=0.0))
    if ATOMIC:
        tl.atomic_add(total, part)
    else:
        tl.store(total, tl.load(total) + part)  # not atomic


def test_a_race_between_programs():
    found = checked(summed, (3,), normal(90), np.zeros(1, np.float32), 90, False, B=32)
    assert {(one.kind, one.array, one.line) for one in found} == {
        ("race", "total", line_of("tl.store(total, tl.load(total) + part)  # not atomic"))
    }
    first = next(one for one in found if one.severity == "error")
    assert first.threads[0][0] != first.threads[1][0]  # programs
    assert not checked(summed, (3,), normal(90), np.zeros(1, np.float32), 90, True, B=32)


@triton.jit
def shifted(x, N, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    inside = at < N - 1
    value = tl.load(x + at + 1, mask=inside)
    tl.store(x + at, value, mask=inside)


def test_a_race_in_place_between_neighbours():
    found = checked(shifted, (4,), normal(200), 200, B=64, num_warps=2)
    assert {one.kind for one in found} == {"race"} and {one.array for one in found} == {"x"}


@triton.jit
def through_memory(x, scratch, out, BARRIER: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(scratch + at, tl.load(x + at))
    if BARRIER:
        tl.debug_barrier()
    tl.store(out + at, tl.load(scratch + B - 1 - at))


def test_a_program_that_reads_what_its_other_threads_wrote():
    x, scratch, out = normal(128), poisoned(128), poisoned(128)
    found = checked(through_memory, (1,), x, scratch, out, False, B=128)
    assert [(one.kind, one.array) for one in found] == [("race", "scratch")]
    assert found[0].other_line == line_of("tl.store(scratch + at, tl.load(x + at))")
    assert not checked(through_memory, (1,), x, scratch, out, True, B=128)
    assert (out == x[::-1]).all()


@triton.jit
def incremented(count, BARRIER: tl.constexpr):
    before = tl.load(count)
    if BARRIER:
        tl.debug_barrier()
    tl.store(count, before + 1)


def test_a_scalar_that_every_thread_loads_and_the_first_one_stores():
    found = checked(incremented, (1,), np.zeros(1, np.int32), False, num_warps=2)
    assert [(one.kind, one.array, one.severity) for one in found] == [("race", "count", "warning")]
    assert "several threads load it and one of them store it" in str(found[0])
    assert not checked(incremented, (1,), np.zeros(1, np.int32), True, num_warps=2)


@triton.jit
def turned(x, B: tl.constexpr):
    at = tl.arange(0, B)
    value = tl.load(x + at)
    tl.store(x + B - 1 - at, value)


@triton.jit
def raised(x, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(x + at, tl.load(x + at) + 1)


def test_threads_that_load_an_element_beside_the_one_that_stores_it():
    for size, severities in ((32, ["warning"]), (128, [])):  # 128 threads
        found = checked(raised, (1,), normal(size), B=size)
        assert [one.severity for one in found] == severities
    for size in (32, 128):  # another thread's element
        assert [one.severity for one in checked(turned, (1,), normal(size), B=size)] == ["error"]


@triton.jit
def unlocked(lock, count):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.atomic_xchg(lock, 0)
    tl.store(count, tl.load(count) + 1)


def test_an_update_behind_its_lock():
    found = checked(unlocked, (4,), np.zeros(1, np.int32), np.zeros(1, np.int32), num_warps=1)
    assert {(one.kind, one.array) for one in found} == {("race", "count")}


# -- what nothing has written ---------------------------------------------------------------------
def test_a_program_too_few_leaves_the_poison():
    x, out = normal(90), poisoned(90)
    run(copied, (2,), x, out, 90, True, True, B=32, num_warps=1)
    assert (out[:64] == x[:64]).all() and np.isnan(out[64:]).all()


@triton.jit
def gathered_parts(parts, out, P: tl.constexpr):
    tl.store(out, tl.sum(tl.load(parts + tl.arange(0, P))))


def test_a_read_of_an_output_that_nothing_wrote():
    parts, out = poisoned(8), poisoned(1)
    with observe(Sanitizer(uninitialised=("parts",))) as found:
        run(gathered_parts, (1,), parts, out, P=8, num_warps=1)
    (one,) = found.findings
    assert (one.kind, one.array, one.index) == ("uninitialised-read", "parts", 0)
    assert one.line_text == "tl.store(out, tl.sum(tl.load(parts + tl.arange(0, P))))"


def test_a_lock_that_nobody_opens_is_a_hang():
    from kernelscope.errors import Hang

    with pytest.raises(Hang, match=r"while tl\.atomic_cas\(lock, 0, 1\) == 1"):
        run(unlocked, (1,), np.ones(1, np.int32), np.zeros(1, np.int32), num_warps=1)


# -- counters and the stepper ---------------------------------------------------------------------
@triton.jit
def columns_summed(x, out, M, N, B: tl.constexpr):
    row = tl.program_id(0) * B + tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for column in range(N):
        total += tl.load(x + row * N + column, mask=row < M, other=0.0)
    tl.store(out + row, total, mask=row < M)


def test_counts_stand_beside_the_lines_of_python():
    x, out = normal(64, 20), poisoned(64)
    with observe(Counters()) as counted:
        run(columns_summed, (1,), x, out, 64, 20, B=64, num_warps=2)
    load = line_of("total += tl.load(x + row * N + column, mask=row < M, other=0.0)")
    line = counted.by_line[load]
    assert line.text.strip().startswith("total += tl.load")
    # 2 warps x 20 columns; each of the 32 lanes reads a sector of its own
    assert (line["global_load_requests"], line["global_load_sectors"]) == (40, 40 * 32)
    assert f"columns_summed ({FILE}), 1 launch" in str(counted)


def test_one_call_serves_all_observers():
    x, out = normal(64, 20), poisoned(64)
    call = compile(columns_summed, x, out, 64, 20, B=64, num_warps=2)
    with observe(Counters(), Sanitizer(), Tracer(block=(0, 0, 0), warp=0)) as (
        counted,
        found,
        trace,
    ):
        call((1,))
    assert counted.totals["global_store_requests"] == 2 and not found.findings
    shown = {trace.lines[frame["line"] - 1].strip() for frame in trace.frames}
    assert "row = tl.program_id(0) * B + tl.arange(0, B)" in shown
    assert "tl.store(out + row, total, mask=row < M)" in shown
    loads = [one for frame in trace.frames for one in frame["global"] if one["array"] == "x"]
    assert len(loads) == 20


@triton.jit
def exponential(x):
    return tl.exp(x)


@triton.jit
def exponentials(x, out, N, B: tl.constexpr):
    at = tl.arange(0, B)
    value = exponential(tl.load(x + at, mask=at < N))
    tl.store(out + at, value, mask=at < N)


def test_lines_of_a_function_count_in_the_same_file():
    with observe(Counters()) as counted:
        run(exponentials, (1,), normal(30), poisoned(30), 30, B=32, num_warps=1)
    assert counted.by_line[line_of("return tl.exp(x)")]["instructions"] > 0
