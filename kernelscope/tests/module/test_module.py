"""RawModule and its kernels: CuPy's interface, the choice of backend, and what a call does."""

import io
import os
import re
import subprocess
import sys
import types

import kernelscope
import numpy as np
import pytest
from kernelscope import backend as backends
from kernelscope import project
from kernelscope.backend import array_module, asnumpy, gpu_count, resolve_backend, xp
from kernelscope.compile import CompileError
from kernelscope.errors import MemoryFault
from kernelscope.events import Observer, observe
from kernelscope.module import (
    ArgumentError,
    ArgumentWarning,
    KernelNotFoundError,
    LaunchError,
    RawKernel,
    RawModule,
    allow_shared,
)
from kernelscope.module.cupy_side import CupyModules

needs_gpu = pytest.mark.skipif(gpu_count() == 0, reason="CuPy sees no GPU")

AXPY = """
extern "C" __global__ void axpy(float a, const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}
"""


@pytest.fixture(autouse=True)
def no_backend_from_outside(monkeypatch):
    monkeypatch.delenv("KERNELSCOPE_BACKEND", raising=False)


class DebugBuild(Observer):
    """Only asks for the debug build."""

    build = "debug"

    def __init__(self):
        pass


def simulated(code, **keywords):
    return RawModule(code, backend="simulator", **keywords)


# -- the choice of backend ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "variable", "gpus", "expected"),
    [
        ("simulator", "gpu", 1, "simulator"),
        ("gpu", "simulator", 1, "gpu"),
        (None, "simulator", 1, "simulator"),
        (None, "gpu", 1, "gpu"),
        (None, "", 1, "gpu"),
        (None, "", 0, "simulator"),
        ("nvrtc", "", 0, "simulator"),
        ("nvcc", "simulator", 1, "simulator"),
        ("nvrtc", "", 2, "gpu"),
    ],
)
def test_the_backend_is_argument_then_variable_then_gpu(
    monkeypatch, argument, variable, gpus, expected
):
    monkeypatch.setattr(backends, "gpu_count", lambda: gpus)
    monkeypatch.setenv("KERNELSCOPE_BACKEND", variable)
    assert resolve_backend(argument) == expected


def test_a_wrong_backend_is_named(monkeypatch):
    with pytest.raises(ValueError, match='backend is \'cuda\'; it must be "gpu" or "simulator"'):
        RawModule(AXPY, backend="cuda")
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "cpu")
    with pytest.raises(ValueError, match="variable KERNELSCOPE_BACKEND is 'cpu'"):
        RawModule(AXPY)


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(backends, "gpu_count", lambda: 0)
    with pytest.raises(backends.BackendError, match='sees no GPU.*backend="simulator"'):
        RawModule(AXPY, backend="gpu")


def test_xp_follows_the_backend(monkeypatch):
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")
    assert array_module() is np and xp.float32 is np.float32
    assert "zeros" in dir(xp) and repr(xp) == "<xp: numpy>"
    monkeypatch.setattr(backends, "gpu_count", lambda: 1)
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "gpu")
    assert array_module().__name__ == "cupy" and repr(xp) == "<xp: cupy>"


def test_asnumpy_brings_device_arrays_home():
    class OnDevice:
        __cuda_array_interface__ = {"version": 3}

        def get(self):
            return np.arange(3)

    host = np.arange(4)
    assert asnumpy(host) is host
    assert asnumpy(OnDevice()).tolist() == [0, 1, 2]


# -- the package ----------------------------------------------------------------------------------


