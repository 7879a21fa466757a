"""attention() and the layers on arrays of other libraries: the same memory, the caller's kind."""

import collections
import subprocess
import sys
import types

import ml_dtypes
import numpy as np
import pytest
from kernelscope.errors import BackendError, InputError, InputTypeError

from attn_course import (
    TransformerBlock,
    attention,
    attention_backward,
    bias_gelu,
    layer_norm,
    mlp,
    reference,
)
from attn_course.backward import BACKWARD
from attn_course.ladder import kept
from attn_devtools.agreement import assert_agrees

WITH_BIAS = ("w_q", "w_k", "w_v", "w_o", "w_1", "w_2")


class Foreign:
    """An array of a library that has DLPack and a namespace of the array API standard."""

    def __init__(self, array):
        self.array, self.dtype = array, array.dtype

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array_namespace__(self):
        return types.SimpleNamespace(
            from_dlpack=lambda array: Foreign(np.from_dlpack(array)), bfloat16=ml_dtypes.bfloat16
        )

    def __array__(self, dtype=None, copy=None):
        assert not copy
        return self.array

    def view(self, dtype):
        return Foreign(self.array.view(dtype))


class Unshared(Foreign):
    def __dlpack__(self, **how):
        raise BufferError("not to be shared")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def qkv(dtype=np.float32):
    shapes = (2, 4, 9, 24), (2, 2, 13, 24), (2, 2, 13, 24)
    return [normal(*shape, seed=i).astype(dtype) for i, shape in enumerate(shapes)]


@pytest.mark.turns(23)
@pytest.mark.system
def test_attention_returns_the_callers_kind(no_gpu):
    arrays = qkv()
    expected = attention(*arrays, method="auto", return_lse=True)
    for dtype in (np.float32, ml_dtypes.bfloat16):
        given = [Foreign(array.astype(dtype)) for array in arrays]
        out, lse = attention(*given, method="auto", return_lse=True)
        assert type(out) is type(lse) is Foreign and out.dtype == dtype
        wide = out.array.astype(np.float32)
        relative = 1e-6 if dtype is np.float32 else 2e-2
        assert_agrees(wide, expected[0], relative=relative, name="out")
    written = Foreign(np.zeros_like(arrays[0]))
    assert attention(*map(Foreign, arrays), method="auto", out=written) is written
    assert_agrees(written.array, expected[0], name="written")


@pytest.mark.turns(11)
@pytest.mark.system
def test_a_plan_shares_the_memory_of_the_callers_arrays(no_gpu):
    arrays = qkv()
    plan = attention.plan(*map(Foreign, arrays), method="flash_fp32", return_lse=True)
    arrays[0][:] = normal(2, 4, 9, 24, seed=7)
    out = plan()
    assert out is plan.out and type(plan.lse) is Foreign
    assert_agrees(out.array, attention(*arrays, method="flash_fp32"), name="plan")
    x = normal(3, 40)
    prepared = layer_norm.plan(Foreign(x), eps=1e-3)
    x[:] = normal(3, 40, seed=8)
    assert_agrees(prepared().array, reference.layer_norm(x, eps=1e-3), relative=2e-6, name="norm")


class Copied(Foreign):
    """As JAX's arrays: the library copies memory that it does not find aligned."""

    def __array_namespace__(self):
        return types.SimpleNamespace(from_dlpack=lambda array: Copied(np.array(array)))


def test_a_plan_has_the_results_of_each_run_where_the_library_copies(no_gpu):
    arrays = qkv()
    plan = attention.plan(*map(Copied, arrays), method="flash_fp32", return_lse=True)
    for seed in (7, 8):
        arrays[0][:] = normal(2, 4, 9, 24, seed=seed)
        out, (expected, lse) = plan(), attention(*arrays, method="flash_fp32", return_lse=True)
        assert out is plan.out
        np.testing.assert_array_equal(out.array, expected)
        np.testing.assert_array_equal(plan.lse.array, lse)


