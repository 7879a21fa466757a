"""PyTorch's layers with the weights of the course's."""

from collections.abc import Mapping

import numpy as np

from attn_course.layers.transformer import TORCH_MATRICES
from attn_course.measure.candidates import torch_module


def tensors(arrays: Mapping[str, np.ndarray]) -> dict:
    """Return arrays on the GPU as PyTorch's tensors, by the same names."""
    torch = torch_module()
    return {name: torch.from_numpy(array).cuda() for name, array in arrays.items()}


def encoder_layer(weights: Mapping[str, np.ndarray], heads: int):
    """Return the torch.nn.TransformerEncoderLayer with the weights of a TransformerBlock."""
    torch = torch_module()
    width, hidden = weights["w_1"].shape
    layer = torch.nn.TransformerEncoderLayer(
        width, heads, hidden, 0.0, "gelu", batch_first=True, norm_first=True
    )
    with torch.no_grad():
        for key, array in torch_state(weights).items():
            layer.get_parameter(key).copy_(torch.from_numpy(array))
    return layer.cuda().eval()


def torch_state(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return weights of a TransformerBlock as the state of a torch.nn.TransformerEncoderLayer."""
    joined = [np.concatenate([weights[f"{kind}_{name}"].T for name in "qkv"]) for kind in "wb"]
    found = {"self_attn.in_proj_weight": joined[0], "self_attn.in_proj_bias": joined[1]}
    for name, key in TORCH_MATRICES.items():
        found |= {f"{key}.weight": weights[f"w_{name}"].T, f"{key}.bias": weights[f"b_{name}"]}
    for number in "12":
        found[f"norm{number}.weight"] = weights[f"gamma_{number}"]
        found[f"norm{number}.bias"] = weights[f"beta_{number}"]
    return {key: np.ascontiguousarray(array) for key, array in found.items()}


def swin_stage(blocks: list[dict], masks: list, heads: int, side: int, x):
    """A Swin stage in PyTorch's own operations, with the fused attention that takes a bias.

    blocks: states of torch_state() as tensors.  masks: of each block, (windows, heads, n, n), what
    is added to the scores.  x: (B, height, width, E), a tensor.
    """
    functional = torch_module().nn.functional
    batch, height, width, channels = x.shape
    cut = (batch, height // side, side, width // side, side, channels)
    whole = (batch, height // side, width // side, side, side, channels)
    n, d = side * side, channels // heads
    for number, (state, mask) in enumerate(zip(blocks, masks, strict=True)):
        shift = side // 2 if number % 2 else 0
        norms = [(state[f"norm{i}.weight"], state[f"norm{i}.bias"]) for i in (1, 2)]
        y = functional.layer_norm(x, (channels,), *norms[0])
        if shift:
            y = y.roll((-shift, -shift), (1, 2))
        y = y.reshape(cut).transpose(2, 3).reshape(-1, n, channels)
        qkv = functional.linear(
            y, state["self_attn.in_proj_weight"], state["self_attn.in_proj_bias"]
        )
        q, k, v = qkv.reshape(-1, n, 3, heads, d).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = y.transpose(1, 2).reshape(-1, n, channels)
        y = functional.linear(
            y, state["self_attn.out_proj.weight"], state["self_attn.out_proj.bias"]
        )
        y = y.reshape(whole).transpose(2, 3).reshape(x.shape)
        if shift:
            y = y.roll((shift, shift), (1, 2))
        x = x + y
        y = functional.layer_norm(x, (channels,), *norms[1])
        y = functional.gelu(functional.linear(y, state["linear1.weight"], state["linear1.bias"]))
        x = x + functional.linear(y, state["linear2.weight"], state["linear2.bias"])
    return x