def test_importing_the_package_imports_nothing_else():
    program = (
        "import sys, kernelscope; "
        "print([n for n in ('numpy', 'cupy', 'kernelscope.module') if n in sys.modules])"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_public_names_come_from_their_homes():
    assert kernelscope.RawModule is RawModule
    assert kernelscope.observe is observe
    assert kernelscope.xp is xp
    assert "Counters" in dir(kernelscope)
    with pytest.raises(AttributeError, match="no attribute 'RawModul'"):
        _ = kernelscope.RawModul


def test_a_kernel_runs_and_writes_in_place():
    module = simulated(AXPY)
    kernel = module.get_function("axpy")
    x = np.linspace(-1, 1, 75, dtype=np.float32).reshape(5, 15)
    y = np.arange(75, dtype=np.float32).reshape(5, 15)
    expected = y + np.float32(0.5) * x
    assert kernel((3,), (32,), (np.float32(0.5), x, y, 75)) is None
    np.testing.assert_array_equal(y, expected)
    assert module.backend == kernel.backend == "simulator" and kernel.name == "axpy"


def test_the_code_may_be_a_keyword_and_backend_may_be_cupys():
    module = RawModule(code=AXPY, options=("-std=c++17",), backend="simulator")
    assert module.kernels == ("axpy",)
    assert module.get_function("axpy") is module.get_function("axpy")


def test_code_or_path_but_not_both_nor_neither(tmp_path):
    for arguments in ({}, {"code": AXPY, "path": "k.cu"}):
        with pytest.raises(TypeError, match="either code= .* or path="):
            RawModule(**arguments)


def test_options_must_be_strings():
    with pytest.raises(TypeError, match=r"\('-DTILE=32',\)"):
        simulated(AXPY, options="-DTILE=32")
    with pytest.raises(TypeError, match="name_expressions"):
        simulated(AXPY, name_expressions="axpy")
    assert simulated(AXPY, options=["-DN=1"]).options == ("-DN=1",)


def test_options_change_the_kernel():
    code = 'extern "C" __global__ void k(int* x) { x[threadIdx.x] = TILE; }'
    x = np.zeros(4, np.int32)
    for tile in (3, 5):
        simulated(code, options=(f"-DTILE={tile}",)).get_function("k")((1,), (4,), (x,))
        assert x.tolist() == [tile] * 4


def test_templates_are_reached_by_name_expression():
    code = """
template <typename T, int N> __global__ void multiply(const T* x, T* y) {
  y[threadIdx.x] = x[threadIdx.x] * N;
}
namespace inner { __global__ void set(int* x) { x[0] = 9; } }
"""
    names = ("multiply<float, 3>", "multiply<int,2>", "inner::set")
    module = simulated(code, name_expressions=names)
    assert set(module.kernels) == set(names)
    x = np.arange(8, dtype=np.float32)
    y = np.zeros_like(x)
    module.get_function(names[0])((1,), (8,), (x, y))
    np.testing.assert_array_equal(y, 3 * x)
    i = np.arange(8, dtype=np.int32)
    module.get_function(names[1])((1,), (8,), (i, i))
    np.testing.assert_array_equal(i, 2 * np.arange(8))
    module.get_function(names[2])((1,), (1,), (i,))
    assert i[0] == 9


def test_every_kind_of_value_arrives():
    code = """
#include <cuda_fp16.h>
struct Pair { int a; float b; };
extern "C" __global__ void k(double* out, bool yes, signed char c, unsigned char u, short s,
                             unsigned w, long long l, size_t z, float f, double d, __half h,
                             Pair p, int3 v, const float* nothing) {
  out[0] = yes; out[1] = c; out[2] = u; out[3] = s; out[4] = w; out[5] = l; out[6] = z;
  out[7] = f; out[8] = d; out[9] = __half2float(h); out[10] = p.a; out[11] = p.b; out[12] = v.z;
  out[13] = nothing == nullptr;
}
"""
    out = np.zeros(14)
    pair = np.array((-7, 0.25), np.dtype([("a", "i4"), ("b", "f4")]))
    kernel = simulated(code).get_function("k")
    integers = (True, -5, 200, np.int16(-300), 4000000000, -(2**40), np.uint64(2**50))
    floats = (np.float32(1.5), 2.25, np.float16(0.125))
    kernel((1,), (1,), (out, *integers, *floats, pair, np.array([1, 2, 3], np.int32), None))
    assert out.tolist() == [*map(int, integers), *map(float, floats), -7, 0.25, 3, 1]
    out[:] = 0
    integers = (np.bool_(False), np.int8(1), np.uint8(2), 3, np.uint32(4), np.int64(5), 6)
    floats = (np.float32(7), np.float64(8), np.float16(9))
    structs = (pair[()], pair.tobytes() + bytes(4), np.zeros(1, np.float32))
    kernel((1,), (1,), (out, *integers, *floats, *structs))
    assert out.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, -7, 0.25, 0, 0]


def test_an_empty_array_is_accepted():
    kernel = simulated(AXPY).get_function("axpy")
    empty = np.zeros((0, 4), np.float32)
    kernel((1,), (32,), (np.float32(1), empty, empty.copy(), 0))


def test_one_array_may_be_both_input_and_output():
    x = np.arange(40, dtype=np.float32)
    simulated(AXPY).get_function("axpy")((2,), (32,), (np.float32(2), x, x, 40))
    np.testing.assert_array_equal(x, 3 * np.arange(40, dtype=np.float32))


def test_leave_for_shared_memory_is_never_taken_back():
    kernel = simulated(AXPY).get_function("axpy")
    unasked = kernel.max_dynamic_shared_size_bytes
    for size, allowed in ((1024, unasked), (64 * 1024, 64 * 1024), (50 * 1024, 64 * 1024)):
        assert allow_shared(kernel, size) is kernel
        assert kernel.max_dynamic_shared_size_bytes == allowed
    with pytest.raises(LaunchError, match="more than a block can have"):
        allow_shared(kernel, 1 << 20)


def test_attributes_are_cupys():
    code = """
__constant__ float table[10];
__constant__ double scale;
extern "C" __global__ void __launch_bounds__(192) k(float* x) {
  __shared__ float tile[100];
  tile[threadIdx.x % 100] = x[0]; __syncthreads(); x[1] = tile[3] * table[2] * scale;
}
"""
    kernel = simulated(code).get_function("k")
    assert kernel.shared_size_bytes == 400 and kernel.const_size_bytes == 48
    assert kernel.max_threads_per_block == 192 and kernel.local_size_bytes == 0
    assert kernel.max_dynamic_shared_size_bytes == 48 * 1024 - 400
    attributes = kernel.attributes
    assert attributes["num_regs"] > 0 and attributes["binary_version"] == 80
    assert attributes["ptx_version"] >= 70
    assert len(attributes) == 10


