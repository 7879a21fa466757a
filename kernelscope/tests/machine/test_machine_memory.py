"""Memory on the simulator: spaces, widths, generic pointers, variables, faults."""

import numpy as np
import pytest
from kernelscope import budget, device_address
from kernelscope.machine import Hang, MemoryFault, SimulatorError, UnsupportedKernel
from machine_harness import integers, listen, module, run, zeros

CODE = r"""
#define ID (blockIdx.x * blockDim.x + threadIdx.x)
struct Pair { int key; float weight; short tag; };
struct __align__(16) Quad { float x, y, z, w; };
__constant__ float table[5];
__constant__ int fixed[4] = {7, -3, 11, 100};
__device__ int counter;
__device__ double history[8];
__device__ const int* where = &fixed[2];
extern "C" {
__global__ void stack(const int* a, int* out) {   // a local array with a dynamic index
    int i = ID, box[9];
    for (int k = 0; k < 9; ++k) box[k] = a[i] * k;
    for (int k = 0; k < 6; ++k) box[(a[i] + 5 * k) % 9] += box[(i + k) % 9];
    int s = 0;
    for (int k = 0; k < 9; ++k) s = s * 7 + box[(k * 4) % 9];
    out[i] = s;
}
__global__ void structs(const Pair* in, Pair* out, Quad scale, Pair add) {
    int i = ID;
    Pair p = in[i];
    p.key += add.key; p.weight = p.weight * scale.z + scale.w; p.tag -= add.tag;
    out[i] = p;
    Quad parts[2] = {scale, scale};
    parts[i % 2].y = p.weight;
    out[i].weight += parts[(i + 1) % 2].y + parts[i % 2].y;
}
__global__ void pointers(int* g, int* out) {      // generic, mixed within a warp
    __shared__ int s[64];
    int l[4] = {10, 20, 30, 40};
    int t = threadIdx.x;
    s[t] = 1000 + t;
    g[t] = 2000 + t;
    l[t % 4] += t;
    __syncthreads();
    volatile int* p = t % 3 == 0 ? &s[63 - t] : t % 3 == 1 ? &g[t ^ 1] : &l[t % 4];
    int v = *p;
    *p = v + 5;
    __syncthreads();
    out[t] = *p * 10000 + v + l[(t + 1) % 4];
}
__global__ void spaces(int* g, unsigned* out) {
    __shared__ int s[4];
    int l[2];
    int* p = threadIdx.x % 3 == 0 ? g : threadIdx.x % 3 == 1 ? s : l;
    l[threadIdx.x % 2] = 3;
    *p = 1;
    out[threadIdx.x] = __isGlobal(p) + 2 * __isShared(p) + 4 * __isLocal(p) + 8 * (l[0] == 1);
}
__global__ void vectors(const float4* a, const int4* b, const double2* c, float2* out, int4* ints,
                        double2* doubles, uchar4* bytes, short2* shorts) {
    __shared__ float4 tile[32];
    int t = threadIdx.x;
    float4 v = a[t];
    tile[31 - t] = make_float4(v.w, v.z, v.y, v.x);
    __syncthreads();
    float4 u = tile[t];
    out[t] = make_float2(u.x - u.y, u.z + u.w);
    int4 w = b[t];
    ints[31 - t] = make_int4(w.y, w.x, w.w * 2, w.z);
    doubles[t] = make_double2(c[t].y * 0.5, c[31 - t].x);
    bytes[t] = make_uchar4(w.x, w.y, w.z, w.w);
    shorts[t] = make_short2(w.x * 300, -w.y);
}
__global__ void narrow(const signed char* a, const unsigned char* b, const short* c,
                       const bool* d, short* out, signed char* low, bool* flags) {
    int i = ID;
    out[i] = a[i + 1] * 3 + b[i + 3] + (d[i] ? c[i] : -c[i]);   // bytes at any address
    low[i + 1] = a[i] + 100;                                     // wraps
    flags[i] = (a[i] & 2) && d[i];
}
__global__ void cached(const float* __restrict__ a, float* out) {
    out[ID] = __ldg(a + ID) + __ldcg(a + ID % 7) * 2.0f;
    __stcs(out + gridDim.x * blockDim.x + ID, out[ID] * 3.0f);
}
__global__ void variables(double* out) {
    int i = ID;
    if (i == 0) { counter += 3; history[counter % 8] = counter * 1.5; }
    __syncthreads();
    out[i] = table[i % 5] * fixed[i % 4] + history[i % 8] + *where;
}
__global__ void dynamic(const int* a, int* out, int n) {
    extern __shared__ __align__(16) unsigned char raw[];
    __shared__ int fixed_part[3];
    int t = threadIdx.x;
    double* d = (double*)raw;            // (n,)
    float* f = (float*)(d + n);          // (n,)
    short* s = (short*)(f + n);          // (n,)
    if (t < 3) fixed_part[t] = t * 1000;
    d[t] = a[t] * 0.5; f[t] = a[t] * 2.0f; s[n - 1 - t] = a[t];
    __syncthreads();
    out[t] = (int)(d[n - 1 - t] * 2.0) + (int)f[(t + 1) % n] + s[t] + fixed_part[t % 3];
}
__global__ void copies(const Pair* in, Pair* out, unsigned char* bytes) {
    int i = ID;
    Pair p;
    memcpy(&p, &in[i], sizeof(p));
    p.tag ^= 0x0f0f;
    memcpy(&out[i], &p, sizeof(p));
    memset(bytes + 5 * i, 17 + i, 5);
}
__global__ void wide_index(const float* a, float* out, long long far) {
    long long i = ID;
    out[i] = a[(i + far) - far] + a[(far * 4 + i) % 100];
}
__global__ void outside(const float* values, float* out, int shift) {
    int i = ID;
    out[i] = values[i + shift];  // may leave the array
}
__global__ void writes_outside(float* out, int shift) { out[(int)ID - shift] = 1.0f; }
__global__ void writes_far(float* out, long long shift) { out[ID - shift] = 1.0f; }
__global__ void shared_outside(int* out, int shift) {
    __shared__ int row[40];
    row[threadIdx.x % 40] = 3;
    row[(int)threadIdx.x + shift] = 4;  // leaves the row
    out[threadIdx.x] = row[threadIdx.x];
}
__global__ void crooked(const char* bytes, int* out) {
    out[ID] = *(const int*)(bytes + 4 * ID + 2);
}
__global__ void nothing(int* p, int* out) { out[ID] = p[ID]; }
__global__ void atomic_outside(int* a) { atomicAdd(a + ID, 1); }
}
"""
PAIR = np.dtype([("key", "i4"), ("weight", "f4"), ("tag", "i2")], align=True)


