"""Every wrong call is refused before anything runs, and the message names the way out."""

import re
import types
import warnings

import numpy as np
import pytest
from kernelscope.backend import BackendError
from kernelscope.compile import CompileError
from kernelscope.events import Observer, observe
from kernelscope.module import (
    ArgumentError,
    ArgumentWarning,
    KernelNotFoundError,
    LaunchError,
    RawModule,
)
from kernelscope.module.arguments import bind
from kernelscope.module.kernel import GpuKernel
from kernelscope.module.limits import Limits, check_geometry, check_shared, simulated_limits
from kernelscope.module.signature import Entry

CODE = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
struct Pair { int a; float b; };
extern "C" __global__ void k(const float* x, float* y, int n, float f, double d, unsigned u,
                             long long l, bool b) {
  extern __shared__ float tile[];
  tile[threadIdx.x] = x[threadIdx.x] * f * d * n * u * l * b;
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x];
}
extern "C" __global__ void halves(__half* h, __nv_bfloat16* b, __half v, Pair p) {
  h[0] = v; b[0] = __float2bfloat16(p.b * p.a);
}
extern "C" __global__ void kinds(unsigned* u, float4* v, const void* any, char* c, float2* z) {
  u[0] = 1; v[0].x = 2; c[0] = 3; z[0].y = *(const float*)any;
}
extern "C" __global__ void __launch_bounds__(128) bounded(float* x) { x[threadIdx.x] = 1; }
extern "C" __global__ void tiled(float* x) {
  __shared__ float tile[2048];
  tile[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = tile[threadIdx.x ^ 1];
}
extern "C" __global__ void none() {}
__global__ void mangled(float* x) { x[0] = 1; }
template <typename T> __global__ void templated(T* x) { x[0] = 1; }
"""


@pytest.fixture(scope="module")
def module():
    return RawModule(CODE, backend="simulator", strict=True)


@pytest.fixture
def arguments():
    """Right arguments for `k` by parameter name, in order."""
    arrays = {"x": np.ones(32, np.float32), "y": np.zeros(32, np.float32)}
    return arrays | {"n": 1, "f": np.float32(1), "d": 1.0, "u": 1, "l": 1, "b": True}


def refused(kernel, values, **launch) -> str:
    with pytest.raises(ArgumentError) as caught:
        kernel(launch.get("grid", (1,)), launch.get("block", (32,)), tuple(values))
    message = str(caught.value)
    assert message.startswith(kernel.name)
    return message


def test_the_right_call_is_not_refused(module, arguments):
    module.get_function("k")((1,), (32,), tuple(arguments.values()), shared_mem=128)
    np.testing.assert_array_equal(arguments["y"], arguments["x"])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("x", np.ones(32), ["argument 1 (const float* x)", "holds float64", ".astype(np.float32)"]),
        ("x", np.ones(32, np.int32), ["int32", "float32"]),
        ("x", np.ones(32, ">f4"), [">f4", "float32"]),
        (
            "x",
            np.ones((8, 8), np.float32)[:, ::2],
            ["not contiguous", "(8, 4)", "(32, 8)", "np.ascontiguousarray"],
        ),
        ("x", np.ones((4, 8), np.float32).T, ["not contiguous"]),
        ("x", [1.0, 2.0], ["got a list", "np.array"]),
        ("x", 3, ["got int 3", "takes an array"]),
        ("x", np.float32(3), ["takes an array"]),
        ("y", "text", ["str", "takes an array"]),
        ("n", 2**31, ["2147483648 does not fit", "-2147483648 to 2147483647"]),
        ("n", 1.0, ["got 1.0", "is an integer", "np.int32(x)"]),
        ("n", np.int64(1), ["int64 (8 bytes)", "reads 4", "np.int32(x)"]),
        ("n", np.float32(1), ["is an integer"]),
        ("n", np.ones(3, np.int32), ["array of shape (3,)", "single value"]),
        ("n", np.array(3), ["single value"]),
        ("n", None, ["NoneType"]),
        ("n", "3", ["str", "integer of 4 bytes"]),
        ("f", 1.0, ["Python float 1.0", "8 bytes", "reads 4", "np.float32(x)"]),
        ("f", np.float64(1), ["float64", "np.float32(x)"]),
        ("f", 1, ["integer 1", "np.float32(x)"]),
        ("f", np.int32(1), ["int32", "np.float32(x)"]),
        ("d", np.float32(1), ["float32", "np.float64(x)"]),
        ("d", 1, ["integer 1", "np.float64(x)"]),
        ("u", -1, ["-1 does not fit", "0 to 4294967295"]),
        ("u", np.int32(-1), ["-1 does not fit"]),
        ("l", 2**63, ["does not fit"]),
        ("l", np.int32(3), ["int32 (4 bytes)", "reads 8"]),
        ("b", 2, ["0 to 1"]),
    ],
)
def test_a_wrong_argument_is_named(module, arguments, name, value, words):
    arguments[name] = value
    message = refused(module.get_function("k"), arguments.values())
    position = list(arguments).index(name) + 1
    assert message.startswith(f"k, argument {position} (")
    for word in words:
        assert word in message
    assert name == "y" or (arguments["y"] == 0).all()


FITTING = {
    "n": [np.int32(2), -(2**31), True, np.uint32(7)],
    "d": [np.float64(1)],
    "u": [2**32 - 1],
    "l": [-(2**63), np.int64(4)],
    "b": [np.bool_(True), 0],
    "x": [None, *(np.ones(shape, np.float32) for shape in ((4, 8), 0)), np.ones((8, 8), "f4")[2:4]],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in FITTING.items() for value in values]
)
def test_a_fitting_argument_is_accepted(module, arguments, name, value):
    arguments[name] = value
    entry = module.get_function("k").entry
    bound = bind("k", entry, tuple(arguments.values()), "simulator")
    got = bound[list(arguments).index(name)]
    assert got is value or int(got) == int(value)


# -- CuPy's own rules, where the checks are not strict ------------------------------------------

LOW_HALF_OF_A_THIRD = np.array([1 / 3]).view(np.float32)[0]


@pytest.mark.parametrize(
    ("name", "value", "read", "words"),
    [
        ("n", np.int64(-7), -7, None),
        ("n", np.array(9, np.int32), 9, None),
        ("n", 2**31, -(2**31), "does not fit"),
        ("n", np.int64(2**32 + 5), 5, "does not fit"),
        ("n", 1.5, 0, r"argument 3 \(int n\): got 1.5; .* first 4 of its 8 bytes: 0"),
        ("n", np.float32(1), 0x3F800000, "is an integer.* the same 4 bytes"),
        ("f", 1 / 3, LOW_HALF_OF_A_THIRD, r"Python float .* first 4 of its 8 .*np.float32\(x\)"),
        ("f", np.float64(1 / 3), LOW_HALF_OF_A_THIRD, "float64; the kernel reads float32"),
        ("f", 0x3F800000, 1.0, "its bits are no floating-point number"),
        ("d", 1, 5e-324, "the same 8 bytes: 5e-324"),
        ("d", np.float32(1), np.array(0x3F800000).view(float), "8 bytes where 4 are passed"),
        ("u", -1, 2**32 - 1, "-1 does not fit"),
        ("u", np.int32(-1), 2**32 - 1, None),
        ("l", np.int32(-3), -3, None),
        ("l", np.uint64(2**64 - 1), -1, None),
        ("b", 2, 2, "0 to 1"),
    ],
)
def test_without_strict_checks_a_number_is_read_as_cupy_passes_it(
    module, arguments, name, value, read, words
):
    arguments[name] = value
    position = list(arguments).index(name)
    entry = module.get_function("k").entry
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        bound = bind("k", entry, tuple(arguments.values()), "simulator", strict=False)[position]
    assert bound == read and bound.itemsize == entry.parameters[position].size
    messages = [str(each.message) for each in warned]
    assert len(messages) == (words is not None)
    assert words is None or re.search(words, messages[0])


@pytest.mark.parametrize("value", [2**63, "3", None, [1], np.ones(3, np.int32)])
def test_what_cupy_cannot_pass_is_refused_without_strict_checks_too(module, arguments, value):
    arguments["l"] = value
    with pytest.raises(ArgumentError, match=r"k, argument 7 \(long long l\)"):
        bind("k", module.get_function("k").entry, tuple(arguments.values()), "simulator", False)


VIEWS = """u int32 uint32 uint64?|v float32 complex64 int32? float64?|c uint8 bool int8 int16?
|z complex64 float32 V8 >f4?|any float64 complex128"""


@pytest.mark.parametrize("row", "".join(VIEWS.split("\n")).split("|"))
def test_without_strict_checks_an_array_is_read_as_the_memory_it_is(module, row):
    """`u int32 uint64?`: parameter u takes int32, and uint64 with a warning."""
    kernel = module.get_function("kinds")
    names = [parameter.name for parameter in kernel.entry.parameters]
    name, *dtypes = row.split()
    for dtype in dtypes:
        values = [None] * len(names)
        values[names.index(name)] = array = np.zeros(4, dtype.rstrip("?"))
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            bound = bind("kinds", kernel.entry, values, "simulator", strict=False)
        assert bound[names.index(name)] is array
        assert len(warned) == dtype.endswith("?"), dtype
        assert not warned or "the same bytes as its own type" in str(warned[0].message)


def test_without_strict_checks_halves_are_their_bits_and_structs_their_bytes(module):
    entry = module.get_function("halves").entry
    pair = np.array([(3, 0.5)], [("a", "i4"), ("b", "f4")])
    good = [np.zeros(4, np.uint16), np.zeros(4, np.int16), np.uint16(0x3C00), pair[0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bound = bind("halves", entry, good, "simulator", strict=False)
    assert bound[0] is good[0] and bound[1] is good[1]
    assert bound[2].tobytes() == b"\0\x3c" and bound[3].tobytes() == pair.tobytes()
    with pytest.warns(ArgumentWarning, match=r"8 bytes .*parameter 2.* first 2.*np.float16\(x\)"):
        bound = bind("halves", entry, [*good[:2], 1 / 3, pair], "simulator", strict=False)
    assert bound[2].tobytes() == np.float64(1 / 3).tobytes()[:2]
    with pytest.raises(ArgumentError, match="4 bytes.* the parameter 8"):
        bind("halves", entry, [*good[:3], np.int32(1)], "simulator", strict=False)


def test_without_strict_checks_an_integer_is_an_address(module):
    entry = module.get_function("bounded").entry
    for value in (0, np.uint64(2**63), np.intp(4096)):
        (bound,) = bind("bounded", entry, (value,), "simulator", strict=False)
        assert bound == value and bound.dtype == np.uint64
    x = np.zeros(4, np.float32)
    (bound,) = bind("bounded", entry, (x.data,), "simulator", strict=False)
    assert np.shares_memory(bound, x) and bound.dtype == np.float32
    for value in (-8, 2**64, True, 1.0, "x"):
        with pytest.raises(ArgumentError, match=r"bounded, argument 1 \(float\* x\)"):
            bind("bounded", entry, (value,), "simulator", strict=False)


def test_a_wrong_number_of_arguments_lists_the_parameters(module, arguments):
    kernel = module.get_function("k")
    message = refused(kernel, list(arguments.values())[:-1])
    assert message.startswith("k takes 8 arguments, got 7. Its parameters: const float* x, float* ")
    assert "takes 0 arguments, got 1. Its parameters: none" in refused(
        module.get_function("none"), (1,)
    )
    assert "takes 1 argument, got 0" in refused(module.get_function("bounded"), ())


def test_arguments_must_be_a_tuple(module, arguments):
    with pytest.raises(ArgumentError, match=r"write \(x,\)"):
        module.get_function("bounded")((1,), (32,), arguments["x"])


def test_a_read_only_array_may_only_be_read(module, arguments):
    kernel = module.get_function("k")
    arguments["x"].flags.writeable = False
    kernel((1,), (32,), tuple(arguments.values()), shared_mem=128)
    arguments["y"].flags.writeable = False
    assert "read-only" in refused(kernel, arguments.values())


def test_halves_and_structs(module):
    kernel = module.get_function("halves")
    pair = np.zeros((), [("a", "i4"), ("b", "f4")])
    good = [np.zeros(4, np.float16), np.zeros(4, np.uint16), np.float16(1), pair]
    kernel((1,), (1,), tuple(good))
    for position, value, word in [
        (0, np.zeros(4, np.float32), ".astype(np.float16)"),
        (0, np.zeros(4, np.uint16), ".astype(np.float16)"),
        (1, np.zeros(4, np.float32), "ml_dtypes.bfloat16"),
        (1, np.zeros(4, np.float16), "raw bits as np.uint16"),
        (2, np.float32(1), "4 bytes"),
        (2, 1.0, "np.float16(x)"),
        (2, np.int16(1), "np.float16(x)"),
        (3, np.zeros((), "f4"), "4 bytes"),
        (3, 5, "8 bytes"),
        (3, b"abc", "3 bytes"),
    ]:
        bad = list(good)
        bad[position] = value
        assert word in refused(kernel, bad, block=(1,))


def test_vectors_and_untyped_pointers(module):
    kernel = module.get_function("kinds")
    good = [np.zeros(4, np.uint32), np.zeros(8, np.float32), np.ones(1)]
    good += [np.zeros(4, np.int8), np.zeros(4, np.complex64)]
    kernel((1,), (1,), tuple(good))
    assert good[0][0] == 1 and good[1][0] == 2 and good[3][0] == 3
    good[2] = np.ones(3, np.int16)  # any dtype for void*
    good[3] = np.zeros(4, np.uint8)
    bind("kinds", kernel.entry, good, "simulator")
    good[0] = np.zeros(4, np.int32)
    message = refused(kernel, good, block=(1,))
    assert ".astype(np.uint32), or .view(np.uint32)" in message


class OnDevice:
    """Stands for an array in GPU memory."""

    __cuda_array_interface__ = {"version": 3}
    shape, dtype = (32,), np.dtype(np.float32)
    flags = types.SimpleNamespace(c_contiguous=True)


def test_memory_of_the_wrong_machine(module, arguments):
    arguments["x"] = OnDevice()
    assert "cupy.asnumpy" in refused(module.get_function("k"), arguments.values())
    entry = module.get_function("bounded").entry
    with pytest.raises(ArgumentError, match=r"NumPy array.*cupy.asarray"):
        bind("bounded", entry, (np.ones(4, np.float32),), "gpu")
    with pytest.raises(ArgumentError, match=r"cupy.asarray.*OnDevice"):
        bind("bounded", entry, (OnDevice(),), "gpu")


def test_on_a_gpu_values_go_out_with_the_parameters_own_size(module, arguments):
    device = type("ndarray", (OnDevice,), {"__module__": "cupy"})()
    arguments |= {"x": device, "y": device, "u": 2**32 - 1, "n": -3}
    bound = bind("k", module.get_function("k").entry, tuple(arguments.values()), "gpu")
    assert bound[0] is device
    dtypes = "int32 float32 float64 uint32 int64 uint8".split()
    assert [value.dtype.name for value in bound[2:]] == dtypes
    assert bound[2] == -3 and bound[5] == 2**32 - 1


# -- launches -------------------------------------------------------------------------------------


def launch_error(kernel, grid, block, values, **keywords) -> str:
    with pytest.raises(LaunchError) as caught:
        kernel(grid, block, values, **keywords)
    assert caught.value.kind == "bad-launch"
    message = str(caught.value)
    assert message.startswith(f"{kernel.name}: ")
    return message


@pytest.mark.parametrize(
    ("grid", "block", "words"),
    [
        ((0,), (32,), ["grid (0,)", "at least 1"]),
        ((1,), (32, -1), ["block (32, -1)", "at least 1"]),
        ((1, 1, 1, 1), (32,), ["grid", "one to three"]),
        ((), (32,), ["grid is ()"]),
        ((1,), 32, ["block is 32", "(32,)"]),
        ([1], (32,), ["grid is [1]", "tuple"]),
        ((2.0,), (32,), ["2.0", "//"]),
        (("1",), (32,), ["'1'"]),
        ((1,), (2048,), ["2048 in x", "more blocks, e.g. grid ((n + 255) // 256,), block (256,)"]),
        ((1,), (32, 32, 2), ["2048 threads", "at most 1024"]),
        ((1,), (1025,), ["1025"]),
        ((1,), (1, 1, 65), ["65 in z", "at most 64"]),
        ((1, 65536), (32,), ["65536 in y", "65535"]),
        ((1, 1, 65536), (32,), ["65536 in z"]),
        ((2**31,), (32,), ["in x"]),
    ],
)
def test_a_wrong_geometry_is_named(module, grid, block, words):
    x = np.zeros(32, np.float32)
    message = launch_error(module.get_function("tiled"), grid, block, (x,))
    for word in words:
        assert word in message
    assert (x == 0).all()


def test_numpy_integers_are_sizes_too():
    limits = simulated_limits("compute_80")
    assert check_geometry("k", (np.int64(3), 2), (np.int32(8),), limits) == ((3, 2, 1), (8, 1, 1))


def test_launch_bounds_are_kept(module):
    x = np.zeros(256, np.float32)
    kernel = module.get_function("bounded")
    kernel((1,), (128,), (x,))
    assert x.sum() == 128
    message = launch_error(kernel, (1,), (16, 16), (x,))
    assert "256 threads" in message and "at most 128" in message and "__launch_bounds__" in message


def test_a_required_block_is_kept():
    with pytest.raises(LaunchError, match=r"block is \(64, 1, 1\).*\(32, 2, 1\)"):
        check_geometry("k", (1,), (64,), simulated_limits("compute_90"), None, (32, 2, 1))


def test_shared_memory_beyond_48_kilobytes_must_be_asked_for(module, arguments):
    kernel = RawModule(CODE, backend="simulator").get_function("k")
    values = tuple(arguments.values())
    message = launch_error(kernel, (1,), (32,), values, shared_mem=49153)
    assert "kernel.max_dynamic_shared_size_bytes = 49153" in message
    kernel.max_dynamic_shared_size_bytes = 49153
    kernel((1,), (32,), values, shared_mem=49153)
    assert "163 KB" in launch_error(kernel, (1,), (32,), values, shared_mem=163 * 1024 + 1)
    with pytest.raises(LaunchError, match="163 KB.*smaller tiles"):
        kernel.max_dynamic_shared_size_bytes = 163 * 1024 + 1
    for wrong in (-1, 1.5, True):
        with pytest.raises(LaunchError, match="number of bytes"):
            kernel.max_dynamic_shared_size_bytes = wrong


def test_static_and_dynamic_shared_memory_add_up(module):
    kernel = module.get_function("tiled")
    assert kernel.shared_size_bytes == 8192
    x = np.zeros(32, np.float32)
    message = launch_error(kernel, (1,), (32,), (x,), shared_mem=48 * 1024 - 8191)
    assert "40961 bytes (dynamic) + 8192 bytes (static)" in message
    kernel((1,), (32,), (x,), shared_mem=48 * 1024 - 8192)
    for wrong in (-4, 1.5):
        assert "number of bytes" in launch_error(kernel, (1,), (32,), (x,), shared_mem=wrong)


KILOBYTES = "61 48, 70 96, 75 64, 80 163, 86 99, 88 163, 89 99, 90 227, 90a 227, 103 227, 120 99"


@pytest.mark.parametrize(("arch", "kilobytes"), [pair.split() for pair in KILOBYTES.split(", ")])
def test_the_limit_is_the_architectures(arch, kilobytes):
    limits = simulated_limits(f"compute_{arch}")
    size = int(kilobytes) * 1024
    assert check_shared("k", size, 0, size, limits) == size
    with pytest.raises(LaunchError, match=f"{kilobytes} KB"):
        check_shared("k", size + 1, 0, 10**9, limits)


def test_too_much_static_shared_memory_does_not_compile():
    code = (
        'extern "C" __global__ void k(float* x) { __shared__ float t[12289]; '
        "t[threadIdx.x] = x[0]; __syncthreads(); x[1] = t[threadIdx.x ^ 1]; }"
    )
    with pytest.raises(CompileError, match="49156 bytes.*48 KB.*extern __shared__"):
        RawModule(code, backend="simulator").get_function("k")


# -- names ----------------------------------------------------------------------------------------


def test_an_unknown_kernel_lists_the_known(module):
    words = r"no kernel 'kk' \(did you mean 'k'\?\); it has: k, halves, kinds"
    with pytest.raises(KernelNotFoundError, match=words):
        module.get_function("kk")


def test_a_mangled_name_is_explained(module):
    with pytest.raises(KernelNotFoundError, match='write extern "C" __global__ void mangled'):
        module.get_function("mangled")
    with pytest.raises(KernelNotFoundError, match=r"name_expressions=\('templated<float>',\)"):
        module.get_function("templated")
    with pytest.raises(KernelNotFoundError, match=r"name_expressions=\('templated<int>',\)"):
        module.get_function("templated<int>")


def test_a_compiler_error_shows_the_files_own_line(tmp_path):
    path = tmp_path / "broken.cu"
    path.write_text('extern "C" __global__ void k(float* x) {\n  x[0] = y;\n}\n')
    with pytest.raises(CompileError, match=r'broken.cu:2: error: identifier "y" is undefined'):
        RawModule(path=path, backend="simulator").get_function("k")


# -- the GPU's kernel, as far as it goes without one -----------------------------------------------


def test_observers_are_refused_on_a_gpu():
    kernel = GpuKernel(None, "k", Entry("k", ()), raw=None)
    with observe(Observer()), pytest.raises(BackendError, match='Observer.*backend="simulator"'):
        kernel((1,), (1,), ())


def test_a_gpu_kernel_hands_cupy_checked_values(module, monkeypatch):
    calls = []

    class Raw:
        max_threads_per_block, shared_size_bytes, max_dynamic_shared_size_bytes = 64, 0, 49152
        num_regs = 17

        def __call__(self, grid, block, args, **keywords):
            calls.append((grid, block, args, keywords))

    kernel = GpuKernel(module, "bounded", module.get_function("bounded").entry, Raw())
    monkeypatch.setattr(kernel, "_limits", lambda: Limits("a GPU", 99 * 1024))
    monkeypatch.setattr(kernel, "_constant", lambda name: getattr(kernel.raw, name))
    device = type("ndarray", (OnDevice,), {"__module__": "cupy"})()
    kernel((2,), (64,), (device,))
    kernel((2,), (64,), (device,), shared_mem=16, stream="s")
    assert calls == [
        ((2, 1, 1), (64, 1, 1), (device,), {"shared_mem": 0}),
        ((2, 1, 1), (64, 1, 1), (device,), {"shared_mem": 16, "stream": "s"}),
    ]
    assert kernel.num_regs == 17
    with pytest.raises(LaunchError, match="at most 64"):
        kernel((2,), (65,), (device,))
    with pytest.raises(LaunchError, match="99 KB"):
        kernel((2,), (64,), (device,), shared_mem=10**6)
    assert len(calls) == 2