def test_variables_are_shared_by_kernels_launches_and_builds():
    code = """
__constant__ float table[4];
__device__ int calls;
extern "C" __global__ void look_up(float* y) {
  y[threadIdx.x] = table[threadIdx.x];
  if (threadIdx.x == 0) calls += 1;
}
"""

    class DebugOnly(Observer):
        def __post_init__(self):
            self.build = "debug"

    module = simulated(code)
    table = np.ndarray((4,), np.float32, module.get_global("table"))
    calls = np.ndarray((), np.int32, module.get_global("calls"))
    table[:] = [2, 4, 8, 16]
    y = np.zeros(4, np.float32)
    kernel = module.get_function("look_up")
    kernel((1,), (4,), (y,))
    assert y.tolist() == [2, 4, 8, 16] and calls == 1
    table[:] = [1, 3, 9, 27]
    with observe(DebugOnly()):
        kernel((1,), (4,), (y,))
    assert y.tolist() == [1, 3, 9, 27] and calls == 2
    kernel((1,), (4,), (y,))
    assert calls == 3
    with pytest.raises(KernelNotFoundError, match="no variable 'tabel'; it has: .*table"):
        module.get_global("tabel")


def test_observers_hear_of_the_launch_and_choose_the_build():
    class Listener(Observer):
        def __init__(self, build):
            super().__init__()
            self.build, self.launches, self.instructions = build, [], 0

        def launch_started(self, launch):
            self.launches.append(launch)

        def instruction(self, event):
            self.instructions += 1

    kernel = simulated(AXPY).get_function("axpy")
    x, y = np.ones((2, 32), np.float32)
    for build in ("optimised", "debug"):
        with observe(Listener(build)) as seen:
            kernel((1,), (32,), (np.float32(1), x, y, 32))
        assert [launch.build for launch in seen.launches] == [build]
        assert seen.launches[0].grid == (1, 1, 1) and seen.launches[0].block == (32, 1, 1)
        assert {"x", "y"} <= {buffer.name for buffer in seen.launches[0].buffers}
        assert seen.instructions > 5
    with observe(Listener("optimised"), Listener("debug")) as (first, second):
        kernel((1,), (32,), (np.float32(1), x, y, 32))
    assert first.launches[0].build == second.launches[0].build == "debug"


def test_an_illegal_launch_is_a_fault_for_observers():
    class Keeps(Observer):
        def __init__(self, keeps_going):
            super().__init__()
            self.keeps_going, self.faults = keeps_going, []

        def fault(self, event):
            self.faults.append(event)

    kernel = simulated(AXPY).get_function("axpy")
    x, y = np.ones((2, 32), np.float32)
    arguments = (np.float32(1), x, y, 32)
    with observe(Keeps(True)) as seen:
        kernel((1,), (2048,), arguments)
    assert [(f.kind, f.line) for f in seen.faults] == [("bad-launch", 2)]
    assert "2048" in seen.faults[0].message
    with observe(Keeps(False)) as seen, pytest.raises(LaunchError):
        kernel((1,), (2048,), arguments)
    assert len(seen.faults) == 1
    assert (y == 1).all()


# -- files ----------------------------------------------------------------------------------------


def test_a_cu_file_and_its_ptx_give_the_same(tmp_path):
    (tmp_path / "size.cuh").write_text("#define SIZE 7\n")
    source = tmp_path / "k.cu"
    source.write_text('#include "size.cuh"\nextern "C" __global__ void k(int* x) { x[0] = SIZE; }')
    module = RawModule(path=source, backend="simulator")
    compiled = tmp_path / "k.ptx"
    compiled.write_text(module.ptx())
    again = RawModule(path=str(compiled), backend="simulator")
    for each in (module, again):
        x = np.zeros(1, np.int32)
        each.get_function("k")((1,), (1,), (x,))
        assert x[0] == 7
        assert each.arch == "compute_80"


@pytest.fixture
def added(tmp_path, monkeypatch):
    """A folder of kernels that a project has added, with one file in it."""
    monkeypatch.setattr(project, "_STRICT", {})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "axpy.cu").write_text(AXPY)
    project.add_kernel_folder(tmp_path / "mine", strict=True)
    return tmp_path / "mine"


def test_files_of_an_added_folder_are_found_from_anywhere(added):
    module = RawModule(path="mine/axpy.cu", backend="simulator")
    assert module.name == "mine/axpy.cu" and module.kernels == ("axpy",)
    with pytest.raises(FileNotFoundError, match=r"'mine/axpi.cu'; that folder has: axpy.cu"):
        RawModule(path="mine/axpi.cu", backend="simulator")
    with pytest.raises(FileNotFoundError, match=r"'other/axpy.cu'$"):
        RawModule(path="other/axpy.cu", backend="simulator")


def test_a_file_below_the_current_folder_comes_first(added, tmp_path, monkeypatch):
    here = tmp_path / "here"
    (here / "mine").mkdir(parents=True)
    (here / "mine" / "axpy.cu").write_text(AXPY.replace("axpy", "other"))
    monkeypatch.chdir(here)
    assert RawModule(path="mine/axpy.cu", backend="simulator").kernels == ("other",)


def test_an_added_folder_says_whether_arguments_are_checked_strictly(added):
    own = RawModule(path="mine/axpy.cu", backend="simulator")
    assert own.strict and own.get_function("axpy").strict
    assert not RawModule(path=own.path, backend="simulator", strict=False).strict
    project.add_kernel_folder(added)
    assert not RawModule(path=own.path, backend="simulator").strict


