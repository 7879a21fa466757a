"""Layers against PyTorch's: layer norm, GELU, MLP, transformer blocks and a Swin stage.

Each layer of the course is timed with its products in float32 and as three TF32 products, against
PyTorch with full float32 products, eager and compiled, all as CUDA graphs in turns.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from kernelscope import array_module
from kernelscope.errors import InputError

from attn_course import reference
from attn_course.ladder.methods import METHODS, dtypes_of, files_of
from attn_course.layers import (
    FORWARD,
    LayerPlan,
    SwinStage,
    TransformerBlock,
    bias_gelu,
    layer_norm,
    mlp,
)
from attn_course.layers.swin import BIAS_TABLE, relative_bias, shift_mask
from attn_course.measure import candidates
from attn_course.measure.benchmarks import BenchmarkResult
from attn_course.measure.candidates import Candidate

from .peers import BLOCK, FUSED, LAYER, layer_peers
from .suite import Suite, fastest
from .torch_layers import encoder_layer, swin_stage, tensors, torch_state

# Relative errors that are allowed: of layer norm, of GELU, of a block or a stage in any precision,
# and of an MLP by its precision. Tensor cores cut their sums off, so that errors grow with the
# inner extent.
NORM_RELATIVE, GELU_RELATIVE, BLOCK_RELATIVE = 2e-6, 1e-6, 1e-5
OURS = {"fp32": 1e-5, "tf32x3": 2e-5}
FUSED_RELATIVE = 2e-4  # of PyTorch's fused block: its error was 8e-5 where the others' was 4e-7
EPS = 1e-5
ROWS_CHECKED = 4096  # of an output

Makers = dict[str, Callable]


class Planned(Candidate):
    """A layer of the course. relative: the relative error to float64 that is allowed."""

    def __init__(self, plan: LayerPlan, relative: float):
        self.plan, self.out, self.relative = plan, plan.out, relative
        self.call = plan.launches.run


@dataclass(frozen=True)
class LayerRow:
    """One problem of a suite.

    Attributes:
        shape: of the input.
        hidden: width between the products of the MLP; 0 without.
        heads: of attention; 0 without.
        side: of a Swin stage's windows; 0: no stage.
        blocks: of the stage.
        approximate: of GELU, as bias_gelu() takes it.
    """

    shape: tuple[int, ...]
    hidden: int = 0
    heads: int = 0
    side: int = 0
    blocks: int = 1
    approximate: str = "none"

    @property
    def label(self) -> str:
        """'8,128,512 heads 8 hidden 2048'."""
        words = [",".join(map(str, self.shape))]
        words += [
            f"{name} {value}" for name in ("heads", "hidden") if (value := getattr(self, name))
        ]
        words += [f"windows of {self.side}, {self.blocks} blocks"] if self.side else []
        words += [self.approximate] if self.approximate != "none" else []
        return " ".join(words)


@dataclass(frozen=True)
class LayerSuite(Suite):
    """Problems of one layer.

    problem: row -> candidates, and the function of their float64 result.  kernels: the files that
    the layer may run.
    """

    rows: tuple[LayerRow, ...]
    problem: Callable[[LayerRow], tuple[Makers, Callable]]
    kernels: tuple[str, ...]

    def candidates(self, chosen: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return no names: a row's problem has its candidates. ValueError: some are chosen."""
        if chosen:
            raise InputError(f"{self.name} times a layer, and methods are those of attention()")
        return ()

    def peers(self, row: LayerRow, names: Sequence[str]) -> list[str]:
        """Return the peers of a row: a layer's, or those of an encoder layer."""
        return list(BLOCK if row.heads and not row.side else LAYER)

    def files(self, names: Sequence[str], rows: Sequence[dict] = ()) -> list[str]:
        """Return the kernel files that the layer may run."""
        return sorted(self.kernels)

    def benchmark(self, row: LayerRow, names: Sequence[str]) -> dict:
        """Return the arguments of run_benchmark() for a row."""
        makers, expected = self.problem(row)
        return {
            "makers": makers,
            "inputs": seeded_rows(row.shape),
            "expected": expected,
            "sample": sampled_rows,
        }

    def standing(self, row: LayerRow, result: BenchmarkResult) -> dict:
        """Return the least work, ours against the best peer, and what ours launch."""
        measured, plans = result.measured, {}
        for name, one in result.entrants.candidates.items():
            if isinstance(one, Planned):
                plans[name] = one.plan
        best = fastest(measured, (name for name in measured.timings if name not in plans))
        return {
            "work": work_of(row),
            "best_peer": best,
            "ratios": {name: measured.ratio(name, best).record() for name in plans if best},
            "launches": {
                name: [call for call, _ in plan.launches.calls] for name, plan in plans.items()
            },
        }


