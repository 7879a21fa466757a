"""Counters of atomics on one warp, each number derived beside it; the rules are an H200's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelscope.watch.counters.atomics import (
    count_atomic_passes,
    count_atomic_sectors,
    is_loop,
    wavefronts_of_a_pass,
)
from kernelscope.watch.counters.traffic import Lanes
from watch_harness import count

T = np.arange(32)
GLOBAL = """extern "C" __global__ void k(const int* where, KIND* x) {
    atomicAdd(x + where[threadIdx.x], (KIND)2); }"""
SHARED = """extern "C" __global__ void k(const int* where, int* out) {
    extern __shared__ __align__(16) char memory[];
    const int t = threadIdx.x;
    KIND* p = reinterpret_cast<KIND*>(memory) + where[t];
    KIND old = 0;
    STATEMENT;
    out[t] = old; }"""
DTYPES = {"int": np.int32, "float": np.float32, "unsigned long long": np.uint64}


@pytest.mark.parametrize(
    ("kind", "where", "sectors"),
    [
        ("int", T, 4),  # 128 bytes in a row
        ("float", T, 4),
        ("int", T + 3, 5),
        ("int", 8 * T, 32),  # a sector a lane
        ("int", 0 * T, 32),  # one address: its sector goes on for each of the 32 lanes
        ("int", T // 16, 16),  # one sector, two addresses of it, 16 lanes each
        ("int", T // 8, 8),
        ("int", T // 2, 4),  # 64 bytes, each address twice
        ("int", T % 2 * 32, 32),  # two sectors, 16 lanes on each
        ("unsigned long long", T, 8),
        ("unsigned long long", T // 2, 8),  # 4 sectors twice
        ("int", np.repeat([0, 1, 8, 9], [3, 2, 20, 7]), 23),  # 3 in the first sector, 20 in it
    ],
)
def test_sectors_of_an_atomic(kind, where, sectors):
    code = GLOBAL.replace("KIND", kind)
    totals = count(code, where.astype(np.int32), np.zeros(300, DTYPES[kind])).totals
    assert totals["global_atomic_requests"] == totals["atomic_requests"] == 1
    assert totals["global_atomic_sectors"] == sectors
    assert totals["global_store_requests"] == totals["shared_atomic_requests"] == 0
    assert totals["global_load_requests"] == 1  # of `where`


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize(
    ("kind", "statement", "where", "wavefronts", "conflicts"),
    [
        ("int", "old = atomicOr(p, t)", T, 1, 0),
        ("int", "old = atomicOr(p, t)", 32 * T, 32, 31),  # one bank
        ("int", "old = atomicOr(p, t)", 0 * T, 32, 31),  # one address: no lane shares a pass
        ("int", "atomicMax(p, t)", T // 2, 2, 1),
        ("int", "old = atomicExch(p, t)", T // 16, 16, 15),
        ("int", "atomicAdd(p, 2)", 0 * T, 32, 31),
        ("int", "atomicAdd(p, 1)", 0 * T, 1, 0),  # counted together
        ("int", "atomicAdd(p, 1)", 32 * T, 32, 31),  # but not over the words of a bank
        ("int", "old = atomicAdd(p, 1)", 0 * T, 32, 31),  # every lane wants its own result
        ("int", "old = atomicCAS(p, 0, t)", T, 2, 0),  # two wavefronts a pass
        ("int", "old = atomicCAS(p, 0, t)", 8 * T, 16, 7),
        ("unsigned long long", "old = atomicExch(p, 5ull)", T, 2, 0),  # half a warp at a time
        ("unsigned long long", "old = atomicExch(p, 5ull)", 0 * T, 32, 30),
        ("unsigned long long", "old = atomicCAS(p, 0ull, 5ull)", T // 2, 8, 2),
        ("float", "old = atomicAdd(p, 0.0f)", T, 2, 0),  # a loop of compare-and-swaps
        ("float", "old = atomicAdd(p, 0.0f)", 32 * T, 64, 31),
    ],
)
def test_wavefronts_of_an_atomic_on_shared_memory(kind, statement, where, wavefronts, conflicts):
    code = SHARED.replace("KIND", kind).replace("STATEMENT", statement)
    where = where.astype(np.int32)
    totals = count(code, where, np.zeros(32, np.int32), shared_mem=8 * 1024).totals
    assert totals["shared_atomic_requests"] == totals["atomic_requests"] == 1
    assert totals["shared_atomic_wavefronts"] == wavefronts
    assert totals["shared_atomic_conflicts"] == conflicts
    assert totals["global_atomic_requests"] == totals["shared_load_requests"] == 0


def test_half_a_warp_and_many_warps():
    half = "if (t % 32 < 16) old = atomicOr(p, t)"
    code = SHARED.replace("KIND", "int").replace("STATEMENT", half)
    where = np.tile(np.where(T < 16, 0, T), 2).astype(np.int32)
    seen = count(code, where, np.zeros(64, np.int32), threads=64, blocks=3, shared_mem=4096)
    assert seen.totals["shared_atomic_requests"] == 6
    assert seen.totals["shared_atomic_wavefronts"] == 6 * 16


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize(
    ("statement", "sectors"),
    [
        ("atomicAdd(x, 1)", 1),  # one lane goes for all
        ("atomicMax(x + blockIdx.x, t)", 1),
        ("if (t > 3) atomicXor(x, t)", 1),
        ("x[32 + t] = atomicAdd(x, 5)", 1),  # every lane knows its share of a constant
        ("x[32 + t] = atomicAdd(x, t)", 32),
        ("atomicExch(x, t)", 32),
        ("atomicAdd((float*)x, 1.0f)", 32),
        ("atomicAdd(x + x[t], t)", 32),  # ptxas cannot know
        ("atomicAdd((unsigned long long*)x, 1ull)", 1),
        ("atomicAdd((unsigned long long*)x, (unsigned long long)t)", 32),
    ],
)
def test_an_address_that_is_alike_for_all_lanes_is_one_lanes(statement, sectors):
    code = f"""extern "C" __global__ void k(int* x) {{
        const int t = threadIdx.x; {statement}; }}"""
    totals = count(code, np.zeros(64, np.int32)).totals
    assert totals["global_atomic_sectors"] == sectors
    assert totals["global_atomic_requests"] == totals["atomic_requests"] == 1


def test_atomics_stand_at_their_line():
    seen = count(
        """extern "C" __global__ void k(int* x) {
        x[threadIdx.x] = 0;
        atomicExch(x, (int)threadIdx.x); }""",
        np.zeros(32, np.int32),
    )
    assert seen.by_line[3]["global_atomic_sectors"] == 32
    assert seen.by_line[2]["global_atomic_sectors"] == 0
    assert seen.by_line[3].per_request("global_atomic_sectors") == 32


@pytest.mark.parametrize(
    ("opcode", "loop", "wavefronts"),
    [
        ("atom.shared.add.u32", False, 1),
        ("atom.shared.add.f32", True, 2),
        ("atom.shared.add.u64", True, 2),
        ("atom.shared.exch.b64", False, 1),
        ("atom.shared.cas.b64", False, 2),
        ("atom.shared.cas.b16", True, 2),
        ("red.shared.add.noftz.f16x2", True, 2),
        ("red.global.add.f32", False, 1),
    ],
)
def test_operations_without_an_instruction_are_loops(opcode, loop, wavefronts):
    assert is_loop(opcode) is loop and wavefronts_of_a_pass(opcode) == wavefronts


@given(
    st.lists(st.tuples(st.integers(0, 127), st.integers(0, 60)), min_size=1, max_size=60),
    st.sampled_from([4, 8]),
)
@settings(max_examples=80, deadline=None)
def test_sectors_and_passes_agree_with_sets(accesses, size):
    found = dict(accesses)
    lanes = np.array(sorted(found), np.int64)
    address = np.array([size * found[lane] for lane in lanes], np.uint64)
    sectors = passes = groups = 0
    for warp in {lane // 32 for lane in found}:
        mine = [size * found[lane] for lane in found if lane // 32 == warp]
        for sector in {one // 32 for one in mine}:
            sectors += max(mine.count(one) for one in mine if one // 32 == sector)
    for group in {lane // (128 // size) for lane in found}:
        banks = [size * found[lane] % 128 for lane in found if lane // (128 // size) == group]
        passes += max(map(banks.count, banks))
        groups += 1
    assert count_atomic_sectors(Lanes(lanes), address) == sectors
    assert count_atomic_passes(Lanes(lanes), address, size) == (passes, groups)
