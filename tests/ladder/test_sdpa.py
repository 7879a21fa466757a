"""attn_course.torch.sdpa against PyTorch's scaled_dot_product_attention, over its arguments."""

import warnings

import pytest
from kernelscope.backend import resolve_backend

torch = pytest.importorskip("torch")

from attn_course.torch import AttentionFunction, _warned, sdpa  # noqa: E402

TOLERANCES = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
DEVICE = "cuda" if resolve_backend() == "gpu" else "cpu"
theirs = torch.nn.functional.scaled_dot_product_attention


def normal(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def check(query, key, value, mask=None, **how):
    """Compare with PyTorch in float64; a fallback fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        _warned.clear()
        found = sdpa(query, key, value, mask, **how)
    wide = mask if mask is None or mask.dtype == torch.bool else mask.double()
    expected = theirs(query.double(), key.double(), value.double(), wide, **how)
    assert found.shape == expected.shape and found.dtype == query.dtype
    assert found.device == query.device and torch.isfinite(found).all()
    error = (found.double() - expected).norm() / expected.norm()
    assert error < TOLERANCES[query.dtype], error


Q, K, V = normal(2, 4, 9, 24), normal(2, 4, 13, 24, seed=1), normal(2, 4, 13, 24, seed=2)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_dtypes_scale_and_cross_attention(dtype):
    check(*(one.to(dtype) for one in (Q, K, V)))
    check(*(one.to(dtype) for one in (Q, K, V)), scale=0.3)


@pytest.mark.parametrize("m", [9, 13, 5])
def test_causal_is_aligned_at_the_top_left(m):
    check(Q, K[:, :, :m].contiguous(), V[:, :, :m].contiguous(), is_causal=True)


@pytest.mark.parametrize("shape", [(9, 13), (1, 13), (9, 1), (4, 9, 13), (2, 1, 1, 13)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_broadcast(shape, kind):
    mask = normal(*shape, seed=5)
    check(Q, K, V, mask > -0.5 if kind == "bool" else mask)


def test_rows_that_are_fully_masked():
    mask = normal(9, 13) > 0
    mask[2] = False
    check(Q, K, V, mask)
    assert (sdpa(Q, K, V, mask)[:, :, 2] == 0).all()
    least = torch.zeros(9, 13, device=DEVICE).masked_fill(~mask, torch.finfo(torch.float32).min)
    expected = theirs(Q, K, V, least)
    assert (sdpa(Q, K, V, least) - expected).abs().max() < 1e-5
    least.clamp_(min=torch.finfo(torch.bfloat16).min)
    halves = [one.bfloat16() for one in (Q, K, V, least)]
    assert (sdpa(*halves) - expected).abs().max() < 0.05


def test_numbers_of_axes_and_batches_that_broadcast():
    check(Q[0, 0], K[0, 0], V[0, 0])
    check(Q[0], K[0], V[0])
    check(Q[None, :, None], K[None, :, None], V[None, :, None])
    check(Q[:1], K, V)
    check(Q, K[:1], V[:1])
    check(Q, K[:, :1], V[:, :1])
    check(*(one[:, :, :9].transpose(1, 2) for one in (Q, K, V)))  # not contiguous
    check(Q[:1, None], K[None], V[None], normal(2, 1, 9, 13) > 0)
    check(Q[0, 0], K[:, :1], V[:, :1])  # the batch, and one head, are those of key
    check(Q[0, 0], K[0, :1], V[0, :1])


def test_grouped_heads():
    check(Q, K[:, :2], V[:, :2], enable_gqa=True)
    check(Q, K[:, :1], V[:, :1], enable_gqa=True)


def test_what_the_kernels_do_not_take_runs_in_pytorch_and_is_said_once():
    wide, halves = normal(1, 1, 4, 320), normal(1, 1, 4, 320, dtype=torch.bfloat16)
    cases = {
        "no dropout": ((Q, K, V), {"dropout_p": 1.0}),
        "float32, float16 and bfloat16": ((Q.double(), K.double(), V.double()), {}),
        "last two extents": ((Q, K, V[..., :7]), {}),
        "empty": ((Q[:, :, :0], K, V), {}),
        "head dim 320.*pass float32": ((halves,) * 3, {}),
    }
    _warned.clear()
    for reason, (tensors, how) in cases.items():
        with pytest.warns(UserWarning, match=reason):
            found = sdpa(*tensors, **how)
        torch.testing.assert_close(found, theirs(*tensors, **how), equal_nan=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sdpa(*tensors, **how)
    check(wide, wide, wide)
    grad = wide.clone().requires_grad_()
    short = K[:, :, :7].bfloat16()
    with pytest.warns(UserWarning, match="is_causal with n = 9, m = 7 is a mask, and no method"):
        sdpa(Q.bfloat16().requires_grad_(), short, short, is_causal=True)
    with pytest.warns(UserWarning, match=r"no method of attention_backward\(\) .* head dim 320"):
        sdpa(grad, wide, wide).sum().backward()
    assert grad.grad is not None
    with torch.no_grad():
        check(grad, wide, wide)


@pytest.mark.filterwarnings("ignore:sdpa runs:UserWarning")
def test_what_pytorch_refuses_is_refused_by_pytorch():
    fewer = Q, K[:, :3], V[:, :3]
    for tensors, mask in ((fewer, None), ((Q, K, V), normal(8, 13)), ((Q, K, V), normal(13))):
        try:
            expected = theirs(*tensors, mask)
        except (RuntimeError, IndexError) as error:
            with pytest.raises(type(error)):
                sdpa(*tensors, mask)
        else:  # on a GPU PyTorch takes a mask of one axis
            assert torch.allclose(sdpa(*tensors, mask), expected, atol=1e-5)


def check_gradients(query, key, value, mask=None, **how):
    """Compare the gradients of all float tensors with PyTorch's in float64; a fallback fails."""
    given = [one for one in (query, key, value, mask) if one is not None]
    pairs = [(one.clone(), one if one.dtype == torch.bool else one.double()) for one in given]
    for pair in pairs:
        for one in pair:
            one.requires_grad_(one.dtype != torch.bool)
    ours, wide = zip(*pairs, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        _warned.clear()
        found = sdpa(*ours, **how)
    weights = normal(*found.shape, seed=9)
    (found * weights).sum().backward()
    (theirs(*wide, **how) * weights.double()).sum().backward()
    for one, expected in pairs:
        if one.dtype != torch.bool:
            assert one.grad.shape == one.shape
            error = (one.grad.double() - expected.grad).norm() / expected.grad.norm()
            assert error < 1e-6, error


@pytest.mark.parametrize("m", [9, 13])
@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients(is_causal, m):
    check_gradients(Q, K[:, :, :m], V[:, :, :m], is_causal=is_causal, scale=0.3)


@pytest.mark.parametrize("shape", [(9, 13), (4, 1, 13), (1, 1, 9, 13), (2, 4, 9, 13)], ids=str)
def test_gradients_of_masks_that_broadcast(shape):
    mask = normal(*shape, seed=5)
    check_gradients(Q, K, V, mask)
    check_gradients(Q, K, V, mask > -0.5)


def test_gradients_of_other_forms():
    check_gradients(Q, K[:, :2], V[:, :2], enable_gqa=True)
    check_gradients(Q[:1], K, V)
    check_gradients(Q[0, 0], K[0, 0], V[0, 0])
    check_gradients(Q[None, :, None], K[None, :, None], V[None, :, None])
    check_gradients(*(one[:, :, :9].transpose(1, 2) for one in (Q, K, V)))  # not contiguous


def test_only_the_gradients_that_are_asked_for_are_there():
    key = K.clone().requires_grad_()
    sdpa(Q, key, V).sum().backward()
    assert key.grad is not None and Q.grad is None
    (slope,) = torch.autograd.grad((sdpa(Q, key, V) * key.sum()).sum(), key, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        slope.sum().backward()


@pytest.mark.filterwarnings("ignore:Input #:UserWarning")  # gradcheck would like float64
@pytest.mark.parametrize(("m", "kv_heads", "causal"), [(3, 2, True), (4, 1, False)])
def test_gradcheck(m, kv_heads, causal):
    tensors = [normal(1, 2, 3, 4), *(normal(1, kv_heads, m, 4, seed=s) for s in (1, 2))]
    tensors.append(normal(2, 3, m, seed=3))
    for one in tensors:
        one.requires_grad_()

    def attend(*given):
        return AttentionFunction.apply(*given, causal, None)

    assert torch.autograd.gradcheck(attend, tensors, eps=1e-2, atol=2e-3, rtol=1e-2)
