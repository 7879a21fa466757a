"""Run one kernel of the layers on tokens and check every array that it writes against float64."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attn_course import reference
from attn_course.ladder.choose import current_device
from attn_course.ladder.steps import Step
from attn_course.ladder.verify import Oracle, Verdict, verdict
from attn_course.reference.comparison import poisoned

from . import steps
from .launches import Launches

EPS = 1e-5  # of the layer norm


@dataclass(frozen=True)
class LayerCase:
    """The inputs of one launch, and what it must write.

    inputs, numbers: arrays and other arguments by the kernel's names, as Launches.kernel() takes
    them.  expected: the arrays that it writes, in float64; of `sums`, which blocks leave, each
    row's part.
    """

    rows: steps.Rows
    inputs: Mapping[str, np.ndarray | None]
    numbers: Mapping[str, object]
    expected: Mapping[str, np.ndarray]

    def append(self, step: Step, launches: Launches, options: tuple[str, ...] = ()) -> Oracle:
        """Append the kernel to launches; return what it must write, poisoned until then."""
        xp, expected = launches.xp, dict(self.expected)
        if "sums" in expected:
            geometry = step.launch(self.rows, options, current_device(launches.backend))
            blocks, rows = geometry.grid[0], geometry.block[1]  # a block takes rows in turn
            of_rows = expected["sums"]
            expected["sums"] = np.zeros((blocks, *of_rows.shape[1:]))
            np.add.at(expected["sums"], np.arange(len(of_rows)) // rows % blocks, of_rows)
        written = {name: poisoned(array.shape, np.float32, xp) for name, array in expected.items()}
        given = {
            name: None if array is None else xp.asarray(array)
            for name, array in self.inputs.items()
        }
        launches.kernel(step, self.rows, {**given, **written}, self.numbers, options)
        label = f"{layer_name(step)}: {{}}"
        return Oracle(written, expected, step.tolerance("float32"), label)


def layer_name(step: Step) -> str:
    """Return a kernel's name: its file, and its entry where the file has several."""
    several = sum(one.file == step.file for one in steps.LAYERS) > 1
    return f"{step.file}: {step.entry}" if several else step.file


def layer_case(step: Step, tokens: np.ndarray, heads: int) -> LayerCase:
    """Return inputs for a kernel of the layers, made of tokens, and its results in float64.

    tokens: (B, n, width) float32, the heads of a token side by side. Biases and weights are seeded.
    """
    batch, n, width = tokens.shape
    x = np.ascontiguousarray(tokens.reshape(-1, width))
    rng = np.random.default_rng(step.number)
    vectors = rng.normal(0.5, 1, (5, width)).astype(np.float32)
    bias, gamma, beta = vectors[:3]
    residual, dout = np.roll(x, 1, axis=0), rng.normal(0.2, 1, x.shape).astype(np.float32)
    rows, cut = steps.Rows(len(x), width), {"n": n, "heads": heads, "d": width // heads}
    apart = (batch, n, -1, heads, width // heads)  # a token's numbers as heads
    total = x.astype(np.float64) + residual + bias
    if step is steps.LAYER_NORM:
        inputs = {"x": x, "residual": residual, "bias": bias, "gamma": gamma, "beta": beta}
        numbers = {"eps": np.float32(EPS)}
        expected = {"y": reference.layer_norm(total, gamma, beta, eps=EPS), "sum": total}
    elif step is steps.BIAS_GELU:
        inputs = {"x": x, "bias": bias}
        numbers = {"approximate": 0}
        expected = {"out": reference.gelu(x.astype(np.float64) + bias)}
    elif step is steps.BIAS_ADD:
        inputs, numbers = {"x": x, "residual": residual, "bias": bias}, {}
        expected = {"out": total}
    elif step is steps.SPLIT_HEADS:
        qkv, wide = np.concatenate([x, 2 * x, 3 * x], axis=-1), vectors[:3].reshape(-1)
        inputs, numbers = {"qkv": qkv, "bias": wide, "token": None}, cut
        parts = (qkv.astype(np.float64) + wide).reshape(apart).transpose(2, 0, 3, 1, 4)
        expected = dict(zip("qkv", parts, strict=True))
    elif step is steps.LAYER_NORM_BACKWARD:
        inputs = {"x": x, "gamma": gamma, "dout": dout, "dsum": residual}
        numbers = {"eps": np.float32(EPS)}
        parts = np.stack([dout * reference.layer_norm(x, eps=EPS), dout], axis=1)
        dx = reference.layer_norm_backward(x, gamma, dout, eps=EPS)[0] + residual
        expected = {"dx": dx, "sums": parts}
    elif step is steps.BIAS_GELU_BACKWARD:
        inputs, numbers = {"x": x, "bias": bias, "dout": dout}, {"approximate": 0}
        hidden = x.astype(np.float64) + bias
        dx = reference.gelu_backward(hidden, dout)
        expected = {"dx": dx, "out": reference.gelu(hidden), "sums": dx.copy()}
    elif step is steps.COLUMN_SUMS:
        inputs, numbers = {"x": x}, {}
        spans = range(0, len(x), step.constants()["SPAN"])
        expected = {"out": np.add.reduceat(x.astype(np.float64), spans)}
    elif step is steps.JOIN_PARTS:  # b has rows of a, where it can all but a head's first and last
        first = int(n > 2)
        ends = rng.normal(0, 3, (2, batch, n)).astype(np.float32)
        ends[0, :, 2::3], ends[1, :, 2::2], ends[1, :, :first] = 3 * [-np.inf]  # without keys
        ends[1, :, n - first :] = -np.inf
        seen = np.isfinite(ends)[..., None]
        a, b = np.where(seen, [tokens, residual.reshape(tokens.shape)], np.float32(0))
        top = np.logaddexp(*ends.astype(np.float64))
        shares = np.exp(ends - np.where(seen.any(0)[..., 0], top, 0))[..., None]
        inputs = {"a": a, "a_lse": ends[0]}
        inputs |= {"b": b[:, first : n - first], "b_lse": ends[1, :, first : n - first]}
        inputs = {name: np.ascontiguousarray(one) for name, one in inputs.items()}
        numbers = {"heads": batch, "rows": n, "first": first, "part": n - 2 * first}
        expected = {"out": shares[0] * a + shares[1] * b, "out_lse": top}
    else:  # MERGE_HEADS
        by_head = x.reshape(apart)[:, :, 0].transpose(0, 2, 1, 3)  # (B, heads, n, d)
        inputs = {"q": np.ascontiguousarray(by_head), "k": None, "v": None, "token": None}
        numbers, expected = cut, {"out": x.astype(np.float64)}
    return LayerCase(rows, inputs, numbers, expected)


def verify_layer(
    step: Step, tokens: np.ndarray, heads: int, *, backend: str | None = None
) -> Verdict:
    """Run one kernel of the layers and judge every array it writes.

    Args:
        tokens: (B, n, width) float32, a NumPy array.  heads: of a token.

    Raises:
        BackendError: a GPU is asked for where there is none.
        ValueError: an extent that the kernel does not take.
    """
    first = Launches(backend)
    layer_case(step, tokens[:1, :1], heads).append(step, first)
    first.run()  # compiled and decoded here, untimed
    launches = Launches(backend)
    oracle = layer_case(step, tokens, heads).append(step, launches)
    return verdict(layer_name(step), launches, oracle)
