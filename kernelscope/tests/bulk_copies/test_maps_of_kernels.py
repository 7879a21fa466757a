"""Tensor maps that a kernel makes itself, field by field, in shared or in global memory."""

import numpy as np
import pytest
from kernelscope import RawModule, Sanitizer, observe
from kernelscope.errors import InputError, SimulatorError, UnsupportedKernel
from kernelscope.machine.launch import Run
from kernelscope.machine.speed import workers
from kernelscope.tensor_map.fields import MAP_FIELDS, unpacked

CODE = r"""
// kernelscope: sm_90a
typedef unsigned long long u64;
struct Fields { u64 address, strides[2]; unsigned axes, box[3], sizes[3], steps[3]; };
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#define SET(field, place, kind, value) \
    asm volatile("tensormap.replace.tile." field SPACE ".b1024." place :: PLACE(map), kind(value))
#ifdef IN_GLOBAL
#define SPACE ".global"
#define PLACE(map) "l"(map)
#else
#define SPACE ".shared::cta"
#define PLACE(map) "l"((u64)at(map))
#endif
#define ONE "b32 [%0], %1;"
#define OF(axis) "b32 [%0], " #axis ", %1;"
__device__ void fill(char* map, const Fields& f) {
    SET("global_address", "b64 [%0], %1;", "l", f.address);
    SET("rank", ONE, "r", f.axes - 1);
    SET("global_stride", "b64 [%0], 0, %1;", "l", f.strides[0]);
    SET("global_stride", "b64 [%0], 1, %1;", "l", f.strides[1]);
    SET("box_dim", OF(0), "r", f.box[0]);
    SET("box_dim", OF(1), "r", f.box[1]);
    SET("box_dim", OF(2), "r", f.box[2]);
    SET("global_dim", OF(0), "r", f.sizes[0]);
    SET("global_dim", OF(1), "r", f.sizes[1]);
    SET("global_dim", OF(2), "r", f.sizes[2]);
    SET("element_stride", OF(0), "r", f.steps[0]);
    SET("element_stride", OF(1), "r", f.steps[1]);
    SET("element_stride", OF(2), "r", f.steps[2]);
    SET("elemtype", ONE, "n", ELEMTYPE);
    SET("swizzle_mode", ONE, "n", SWIZZLE);
    SET("fill_mode", ONE, "n", FILL);
    SET("interleave_layout", ONE, "n", INTERLEAVE);
}
extern "C" __global__ void box(const char* data, Fields f, u64* maps, int x, int y, int z,
                               int bytes, int lanes, char* out) {
    __shared__ __align__(1024) char tile[2048];
    __shared__ __align__(128) unsigned made[32];
    __shared__ u64 bar;
    int t = threadIdx.x;
    f.address = f.address ? (u64)data + f.address - 1 : 0;  // 1: the first byte
    char* map = (char*)(maps + 16 * blockIdx.x);
#ifdef IN_GLOBAL
    ((unsigned*)map)[t] = 0;
    __syncwarp();
    if (t == 0) fill(map, f);
#else
    made[t] = 0;
    __syncwarp();
    if (t == 0) fill((char*)made, f);
    __syncwarp();
    if (t < lanes)
        asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu"
            ".sync.aligned [%0], [%1], 128;" :: "l"(map), "r"(at(made)) : "memory");
#endif
    __syncwarp();
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(map) : "memory");
    if (t == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.proxy.async;"
            "mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(at(&bar)), "r"(bytes));
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
            " [%0], [%1, {%2, %3, %4}], [%5];"
            :: "r"(at(tile)), "l"(map), "r"(x), "r"(y), "r"(z), "r"(at(&bar)) : "memory");
    }
    __syncwarp();
    asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared.b64 p, [%0], 0;"
        " @p bra D; bra W; D: }" :: "r"(at(&bar)) : "memory");
    for (int i = t; i < bytes; i += 32) out[bytes * blockIdx.x + i] = tile[i];
}
"""
FIELDS = np.dtype(
    [("address", "u8"), ("strides", "u8", 2), ("axes", "u4")]
    + [(name, "u4", 3) for name in ("box", "sizes", "steps")],
    align=True,
)
# dtype -> the number of the type, the number of a swizzle whose bytes are a row of the box.
KINDS = {"u1": (0, 1), "u2": (1, 2), "i8": (5, 3), "f2": (6, 1), "f4": (7, 3), "f8": (9, 2)}


def kernel_of(elemtype=7, swizzle=0, fill=0, **macros):
    """The kernel whose map has these modes."""
    macros = {"ELEMTYPE": elemtype, "SWIZZLE": swizzle, "FILL": fill, "INTERLEAVE": 0} | macros
    options = tuple(f"-D{name}={value}" for name, value in macros.items())
    return RawModule(CODE, options=options, backend="simulator").get_function("box")


def launch(kernel, x, fields, first, size, lanes=32, blocks=1):
    """The bytes of the box at `first` that each block finds."""
    out, maps = np.full((blocks, size), 77, np.uint8), np.zeros(16 * blocks, np.uint64)
    numbers = map(np.int32, (*first, size, lanes))
    kernel((blocks,), (32,), (x.view(np.uint8), fields, maps, *numbers, out))
    return out


def fields_of(x, box, steps=(1, 1, 1)):
    """What a kernel sets for an array of three axes; box, steps: from the innermost axis on."""
    return np.array((1, x.strides[1::-1], 3, box, x.shape[::-1], steps), FIELDS)


