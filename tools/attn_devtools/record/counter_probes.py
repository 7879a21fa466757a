"""Probes of `compare_counters`: kernels of one access pattern of a warp each.

`Probe` stores to shared memory and loads from it, `AtomicProbe` executes one atomic operation.
"""

from dataclasses import dataclass

import numpy as np
from kernelscope import RawModule, array_module

from attn_course.ladder.steps import Geometry

WARPS = 64  # of a probe, each a block

PROBE = """#define PROBE(NAME, T) \\
extern "C" __global__ void NAME(const int* where, T* out) { \\
    extern __shared__ __align__(16) char memory[]; \\
    T* s = reinterpret_cast<T*>(memory); \\
    const int place = where[threadIdx.x]; \\
    s[place] = out[threadIdx.x]; \\
    __syncthreads(); \\
    out[threadIdx.x] = s[place]; }
PROBE(probe_4, float)
PROBE(probe_8, float2)
PROBE(probe_16, float4)
extern "C" __global__ void probe_ldmatrix(const int* where, float4* out) {
    extern __shared__ __align__(16) char memory[];
    float4* row = reinterpret_cast<float4*>(memory) + where[threadIdx.x];
    *row = out[threadIdx.x];
    __syncthreads();
    unsigned r[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
    out[threadIdx.x] = make_float4(r[0], r[1], r[2], r[3]); }
"""
T32 = np.arange(32)
PATTERNS = {
    "one address": 0 * T32,
    "neighbours": T32,
    "stride 2": 2 * T32,
    "rows of 128 bytes": None,  # by width: all lanes on the first banks
    "pairs t, t^1": T32 // 2,
    "pairs t, t^2": T32 // 4 * 2 + T32 % 2,
    "pairs t, t^4": T32 // 8 * 4 + T32 % 4,
    "pairs t, t^16": T32 % 16,
    "first half one address": np.where(T32 < 16, 0, T32),
    "quarters": T32 // 8,
    "reversed": 31 - T32,
}
# Of ldmatrix.x4 on 16 rows of 128 bytes, where lane t gives the address of row t % 16: numbers of
# 16-byte chunks.
MATRIX_PATTERNS = {
    "plain rows": T32 % 16 * 8 + T32 // 16,
    "padded rows": T32 % 16 * 9 + T32 // 16,
    "swizzled rows": T32 % 16 * 8 + (T32 // 16 ^ T32 % 8),
}


@dataclass(frozen=True)
class Probe:
    """One shared-memory access pattern: width bytes a lane at element `where[lane]`."""

    name: str
    width: int
    threads: int

    source = PROBE

    @property
    def access(self) -> str:
        return "ldmatrix" if self.name in MATRIX_PATTERNS else str(self.width)

    @property
    def launch(self) -> Geometry:
        return Geometry(f"probe_{self.access}", (WARPS, 1, 1), (self.threads, 1, 1), 32 * 128)

    @property
    def label(self) -> str:
        kind = self.access if self.name in MATRIX_PATTERNS else f"{self.width} bytes"
        return f"{kind}, {self.threads} lanes, {self.name}"

    def run(self, backend: str) -> None:
        xp, launch = array_module(backend), self.launch
        where = (PATTERNS | MATRIX_PATTERNS)[self.name]
        where = T32 * (128 // self.width) if where is None else where
        where = where % (launch.shared_bytes // self.width)
        out = xp.zeros(32 * self.width // 4, np.float32)
        kernel = RawModule(code=PROBE, backend=backend).get_function(launch.entry)
        arguments = (xp.asarray(where.astype(np.int32)), out)
        kernel(launch.grid, launch.block, arguments, shared_mem=launch.shared_bytes)


# Name of an operation -> the type of its items, and its statement; `old` is stored where it is set.
# The machine has an instruction of its own for reductions, whose result nobody uses (RED).
ATOMICS = {
    "global": {
        "add float, unused": ("float", "atomicAdd(p, 1.0f)"),
        "add float": ("float", "old = atomicAdd(p, 1.0f)"),
        "add int, unused": ("int", "atomicAdd(p, t + 1)"),
        "add int, unused, all on the first": ("int", "atomicAdd(memory, t + 1)"),
        "add one, all on the first": ("int", "old = atomicAdd(memory, 1)"),
        "or int": ("int", "old = atomicOr(p, t)"),
        "cas int": ("int", "old = atomicCAS(p, 0, t)"),
        "exch int": ("int", "old = atomicExch(p, t)"),
        "add long, unused": ("unsigned long long", "atomicAdd(p, t + 1ull)"),
        "add long": ("unsigned long long", "old = atomicAdd(p, t + 1ull)"),
        "add double, unused": ("double", "atomicAdd(p, 1.0)"),
    },
    "shared": {
        "or int": ("int", "old = atomicOr(p, t)"),
        "add int": ("int", "old = atomicAdd(p, t + 1)"),
        "add int, unused": ("int", "atomicAdd(p, t + 1)"),
        "add one, unused": ("int", "atomicAdd(p, 1)"),
        "max int": ("int", "old = atomicMax(p, t)"),
        "cas int": ("int", "old = atomicCAS(p, 0, t)"),
        "exch int": ("int", "old = atomicExch(p, t)"),
        "exch long": ("unsigned long long", "old = atomicExch(p, t + 1ull)"),
        "cas long": ("unsigned long long", "old = atomicCAS(p, 0ull, t + 1ull)"),
        "add long": ("unsigned long long", "old = atomicAdd(p, t + 1ull)"),
        "add float": ("float", "old = atomicAdd(p, 1.0f)"),
        "add double": ("double", "old = atomicAdd(p, 1.0)"),
    },
}
ATOMIC_PATTERNS = {
    "neighbours": T32,
    "one address": 0 * T32,
    "stride 32": 32 * T32,
    "pairs t, t^1": T32 // 2,
    "two addresses": T32 // 16,
    "stride 2": 2 * T32,
    "stride 8": 8 * T32,
    "from 3": T32 + 3,
    "reversed": 31 - T32,
    "pairs t, t^16": T32 % 16,
    "quarters": T32 // 8,
    "two rows of 128 bytes": T32 % 2 * 32,
    "pairs of stride 32": T32 // 2 * 32,
    "half on one place": np.where(T32 < 16, 5, T32),
    "4 of 16 places, the last most": np.repeat([3, 9, 2, 12], [2, 5, 9, 16]),
    "16 random places": np.random.default_rng(0).integers(0, 16, 32),
    "100 random places": np.random.default_rng(1).integers(0, 100, 32),
    "1000 random places": np.random.default_rng(2).integers(0, 1000, 32),
}
# These take all patterns, the others four.
_FULL = ("add float, unused", "or int", "add int", "cas int", "add one, unused", "add float")
ATOMIC_ITEMS = 1024


@dataclass(frozen=True)
class AtomicProbe:
    """One atomic operation of a warp on the items `ATOMIC_PATTERNS[name]` of a space."""

    space: str
    operation: str
    name: str
    threads: int = 32

    @property
    def _entry(self) -> str:
        words = self.operation.replace(",", "").split()
        return "_".join(["probe", self.space, *words])

    @property
    def source(self) -> str:
        """The text of the kernel; for shared memory, one that empties the items first."""
        kind, statement = ATOMICS[self.space][self.operation]
        begin = "T* p = memory + place;"
        if self.space == "shared":
            begin = "T* p = reinterpret_cast<T*>(dynamic) + place; *p = 0; __syncthreads();"
        used = "out[t] = old;" if "old" in statement else ""
        return f"""typedef {kind} T;
extern "C" __global__ void {self._entry}(const int* where, T* memory, T* out) {{
    extern __shared__ __align__(16) char dynamic[];
    const int t = threadIdx.x, place = where[t];
    T old;
    {begin}
    {statement};
    {used} }}
"""

    @property
    def launch(self) -> Geometry:
        return Geometry(self._entry, (WARPS, 1, 1), (self.threads, 1, 1), 8 * ATOMIC_ITEMS)

    @property
    def label(self) -> str:
        return f"atomic, {self.space}: {self.operation}, {self.threads} lanes, {self.name}"

    def run(self, backend: str) -> None:
        xp, launch = array_module(backend), self.launch
        kind = ATOMICS[self.space][self.operation][0].split()[-1]
        dtype = {"float": np.float32, "int": np.int32, "long": np.uint64}.get(kind, np.float64)
        where = xp.asarray((ATOMIC_PATTERNS[self.name] % ATOMIC_ITEMS).astype(np.int32))
        arguments = (where, xp.zeros(ATOMIC_ITEMS, dtype), xp.zeros(32, dtype))
        kernel = RawModule(code=self.source, backend=backend).get_function(launch.entry)
        kernel(launch.grid, launch.block, arguments, shared_mem=launch.shared_bytes)


def atomic_probes() -> list[AtomicProbe]:
    """Every operation with the patterns; with half of the lanes, where they matter."""
    return [
        AtomicProbe(space, operation, name, threads)
        for space, operations in ATOMICS.items()
        for operation in operations
        for threads in (32, 16)
        for name in list(ATOMIC_PATTERNS)[: 4 if operation not in _FULL else None]
        if threads == 32 or (operation in _FULL and name in ("neighbours", "one address"))
    ]


def probes() -> list[Probe | AtomicProbe]:
    full = [Probe(name, width, 32) for width in (4, 8, 16) for name in PATTERNS]
    part = [Probe(name, 16, 20) for name in ("one address", "neighbours", "pairs t, t^1")]
    matrices = [Probe(name, 16, 32) for name in MATRIX_PATTERNS]
    return [*full, *part, *matrices, *atomic_probes()]
