"""Compare-and-swap loops under contention give the bits of lockstep, lane after lane."""

import ml_dtypes
import numpy as np
import pytest
from kernelscope.machine.speed import Swaps
from machine_harness import integers, run

CODE = r"""
#include <cuda_bf16.h>
#define PLACE (blockIdx.x * blockDim.x + threadIdx.x)
extern "C" __global__ void add(float* sums, const float* x, float* seen, int places) {
    int i = PLACE, old, found = __float_as_int(sums[i % places]);
    do {
        old = found;
        found = atomicCAS((int*)sums + i % places, old, __float_as_int(__int_as_float(old) + x[i]));
    } while (old != found);
    seen[i] = __int_as_float(found);
}
extern "C" __global__ void largest(float* sums, const float* x, float* seen, int places) {
    int i = PLACE, *p = (int*)sums + i % places, old, found = *p;
    do {
        old = found;
        found = atomicCAS(p, old, __float_as_int(fmaxf(x[i], __int_as_float(old))));
    } while (found != old);
    seen[i] = __int_as_float(found);
}
extern "C" __global__ void multiply(double* sums, const float* x, float* seen, int places) {
    unsigned long long* p = (unsigned long long*)sums + PLACE % places;
    unsigned long long found = *p, old;
    do {
        old = found;
        found = atomicCAS(p, old, __double_as_longlong(__longlong_as_double(old) * x[PLACE]));
    } while (found != old);
    seen[PLACE] = __longlong_as_double(found);
}
extern "C" __global__ void pairs(__nv_bfloat162* sums, const float* x, float* seen, int places) {
    auto old = atomicAdd(sums + PLACE % places, __floats2bfloat162_rn(x[PLACE], 1.0f));
    seen[PLACE] = __bfloat162float(old.x) + __bfloat162float(old.y);
}
extern "C" __global__ void in_shared(float* sums, const float* x, float* seen, int places) {
    __shared__ float s[8];
    if (threadIdx.x < 8) s[threadIdx.x] = 1;
    __syncthreads();
    int *p = (int*)s + threadIdx.x % 8, old, found = *p;
    do {
        old = found;
        found = atomicCAS(p, old, __float_as_int(__int_as_float(old) * 0.5f + x[PLACE]));
    } while (found != old);
    __syncthreads();
    seen[PLACE] = s[threadIdx.x % 8];
}
extern "C" __global__ void guessed(float* sums, const float* x, float* seen, int places) {
    int i = PLACE, *p = (int*)sums + i % places, old, found = 1 + i % 3;  // all wrong
    do {
        old = found;
        found = atomicCAS(p, old, old * 5 + i);
    } while (found != old);
    seen[i] = found;
}
extern "C" __global__ void tries(float* sums, const float* x, float* seen, int places) {
    int i = PLACE, *p = (int*)sums + i % places, old, found = *p, n = 0;
    do {
        n++;  // how often: lockstep's own answer
        old = found;
        found = atomicCAS(p, old, old + 1);
    } while (found != old);
    seen[i] = n;
}
extern "C" __global__ void lock(float* sums, const float* x, float* seen, int places) {
    int* p = (int*)sums + PLACE % places;
    for (bool done = false; !done;)
        if (atomicCAS(p, 0, 1) == 0) {
            seen[0] += 1;
            __threadfence();
            atomicExch(p, 0);
            done = true;
        }
}
extern "C" __global__ void reads_it(float* sums, const float* x, float* seen, int places) {
    int i = PLACE, *p = (int*)sums + i % places, old, found = *p;
    do {
        old = found;
        found = atomicCAS(p, old, old + 1 + (int)sums[(i + 1) % places]);
    } while (found != old);
    seen[i] = found;
}
"""
TAKEN = ("add", "multiply", "pairs", "in_shared", "guessed")
LEFT = ("largest", "tries", "lock", "reads_it")


@pytest.fixture
def settled(monkeypatch):
    """Which blocks were settled at once."""
    found, settle = [], Swaps.run
    monkeypatch.setattr(Swaps, "run", lambda *given: found.append(settle(*given)) or found[-1])
    return found


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("places", (1, 5))
@pytest.mark.parametrize("name", TAKEN + LEFT)
def test_the_lanes_succeed_in_the_order_of_lockstep(name, places, settled, monkeypatch):
    x = integers(256, -40, 40, dtype=np.float32) / 8 + np.float32(1 / 3)

    def arrays():
        dtype = {"multiply": np.float64, "pairs": ml_dtypes.bfloat16}.get(name, np.float32)
        sums = np.zeros(2 * places, dtype) + dtype(name == "multiply")
        return run(CODE, name, 2, 128, sums, x, np.zeros(256, np.float32), np.int32(places))

    found = arrays()
    assert any(settled) == (name in TAKEN)
    monkeypatch.setattr(Swaps, "settle", lambda swaps, block: False)
    for a, b in zip(found[:3], arrays()[:3], strict=True):
        assert a.tobytes() == b.tobytes()