def test_local_array_with_a_dynamic_index(build):
    n = 96
    a, out = integers(n), zeros(n)
    run(CODE, "stack", 2, 48, a, out, build=build)
    for i, x in enumerate(a.tolist()):
        box = [x * k for k in range(9)]
        for k in range(6):
            box[(x + 5 * k) % 9] += box[(i + k) % 9]
        s = 0
        for k in range(9):
            s = s * 7 + box[k * 4 % 9]
        assert out[i] == (s + 2**31) % 2**32 - 2**31


def pairs(n, seed=1):
    rng = np.random.default_rng(seed)
    p = np.zeros(n, PAIR)
    p["key"], p["weight"] = rng.integers(-9, 99, n), rng.integers(-40, 90, n) / 8
    p["tag"] = rng.integers(-300, 300, n)
    return p


def test_structs_by_value(build):
    n = 50
    given, out = pairs(n), np.zeros(n, PAIR)
    scale = np.array((1, 2, 4, 0.5), np.dtype([(c, "f4") for c in "xyzw"]))
    add = np.array((5, 1.5, 7), PAIR)
    run(CODE, "structs", 1, n, given.view(np.uint8), out.view(np.uint8), scale, add, build=build)
    weight = given["weight"] * 4 + np.float32(0.5)
    assert out["key"].tolist() == (given["key"] + 5).tolist()
    assert out["tag"].tolist() == (given["tag"] - 7).tolist()
    assert out["weight"].tolist() == (weight + (np.float32(2) + weight)).tolist()


def test_generic_pointers_mixed_in_a_warp(build, order):
    g, out = zeros(64), zeros(64)
    run(CODE, "pointers", 1, 64, g, out, build=build, warp_order=order)
    shared = [1000 + t for t in range(64)]
    memory = [2000 + t for t in range(64)]
    local = [[10 + 10 * k + (t if k == t % 4 else 0) for k in range(4)] for t in range(64)]
    kinds = [((shared, 63 - t), (memory, t ^ 1), (local[t], t % 4))[t % 3] for t in range(64)]
    seen = [array[index] for array, index in kinds]
    for (array, index), v in zip(kinds, seen, strict=True):
        array[index] = v + 5
    expected = [
        array[index] * 10000 + v + local[t][(t + 1) % 4]
        for t, ((array, index), v) in enumerate(zip(kinds, seen, strict=True))
    ]
    assert out.tolist() == expected and g.tolist() == memory


