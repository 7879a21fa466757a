"""Bulk copies on both machines: boxes of tensor maps, plain copies, reductions, multicasts.

Each case fills shared memory and an array, runs one kernel, and compares all of both, bit by bit.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from importlib import import_module

import numpy as np
from kernelscope.isa.atomics import CLUSTER_REDUCED_TYPES, REDUCED_TYPES
from kernelscope.tensor_map import TensorMap
from kernelscope.tensor_map.fields import ELEMENTS

TILE = 24576  # bytes of shared memory of a block, of which a case uses a part
THREADS = 128
OPTIONS = ("-arch=sm_90a",)

_HEAD = r"""
struct alignas(64) Map { char bytes[128]; };
typedef unsigned long long u64;
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void fill(unsigned* tile, const unsigned* io, u64* bar) {
    for (int i = threadIdx.x; i < TILE / 4; i += blockDim.x) tile[i] = io[i];
    if (threadIdx.x == 0)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(bar)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async;" ::: "memory");
}
__device__ int waited(u64* bar) {
    for (int i = 0; i < 20000; ++i) {
        int done;
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], 0;"
            " selp.b32 %0, 1, 0, p; }" : "=r"(done) : "r"(at(bar)) : "memory");
        if (done) return 1;
    }
    return 0;
}
__device__ void expect(u64* bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
        :: "r"(at(bar)), "r"(bytes) : "memory");
}
__device__ void leave() {
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
}
__device__ void dump(const unsigned* tile, unsigned* io) {
    for (int i = threadIdx.x; i < TILE / 4; i += blockDim.x) io[i] = tile[i];
}
#define TO_SHARED "shared::cluster.global.mbarrier::complete_tx::bytes"
#define ALL_THREADS extern __shared__ __align__(1024) unsigned tile[]; __shared__ u64 bar; \
    fill(tile, io, &bar); __syncthreads();