# -- inputs ----------------------------------------------------------------------------------------
def seeded_rows(shape, seed: int = 0) -> tuple[np.ndarray]:
    """Return a random input, float32, with a mean that is not zero."""
    x = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    x *= 1.3
    x += 0.4
    return (x,)


def seeded_weights(row: LayerRow, seed: int) -> dict[str, np.ndarray]:
    """Return weights of a block by the names of TransformerBlock, and of its windows' bias."""
    rng, width, hidden = np.random.default_rng(seed), row.shape[-1], row.hidden
    shapes = {f"w_{name}": (width, width) for name in "qkvo"}
    shapes |= {"w_1": (width, hidden), "w_2": (hidden, width)}
    found = {name: rng.normal(0, shape[0] ** -0.5, shape) for name, shape in shapes.items()}
    for name in "qkvo12":
        found[f"b_{name}"] = rng.normal(0.1, 0.2, hidden if name == "1" else width)
    for number in "12":
        found[f"gamma_{number}"] = rng.normal(1.0, 0.2, width)
        found[f"beta_{number}"] = rng.normal(0.0, 0.2, width)
    if row.side:
        found[BIAS_TABLE] = rng.normal(0.0, 1.0, ((2 * row.side - 1) ** 2, row.heads))
    return {name: array.astype(np.float32) for name, array in found.items()}