def test_which_space_a_pointer_is_in(build):
    g, out = zeros(4), zeros(33, np.uint32)
    run(CODE, "spaces", 1, 33, g, out, build=build)
    assert out.tolist()[:3] == [1, 2, 12]
    assert all(value & 7 == (1, 2, 4)[t % 3] for t, value in enumerate(out.tolist()))


def test_vector_loads_and_stores(build):
    rng = np.random.default_rng(5)
    a = rng.integers(-99, 99, (32, 4)).astype(np.float32)
    b = rng.integers(-99, 99, (32, 4)).astype(np.int32)
    c = rng.standard_normal((32, 2))
    out, ints = zeros((32, 2), np.float32), zeros((32, 4))
    doubles, low, shorts = zeros((32, 2), float), zeros((32, 4), np.uint8), zeros((32, 2), np.int16)
    run(CODE, "vectors", 1, 32, a, b, c, out, ints, doubles, low, shorts, build=build)
    u = a[::-1, ::-1]
    assert out.tolist() == np.stack([u[:, 0] - u[:, 1], u[:, 2] + u[:, 3]], 1).tolist()
    swapped = np.stack([b[:, 1], b[:, 0], b[:, 3] * 2, b[:, 2]], 1)
    assert ints[::-1].tolist() == swapped.tolist()
    assert doubles.tolist() == np.stack([c[:, 1] * 0.5, c[::-1, 0]], 1).tolist()
    assert low.tolist() == (b % 256).tolist()
    assert shorts.tolist() == np.stack([b[:, 0] * 300, -b[:, 1]], 1).astype(np.int16).tolist()


def test_narrow_types_at_any_address(build):
    n = 70
    a, b = integers(n + 3, -128, 128, 1, np.int8), integers(n + 3, 0, 256, 2, np.uint8)
    c, d = integers(n, -3000, 3000, 3, np.int16), integers(n, 0, 2, 4, np.bool_)
    out, low, flags = zeros(n, np.int16), zeros(n + 1, np.int8), zeros(n, np.bool_)
    run(CODE, "narrow", 1, n, a, b, c, d, out, low, flags, build=build)
    wide = a.astype(int), b.astype(int), c.astype(int)
    expected = wide[0][1 : n + 1] * 3 + wide[1][3:] + np.where(d, wide[2], -wide[2])
    assert out.tolist() == expected.tolist()
    assert low[1:].tolist() == (wide[0][:n] + 100).astype(np.int8).tolist()
    assert flags.tolist() == (((a[:n] & 2) != 0) & d).tolist()


def test_cache_hints(build):
    a = integers(64).astype(np.float32)
    out = zeros(128, np.float32)
    run(CODE, "cached", 2, 32, a, out, build=build)
    first = a + a[np.arange(64) % 7] * 2
    assert out.tolist() == np.concatenate([first, first * 3]).tolist()


def test_variables_keep_their_values_from_launch_to_launch(build):
    n = 40
    made = module(CODE)
    bytes_of = {name: made.get_global(name) for name in ("table", "counter", "history")}
    bytes_of["table"].view(np.float32)[:] = [0.5, -1, 2, 3.25, 8]
    bytes_of["counter"].view(np.int32)[:] = 4
    bytes_of["history"].view(np.float64)[:] = np.arange(8) * 0.25
    out, history = zeros(n, float), np.arange(8) * 0.25
    for counter in (7, 10, 13):
        run(CODE, "variables", 1, n, out, build=build)
        history[counter % 8] = counter * 1.5
        i = np.arange(n)
        fixed = np.array([7, -3, 11, 100])[i % 4]
        expected = np.array([0.5, -1, 2, 3.25, 8])[i % 5] * fixed + history[i % 8] + 11
        assert out.tolist() == expected.tolist()
        assert bytes_of["counter"].view(np.int32)[0] == counter


@pytest.mark.parametrize("n", [5, 32, 66])
def test_dynamic_and_static_shared_memory(n, build):
    a, out = integers(n, -99, 99), zeros(n)
    run(CODE, "dynamic", 2, n, a, out, np.int32(n), shared=14 * n, build=build)
    t = np.arange(n)
    expected = a[::-1] + 2 * a[(t + 1) % n] + a[::-1] + t % 3 * 1000
    assert out.tolist() == expected.tolist()