def test_what_only_a_gpu_can_do_is_named(tmp_path):
    cubin = tmp_path / "k.cubin"
    cubin.write_bytes(b"\x7fELF")
    with pytest.raises(backends.BackendError, match="machine code"):
        RawModule(path=cubin, backend="simulator")
    ptx = tmp_path / "k.ptx"
    ptx.write_text(simulated(AXPY).ptx())
    with pytest.raises(ValueError, match="need CUDA C source"):
        RawModule(path=ptx, backend="simulator", name_expressions=("k<int>",))


def test_ptx_program_and_compile():
    module = simulated(AXPY)
    assert ".target sm_80, debug" in module.ptx("debug")
    assert module.program() is module.program("optimised")
    assert "axpy" in module.program("debug").module.functions
    with pytest.raises(ValueError, match="'optimised' or 'debug'"):
        module.ptx("fast")
    log = io.StringIO()
    simulated(AXPY.replace("int i", "int unused; int i")).compile(log_stream=log)
    assert "unused" in log.getvalue()


def test_the_header_and_the_options_choose_the_architecture():
    assert simulated(AXPY).arch == "compute_80"
    assert simulated("// kernelscope: sm_90a\n" + AXPY).arch == "compute_90a"
    assert (
        simulated("// kernelscope: sm_90\n" + AXPY, options=("-arch=sm_86",)).arch == "compute_86"
    )
    assert ".target sm_90a" in simulated("// kernelscope: sm_90a\n" + AXPY).ptx()


# -- signatures -----------------------------------------------------------------------------------


TYPES = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda/std/cstdint>
#define element __nv_bfloat16
#undef element
#define element __half
#ifdef DOUBLE
typedef double real;
#else
typedef float real;
#endif
using index = long long;
enum Colour { RED };
struct Node { Node* next; float value; };
template <typename T, int N> struct Row { T value[N]; };
"""


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize(
    ("text", "name", "shown", "dtypes", "const"),
    [
        ("const float* __restrict__ q", "q", "const float* q", ("float32",), True),
        ("float const *q", "q", "const float* q", ("float32",), True),
        ("float* const q", "q", "float* const q", ("float32",), False),
        ("unsigned *u", "u", "unsigned int* u", ("uint32",), False),
        ("float x[]", "x", "float* x", ("float32",), False),
        ("const float x[4]", "x", "const float* x", ("float32",), True),
        ("float (*x)[4]", "x", "float[4]* x", ("float32",), False),
        ("float* *rows", "rows", "float** rows", (), False),
        ("const __half* const* rows", "rows", "const __half* const* rows", (), True),
        ("const __nv_bfloat16* k", "k", "const __nv_bfloat16* k", ("bfloat16", "uint16"), True),
        ("cuda::std::uint32_t* seed", "seed", "uint32_t* seed", ("uint32",), False),
        ("size_t*", "parameter 1", "size_t*", ("uint64",), False),
        ("const char* text", "text", "const char* text", ("int8", "uint8", "bool"), True),
        ("const float4* q", "q", "const float4* q", ("float32",), True),
        ("longlong2* n", "n", "longlong2* n", ("int64",), False),
        ("Row<int, 3>* v", "v", "Row* v", (), False),
        ("Node* first", "first", "Node* first", (), False),
        ("Colour* c", "c", "Colour* c", (), False),
        ("const void* any", "any", "const void* any", (), True),
        ("void (*f)(int)", "f", "?* f", (), False),
        ("const real* r", "r", "const real* r", ("float32",), True),
        ("index* i", "i", "index* i", ("int64",), False),
        ("element* e", "e", "__half* e", ("float16",), False),
        ("given* g", "g", "unsigned int* g", ("uint32",), False),
    ],
)
def test_the_compiler_tells_the_types_of_pointers(text, name, shown, dtypes, const):
    code = f'{TYPES}extern "C" __global__ void k({text}) {{}}'
    kernel = simulated(code, options=("-Dgiven=unsigned int",)).get_function("k")
    parameter = kernel.entry.parameters[0]
    text = re.sub(r"<.*?>", "", parameter.text)  # from CUDA 13 on a template keeps its arguments
    assert (parameter.name, text) == (name, shown)
    assert parameter.dtypes == dtypes and parameter.ctype.target.const == const


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize(
    ("text", "kind", "bytes_", "is_struct"),
    [
        ("unsigned long long int n", "unsigned", 8, False),
        ("long signed n", "signed", 8, False),
        ("const int n", "signed", 4, False),
        ("bool b", "bool", 1, False),
        ("real scale", "float", 4, False),
        ("element h", "struct", 2, True),
        ("int3 v", "struct", 12, True),
        ("const __grid_constant__ Row<int, 3> v", "struct", 12, True),
    ],
)
def test_the_compiler_tells_the_types_of_values(text, kind, bytes_, is_struct):
    kernel = simulated(f'{TYPES}extern "C" __global__ void k({text}) {{}}').get_function("k")
    parameter = kernel.entry.parameters[0]
    assert (parameter.ctype.kind, parameter.size) == (kind, bytes_)
    assert parameter.is_struct == is_struct and parameter.dtypes == ()


def test_a_type_chosen_by_the_preprocessor_is_the_one_that_is_compiled():
    code = f'{TYPES}extern "C" __global__ void k(real* x) {{ x[0] = sizeof(real); }}'
    for options, dtype, other in (((), "f4", "f8"), (("-DDOUBLE",), "f8", "f4")):
        kernel = simulated(code, options=options, strict=True).get_function("k")
        x = np.zeros(1, dtype)
        kernel((1,), (1,), (x,))
        assert x[0] == x.itemsize
        with pytest.raises(ArgumentError, match=f"kernel reads {np.dtype(dtype).name}"):
            kernel((1,), (1,), (np.zeros(1, other),))


def test_code_that_has_no_debug_build_has_no_types():
    code = """
