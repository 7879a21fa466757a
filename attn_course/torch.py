"""PyTorch's scaled_dot_product_attention by the kernels of the course; needs PyTorch.

>>> from attn_course.torch import sdpa  # doctest: +SKIP
>>> sdpa(query, key, value, is_causal=True).sum().backward()  # doctest: +SKIP
"""

import warnings
from math import prod

import torch
from kernelscope.errors import InputError, UserError

from .backward import attention_backward, choose_backward
from .ladder import Problem, attention, current_device

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_MASKS = (torch.bool, torch.float32)
_LOWEST = -1e38  # in a mask: kernels multiply it by log2(e), and torch.finfo().min would overflow
_warned: set[str] = set()


def sdpa(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """softmax(query key^T * scale + mask) value, as torch's scaled_dot_product_attention.

    The methods are "auto" of attention() and, for gradients, of attention_backward(). What no
    kernel takes (dropout, float64, other devices, value with another last extent, a gradient that
    no method computes) runs in PyTorch, with a UserWarning, once per reason.

    Args:
        query: (..., H, n, d).  key, value: (..., H_kv, m, d). Of one dtype: float32, float16 or
            bfloat16. On the CPU the simulator runs the kernels.
        attn_mask: broadcasts to (..., H, n, m): bool, True where a key takes part, or of query's
            dtype or float32, added to the scores.
        is_causal: query i sees key j only where j <= i, also where n is not m.
        enable_gqa: allow H to be a multiple of H_kv.

    Returns:
        (..., H, n, d) like query.
    """
    tensors = (query, key, value)
    reason = _refusal(tensors, attn_mask, dropout_p, is_causal, enable_gqa)
    if not reason:
        try:
            return _attend(tensors, attn_mask, is_causal, scale)
        except UserError as error:
            reason = str(error)
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(f"sdpa runs PyTorch's own: {reason}", UserWarning, stacklevel=2)
    grouped = {"enable_gqa": True} if enable_gqa else {}  # which PyTorch 2.4 has not
    return torch.nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask, dropout_p, is_causal, scale=scale, **grouped
    )


def _refusal(tensors, mask, dropout_p, is_causal, enable_gqa) -> str:
    """Why the kernels do not take a call; "" where they may."""
    query, key, value = tensors
    given = tensors if mask is None else (*tensors, mask)
    if dropout_p:
        return "the kernels have no dropout"
    if len({one.device for one in given}) > 1 or query.device.type not in ("cpu", "cuda"):
        return "the kernels run on the CPU, in the simulator, or on one CUDA device"
    if query.dtype not in _DTYPES or {key.dtype, value.dtype} != {query.dtype}:
        return "the kernels take float32, float16 and bfloat16, of one dtype"
    if mask is not None and (is_causal or mask.dtype not in (*_MASKS, query.dtype)):
        return "a mask is bool or of query's dtype, and goes without is_causal"
    if min(one.dim() for one in tensors) < 2 or not all(map(torch.Tensor.numel, given)):
        return "a tensor is empty, or has less than two axes"
    if value.shape[-1] != query.shape[-1] or key.shape[-2:] != value.shape[-2:]:
        return "key and value differ in their last two extents, or query in the last one"
    heads, *fewer = [one.shape[-3] if one.dim() > 2 else 1 for one in tensors]
    if fewer[0] != fewer[1] or (fewer[0] not in (1, heads) and not enable_gqa):
        return "the heads of query, key and value differ without enable_gqa"
    return ""