def test_memcpy_and_memset(build):
    n = 33
    given, out, filled = pairs(n), np.zeros(n, PAIR), zeros(5 * n, np.uint8)
    run(CODE, "copies", 1, n, given.view(np.uint8), out.view(np.uint8), filled, build=build)
    given["tag"] ^= 0x0F0F
    assert out.tolist() == given.tolist()
    assert filled.tolist() == np.repeat(np.arange(n) + 17, 5).tolist()


def test_indices_beyond_32_bits(build):
    a, out = integers(100).astype(np.float32), zeros(64, np.float32)
    far = 3_000_000_000_017
    run(CODE, "wide_index", 2, 32, a, out, np.int64(far), build=build)
    i = np.arange(64)
    assert out.tolist() == (a[i] + a[(far * 4 + i) % 100]).tolist()


def test_a_read_outside_an_array_is_named(build):
    values, out = zeros((4, 10), np.float32), zeros(64, np.float32)
    with pytest.raises(MemoryFault) as caught:
        run(CODE, "outside", 2, 32, values, out, np.int32(0), build=build)
    fault, text = caught.value, str(caught.value)
    assert (fault.kind, fault.array, fault.index) == ("out-of-bounds", "values", 40)
    assert fault.threads[0] == ((1, 0, 0), (8, 0, 0)) and len(fault.threads) == 8
    for part in (
        "outside at kernel.cu:",
        "may leave the array",
        "block (1, 0, 0), thread (8, 0, 0)",
        "reads element 40 of values of shape (4, 10)",
        "0 to 39",
        "24 of 64",
        "Guard",
    ):
        assert part in text, part
    with pytest.raises(MemoryFault, match="element -3 of values"):
        run(CODE, "outside", 1, 32, values, out, np.int32(-3), build=build)


def test_a_missing_dynamic_shared_array_is_named_with_its_remedy(build):
    dynamic = """extern "C" __global__ void late(int* x) {
    extern __shared__ int s[];
    s[threadIdx.x] = x[threadIdx.x];
}"""
    words = r"The launch gives s no memory: pass the bytes .*shared_mem=BYTES.*--shared-mem BYTES"
    with pytest.raises(MemoryFault, match=words):
        run(dynamic, "late", 1, 32, zeros(32), build=build)
    with pytest.raises(MemoryFault, match="Guard the access"):
        run(dynamic, "late", 1, 32, zeros(32), build=build, shared=64)


@pytest.mark.parametrize("access", ["tex3D<float>(at, 0, 0, 0)", "(surf1Dwrite(x[0], at, 0), 1)"])
def test_textures_and_surfaces_are_refused_by_their_name(access):
    handle = "cudaSurfaceObject_t" if "surf" in access else "cudaTextureObject_t"
    code = f'extern "C" __global__ void look(float* x, {handle} at) {{ x[1] = {access}; }}'
    with pytest.raises(UnsupportedKernel, match="does not know the texture or surface instruction"):
        run(code, "look", 1, 1, zeros(2, np.float32), np.uint64(1))