@pytest.mark.turns(23)
@pytest.mark.system
def test_layers_and_blocks_return_the_callers_kind(no_gpu):
    x, w = normal(5, 24), {name: normal(24, 24, seed=i) / 5 for i, name in enumerate(WITH_BIAS)}
    gamma = normal(24, seed=9)
    pairs = (
        (layer_norm, (x, gamma)),
        (bias_gelu, (x, gamma)),
        (mlp, (x, w["w_1"], None, w["w_2"], gamma)),
        (TransformerBlock(w, 4), (x[None],)),
        (TransformerBlock(w, 4).plan, (x[None],)),
    )
    for function, given in pairs:
        found, expected = (
            function(*some) for some in ([a if a is None else Foreign(a) for a in given], given)
        )
        if hasattr(found, "run"):
            found, expected = found(), expected()
        assert type(found) is Foreign
        np.testing.assert_array_equal(found.array, expected)
    by_name = layer_norm(eps=1e-3, x=Foreign(x))  # in any order
    np.testing.assert_array_equal(by_name.array, layer_norm(x, eps=1e-3))
    q, k, v = map(Foreign, qkv())
    assert type(attention.plan(method="flash_fp32", k=k, v=v, q=q)()) is Foreign
    y, total = layer_norm(Foreign(x), residual=Foreign(x), return_sum=True)
    assert type(y) is Foreign
    np.testing.assert_array_equal(total.array, 2 * x)


def test_a_backend_that_the_arrays_are_not_on_is_refused(no_gpu):
    arrays = [Foreign(array) for array in qkv()]
    with pytest.raises(InputError, match="backend is 'gpu', and the arrays are in .* the CPU"):
        attention(*arrays, backend="gpu")
    with pytest.raises(InputError, match="backend is 'gpu'"):
        layer_norm(arrays[0], backend="gpu")
    with pytest.raises(InputTypeError, match="NumPy cannot share this array's memory"):
        attention(arrays[0], Unshared(qkv()[1]), arrays[2])


def test_arrays_of_a_gpu_need_cupy(no_gpu, monkeypatch):
    monkeypatch.setattr("kernelscope.backend.gpu_count", lambda: 0)
    monkeypatch.setattr(Foreign, "__dlpack_device__", lambda self: (2, 0))
    for function, given in ((attention, qkv()), (layer_norm, [normal(3, 8)])):
        with pytest.raises(BackendError, match="in the memory of a GPU, and CuPy.* sees none"):
            function(*map(Foreign, given))


# -- PyTorch's tensors on a GPU, of which there is none --------------------------------------------
class Tensor:
    """What attention() uses of a PyTorch tensor in the memory of a GPU."""

    device = collections.namedtuple("Device", "type index")("cuda", 0)
    is_cuda, requires_grad = True, False
    detach = __dlpack__ = None

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, str(array.dtype)

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def data_ptr(self):
        return self.array.data.ptr


@pytest.fixture
def tensors(gpu, monkeypatch, request):
    """A library of Tensors that gives the streams it hands out; returns a maker of them.

    Its parameter: whether the library also gives a stream's address without an object of it.
    """
    from kernelscope.module import interop

    entered, objects = [], []

    class Stream:
        def __init__(self, pointer):
            self.pointer = pointer

        def __enter__(self):
            entered.append(self.pointer)

        def __exit__(self, *_):
            pass

    torch = types.ModuleType("a_torch")

    def current_stream(index):
        objects.append(types.SimpleNamespace(cuda_stream=torch.stream))
        return objects[-1]

    torch.cuda = types.SimpleNamespace(current_stream=current_stream)
    torch.stream = 77
    if getattr(request, "param", False):
        raw = {Tensor.device.index: lambda: torch.stream}
        torch._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda index: raw[index]())
    torch.empty_like = lambda tensor: Tensor(gpu.array(tensor.shape, tensor.array.dtype))
    torch.empty = lambda shape, dtype, device: Tensor(gpu.array(shape))
    torch.float32 = np.float32
    torch.from_dlpack = Tensor
    torch.is_grad_enabled = lambda: True
    monkeypatch.setitem(sys.modules, "a_torch", torch)
    monkeypatch.setattr(Tensor, "__module__", "a_torch")
    monkeypatch.setattr(interop, "_of_tensor", lambda torch, tensor, on_gpu: tensor.array)
    monkeypatch.setattr(Tensor, "detach", lambda self: self)
    monkeypatch.setattr(interop, "stream_at", Stream)
    interop.tensor_library.cache_clear()
    kept._cached.clear()
    yield types.SimpleNamespace(
        make=lambda *shape: Tensor(gpu.array(shape)),
        entered=entered,
        objects=objects,
        torch=torch,
        log=gpu.log,
    )
    kept._cached.clear()
    interop.tensor_library.cache_clear()