#ifdef __CUDACC_DEBUG__
#error not with -G
#endif
extern "C" __global__ void k(int* x) { x[0] = 7; }
"""
    kernel = simulated(code).get_function("k")
    x = np.zeros(1, np.int32)
    kernel((1,), (1,), (x,))
    assert x[0] == 7 and kernel.entry.parameters[0].ctype is None


def test_a_line_is_that_of_the_own_file(tmp_path):
    (tmp_path / "other.cuh").write_text('extern "C" __global__ void there(int* x) {}\n')
    path = tmp_path / "k.cu"
    path.write_text('#include "other.cuh"\n\nextern "C" __global__ void here(int* x) {}\n')
    module = RawModule(path=path, backend="simulator")
    assert module.get_function("here").entry.line == 3
    assert module.get_function("there").entry.line == 0


def test_ptx_entries_of_either_generation_are_read(tmp_path):
    path = tmp_path / "k.ptx"
    path.write_text("""
.version 8.0
.target sm_90a
.address_size 64
.visible .entry new(
 .param .u64 .ptr .align 1 new_param_0,
 .param .u64 .ptr .global .align 16 new_param_1,
 .param .align 64 .b8 new_param_2[128],
 .param .f32 new_param_3
)
.reqntid 64, 2
{ { ret; } }
.entry none()
.maxntid 16, 8, 1
.reqnctapercluster 4
.minnctapersm 2
{ ret; }
""")
    module = RawModule(path=path, backend="simulator")
    assert module.kernels == ("new", "none") and module.arch == "compute_90a"
    new, none = (module.get_function(name).entry for name in module.kernels)
    assert [(p.kind, p.size, p.is_struct) for p in new.parameters] == [
        ("u64", 8, False),
        ("u64", 8, False),
        ("b8", 128, True),
        ("f32", 4, False),
    ]
    assert new.parameters[0].text == "new_param_0" and new.parameters[0].dtypes == ()
    assert new.required_block == (64, 2, 1) and new.cluster == (1, 1, 1)
    assert none.parameters == () and none.max_threads == 128 and none.cluster == (4, 1, 1)


# -- RawKernel ------------------------------------------------------------------------------------


def test_a_raw_kernel_is_cupys_and_compiles_at_its_first_use(monkeypatch):
    import cupy

    arguments = (AXPY, "axpy", ("-DTILE=4",))
    theirs = cupy.RawKernel(*arguments)
    ours = RawKernel(*arguments, "simulator")
    for name in ("name", "code", "options", "file_path", "enable_cooperative_groups"):
        assert getattr(ours, name) == getattr(theirs, name) == getattr(ours.kernel, name), name
    public = {name for name in dir(cupy.RawKernel) if not name.startswith("_")}
    assert {name for name in public if not hasattr(ours, name)} == set()
    x, y = np.arange(40, dtype=np.float32), np.ones(40, np.float32)
    assert ours((2,), (32,), (np.float32(2), x, y, 40)) is None
    np.testing.assert_array_equal(y, 1 + 2 * x)
    assert ours.backend == ours.module.backend == ours.kernel.backend == "simulator"
    broken = RawKernel("not CUDA", "k", backend="simulator")
    with pytest.raises(CompileError):
        broken.compile()


def test_a_raw_kernel_takes_what_cupys_takes_and_refuses_what_it_refuses():
    log = io.StringIO()
    code = AXPY.replace("int i", "int unused; int i")
    kernel = RawKernel(
        code, "axpy", (), "simulator", False, enable_cooperative_groups=True, jitify=None
    )
    kernel.compile(log_stream=log)
    assert "unused" in log.getvalue() and kernel.enable_cooperative_groups
    for wrong in ((), (AXPY,), (AXPY, None), (None, "axpy"), (AXPY, "axpy", "-DA")):
        with pytest.raises(TypeError):
            RawKernel(*wrong)
    with pytest.raises(KernelNotFoundError, match="it has: axpy"):
        RawKernel(AXPY, "axpi", backend="simulator").compile()


def test_shared_memory_is_the_fourth_argument_of_a_call():
    code = """
extern "C" __global__ void reverse(float* x) {
  extern __shared__ float tile[];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}
