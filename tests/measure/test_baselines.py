"""PyTorch's side: what is said where it is missing, and how it is captured, with a stub of it."""

import contextlib
import sys
import types

import numpy as np
import pytest

from attn_course import reference
from attn_course.measure import candidates
from attn_course.measure.candidates import Baseline, BaselineRefuses, BaselinesMissing
from attn_course.reference.dtypes import DTYPES

BFLOAT16 = DTYPES["bfloat16"]
LOG = []


@contextlib.contextmanager
def logged(name):
    LOG.append(f"enter {name}")
    yield
    LOG.append(f"leave {name}")


class Tensor(np.ndarray):
    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)

    def fill_(self, value):
        self[...] = value

    def masked_fill(self, where, value):
        return np.where(where, value, self)

    def float(self):
        return self.astype(np.float32).view(Tensor)

    def repeat_interleave(self, count, axis):
        return np.repeat(self, count, axis)

    def view(self, kind):
        """As PyTorch: of another dtype; as NumPy: of another type."""
        return np.asarray(self).view(kind).view(Tensor) if kind is BFLOAT16 else super().view(kind)

    @property
    def device(self):
        return "cuda"


class Mask:
    def __init__(self, shape, dtype):
        self.values = np.ones(shape, dtype)

    def triu(self, diagonal):
        return np.triu(self.values, diagonal)


def stub(refuses=()):
    """Enough of PyTorch for a Baseline, on NumPy arrays; every backend computes the same."""
    state = types.SimpleNamespace(backend=None)

    @contextlib.contextmanager
    def sdpa_kernel(chosen):
        state.backend = chosen[0]
        yield

    def attend(q, k, v, is_causal, scale):
        if state.backend in refuses:
            raise RuntimeError("No available kernel. Aborting execution.")
        LOG.append(f"attend {state.backend}")
        weights = np.exp(q @ k.swapaxes(-1, -2) * scale)
        return (weights / weights.sum(-1, keepdims=True) @ v).view(Tensor)

    class Graph:
        def replay(self):
            LOG.append("replay")

    stream = types.SimpleNamespace(wait_stream=lambda other: LOG.append("wait stream"))
    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        synchronize=lambda: None,
        CUDAGraph=Graph,
        Stream=lambda: stream,
        current_stream=lambda: "main",
        stream=lambda chosen: logged("side" if chosen is stream else chosen),
        ExternalStream=lambda pointer: f"external {pointer}",
        graph=lambda graph, stream: logged("capture"),
    )
    backends = {name: name for name in candidates.BACKENDS.values()}
    attention = types.ModuleType("torch.nn.attention")
    attention.SDPBackend = types.SimpleNamespace(**backends)
    attention.sdpa_kernel = sdpa_kernel
    torch = types.ModuleType("torch")
    torch.cuda, torch.__version__ = cuda, "9.9.1+cu99"
    torch.version = types.SimpleNamespace(cuda="99.0")
    torch.backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(allow_tf32=True))
    torch.precision = "medium"
    torch.set_float32_matmul_precision = lambda value: setattr(torch, "precision", value)
    torch.no_grad = contextlib.nullcontext
    torch.from_dlpack = lambda array: array.view(Tensor)
    torch.bool, torch.bfloat16 = bool, BFLOAT16
    torch.ones = lambda shape, dtype, device: Mask(shape, dtype)
    torch.softmax = lambda x, dim: np.exp(x) / np.exp(x).sum(dim, keepdims=True)
    torch.nn = types.SimpleNamespace(
        functional=types.SimpleNamespace(scaled_dot_product_attention=attend)
    )
    return torch, attention


@pytest.fixture
def torch(monkeypatch):
    LOG.clear()
    candidates._external.cache_clear()
    module, attention = stub(refuses=("FLASH_ATTENTION",))
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setitem(sys.modules, "torch.nn.attention", attention)
    current = types.SimpleNamespace(ptr=17)
    cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(get_current_stream=lambda: current))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(candidates, "require_gpu", lambda: None)
    yield module
    candidates._external.cache_clear()


@pytest.fixture
def inputs():
    return np.random.default_rng(1).standard_normal((3, 1, 2, 5, 4)).astype(np.float32)


def test_missing_pytorch_is_named_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BaselinesMissing, match=r"attn-course\[peers\]"):
        candidates.torch_module()
    assert not candidates.available() and candidates.torch_version() == ""


def test_a_pytorch_without_a_gpu_is_no_peer(torch):
    torch.cuda.is_available = lambda: False
    with pytest.raises(BaselinesMissing, match="9.9.1.*sees no GPU"):
        candidates.torch_module()
    assert not candidates.available()


