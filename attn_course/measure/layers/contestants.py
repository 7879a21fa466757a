"""Contestants of the layers' suites: plans of ours, and the same layers of PyTorch."""

from collections.abc import Callable, Mapping

import numpy as np
from kernelscope import array_module, asnumpy

from attn_course.layers import LayerPlan
from attn_course.measure.contestants import PeerRefuses, TorchCall, refusal, torch_module
from attn_course.measure.timing import GRAPH_CALLS, Replay, capture

ROWS_CHECKED = 4096  # of an output; all of them are looked at for NaN


class Planned:
    """A layer of the course, on fixed arrays.

    make: returns its plan.  relative: the relative error to float64 that is allowed.
    """

    def __init__(self, name: str, make: Callable[[], LayerPlan], relative: float):
        self.name, self.relative, self.plan = name, relative, make()
        self.call = self.try_call = self.plan.launches.run

    def capture(self, calls: int = GRAPH_CALLS) -> Replay:
        """Capture `calls` calls into one CUDA graph."""
        return capture(self.call, calls)

    def poison(self) -> None:
        """Fill the output with NaN."""
        self.plan.out.fill(np.nan)

    def output(self) -> np.ndarray:
        """Return the rows of the output that are checked, on the host."""
        return checked_rows(self.plan.out, array_module(self.plan.launches.backend))


class TorchLayer(TorchCall):
    """A layer of PyTorch, of whose output the same rows are checked."""

    def try_call(self) -> None:
        """Run once, then in a CUDA graph. PeerRefuses where PyTorch does not take either."""
        super().try_call()
        try:
            super().capture(1)
        except RuntimeError as error:
            raise PeerRefuses(f"no CUDA graph: {refusal(str(error), [])}") from None

    def output(self) -> np.ndarray:
        """Return the rows of the output that are checked, on the host."""
        import cupy

        torch_module().cuda.synchronize()
        return checked_rows(cupy.from_dlpack(self._graph_output.contiguous()), cupy)


def checked_rows(array, xp=np) -> np.ndarray:
    """Return rows of an array (.., width) at even distances, with NaN if any of its rows has one.

    A result of a billion bytes takes longer to compare in float64 than to measure.
    """
    rows = array.reshape(-1, array.shape[-1])
    step = max(1, len(rows) // ROWS_CHECKED)
    found = asnumpy(rows[::-1][::step]).copy()
    if bool(xp.isnan(array).any()):
        found[0] = np.nan
    return found


# -- PyTorch ---------------------------------------------------------------------------------------
def tensors(arrays: Mapping[str, np.ndarray]) -> dict:
    """Return arrays on the GPU as PyTorch's tensors, by the same names."""
    torch = torch_module()
    return {name: torch.from_numpy(array).cuda() for name, array in arrays.items()}


def encoder_layer(weights: Mapping[str, np.ndarray], heads: int):
    """Return the torch.nn.TransformerEncoderLayer with the weights of a TransformerBlock."""
    torch = torch_module()
    width, hidden = weights["w_1"].shape
    layer = torch.nn.TransformerEncoderLayer(
        width, heads, hidden, activation="gelu", batch_first=True, norm_first=True
    )
    with torch.no_grad():
        for key, array in torch_state(weights).items():
            layer.get_parameter(key).copy_(torch.from_numpy(array))
    return layer.cuda().eval()


def torch_state(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return weights of a TransformerBlock as the state of a torch.nn.TransformerEncoderLayer."""
    joined = [np.concatenate([weights[f"{kind}_{name}"].T for name in "qkv"]) for kind in "wb"]
    found = {"self_attn.in_proj_weight": joined[0], "self_attn.in_proj_bias": joined[1]}
    for key, name in {"self_attn.out_proj": "o", "linear1": "1", "linear2": "2"}.items():
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