"""
# Of a box: an instruction with its coordinates; `places` is one to five of them.
_BOX = r"""
extern "C" __global__ void run(const __grid_constant__ Map map, const int* first, unsigned* io,
                               int offset, int bytes, int* arrived) {
    ALL_THREADS
    unsigned to = at(tile) + offset;
    int x0 = first[0], x1 = first[1], x2 = first[2], x3 = first[3], x4 = first[4];
    if (threadIdx.x == 0) {
        %s
    }
    __syncthreads();
    dump(tile, io);
}
"""
_LOAD = """expect(&bar, bytes);
        asm volatile("cp.async.bulk.tensor.{axes}d." TO_SHARED " [%0], [%1, {{{places}}}], [%2];"
            :: "r"(to), "l"(&map), "r"(at(&bar)), COORDINATES : "memory");
        *arrived = waited(&bar);"""
_STORE = """asm volatile("cp.{reduce}async.bulk.tensor.{axes}d.global.shared::cta{name}.bulk_group"
            " [%1, {{{places}}}], [%0];"
            :: "r"(to), "l"(&map), "r"(at(&bar)), COORDINATES : "memory");
        leave();
        *arrived = 1;"""
_COORDINATES = ", ".join(f'"r"(x{axis})' for axis in range(5))
_PLAIN = r"""
extern "C" __global__ void run(unsigned char* data, unsigned* io, int offset, int bytes,
                               int* arrived) {
    ALL_THREADS
    if (threadIdx.x == 0) {
        %s
    }
    __syncthreads();
    dump(tile, io);
}
"""
_PLAIN_LOAD = """expect(&bar, bytes);
        asm volatile("cp.async.bulk." TO_SHARED " [%0], [%1], %2, [%3];"
            :: "r"(at(tile) + offset), "l"(data), "r"(bytes), "r"(at(&bar)) : "memory");
        *arrived = waited(&bar);"""
_PLAIN_STORE = """asm volatile("cp.{reduce}async.bulk.global.shared::cta.bulk_group{name}"
            " [%1], [%0], %2;" :: "r"(at(tile) + offset), "l"(data), "r"(bytes) : "memory");
        leave();
        *arrived = 1;"""
# From one block of a cluster of two to the other; or from global memory to some of four.
_CLUSTER = r"""
extern "C" __global__ void __cluster_dims__(%d, 1, 1) run(unsigned char* data, unsigned* all,
    int offset, int bytes, int* arrived) {
    int rank = blockIdx.x;
    unsigned* io = all + rank * TILE / 4;
    ALL_THREADS
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
        ::: "memory");
    if (threadIdx.x == 0) {
        if (%s) expect(&bar, bytes);
        if (rank == 0) {
            unsigned to = at(tile) + offset, there, phase;
            asm volatile("mapa.shared::cluster.u32 %%0, %%1, 1;" : "=r"(there) : "r"(to));
            asm volatile("mapa.shared::cluster.u32 %%0, %%1, 1;" : "=r"(phase) : "r"(at(&bar)));
            %s
        }
        if (%s) arrived[rank] = waited(&bar);
    }
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
        ::: "memory");
    dump(tile, io);
}
"""
_SEND = """asm volatile("cp.{reduce}async.bulk.shared::cluster.shared::cta."
                "mbarrier::complete_tx::bytes{name} [%0], [%1], %2, [%3];"
                :: "r"(there), "r"(to + 4096), "r"(bytes), "r"(phase) : "memory");"""
_MULTICAST = """asm volatile("cp.async.bulk." TO_SHARED ".multicast::cluster"
                " [%0], [%1], %2, [%3], %4;" :: "r"(to), "l"(data), "r"(bytes), "r"(at(&bar)),
                "h"((short){mask}) : "memory");"""
_ELECT = r"""
extern "C" __global__ void run(const unsigned* masks, unsigned* out, int count) {
    for (int i = 0; i < count; ++i) {
        unsigned mask = masks[i], leader = 99, mine = 0;
        if (mask >> threadIdx.x & 1)
            asm volatile("{ .reg .pred p; elect.sync %0|p, %2; selp.b32 %1, 1, 0, p; }"
                : "=r"(leader), "=r"(mine) : "r"(mask));
        out[i * 32 + threadIdx.x] = leader * 2 + mine;
    }
}
"""


@dataclass(frozen=True)
class CopyCase:
    """One copy. shape, box, steps: in the array's order; first: coordinates in PTX's.

    what: load, store, plain load, plain store, send, multicast or elect; operation: of a reduction;
    kind: type of an element, of a tensor map or of PTX; mask: ranks of a multicast; values: of the
    numbers, "bits" (any bits) or "small".
    """

    what: str
    shape: tuple[int, ...] = (4096,)
    kind: str = "uint8"
    box: tuple[int, ...] = (1024,)
    first: tuple[int, ...] = ()
    swizzle: int = 0
    steps: tuple[int, ...] | None = None
    fill: str = "zero"
    operation: str = ""
    offset: int = 0
    mask: int = 0
    values: str = "bits"
    seed: int = field(default=0, compare=False)

    @property
    def name(self) -> str:
        parts = [self.what, self.operation, self.kind, f"{self.shape}", f"box {self.box}"]
        parts += [f"at {self.first}", f"swizzle {self.swizzle}", f"steps {self.steps}", self.fill]
        return " ".join([*parts, f"offset {self.offset}", f"mask {self.mask}", self.values])

    @property
    def source(self) -> str:
        """The kernel, `run`."""
        reduce = "reduce." if self.operation else ""
        if self.what == "elect":
            return _HEAD + _ELECT
        if self.what in ("load", "store"):
            axes = len(self.shape)
            places = ", ".join(f"%{3 + axis}" for axis in range(axes))
            name = f".{self.operation}" if self.operation else ""
            text = _LOAD if self.what == "load" else _STORE
            text = text.format(axes=axes, places=places, reduce=reduce, name=name)
            return _HEAD + _BOX % text.replace("COORDINATES", _COORDINATES)
        noftz = ".noftz" if self.kind.endswith("f16") and self.operation == "add" else ""
        name = f".{self.operation}{noftz}.{self.kind}" if self.operation else ""
        if self.what == "send":
            text = _SEND.format(reduce=reduce, name=name)
            return _HEAD + _CLUSTER % (2, "rank == 1", text, "rank == 1")
        if self.what == "multicast":
            gets = f"{self.mask} >> rank & 1"
            return _HEAD + _CLUSTER % (4, gets, _MULTICAST.format(mask=self.mask), gets)
        text = _PLAIN_LOAD if self.what == "plain load" else _PLAIN_STORE
        return _HEAD + _PLAIN % text.format(reduce=reduce, name=name)

    @property
    def blocks(self) -> int:
        return {"send": 2, "multicast": 4}.get(self.what, 1)

    def numbers(self, shape, seed: int) -> np.ndarray:
        """Values of the element's type, as unsigned integers of its size."""
        of_map = ELEMENTS.get(self.kind)
        size = of_map[1] if of_map else int(self.kind.strip("bsuf")) // 8
        rng = np.random.default_rng([seed, self.seed])
        bits = rng.integers(0, 256, (*shape, size), np.uint8).view(f"u{size}")[..., 0]
        if self.values == "bits" or "f" not in self.kind:
            return bits
        plain = rng.normal(0, 4, shape).astype(np.float64)
        if size == 8:
            return plain.view(np.uint64)
        words = plain.astype(np.float32).view(np.uint32)
        if size == 4:
            return words
        half = plain.astype(np.float16).view(np.uint16)
        return (words >> 16).astype(np.uint16) if self.kind.startswith("bf") else half