def sampled_rows(array: np.ndarray) -> np.ndarray:
    """Return rows of an array (.., width) at even distances, the last one first.

    A result of a billion bytes takes longer to compare in float64 than to measure.
    """
    rows = array.reshape(-1, array.shape[-1])
    return rows[:: -max(1, len(rows) // ROWS_CHECKED)]


def _on_device(arrays: Mapping[str, np.ndarray]) -> dict:
    xp = array_module()
    return {name: xp.asarray(array) for name, array in arrays.items()}


# -- problems --------------------------------------------------------------------------------------
def _layer_norm_problem(row: LayerRow) -> tuple[Makers, Callable]:
    rng, width = np.random.default_rng(1), row.shape[-1]
    host = {"gamma": rng.normal(1.0, 0.2, width), "beta": rng.normal(0.0, 0.2, width)}
    host = {name: array.astype(np.float32) for name, array in host.items()}

    def ours(x):
        vectors = _on_device(host)
        return Planned(layer_norm.plan(x, **vectors, eps=EPS), NORM_RELATIVE)

    def theirs(x):
        norm, vectors = candidates.torch_module().nn.functional.layer_norm, tensors(host)
        return lambda: norm(x, (width,), vectors["gamma"], vectors["beta"], EPS)

    def expected(x):
        return reference.layer_norm(sampled_rows(x), **host, eps=EPS)

    return {"layer_norm": ours, **layer_peers(theirs, NORM_RELATIVE)}, expected


def _gelu_problem(row: LayerRow) -> tuple[Makers, Callable]:
    bias = np.random.default_rng(5).normal(0.1, 0.5, row.shape[-1]).astype(np.float32)

    def ours(x):
        vector = _on_device({"bias": bias})["bias"]
        return Planned(bias_gelu.plan(x, vector, row.approximate), GELU_RELATIVE)

    def theirs(x):
        torch, vector = candidates.torch_module(), tensors({"bias": bias})["bias"]
        gelu = torch.nn.functional.gelu
        return lambda: gelu(x + vector, approximate=row.approximate)

    def expected(x):
        form = "erf" if row.approximate == "none" else row.approximate
        return reference.gelu(sampled_rows(x).astype(np.float64) + bias, approximation=form)

    return {"bias_gelu": ours, **layer_peers(theirs, OURS["fp32"])}, expected


def _mlp_problem(row: LayerRow) -> tuple[Makers, Callable]:
    weights = seeded_weights(row, 2)
    host = {name: weights[name] for name in ("w_1", "b_1", "w_2", "b_2")}

    def ours(precision, x):
        return Planned(mlp.plan(x, **_on_device(host), precision=precision), OURS[precision])

    def theirs(x):
        torch, state = candidates.torch_module(), tensors(torch_state(weights))
        linear, gelu = torch.nn.functional.linear, torch.nn.functional.gelu
        first, second = (
            (state[f"linear{number}.weight"], state[f"linear{number}.bias"]) for number in "12"
        )
        return lambda: linear(gelu(linear(x, *first)), *second)

    def expected(x):
        rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
        active = reference.gelu(rows @ host["w_1"] + host["b_1"])
        return sampled_rows(active @ host["w_2"] + host["b_2"])

    makers = {f"mlp_{precision}": partial(ours, precision) for precision in OURS}
    return makers | layer_peers(theirs, OURS["fp32"]), expected


def _block_problem(row: LayerRow) -> tuple[Makers, Callable]:
    weights = seeded_weights(row, 3)

    def ours(precision, x):
        if candidates.available():  # as a layer of PyTorch is taken over
            state = encoder_layer(weights, row.heads).state_dict()
            block = TransformerBlock.from_torch_state(state, row.heads, precision=precision)
        else:
            block = TransformerBlock(weights, row.heads, precision=precision)
        return Planned(block.plan(x), BLOCK_RELATIVE)

    def theirs(fused, x):
        """TransformerEncoderLayer: the fused path for inference, or the operations of training."""
        layer = encoder_layer(weights, row.heads).train(not fused)  # it has no dropout
        return lambda: layer(x)

    def expected(x):
        return sampled_rows(reference.transformer_block(x, weights, heads=row.heads, eps=EPS))

    makers = {f"block_{precision}": partial(ours, precision) for precision in OURS}
    makers |= layer_peers(partial(theirs, True), FUSED_RELATIVE, [FUSED])
    separate = [name for name in BLOCK if name != FUSED]
    return makers | layer_peers(partial(theirs, False), OURS["fp32"], separate), expected


def _swin_problem(row: LayerRow) -> tuple[Makers, Callable]:
    weights = [seeded_weights(row, 4 + number) for number in range(row.blocks)]
    batch, height, width, _ = row.shape
    shifts = [row.side // 2 if number % 2 else 0 for number in range(row.blocks)]

    def ours(precision, x):
        stage = SwinStage(weights, row.heads, row.side, precision=precision)
        return Planned(stage.plan(x), BLOCK_RELATIVE)

    def theirs(x):
        torch = candidates.torch_module()
        states = [tensors(torch_state(one)) for one in weights]
        masks = []
        for one, shift in zip(weights, shifts, strict=True):
            mask = relative_bias(one[BIAS_TABLE], row.side)[None]
            if shift:
                mask = mask + shift_mask(height, width, row.side, shift)[:, None]
                mask = np.tile(mask, (batch, 1, 1, 1))  # of each window of each image
            masks.append(torch.from_numpy(np.ascontiguousarray(mask)).cuda())
        return lambda: swin_stage(states, masks, row.heads, row.side, x)

    def expected(x):
        for one, shift in zip(weights, shifts, strict=True):
            x = reference.swin_block(x, one, heads=row.heads, side=row.side, shift=shift, eps=EPS)
        return sampled_rows(x)

    makers = {f"swin_{precision}": partial(ours, precision) for precision in OURS}
    return makers | layer_peers(theirs, OURS["fp32"]), expected


EXACT = [name for name in METHODS if "float32" in dtypes_of(name)]  # those that a block can take
LAYER_SUITES = {
    suite.name: suite
    for suite in (
        LayerSuite(
            "layernorm",
            "layer norm: small inputs, short and ragged rows, and one of a gigabyte",
            (
                LayerRow((8, 256, 512)),
                LayerRow((4, 512, 768)),
                LayerRow((8, 128, 1024)),
                LayerRow((3, 77, 1000)),
                LayerRow((1, 65536, 128)),
                LayerRow((64, 1024, 4096)),
            ),
            _layer_norm_problem,
            ("16_layernorm",),
        ),
        LayerSuite(
            "gelu",
            "GELU of a sum with a bias: two inputs within an MLP and one of a gigabyte",
            (
                LayerRow((4, 128, 2048)),
                LayerRow((8, 256, 2048)),
                LayerRow((8, 256, 2048), approximate="tanh"),
                LayerRow((64, 1024, 4096)),
            ),
            _gelu_problem,
            ("17_bias_gelu",),
        ),
        LayerSuite(
            "mlp",
            "linear, GELU, linear",
            (LayerRow((4, 128, 512), 2048), LayerRow((8, 256, 512), 2048)),
            _mlp_problem,
            ("17_bias_gelu",),
        ),
        LayerSuite(
            "block",
            "transformer blocks, and a Swin stage of shifted windows",
            (
                LayerRow((8, 128, 512), 2048, 8),
                LayerRow((2, 196, 768), 3072, 12),
                LayerRow((1, 56, 56, 96), 384, 3, side=14, blocks=2),
            ),
            lambda row: _swin_problem(row) if row.side else _block_problem(row),
            tuple({*(step.file for step in FORWARD), *files_of(*EXACT)}),
        ),
    )
}


def work_of(row: LayerRow) -> dict[str, int]:
    """Return the operations of a row's products with weights, and bytes of its input and output."""
    *_, width = row.shape
    rows = int(np.prod(row.shape[:-1]))
    inner = 2 * width * row.hidden + (4 * width * width if row.heads else 0)
    return {"operations": 2 * rows * inner * row.blocks, "bytes": 2 * 4 * rows * width}