def _attend(tensors, mask, is_causal: bool, scale):
    """sdpa() by the kernels. Raises UserError for what they do not take."""
    query, key, _ = tensors
    batches = [one.shape[:-3] for one in tensors]
    alike = batches[0] == batches[1] == batches[2]
    batch = batches[0] if alike else torch.broadcast_shapes(*batches)
    flat = [_four_axes(one, batch).contiguous() for one in tensors]
    n, m = query.shape[-2], key.shape[-2]
    if is_causal and n != m:  # attention() aligns the last query with the last key
        mask = torch.ones(n, m, dtype=torch.bool, device=query.device).tril()
    bias = None if mask is None else _bias(mask, (*batch, flat[0].shape[1], n, m))
    causal = is_causal and n == m
    given = flat if bias is None else [*flat, bias]
    if torch.is_grad_enabled() and any(one.requires_grad for one in given):
        try:
            _check_gradient(*flat[:2], bias, causal)
        except UserError as error:
            if is_causal and not causal:
                raise InputError(
                    f"is_causal with n = {n}, m = {m} is a mask, and {error}"
                ) from None
            raise
        out = AttentionFunction.apply(*flat, bias, causal, scale)
    else:
        out = attention(*flat, "auto", causal, scale, bias=bias)
    if len(batch) == 1:
        return out
    axes = 2 if max(one.dim() for one in tensors) == 2 else 3
    return out.reshape(*batch, *out.shape[-axes:])


class AttentionFunction(torch.autograd.Function):
    """attention() with its gradients: ``AttentionFunction.apply(q, k, v, bias, causal, scale)``.

    The arguments are attention()'s; q, k, v and bias, which may be None, are tensors that may
    require grad. With torch.use_deterministic_algorithms(True) the gradients are the same bits on
    every run. There are no gradients of gradients.
    """

    @staticmethod
    def forward(ctx, q, k, v, bias, causal, scale):
        found = [one if one is None else one.detach() for one in (q, k, v, bias)]
        q, k, v, bias = found
        out, lse = attention(q, k, v, "auto", causal, scale, bias=bias, return_lse=True)
        ctx.save_for_backward(q, k, v, out, lse, bias)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout):
        *given, bias = ctx.saved_tensors
        how = {"causal": ctx.causal, "scale": ctx.scale, "bias": bias}
        how["deterministic"] = torch.are_deterministic_algorithms_enabled()
        how["return_dbias"] = wanted = ctx.needs_input_grad[3]
        dq, dk, dv, *more = attention_backward(*given, dout.contiguous(), **how)
        dbias = more[0].sum_to_size(bias.shape) if wanted else None
        return dq, dk, dv, dbias, None, None


def _check_gradient(query, key, bias, causal: bool) -> None:
    """Raise UserError where no method computes the gradients of a call on (B, H, n, d) tensors."""
    (batch, heads, n, d), (kv_heads, m) = query.shape, key.shape[1:3]
    dtype = str(query.dtype).removeprefix("torch.")
    extents = (batch * heads, n, m, d, heads, kv_heads, causal)
    problem = Problem(*extents, dtype=dtype, biased=bias is not None)
    device = current_device("gpu" if query.is_cuda else "simulator")
    choose_backward(problem, device, problem.biased and bias.requires_grad)


def _four_axes(tensor, batch: torch.Size):
    """(..., H, L, d), or (L, d), as (B, H, L, d), the batch broadcast."""
    if tensor.dim() == 4 and tensor.shape[:1] == batch:
        return tensor
    last = tensor.shape[-3:] if tensor.dim() > 2 else (1, *tensor.shape)
    return tensor.expand(*batch, *last).reshape(-1, *last)


def _bias(mask, scores: tuple[int, ...]):
    """A mask as attention() takes it: float32 (1 or B, 1 or H, n, m).

    scores: (..., H, n, m). Raises InputError for a mask that does not broadcast to them.
    """
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)
    shape = (1,) * (len(scores) - mask.dim()) + mask.shape
    fits = all(x in (1, y) for x, y in zip(shape, scores, strict=False))
    if not fits or not 2 <= mask.dim() <= len(scores):
        raise InputError(f"attn_mask has shape {tuple(mask.shape)}, the scores {scores}")
    batch = scores[:-3] if prod(shape[:-3]) > 1 else shape[:-3]
    full = mask.float()
    full = torch.where(full == -torch.inf, full, full.clamp(min=_LOWEST))
    full = full.expand(*batch, shape[-3], *scores[-2:])
    return full.reshape(-1, *full.shape[-3:]).contiguous()