def run_case(machine, case: CopyCase) -> list[np.ndarray]:
    """[shared memory of each block, the array, whether the copies arrived], after the kernel."""
    xp = import_module("cupy") if machine.backend == "gpu" else np
    kernel = machine.load(case.source.replace("TILE", str(TILE)), OPTIONS).get_function("run")
    if case.what == "elect":
        masks = np.random.default_rng(5).integers(1, 1 << 32, 64, np.uint32)
        out = xp.zeros((64, 32), np.uint32)
        return _launch(machine, kernel, 1, 32, (xp.asarray(masks), out, np.int32(64)), [out])
    data = xp.asarray(case.numbers(case.shape, 1))
    shared = case.numbers((case.blocks * TILE // data.dtype.itemsize,), 2).view(np.uint32)
    io, arrived = xp.asarray(shared), xp.zeros(case.blocks, np.int32)
    offset = np.int32(case.offset)
    if case.what in ("load", "store"):
        described = TensorMap(
            data.view(_dtype_of(case.kind)),
            case.box,
            swizzle=case.swizzle,
            element_strides=case.steps,
            fill=case.fill,
            dtype=case.kind,
        )
        first = xp.asarray(np.array([*case.first, 0, 0, 0, 0, 0][:5], np.int32))
        arguments = (described, first, io, offset, np.int32(described.box_bytes), arrived)
    else:
        data = data.view(np.uint8)
        arguments = (data, io, offset, np.int32(case.box[0]), arrived)
    return _launch(machine, kernel, case.blocks, THREADS, arguments, [io, data, arrived])


def _launch(machine, kernel, blocks: int, threads: int, arguments, arrays) -> list[np.ndarray]:
    """The arrays after a launch; an error that the GPU's context keeps is noted."""
    try:
        kernel((blocks,), (threads,), arguments, shared_mem=TILE)
        return [one.get() if machine.backend == "gpu" else one for one in arrays]
    except Exception:
        machine.lost = machine.backend == "gpu" and machine.is_broken()
        raise


def _dtype_of(kind: str) -> str:
    """The dtype of an array with elements of a type, by its bits where NumPy has none."""
    if kind == "bfloat16":
        return "uint16"
    return "float32" if kind.startswith(("float32", "tfloat32")) else kind


def cases() -> list[CopyCase]:
    """Loads and stores of boxes of all ranks, swizzles and types; edges; reductions; clusters."""
    found = [CopyCase("elect")]
    shapes = {1: (300,), 2: (37, 80), 3: (5, 19, 48), 4: (3, 4, 9, 48), 5: (2, 3, 4, 5, 48)}
    boxes = {1: (64,), 2: (16, 32), 3: (2, 8, 32), 4: (2, 2, 4, 32), 5: (1, 2, 2, 4, 32)}
    for axes, what, swizzle in itertools.product(shapes, ("load", "store"), (0, 32, 64, 128)):
        box = (*boxes[axes][:-1], swizzle // 2 or boxes[axes][-1])
        for first in (
            (0,) * axes,
            (16, *(1,) * (axes - 1)),
            (-8, *(-1,) * (axes - 1)),
            (shapes[axes][-1] // 8 * 8 - 8, *(2,) * (axes - 1)),
        ):
            if what == "store" and min(first) < 0:
                continue  # an H200 ends with an illegal instruction
            found.append(CopyCase(what, shapes[axes], "uint16", box, first, swizzle, offset=1024))
    for offset, swizzle in itertools.product((128, 384, 896), (0, 32, 64, 128)):
        for what in ("load", "store"):  # tiles at other lines than the pattern's first one
            found.append(
                CopyCase(
                    what,
                    (40, 64),
                    "uint16",
                    (9, swizzle // 2 or 24),
                    (8, 3),
                    swizzle,
                    offset=offset,
                )
            )
    for kind in ELEMENTS:
        fills = ("zero", "nan") if "float" in kind else ("zero",)
        row = 16 * 16 // ELEMENTS[kind][1] // 4
        for fill, what in itertools.product(fills, ("load", "store")):
            if fill == "zero" or what == "load":
                found.append(CopyCase(what, (30, row), kind, (8, row), (row // 2, 25), fill=fill))
    for steps in ((2, 1), (3, 1), (8, 1)):
        for what, first in itertools.product(("load", "store"), ((0, 0), (16, 33), (-8, -3))):
            if what == "store" and min(first) < 0:
                continue
            found.append(CopyCase(what, (40, 64), "uint16", (16, 32), first, 64, steps))
    for operation, types in REDUCED_TYPES.items():
        for kind, values in itertools.product(types, ("bits", "small")):
            if values == "bits" or "f" in kind:
                found.append(
                    CopyCase(
                        "plain store", (512,), kind, (1024,), operation=operation, values=values
                    )
                )
        for kind in ("uint32", "int32", "uint64", "int64", "float16", "bfloat16", "float32"):
            wide = kind in ("float32",) and operation != "add" or operation in ("inc", "dec")
            bitwise = operation in ("and", "or", "xor")
            if kind == "int64" and operation not in ("min", "max"):
                continue  # an illegal instruction
            if not (wide and kind != "uint32") and not (bitwise and "float" in kind):
                found.append(
                    CopyCase(
                        "store",
                        (20, 32),
                        kind,
                        (8, 16),
                        (24, 15),
                        operation=operation,
                        values="small",
                    )
                )
    for operation, types in CLUSTER_REDUCED_TYPES.items():
        for kind in types:
            found.append(CopyCase("send", (512,), kind, (512,), operation=operation))
    found.append(CopyCase("send", (512,), "uint8", (2048,), offset=64))
    for count in (16, 48, 2064):
        found.append(CopyCase("plain load", box=(count,), offset=80))
        found.append(CopyCase("plain store", box=(count,), offset=80))
    found += [CopyCase("multicast", box=(1040,), mask=mask, offset=16) for mask in (1, 6, 15, 10)]
    return sorted(found, key=lambda case: case.what == "store")


def compare(case: CopyCase, first: list, second: list) -> dict:
    """`mismatches`: bytes that differ; `where`: in which array; the first one of each."""
    names = ("shared", "array", "arrived") if len(first) == 3 else ("out",)
    apart = [
        np.flatnonzero(a.ravel().view("u1") != b.ravel().view("u1"))
        for a, b in zip(first, second, strict=True)
    ]
    record = {
        "bytes": int(sum(one.nbytes for one in first)),
        "mismatches": int(sum(one.size for one in apart)),
    }
    if record["mismatches"]:
        record["where"] = {
            name: [
                int(one.size),
                int(one[0]),
                *(x.ravel().view("u1")[one[0] :][:16].tolist() for x in both),
            ]
            for name, one, *both in zip(names, apart, first, second, strict=True)
            if one.size
        }
    return record