"""
    x = np.arange(64, dtype=np.float32)
    kernel = RawKernel(code, "reverse", backend="simulator")
    kernel((1,), (64,), (x,), 256)
    np.testing.assert_array_equal(x, np.arange(64)[::-1])
    kernel.max_dynamic_shared_size_bytes = 100_000
    assert kernel.attributes["max_dynamic_shared_size_bytes"] == 100_000
    kernel.kernel((1,), (64,), (x,), 100_000)
    np.testing.assert_array_equal(x, np.arange(64))
    assert kernel.num_regs == kernel.kernel.num_regs > 0
    with pytest.raises(AttributeError):
        _ = kernel.no_such_thing


def test_a_program_of_cupys_runs_with_the_names_of_cucomplex():
    code = """
#include <cuComplex.h>
extern "C" __global__ void k(cuDoubleComplex a, cuFloatComplex b, cuDoubleComplex* x, float* y) {
  x[threadIdx.x] = cuCadd(cuCmul(x[threadIdx.x], a), make_cuDoubleComplex(cuCrealf(b), 0));
  y[threadIdx.x] = cuCimagf(b) * __LINE__;
}
"""
    x = np.array([1 - 2j, 3 + 5j])
    y, expected, b = np.zeros(1, np.complex64), x * (2 + 1j) + 7, np.complex64(7 - 3j)
    for translated in (True, False):
        kernel = RawKernel(code, "k", (), "simulator", translated)
        assert kernel.translate_cucomplex is kernel.kernel.translate_cucomplex is translated
        z = x.copy()
        kernel((1,), (2,), (2 + 1j, b, z, y))
        np.testing.assert_array_equal(z, expected)
        assert y[0] == -15 * (1 + 1j)  # line 5, as in the user's own text
        with pytest.warns(ArgumentWarning, match=r"argument 2 .*np.complex64\(z\)"):
            kernel((1,), (2,), (2 + 1j, 7 - 3j, z, y))
    with pytest.raises(CompileError, match=r"kernel.cu:3: .*cuFloatComplx"):
        RawKernel(
            code.replace("cuFloatComplex", "cuFloatComplx"), "k", (), "simulator", True
        ).compile()


STRIDED = """
extern "C" __global__ void axpy2d(const float* x, float* y, long long sx, long long sy, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i * sy] += 2 * x[i * sx];
}
"""


def test_arrays_of_any_strides_are_passed_as_the_memory_they_are():
    kernel = simulated(STRIDED).get_function("axpy2d")
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for source, target in [
        (np.s_[:, 1], np.s_[:, 2]),
        (np.s_[::-1, 5], np.s_[::-1, 0]),
        (np.s_[1, ::2], np.s_[::-2, 3]),
    ]:
        y = np.ones((4, 6), np.float32)
        expected = y.copy()
        n = min(x[source].size, y[target].size)
        expected[target][:n] += 2 * x[source][:n]
        a, b = x[source], y[target]
        with pytest.warns(ArgumentWarning, match="not contiguous") as warned:
            kernel((1,), (32,), (a, b, a.strides[0] // 4, b.strides[0] // 4, n))
        assert {each.filename for each in warned} == {__file__}
        np.testing.assert_array_equal(y, expected)
    y = np.zeros((6, 4), np.float32, order="F")  # the memory in its own order
    with pytest.warns(ArgumentWarning, match="not contiguous") as warned:
        kernel((1,), (32,), (np.asfortranarray(x), y, 1, 1, 24))
    assert len(warned) == 2
    np.testing.assert_array_equal(y.ravel("K"), 2 * x.ravel("F"))


def test_an_access_outside_a_strided_array_is_refused():
    kernel = simulated(STRIDED).get_function("axpy2d")
    x, y = np.zeros((4, 6), np.float32), np.zeros(8, np.float32)
    with (
        pytest.warns(ArgumentWarning),
        pytest.raises(MemoryFault, match=r"element 19 of x\b.*; valid elements are 0 to 18"),
    ):
        kernel((1,), (32,), (x[:, 2], y, 19, 1, 2))


def test_strict_checks_are_a_choice():
    assert not simulated(AXPY).strict and simulated(AXPY, strict=True).strict
    kernel = RawKernel(AXPY, "axpy", backend="simulator", strict=True)
    x = np.ones(4, np.float32)
    with pytest.raises(ArgumentError, match=r"Python float .* np.float32\(x\)"):
        kernel((1,), (4,), (1.0, x, x, 4))


def test_the_module_below_has_the_names_of_the_ptx():
    code = "__device__ int offset = 3;\n__global__ void k(int* x) { x[0] = offset; }"
    module = simulated(code, name_expressions=("k",))
    x = np.zeros(1, np.int32)
    module.module.get_global_var("offset").view(np.int32)[0] = 8
    module.module.get_function("_Z1kPi")((1,), (1,), (x,))
    assert x[0] == 8


# -- the GPU side ---------------------------------------------------------------------------------


@pytest.fixture
def fake_device(monkeypatch):
    """A device of capability 9.0 as far as the choice of options and architecture goes."""
    import cupy

    monkeypatch.setattr(backends, "gpu_count", lambda: 1)
    device = types.SimpleNamespace(compute_capability="90")
    monkeypatch.setattr(cupy.cuda, "Device", lambda *_: device)
    return device


def test_cupy_gets_include_folders_but_no_architecture(fake_device, tmp_path):
    (tmp_path / "a.cuh").write_text("")
    path = tmp_path / "k.cu"
    path.write_text('#include "a.cuh"\n' + AXPY)
    module = RawModule(path=path, backend="gpu", options=("-DTILE=4",))
    options = CupyModules(module)._options()
    assert options[:3] == ("-DTILE=4", "-std=c++17", f"-I{tmp_path}")
    assert not any(o.startswith(("-arch", "-ftz")) for o in options)
    (tmp_path / "a.cuh").write_text("// edited, and longer")
    os.utime(tmp_path / "a.cuh", ns=(1, 1))
    assert CupyModules(module)._options() != options


@pytest.mark.filterwarnings("ignore::kernelscope.errors.PortabilityWarning")
def test_cupy_gets_what_a_source_for_nvcc_lacks(fake_device):
    code = AXPY.replace("a * x[i]", "a * x[i] * (float)M_PI")
    for text, count in ((AXPY, 0), (code, 1)):
        options = CupyModules(RawModule(text, backend="gpu"))._options()
        assert sum(one.startswith("--pre-include=") for one in options) == count


@pytest.mark.parametrize(
    ("code", "options", "arch"),
    [
        (AXPY, (), None),
        ("// kernelscope: sm_80\n" + AXPY, (), None),
        ("// kernelscope: sm_90a\n" + AXPY, (), "sm_90a"),
        (AXPY, ("-arch=compute_90a",), "sm_90a"),
    ],
)
def test_only_a_special_architecture_is_compiled_here(fake_device, code, options, arch):
    module = RawModule(code, backend="gpu", options=options)
    assert CupyModules(module)._own_arch() == arch
    assert module.arch == (f"compute_{arch[3:]}" if arch else "compute_90")


@pytest.mark.parametrize("needs", ["sm_100", "sm_80a"])
def test_a_gpu_that_is_too_old_is_named(fake_device, needs):
    module = RawModule(f"// kernelscope: {needs}\n" + AXPY, backend="gpu")
    with pytest.raises(backends.BackendError, match=f"needs {needs}; this GPU is sm_90"):
        CupyModules(module)._own_arch()


def test_a_kernel_for_a_gpu_needs_the_debug_build_only(fake_device, monkeypatch):
    """The optimised build of a large kernel takes NVRTC seconds, and CuPy compiles its own."""
    builds, compiled = [], RawModule.compiled

    def noted(self, build="optimised"):
        builds.append(build)
        return compiled(self, build)

    monkeypatch.setattr(RawModule, "compiled", noted)
    monkeypatch.setattr(CupyModules, "function", lambda self, name: None)
    module = RawModule(AXPY, backend="gpu")
    entry = module.get_function("axpy").entry
    assert [p.text for p in entry.parameters] == ["float a", "const float* x", "float* y", "int n"]
    assert module.kernels == ("axpy",) and builds == ["debug"]


LARGE = """#include <cuda/std/type_traits>
typedef float real;
#define COUNT int n
/* __global__ void plain(double* x) */
extern "C" __global__ void plain(const float* x, unsigned* __restrict__ y, double a) {}
__global__ void __launch_bounds__(64, 2) cplusplus(float4 v,
                                                   bool b) {}
