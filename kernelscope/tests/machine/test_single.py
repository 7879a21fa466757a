"""Loops of one lane: the same arrays, errors and limits as in NumPy, and who steps aside."""

import numpy as np
import pytest
from kernelscope import Counters, observe
from kernelscope.errors import Hang, MemoryFault, OutOfTime
from kernelscope.machine.speed import Single
from machine_harness import integers, run

CODE = r"""
extern "C" __global__ void scan(const float* x, float* y, int n) {
    float s = 0;
    for (int i = 0; i < n; i++) y[i] = s += x[i];
}
extern "C" __global__ void common(const int* a, const int* b, int* t, int n) {
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= n; j++) {
            int* here = t + i * (n + 1) + j;
            *here = a[i - 1] == b[j - 1] ? here[-n - 2] + 1 : max(here[-1], here[-n - 1]);
        }
}
extern "C" __global__ void sort(const int* a, int* y, int n) {
    __shared__ int s[128];
    s[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < n; i++) {
            int v = s[i], j = i - 1;
            for (; j >= 0 && s[j] > v; j--) s[j + 1] = s[j];
            s[j + 1] = v;
        }
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];
}
__device__ __noinline__ double step(double x, double y) { return x * y - (x + y) * 0.25; }
extern "C" __global__ void mixed(const double* x, double* y, signed char* z, int n) {
    double kept[16];
    for (int i = 0; i < 16; i++) kept[i] = i;
    for (int i = 0; i < n; i++) {
        kept[i & 15] = step(x[i], kept[(i * 7) & 15]);
        y[i] = sqrt(fabs(kept[i & 15])) / (1 + (i % 5)) + exp2f((float)x[i]);
        z[i] = (signed char)(i * 77 + (z[i] << 3));
    }
}
extern "C" __global__ void warps(const int* a, int* y, int n) {  // a lane of each of four warps
    __shared__ int sums[4];
    if (threadIdx.x % 32 == 0) {
        int s = 0, w = threadIdx.x / 32;
        for (int i = w; i < n; i += 4) s = s * 31 + a[i];
        sums[w] = s;
    }
    __syncthreads();
    y[threadIdx.x] = sums[threadIdx.x % 4];
}
extern "C" __global__ void beyond(float* y, int n) {
    for (int i = 0; i < n; i++) y[i * i] = i;
}
extern "C" __global__ void reads_zero(const int* x, int* y, int n) {
    for (int i = 0; i < n; i++) y[i] = 1000 / x[i];
}
extern "C" __global__ void waits(int* y, int k) {
    for (int i = 0; y[k] == 0; i += i < 50000) y[0] = i;
}
extern "C" __global__ void endless(unsigned* y) {
    for (unsigned long long n = 1;; n = n * 3 + 1) if (n == 0) y[0] = 1;
}
extern "C" __global__ void other(volatile int* y, int n) {  // one thread waits for the other one
    __shared__ volatile int flag;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        int s = 1;
        for (int i = 0; i < n; i++) s = s * 7 + i;
        y[0] = s;
        flag = 1;
    } else {
        while (flag == 0);
        y[1] = y[0] + 1;
    }
}
"""
SPECIAL = np.array([0.0, -0.0, 1e-39, np.inf, -np.inf, np.nan, 1e38, 2.0**-126], np.float32)


def floats(n, dtype=np.float32):
    x = np.random.default_rng(3).standard_normal(n).astype(dtype)
    x[n // 2 : n // 2 + SPECIAL.size] = SPECIAL
    return x


def zeros(n, dtype):
    return np.zeros(n, dtype)


CASES = {
    "scan": lambda: (1, 1, floats(300), zeros(300, "f4"), np.int32(300)),
    "common": lambda: (1, 1, integers(30, 0, 4), integers(30, 0, 4, 1), zeros(961, "i4"),
                       np.int32(30)),
    "sort": lambda: (1, 128, integers(128), zeros(128, "i4"), np.int32(128)),
    "mixed": lambda: (1, 1, floats(300, "f8"), zeros(300, "f8"), integers(300, dtype=np.int8),
                      np.int32(300)),
    "warps": lambda: (1, 128, integers(4000), zeros(128, "i4"), np.int32(4000)),
    "reads_zero": lambda: (1, 1, integers(900, 0, 99), zeros(900, "i4"), np.int32(900)),
    "other": lambda: (1, 64, zeros(2, "i4"), np.int32(5000)),
}  # fmt: skip


@pytest.fixture
def runs(monkeypatch):
    """Jumps back of each run on plain numbers."""
    found, plan = [], Single.plan
    monkeypatch.setattr(Single, "plan", lambda *given: found.append(given[1]) or plan(*given))
    return found


def in_numpy(monkeypatch):
    monkeypatch.setattr(Single, "go_on", lambda single, key, block: (key, 0))


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("name", CASES)
def test_the_arrays_are_those_of_numpy(name, runs, monkeypatch):
    found = run(CODE, name, *CASES[name]())
    assert sum(runs) > 20
    in_numpy(monkeypatch)
    for a, b in zip(found, run(CODE, name, *CASES[name]()), strict=True):
        assert a.tobytes() == b.tobytes()


def test_a_fault_names_the_same_element(runs, monkeypatch):
    told = []
    for _ in range(2):
        y = np.zeros(100_000, np.float32)
        with pytest.raises(MemoryFault) as error:
            run(CODE, "beyond", 1, 1, y, np.int32(1000))
        told.append((str(error.value), error.value.line, y.tolist()))
        in_numpy(monkeypatch)
    assert told[0] == told[1] and "element 100489" in told[0][0] and sum(runs) > 10


def test_a_loop_that_repeats_itself_is_a_hang(runs):
    with pytest.raises(Hang, match="waits hangs at .*y.0. = i"):
        run(CODE, "waits", 1, 1, np.zeros(2, np.int32), np.int32(1))
    assert sum(runs) > 1000


def test_the_limit_of_time_holds_in_a_loop_of_one_lane(runs, monkeypatch):
    monkeypatch.setenv("KERNELSCOPE_TIMEOUT", "1")
    with pytest.raises(OutOfTime, match="endless ran longer than 1 s and is now at .*Does its"):
        run(CODE, "endless", 1, 1, np.zeros(1, np.uint32))


def test_observers_see_every_instruction(runs):
    with observe(Counters()) as seen:
        run(CODE, *("scan", 1, 1), *CASES["scan"]()[2:])
    assert seen.totals["thread_instructions"] > 300 and not runs
