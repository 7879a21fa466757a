"""docs/which_kernels_run.md: each row of its tables is run, and its verdict compared."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from kernelscope import RawModule, TensorMap, texture
from kernelscope.errors import PortabilityWarning, ShuffleWarning, UserError
from kernelscope.machine.launch import launch
from kernelscope.translate.program import Program

pytestmark = pytest.mark.system

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "which_kernels_run.md").read_text("utf-8")
ROWS = dict(re.findall(r"^\| (.+?) \| (runs|as nvcc|refused) \|", PAGE, re.MULTILINE))
KERNEL = 'extern "C" __global__ void k(float* x) {{ {} }}'
TEXTURE = 'extern "C" __global__ void k(float* x, cudaTextureObject_t t) {{ x[0] = {}; }}'
PTX = """.version 8.8
.target {target}
.address_size 64
.visible .entry k(.param .u64 out) {{
.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .pred %p<9>; .reg .b16 %h<9>;
.shared .align 16 .b8 tile[256];
ld.param.u64 %rd1, [out]; mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 8; mov.f32 %f1, 0f3F800000;
mov.u32 %r4, tile; cvt.u64.u32 %rd2, %r4;
{body}
ret; }}
"""

# What stands in backquotes of a row -> the lines of a kernel that uses it.
LINES = {
    "cuda_fp16.h": "x[0] = __half2float(__float2half(2.f));",
    "cuda_bf16.h": "x[0] = __bfloat162float(__float2bfloat16(2.f));",
    "cuda_fp8.h": "x[0] = float(__nv_fp8_e4m3(2.f));",
    "mma.h": "nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> f; "
    "nvcuda::wmma::fill_fragment(f, 2.f); x[0] = f.x[0];",
    "cooperative_groups.h": "auto block = cooperative_groups::this_thread_block(); "
    "if (block.thread_rank() == 0) x[0] = 2;",
    "cub/block/block_reduce.cuh": "typedef cub::BlockReduce<float, 32> R; "
    "__shared__ R::TempStorage s; float y = R(s).Sum(x[0]); if (threadIdx.x == 0) x[0] = y + 2;",
    "cub/cub.cuh": "typedef cub::WarpReduce<float> R; "
    "__shared__ R::TempStorage s; float y = R(s).Sum(x[0]); if (threadIdx.x == 0) x[0] = y + 2;",
    "cuda/std/limits": "x[0] = cuda::std::numeric_limits<float>::radix;",
    "math.h": "x[0] = INFINITY > M_PI ? 2 : 0;",
    "cmath": "x[0] = std::sqrt(4.f) + 0 * M_PI;",
    "float.h": "x[0] = FLT_MAX > 1 ? 2 : 0;",
    "cfloat": "x[0] = FLT_RADIX;",
    "limits.h": "x[0] = INT_MAX > 0 ? 2 : 0;",
    "climits": "x[0] = CHAR_BIT - 6;",
    "limits": "x[0] = std::numeric_limits<float>::radix;",
    "stdint.h": "uint8_t u = 258; x[0] = u;",
    "cstdint": "std::uint8_t u = 258; x[0] = u;",
    "cstddef": "std::size_t u = 2; x[0] = u;",
    "algorithm": "x[0] = std::max(std::min(2, 3), std::clamp(0, 1, 2));",
    "utility": "auto p = std::make_pair(1, 2.f); x[0] = p.second;",
    "type_traits": "x[0] = 1 + std::is_same<int, int>::value;",
    "array": "std::array<float, 2> a{1, 2}; x[0] = a[1];",
    "tuple": "auto t = std::make_tuple(1, 2); x[0] = std::get<1>(t);",
    "assert.h": "assert(x); x[0] = 2;",
    "stdio.h": 'if (!x) printf("never"); x[0] = 2;',
    "cstring": "std::memset(x, 0, 4); x[0] += 2;",
    "thrust/complex.h": "thrust::complex<float> z(1, 1); x[0] = (z * z).imag();",
    "INFINITY": "x[0] = INFINITY > 0 ? 2 : 0;",
    "NAN": "x[0] = NAN == NAN ? 0 : 2;",
    "HUGE_VALF": "x[0] = HUGE_VALF > 0 ? 2 : 0;",
    "M_PI": "x[0] = M_PI / M_PI_2;",
    "M_E": "x[0] = (int)M_E;",
    "M_SQRT2": "x[0] = rintf(M_SQRT2 * (float)M_SQRT2);",
    "FLT_MAX": "x[0] = FLT_MAX > 1 ? 2 : 0;",
    "FLT_MIN": "x[0] = FLT_MIN < 1 ? 2 : 0;",
    "FLT_EPSILON": "x[0] = FLT_EPSILON < 1 ? 2 : 0;",
    "DBL_MAX": "x[0] = DBL_MAX > 1 ? 2 : 0;",
    "INT_MAX": "x[0] = INT_MAX > 1 ? 2 : 0;",
    "UINT_MAX": "x[0] = UINT_MAX > 1 ? 2 : 0;",
    "CHAR_BIT": "x[0] = CHAR_BIT - 6;",
    "SIZE_MAX": "x[0] = SIZE_MAX > 1 ? 2 : 0;",
    "uint32_t": "uint32_t u = 2; x[0] = u;",
    "int64_t": "int64_t u = 2; x[0] = u;",
    "std::max": "x[0] = std::max(1, 2);",
    "std::min": "x[0] = std::min(2, 3);",
    "std::sqrt": "x[0] = std::sqrt(4.f);",
    "std::isnan": "x[0] = std::isnan(x[0]) ? 0 : 2;",
    "std::cout": "std::cout << 2;",
    "std::vector": "std::vector<float> v;",
}
VOTE = "vote.any.pred %p2, %p1;"
REDUX = "redux.sync.min.f32 %f2, %f1, -1;"
GROUP = (
    "mov.b64 %rd2, 0; wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.{}; "
    "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
)
_FLOATS = "{{%f1, %f2, %f3, %f4}}, %rd2, %rd2, 0, 1, 1".format()
GROUP_TYPES = (
    f"m64n8k16.f32.bf16.bf16 {_FLOATS}, 0, 0",
    f"m64n8k8.f32.tf32.tf32 {_FLOATS}",
    f"m64n8k32.f32.e4m3.e5m2 {_FLOATS}",
    "m64n8k16.f16.f16.f16 {%r4, %r5}, %rd2, %rd2, 0, 1, 1, 0, 0",
    "m64n8k32.s32.s8.u8 {%r4, %r5, %r6, %r7}, %rd2, %rd2, 0",
)
REPLACE = "tensormap.replace.tile.{}.shared::cta.b1024.b{} [tile], {};"
# A row of the instructions -> (target, lines), several for several verdicts that are the same.
INSTRUCTIONS = {
    "`vote.sync`, `shfl.sync`, `redux.sync` on integers": [
        ("sm_80", "vote.sync.any.pred %p2, %p1, -1;"),
        ("sm_80", "shfl.sync.idx.b32 %r2, %r1, 0, 31, -1; redux.sync.add.u32 %r3, %r1, -1;"),
    ],
    "`vote`, `shfl` without `.sync`, `.target sm_60`": [
        ("sm_60", VOTE),
        ("sm_60", "shfl.idx.b32 %r2, %r1, 0, 31;"),
    ],
    "`vote` without `.sync`, `.target sm_80`": [("sm_80", VOTE)],
    "`atom.global.v2.f32.add`, `red.global.add.v4.f32`": [
        ("sm_90", "atom.global.v2.f32.add {%f2, %f3}, [%rd1], {%f1, %f1};"),
        ("sm_90", "red.global.add.v4.f32 [%rd1], {%f1, %f1, %f1, %f1};"),
    ],
    "`cp.async`, `mbarrier`, `ldmatrix`, `mma.sync`": [
        ("sm_80", "cp.async.ca.shared.global [tile], [%rd1], 4; cp.async.wait_all;"),
        ("sm_80", "mbarrier.init.shared.b64 [tile], 32;"),
        ("sm_80", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [tile];"),
        (
            "sm_80",
            "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r2, %r3}, {%r1}, {%r1}, {0, 0};",
        ),
    ],
    "`cp.async.bulk.prefetch.L2`": [("sm_90", "cp.async.bulk.prefetch.L2.global [%rd1], 64;")],
    "`redux.sync.min.f32`, `.target sm_100a`": [("sm_100a", REDUX)],
    "`max.f32` of three operands, `.target sm_100a`": [("sm_100a", "max.f32 %f2, %f1, %f1, %f1;")],
    "`st.bulk`, `.target sm_100a`": [("sm_100a", "st.bulk.shared::cta [%rd2], 64, 0;")],
    "`redux.sync.min.f32`, `.target sm_90`": [("sm_90", REDUX)],
    "`wgmma`, `.target sm_90a`": [("sm_90a", GROUP.format(types)) for types in GROUP_TYPES],
    "`wgmma`, `.target sm_90`": [("sm_90", "wgmma.fence.sync.aligned;")],
    "`wgmma` on sparse matrices (`.sp`) or single bits (`.b1`)": [
        (
            "sm_90a",
            "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd2, "
            "%rd2, %r1, 0, 1, 1, 1, 0, 0;",
        ),
        ("sm_90a", GROUP.format("m64n8k256.s32.b1.b1.and.popc {%r4, %r5, %r6, %r7}")),
    ],
    "`st.async`, `red.async`": [
        (
            "sm_90",
            "mbarrier.init.shared.b64 [tile], 32; st.async.weak.shared::cluster."
            "mbarrier::complete_tx::bytes.b32 [%r4+16], 5, [%r4];",
        ),
        (
            "sm_90",
            "mbarrier.init.shared.b64 [tile], 32; red.async.relaxed.cluster.shared::cluster."
            "mbarrier::complete_tx::bytes.add.u32 [%r4+16], 5, [%r4];",
        ),
    ],
    "`cp.async.bulk`, `cp.reduce.async.bulk`": [
        (
            "sm_90",
            "mbarrier.init.shared.b64 [tile], 32; cp.async.bulk.shared::cluster.global."
            "mbarrier::complete_tx::bytes [tile+16], [%rd1], 64, [tile];",
        ),
        (
            "sm_90",
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [tile], 64; "
            "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;",
        ),
    ],
    "`elect.sync`, `mapa`, `griddepcontrol`, `fence.proxy.async`": [
        ("sm_90", "elect.sync %r2|%p2, -1; mapa.shared::cluster.u32 %r2, %r4, 0;"),
        ("sm_90", "griddepcontrol.wait; griddepcontrol.launch_dependents; fence.proxy.async;"),
    ],
    "`setmaxnreg`": [("sm_90a", "setmaxnreg.dec.sync.aligned.u32 24;")],
    "`cp.async.bulk.tensor` in im2col mode or modes of sm_100": [
        (
            "sm_90",
            "cp.async.bulk.prefetch.tensor.3d.L2.global.im2col [%rd1, {%r1, %r1, %r1}], {%h1};",
        ),
        (
            "sm_100a",
            "cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4 [%rd1, {%r1, %r1}];",
        ),
    ],
    "`tensormap.replace`, `tensormap.cp_fenceproxy`": [
        ("sm_90a", REPLACE.format("global_address", 64, "%rd1")),
        ("sm_90a", REPLACE.format("box_dim", 32, "4, 256")),
        (
            "sm_90a",
            "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync."
            "aligned [%rd1], [tile], 128; fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;",
        ),
    ],
    "`tensormap.replace` of an interleaved layout": [
        ("sm_90a", REPLACE.format("interleave_layout", 32, "1"))
    ],
    "`.version 99`, `.target sm_999`, `.address_size 32`": [
        ("sm_999", ""),
        ("sm_80\n.address_size 32", ""),
        ("sm_80\n.version 99", ""),
    ],
}
LINEAR = "the object of linear memory"
MAP = "the tensor map"
BOX = """// kernelscope: sm_90a
struct alignas(64) Map { char bytes[128]; };
__device__ unsigned at(void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void k(float* x, const __grid_constant__ Map map) {
    __shared__ __align__(128) float tile[4];
    __shared__ unsigned long long bar;
    if (threadIdx.x) return;
    asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.proxy.async;"
        "mbarrier.arrive.expect_tx.shared.b64 _, [%0], 16;" :: "r"(at(&bar)) : "memory");
    asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {0}], [%2];" :: "r"(at(tile)), "l"(&map), "r"(at(&bar)) : "memory");
    asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared.b64 p, [%0], 0;"
        " @p bra D; bra W; D: }" :: "r"(at(&bar)) : "memory");
    x[0] = 2 * tile[3];
}"""
FEATURES = {
    "`cp.async.bulk.tensor` (TMA) of a `TensorMap`": [(BOX, MAP)],
    "`tex1Dfetch` of linear memory": [(TEXTURE.format("2 * tex1Dfetch<float>(t, 1)"), LINEAR)],
    "`tex1D`, `tex2D` by object": [
        (TEXTURE.format("2 * tex1D<float>(t, 1.5f)"), 1),
        (TEXTURE.format("2 * tex2D<float>(t, 1.5f, 0.5f)"), 2),
    ],
    "`tex3D`, layered textures, cube maps, mipmaps, `tex2Dgather`": [
        (TEXTURE.format("tex3D<float>(t, 0, 0, 0)"), 2),
        (TEXTURE.format("tex2DLayered<float>(t, 0, 0, 0)"), 2),
        (TEXTURE.format("texCubemap<float>(t, 0, 0, 0)"), 2),
        (TEXTURE.format("tex2DLod<float>(t, 0, 0, 0)"), 2),
        (TEXTURE.format("tex2Dgather<float4>(t, 0, 0, 0).x"), 2),
    ],
    "texture references": [("texture<float, 1> r;" + TEXTURE.format("tex1Dfetch(r, 0)"), 1)],
    "surfaces": [(TEXTURE.format("surf1Dread<float>(t, 0)"), 1)],
    "a function declared here and defined in another file": [
        ("__device__ float f(float);" + KERNEL.format("x[0] = f(2);"), None)
    ],
    "a busy wait on `clock()`": [
        (
            KERNEL.format(
                "clock_t s = clock(); int i = 0; while (clock() - s < 20000000) ++i; "
                "x[0] = i > 0 ? 2 : 0;"
            ),
            None,
        )
    ],
    "a shuffle that reads a lane which is not there": [
        (KERNEL.format("x[0] = 2 + 0 * __shfl_down_sync(~0u, threadIdx.x, 31);"), None)
    ],
}


def verdict(code, argument=None, threads=32):
    """The verdict over one kernel, which leaves 2 in x[0]."""
    x = np.zeros(64, np.float32)
    arguments = (x,) if argument is None else (x, textures()[argument])
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            kernel = RawModule(code, backend="simulator").get_function("k")
            kernel((1,), (threads,), arguments)
        except UserError as error:
            assert len(str(error)) > 40
            return "refused"
    assert x[0] == 2
    assert any(one.category is ShuffleWarning for one in heard) == ("shfl_down" in code)
    noted = any(one.category is PortabilityWarning for one in heard)
    return "as nvcc" if noted else "runs"


def textures():
    """A texture object of each kind, of ones."""
    form = texture.ChannelFormatDescriptor(32, 0, 0, 0, texture.cudaChannelFormatKindFloat)
    ones, made = np.ones(4, np.float32), {}
    for dimensions in (1, 2):
        array = texture.CUDAarray(form, 4, dimensions - 1)
        array.copy_from(ones.reshape(array.shape))
        made[dimensions] = texture.ResourceDescriptor(texture.cudaResourceTypeArray, cuArr=array)
    made[LINEAR] = texture.ResourceDescriptor(
        texture.cudaResourceTypeLinear, arr=ones, chDesc=form, sizeInBytes=16
    )
    how = texture.TextureDescriptor()
    objects = {name: texture.TextureObject(resource, how) for name, resource in made.items()}
    return objects | {MAP: TensorMap(ones, (4,))}


@pytest.fixture(autouse=True)
def on_the_simulator(monkeypatch):
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")


WRITTEN = [row for row in ROWS if row not in (*INSTRUCTIONS, *FEATURES) and "(x)" not in row]


@pytest.mark.turns(79)
@pytest.mark.parametrize("row", WRITTEN)
def test_headers_and_names_are_as_the_page_says(row):
    names = re.findall("`(.+?)`", row)
    # What needs nothing of nvcc shares a kernel; so do headers that take a second each to compile.
    shared = ROWS[row] == "runs" or "seconds to compile" in line_of(row)
    for together in [names] if shared else [[name] for name in names]:
        headers = [name.strip("<>") for name in together]
        includes = [f"#include <{one}>\n" for one in headers if one not in together]
        lines = [f"{{ {LINES.get(one, 'x[0] = 2;')} }}" for one in headers]
        assert verdict("".join(includes) + KERNEL.format(" ".join(lines))) == ROWS[row], together


def line_of(row):
    return next(line for line in PAGE.splitlines() if line.startswith(f"| {row} |"))


@pytest.mark.parametrize("row", INSTRUCTIONS)
def test_instructions_are_as_the_page_says(row):
    for target, body in INSTRUCTIONS[row]:
        text = PTX.format(target=target, body=body)
        try:
            threads = 128 if "wgmma" in body else 32
            launch(Program(text), "k", (1, 1, 1), (threads, 1, 1), [np.zeros(64, np.float32)])
            found = "runs"
        except UserError:
            found = "refused"
        assert found == ROWS[row], body


@pytest.mark.turns(23)
@pytest.mark.parametrize("row", FEATURES)
def test_features_are_as_the_page_says(row):
    for code, argument in FEATURES[row]:
        threads = 16 if "shfl" in code else 32
        assert verdict(code, argument, threads) == ROWS[row], code


def test_a_call_without_the_comma_is_as_the_page_says():
    (row,) = (row for row in ROWS if "(x)" in row)
    x = np.zeros(1, np.float32)
    kernel = RawModule(KERNEL.format("x[0] = 2;"), backend="simulator").get_function("k")
    kernel((1,), (1,), (x))
    assert x[0] == 2 and ROWS[row] == "runs"


def test_every_row_of_the_page_has_a_case():
    assert {*INSTRUCTIONS, *FEATURES} <= {*ROWS} and len(ROWS) > 40
    assert len(ROWS) == len(re.findall(r"^\| .+ \|$", PAGE, re.MULTILINE)) - 8


def test_the_program_of_the_page_runs():
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(block, "which_kernels_run.md", "exec"), {})