extern "C" __global__ void __cluster_dims__(2, 1, 1) clustered(int n, float* x) {}
extern "C" __global__ void named(const real* x) {}
extern "C" __global__ void macro(float* x, COUNT) {}
__global__ void twice(int* x) {}
__global__ void twice(float* x) {}
struct pair { float a, b; };
extern "C" __global__ void record(pair p) {}
template <typename T> __global__ void scale(T* x) {}
"""


@pytest.mark.turns(13)
@pytest.mark.system
def test_large_headers_are_compiled_once(monkeypatch):
    """Where the compiler may read a signature by itself; else in the debug build too, once."""
    built, compiled = [], RawModule.compiled

    def noted(self, build="optimised"):
        built.append(build)
        return compiled(self, build)

    template, once = "scale<float>", ("plain", "_Z9cplusplus6float4b", "clustered")
    asked = {"name_expressions": (template,), "options": ("-arch=compute_90",)}
    small = simulated(LARGE.replace("#include <cuda/std/type_traits>", ""), **asked)
    expected = {name: small.get_function(name).entry for name in (*small.kernels, template)}
    monkeypatch.setattr(RawModule, "compiled", noted)
    module = simulated(LARGE, **asked)
    others = ("named", "macro", "_Z5twicePi", "record", template)
    for names in (once, others):
        for name in names:
            assert module.get_function(name).entry == expected[name], name
        assert built.count("debug") == (names is others)
    assert expected["clustered"].cluster == (2, 1, 1)
    watched = simulated(LARGE, **asked)
    with observe(DebugBuild()):
        watched.get_function("plain")
    assert built[-1] == "debug", "which the observer needs anyway"


@needs_gpu
def test_the_gpu_gives_the_simulators_bits():
    import cupy

    x = np.linspace(-3, 3, 1000, dtype=np.float32)
    results = []
    for backend, library in (("gpu", cupy), ("simulator", np)):
        kernel = RawKernel(AXPY, "axpy", backend=backend)
        y = library.asarray(x[::-1].copy())
        kernel((8,), (128,), (np.float32(0.3), library.asarray(x), y, 1000))
        assert kernel.backend == backend
        assert kernel.attributes.keys() == cupy.RawKernel(AXPY, "axpy").attributes.keys()
        results.append(asnumpy(y))
    np.testing.assert_array_equal(*results)


@needs_gpu
def test_gpu_kernels_have_cupys_attributes_and_limits():
    code = (
        'extern "C" __global__ void k(float* x) { extern __shared__ float t[]; '
        "t[threadIdx.x] = 1; __syncthreads(); x[threadIdx.x] = t[31 - threadIdx.x]; }"
    )
    import cupy

    kernel = RawModule(code, backend="gpu").get_function("k")
    assert kernel.num_regs > 0 and kernel.attributes["num_regs"] == kernel.num_regs
    x = cupy.zeros(32, np.float32)
    with pytest.raises(LaunchError, match="max_dynamic_shared_size_bytes = 60000"):
        kernel((1,), (32,), (x,), shared_mem=60000)
    kernel.max_dynamic_shared_size_bytes = 60000
    kernel((1,), (32,), (x,), shared_mem=60000)
    assert float(x.sum()) == 32
    stream = cupy.cuda.Stream()
    kernel((1,), (32,), (x,), shared_mem=128, stream=stream)
    stream.synchronize()
    with pytest.raises(LaunchError, match="more than a block can have"):
        kernel((1,), (32,), (x,), shared_mem=10**6)


@needs_gpu
def test_gpu_templates_variables_and_architectures():
    import cupy

    code = """