def test_float32_means_float32(torch):
    candidates.torch_module()
    assert torch.precision == "highest" and torch.backends.cudnn.allow_tf32 is False
    assert candidates.torch_version() == "9.9.1 (CUDA 99.0)"


def test_a_peer_is_captured_after_warming_up_and_replayed_on_our_stream(torch, inputs):
    baseline = Baseline("torch_efficient", *inputs)
    replay = baseline.capture(4)
    assert LOG == [
        "wait stream",
        "enter side",
        *["attend EFFICIENT_ATTENTION"] * 3,
        "leave side",
        "enter capture",
        *["attend EFFICIENT_ATTENTION"] * 4,
        "leave capture",
    ]
    assert replay.calls == 4 and replay.launch.keeps is baseline
    LOG.clear()
    replay.launch()
    assert LOG == ["enter external 17", "replay", "leave external 17"]
    assert baseline.output().shape == (1, 2, 5, 4) and np.isfinite(baseline.output()).all()
    baseline.poison()
    assert np.isnan(baseline.output()).all()


def test_bfloat16_goes_to_pytorch_and_back(torch, inputs):
    baseline = Baseline("torch_math", *(array.astype(BFLOAT16) for array in inputs))
    assert {tensor.dtype for tensor in baseline.inputs} == {BFLOAT16} and baseline.relative == 2**-8
    baseline.capture(1)
    assert baseline.output().dtype == np.float32
    expected = reference.attention(*(tensor.astype(np.float64) for tensor in baseline.inputs))
    np.testing.assert_allclose(baseline.output(), expected, rtol=0.1, atol=0.05)


def test_eager_applies_the_causal_mask(torch, inputs):
    out = Baseline("torch_eager", *inputs, causal=True).call()
    np.testing.assert_allclose(out, reference.attention(*inputs, causal=True), rtol=1e-5)


def test_eager_repeats_grouped_heads_and_may_round_in_16_bits(torch, inputs):
    q, kv = np.concatenate([inputs[0]] * 4, 1), inputs[1:]
    out = Baseline("torch_eager", q, *kv).call()
    repeated = [one.repeat(4, 1) for one in kv]
    np.testing.assert_allclose(out, reference.attention(q, *repeated), rtol=1e-5)
    halves = [array.astype(BFLOAT16) for array in inputs]
    assert Baseline("torch_eager", *halves).relative == 4 * Baseline("torch_math", *halves).relative


def test_a_call_is_compiled_as_one_graph_for_fixed_shapes(torch, inputs):
    asked = []

    def compile(call, **how):
        asked.append(how)
        return lambda: call() * 2

    torch.compile = compile
    plain = Baseline("torch_eager", *inputs).call()
    assert asked == []
    out = Baseline(candidates.sdpa, *inputs, mode="default").call()
    assert asked == [{"mode": "default", "fullgraph": True, "dynamic": False}]
    np.testing.assert_allclose(out, 2 * plain, rtol=1e-5)
    assert "attend None" in LOG  # PyTorch chooses the backend


def test_whatever_a_compiler_raises_is_a_refusal(torch, inputs):
    class OutOfResources(Exception):
        pass

    def compile(call, **how):
        def fails():
            raise OutOfResources("shared memory, Required: 278528, Hardware limit: 232448")

        return fails

    torch.compile = compile
    with pytest.raises(BaselineRefuses, match="shared memory, Required: 278528"):
        Baseline("torch_eager", *inputs, mode="default").try_call()


def test_a_refusal_is_its_own_error(torch, inputs):
    with pytest.raises(BaselineRefuses, match="No available kernel"):
        Baseline("torch_flash", *inputs).try_call()
    with pytest.raises(KeyError, match="torch_abacus.*torch_math"):
        Baseline("torch_abacus", *inputs)


def test_a_call_that_no_graph_takes_is_refused(torch, inputs):
    def capturing(graph, stream):
        raise RuntimeError("operation not permitted when stream is capturing")

    Baseline("torch_math", *inputs).try_call()
    torch.cuda.graph = capturing
    with pytest.raises(BaselineRefuses, match="no CUDA graph: operation not permitted"):
        Baseline("torch_math", *inputs).try_call()


def test_the_most_telling_warning_is_the_reason():
    said = [
        "Memory efficient kernel not used because: (Triggered internally at x.cpp:1)",
        "Expected query,\n  key and value to be Half. Got float (Triggered internally at y)",
    ]
    assert candidates.refusal("No available kernel", said) == (
        "Expected query, key and value to be Half. Got float"
    )
    assert candidates.refusal("No available kernel", said[:1]) == "No available kernel"
    assert len(candidates.refusal("x" * 999, [])) == 160