def unswizzled(data, swizzle):
    """Rows of bytes in the order of the box; swizzle: bytes."""
    place = np.arange(data.shape[-1])
    mask = max(swizzle // 16, 1) - 1
    return np.take(data, place ^ (place >> 7 & mask) << 4, axis=1)


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("space", [{}, {"IN_GLOBAL": 1}], ids=["shared", "global"])
def test_a_box_of_a_map_that_each_block_makes(dtype, space):
    elemtype, swizzle = KINDS[dtype]
    row = 16 << swizzle  # bytes
    x = np.random.default_rng(3).integers(1, 99, (5, 11, 96)).astype(dtype)
    width = row // x.itemsize
    padded = np.zeros((5 + 4, 11 + 8, 96 + width), dtype)
    padded[:5, 3 : 3 + 11, :96] = x
    kernel = kernel_of(elemtype, swizzle, **space)
    first = 96 - width // 2, -3, 2  # beyond the end along one axis, before the start of another
    with observe(Sanitizer()) as seen:
        fields = fields_of(x, (width, 7, 3), (1, 2, 1))
        found = launch(kernel, x, fields, first, row * 12, blocks=3)
    wanted = padded[2 : 2 + 3, 0:7:2, first[0] : first[0] + width]
    for one in unswizzled(found, row):
        np.testing.assert_array_equal(one.view(dtype).reshape(3, 4, width), wanted)
    assert not seen.findings


def test_numbers_outside_are_nan_where_the_fill_mode_says_so():
    x = np.ones((2, 2, 8), np.float32)
    (found,) = launch(kernel_of(fill=1), x, fields_of(x, (8, 2, 1)), (4, 0, 1), 64)
    found = found.view(np.float32).reshape(2, 8)
    assert (found[:, :4] == 1).all() and np.isnan(found[:, 4:]).all()


def test_processes_share_a_launch_whose_blocks_make_maps(monkeypatch):
    monkeypatch.setattr(workers, "_WORTH_SECONDS", 0)
    monkeypatch.setattr(Run, "most_blocks", 10)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    x = np.random.default_rng(4).normal(size=(2, 3, 32)).astype(np.float32)
    fields, kernel = fields_of(x, (16, 1, 1)), kernel_of()
    for count in ("1", "2"):  # the first launch learns that maps are written and read
        monkeypatch.setenv(workers.WORKERS, count)
        found = launch(kernel, x, fields, (4, 2, 1), 64, blocks=60)
        np.testing.assert_array_equal(found.view(np.float32), np.tile(x[1, 2, 4:20], (60, 1)))
    assert not kernel.module.program().executable("box").alone


WRONG = {
    "no address": ({"address": 0}, {}, r"lacks global_address\. Set each field with tensormap.rep"),
    "no box": ({"box": (8, 0, 2)}, {}, r"that lacks box_dim 1\."),
    "no sizes": ({"sizes": 0}, {}, "that lacks global_dim 0, global_dim 1, global_dim 2"),
    "no strides": ({"strides": (0, 64)}, {}, r"that lacks global_stride 0\."),
    "no steps": ({"steps": (0, 1, 0)}, {}, r"that lacks element_stride 2\."),
    "six axes": ({"axes": 6}, {}, "cannot use: its rank is 5, of 6 axes; it has 1 to 5"),
    "two axes": ({"axes": 2}, {}, "a tensor map of 2 axes, with 3 coordinates"),
    "an odd address": ({"address": 5}, {}, r"its global_address is 0x[0-9a-f]+4, no multiple of"),
    "a wide box": ({"box": (8, 300, 2)}, {}, r"its box_dim are \[8, 300, 2\]; each must be 1 to"),
    "a long step": ({"steps": (1, 9, 1)}, {}, r"its element_stride are \[9, 1\]; each must be 1"),
    "odd rows": ({"strides": (36, 640)}, {}, r"its global_stride are \[36, 640\] bytes, not all"),
    "an odd row": ({"box": (7, 1, 1)}, {}, "a row of its box has 28 bytes, no multiple of 16"),
    "a swizzle": ({"box": (16, 1, 1)}, {"swizzle": 1}, "row of its box has 64 bytes and its swizz"),
    "a fill": ({}, {"fill": 1, "elemtype": 2}, "its fill_mode is NaN and its elemtype uint32"),
    "16 lanes": ({}, {"lanes": 16}, "copies a tensor map, which needs all 32 lanes of a warp"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_map_that_cannot_be_used_is_named(what):
    changes, settings, message = WRONG[what]
    x = np.ones((2, 2, 8), np.float32)
    fields = fields_of(x, (8, 2, 2))
    for name, value in changes.items():
        fields[name] = value
    lanes = settings.get("lanes", 32)
    kernel = kernel_of(**{name: value for name, value in settings.items() if name != "lanes"})
    with pytest.raises(SimulatorError, match=f"box at .*{message}"):
        launch(kernel, x, fields, (0, 0, 0), 128, lanes)


def test_bytes_that_no_field_can_have_are_no_map():
    for field, value in (("kind", 13), ("swizzle", 16), ("fill", 2), ("none", 1), ("magic", 5)):
        image = np.zeros(1, MAP_FIELDS)
        image["address"], image[field] = 4096, value
        with pytest.raises(InputError, match="that kernelscope.TensorMap has not made"):
            unpacked(image.tobytes())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"INTERLEAVE": 1}, "interleave_layout 1 is not simulated, only 0"),
        ({"swizzle": 4}, "swizzle_mode 4 is not simulated, only 0 to 3"),
        ({"elemtype": 13}, "elemtype 13 is not simulated, only 0 to 12"),
    ],
)
def test_modes_that_are_not_simulated(settings, message):
    x = np.ones((2, 2, 8), np.float32)
    with pytest.raises(UnsupportedKernel, match=message):
        launch(kernel_of(**settings), x, fields_of(x, (8, 2, 2)), (0, 0, 0), 128)