__device__ float offset;
template <typename T> __global__ void shift(T* x) { x[threadIdx.x] += offset; }
extern "C" __global__ void plain(float* x) { x[threadIdx.x] *= 2; }
"""
    capability = cupy.cuda.Device().compute_capability
    for options in ((), (f"-arch=sm_{capability}",)):
        module = RawModule(code, backend="gpu", name_expressions=("shift<float>",), options=options)
        x = cupy.arange(4, dtype=np.float32)
        module.get_function("shift<float>")((1,), (4,), (x,))
        module.get_function("plain")((1,), (4,), (x,))
        assert x.tolist() == [0, 2, 4, 6]
    module = RawModule(
        "__device__ float offset;\n" + AXPY.replace("a * x[i]", "offset"), backend="gpu"
    )
    xp.ndarray((), np.float32, module.get_global("offset"))[...] = 5
    module.get_function("axpy")((1,), (4,), (np.float32(0), x, x, 4))
    assert x.tolist() == [5, 7, 9, 11]


READ = """
extern "C" __global__ void read(float f, int n, double d, const float* x, double* out) {
  out[0] = f; out[1] = n; out[2] = d;
  for (int i = 0; i < 4; i++) out[3 + i] = x[i];
}
"""


@needs_gpu
@pytest.mark.filterwarnings("ignore::kernelscope.errors.ArgumentWarning")
@pytest.mark.parametrize(
    ("f", "n", "d", "part"),
    [
        (1 / 3, np.int64(-5), 1, lambda x: x.T),
        (np.float64(0.1), 2**31, np.float64(2), lambda x: x[:, 1]),
        (0x3F800000, np.int64(2**32 + 7), 0.25, lambda x: x[::-1]),
        (np.float32(2), True, 1e300, lambda x: x.view(np.complex64)),
        (np.int32(0x40490FDB), np.uint32(2**32 - 1), 0.5, lambda x: x.view(np.int32)),
    ],
)
def test_arguments_are_read_as_by_cupys_own_kernel(f, n, d, part):
    import cupy

    results = []
    for library, kernel in (
        (cupy, cupy.RawKernel(READ, "read")),
        (cupy, RawKernel(READ, "read", backend="gpu")),
        (np, RawKernel(READ, "read", backend="simulator")),
    ):
        out, x = library.zeros(7), library.arange(12, dtype=np.float32).reshape(3, 4)
        kernel((1,), (1,), (f, n, d, part(x), out))
        results.append(asnumpy(out))
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])


def test_an_array_in_the_place_of_the_tuple_is_taken_as_by_cupy():
    """CuPy passes the items of any sequence: `(x)` is x, whose first item is where x begins."""
    code = """extern "C" __global__ void one(float* x) { x[1] += 2; }
    extern "C" __global__ void two(float* x, float* y) { x[0] = 1; y[0] = 2; }"""
    module = RawModule(code, backend="simulator")
    x, rows = np.ones(3, np.float32), np.zeros((2, 4), np.float32)
    module.get_function("one")((1,), (1,), (x))
    module.get_function("two")((1,), (1,), rows)
    assert x.tolist() == [1, 3, 1] and rows[:, 0].tolist() == [1, 2]
    with pytest.raises(ArgumentError, match="two takes 2 arguments, .* whose 1 items"):
        module.get_function("two")((1,), (1,), rows[:1])
    for value in (np.float32(1), 1, None, np.array(1, np.float32)):  # without a length in CuPy
        with pytest.raises(ArgumentError, match="must come as a tuple"):
            module.get_function("one")((1,), (1,), value)
    strict = RawModule(code, backend="simulator", strict=True)
    with pytest.raises(ArgumentError, match="must come as a tuple"):
        strict.get_function("one")((1,), (1,), (x))