@pytest.mark.parametrize("tensors", [False, True], indirect=True)
def test_a_warm_call_launches_on_the_addresses_of_tensors(tensors):
    shape = 1, 2, 64, 64
    for stream in (77, 77, 78):
        tensors.torch.stream = stream
        q, k, v, bias = *(tensors.make(*shape) for _ in "qkv"), tensors.make(64, 64)
        out, lse = attention(q, k, v, method="flash_fp32", bias=bias, return_lse=True)
        launched = tensors.log[-1].args
        given = [one if isinstance(one, int) else one.data.ptr for one in launched[:6]]
        assert given == [one.data_ptr() for one in (q, k, v, bias, out, lse)]
    assert tensors.entered == [77]  # for the checks
    assert len(tensors.objects) == (0 if hasattr(tensors.torch, "_C") else 4)
    assert [one.stream for one in tensors.log] == [None, 77, 78]
    assert all(isinstance(one, int) for one in launched[:6])  # no array was made
    written = tensors.make(*shape)
    assert attention(q, k, v, method="flash_fp32", out=written) is written


def test_a_warm_backward_pass_launches_on_the_addresses_of_tensors(tensors):
    shape, inputs = (1, 2, 64, 64), ("q", "dout", "k", "v", "lse", "dq")
    for _ in range(3):
        given = {name: tensors.make(*shape) for name in ("q", "k", "v", "out", "dout")}
        given["lse"] = tensors.make(*shape[:3])
        given["dq"], dk, dv = attention_backward(**given)
        rows, keys = tensors.log[-2].args, tensors.log[-1].args
        names = BACKWARD[1].arguments
        for name in inputs:
            one = rows[names.index(name)]
            assert (one if isinstance(one, int) else one.data.ptr) == given.pop(name).data_ptr()
        written = [one if isinstance(one, int) else one.data.ptr for one in keys[7:9]]
        assert written == [dk.data_ptr(), dv.data_ptr()]
    assert all(isinstance(one, int) for one in (rows[0], *keys[7:9]))  # no array was made
    q = tensors.make(*shape)
    q.requires_grad = True
    with pytest.raises(InputTypeError, match="q requires grad"):
        attention_backward(q, q, q, q, tensors.make(*shape[:3]), q)


@pytest.mark.parametrize("of_pytorch", [False, True])
@pytest.mark.parametrize(
    ("function", "logger"),
    [(attention, "attn_course.ladder.attention"), (attention_backward, "attn_course.backward")],
)
def test_a_warm_call_says_what_auto_picks(function, logger, of_pytorch, tensors, caplog):
    """By the same logger as the first call."""
    given = {name: tensors.make(1, 2, 64, 64) for name in ("q", "k", "v", "out", "dout")}
    given["lse"] = tensors.make(1, 2, 64)
    if function is attention:
        given = {name: given[name] for name in "qkv"}
    if not of_pytorch:
        given = {name: one.array for name, one in given.items()}
    with caplog.at_level("INFO", "attn_course"):
        for _ in range(2):
            function(**given, method="auto")
            assert kept._cached
    first, second = ((one.name, one.getMessage()) for one in caplog.records)
    assert first == second and first[0] == logger and first[1].startswith("auto picks ")


def test_a_tensor_that_requires_grad_is_refused_warm_or_cold(tensors):
    q, k = tensors.make(1, 2, 64, 64), tensors.make(1, 2, 64, 64)
    attention(q, k, k, method="flash_fp32")
    q.requires_grad = True
    with pytest.raises(InputTypeError, match=r"q requires grad.*pass q\.detach\(\)"):
        attention(q, k, k, method="flash_fp32")
    tensors.torch.is_grad_enabled = lambda: False
    attention(q, k, k, method="flash_fp32")
    with pytest.raises(InputError, match="backend is 'simulator', and the arrays are .* the GPU"):
        attention(q, k, k, backend="simulator")


# -- PyTorch itself --------------------------------------------------------------------------------
def test_nothing_imports_pytorch():
    program = "import sys, attn_course; attn_course.attention; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_tensors_of_pytorch(no_gpu):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        q, k, v = (torch.from_numpy(array).to(dtype) for array in qkv())
        out = attention(q, k, v, method="auto")
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(one.double() for one in (q, k, v)), enable_gqa=True
        )
        assert out.dtype == dtype and out.device == q.device
        error = (out.double() - expected).norm() / expected.norm()
        assert error < {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    with pytest.raises(InputError, match=r"q is not contiguous: pass q\.contiguous\(\)"):
        attention(q.transpose(1, 2), k, v)
    with pytest.raises(InputTypeError, match=r"k requires grad.*k\.detach\(\)"):
        attention(q, k.requires_grad_(), v)
    with torch.no_grad():
        attention(q, k, v, method="auto")