def test_other_bad_accesses_are_named(build):
    out = zeros(32, np.float32)
    with pytest.raises(MemoryFault, match="writes element -2 of out.*0 to 31"):
        run(CODE, "writes_outside", 1, 32, out, np.int32(2), build=build)
    shift = np.int64(device_address(out) // 4 - 2**38)  # to the end of all addresses, less 32 words
    with pytest.raises(MemoryFault, match="writes address 0x.*far from every array.*wrapped"):
        run(CODE, "writes_far", 1, 32, out, shift + 32, build=build)
    with pytest.raises(MemoryFault, match="leaves the row.*writes byte 160 of"):
        run(CODE, "shared_outside", 1, 32, zeros(32), np.int32(20), build=build)
    with pytest.raises(MemoryFault, match="writes byte -12 of the block's 160 bytes of shared"):
        run(CODE, "shared_outside", 1, 32, zeros(32), np.int32(-3), build=build)
    with pytest.raises(MemoryFault, match="4 bytes that are not aligned to 4.*multiple") as caught:
        run(CODE, "crooked", 1, 4, zeros(64, np.int8), zeros(4), build=build)
    assert (caught.value.kind, caught.value.array) == ("misaligned", "bytes")
    with pytest.raises(MemoryFault, match="null pointer"):
        run(CODE, "nothing", 1, 4, None, zeros(4), build=build)
    with pytest.raises(SimulatorError, match="updates element 5 of a"):
        run(CODE, "atomic_outside", 1, 6, zeros(5), build=build)


def test_an_observer_may_go_on_after_a_fault(build):
    values, out = np.arange(10, dtype=np.float32), np.full(32, -1, np.float32)
    listener = listen(CODE, "outside", 1, 32, values, out, np.int32(0), build=build)
    (fault,) = listener.faults
    line = next(i for i, text in enumerate(CODE.splitlines(), 1) if "may leave" in text)
    assert (fault.kind, fault.array) == ("out-of-bounds", "values")
    assert (fault.index, fault.line) == (10, line)
    assert out.tolist() == [*range(10)] + [0] * 22
    count = zeros(5)
    assert len(listen(CODE, "atomic_outside", 1, 9, count, build=build).faults) == 1
    assert count.tolist() == [1] * 5


def test_arrays_that_overlap_on_the_host_overlap_in_the_kernel():
    whole = np.arange(40, dtype=np.float32)
    out = whole[8:]
    run(CODE, "outside", 1, 16, whole, out, np.int32(1))
    assert whole.tolist() == [*range(8), *range(1, 17), *range(24, 40)]


PLACES = r"""
__constant__ float weights[4];
__device__ float seen[4];
extern "C" {
__global__ void wraps(int* out, unsigned minus) {   // the sum of a shared address is 32 bits wide
    __shared__ int x[64];
    int t = threadIdx.x, v;
    x[t] = t * 3;
    __syncthreads();
    unsigned at = (unsigned)__cvta_generic_to_shared(&x[t]) - minus;
    asm volatile("ld.shared.s32 %0, [%1+4096];" : "=r"(v) : "r"(at));
    out[t] = v;
}
__global__ void wide(const float4* a, float4* out) { out[threadIdx.x] = a[threadIdx.x]; }
__global__ void weighted(float* out) {
    int t = threadIdx.x;
    out[t] = weights[t] * 2;
    seen[t] = weights[t] + 1;
}
__global__ void one_waits(volatile int* flag) { if (threadIdx.x == 5) while (*flag == 0) ; }
__global__ void writes(float* out) { out[threadIdx.x] = 1; }
__global__ void bulk() { asm volatile("cp.async.bulk.commit_group;"); }
}
"""


def test_shared_addresses_wrap_around(build):
    out = zeros(32)
    run(PLACES, "wraps", 1, 32, out, np.uint32(4096), build=build)
    assert out.tolist() == [3 * t for t in range(32)]


def test_a_view_is_as_little_aligned_as_its_memory():
    whole, out = np.arange(40, dtype=np.float32), zeros(32, np.float32)
    run(PLACES, "wide", 1, 8, whole[4:], out)
    assert out.tolist() == whole[4:36].tolist()
    for first in (1, 2, 3):
        with pytest.raises(MemoryFault, match="16 bytes that are not aligned to 16") as found:
            run(PLACES, "wide", 1, 8, whole[first:], out)
        assert (found.value.kind, found.value.array) == ("misaligned", "a")


def test_a_null_pointer_is_told_as_such():
    with pytest.raises(MemoryFault) as caught:
        run(PLACES, "writes", 1, 32, None)
    text = str(caught.value)
    assert "writes address 0x0, a null pointer (" in text and "Pass an array" in text
    assert "Guard" not in text and "0 bytes" not in text


def test_one_thread_that_hangs_is_told_alone():
    with pytest.raises(Hang, match=r"thread \(5, 0, 0\) repeats a loop") as caught:
        run(PLACES, "one_waits", 1, 32, zeros(1))
    assert "others" not in str(caught.value)


@pytest.mark.parametrize("text", ["abc", "0", "-1", "nan"])
def test_a_wrong_timeout_is_named(text, monkeypatch):
    monkeypatch.setenv(budget.TIMEOUT, text)
    with pytest.raises(ValueError, match=f"KERNELSCOPE_TIMEOUT is '{text}'.*seconds"):
        run(PLACES, "writes", 1, 32, zeros(32, np.float32))


def test_bulk_copies_are_refused_by_name():
    with pytest.raises(SimulatorError, match="does not know the PTX instruction `cp.async.bulk"):
        run(PLACES, "bulk", 1, 1)


def test_a_constant_is_the_same_to_an_observed_debug_run():
    out, made = zeros(4, np.float32), module(PLACES)
    np.ndarray(4, np.float32, made.get_global("weights"))[:] = [1, 2, 3, 4]
    listener = listen(PLACES, "weighted", 1, 4, out, build="debug")
    assert listener.events and not listener.faults
    assert out.tolist() == [2, 4, 6, 8]
    assert np.ndarray(4, np.float32, made.get_global("seen")).tolist() == [2, 3, 4, 5]
