"""Suites of layers: problems, contestants and their records.

Each layer of the course is timed with its products in float32 and as three TF32 products, against
PyTorch with full float32 products, all as CUDA graphs in turns.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from kernelscope import resolve_backend

from attn_course import reference
from attn_course.ladder.methods import AUTO, METHODS, steps_of
from attn_course.layers import LAYERS, SwinStage, TransformerBlock, bias_gelu, layer_norm, mlp
from attn_course.layers.swin import BIAS_TABLE, relative_bias, shift_mask
from attn_course.measure import contestants as peers
from attn_course.measure import records
from attn_course.measure.contests import ContestResult, hold_contest
from attn_course.measure.timing import ClockWatch, require_gpu

from .contestants import (
    Planned,
    TorchLayer,
    checked_rows,
    encoder_layer,
    swin_stage,
    tensors,
    torch_state,
)

# Relative errors that are allowed: of layer norm, of GELU, of a block or a stage in any precision,
# and of an MLP by its precision. Tensor cores cut their sums off, so that errors grow with the
# inner extent.
NORM_RELATIVE, GELU_RELATIVE, BLOCK_RELATIVE = 2e-6, 1e-6, 1e-5
OURS = {"fp32": 1e-5, "tf32x3": 2e-5}
TORCH = "torch"
EPS = 1e-5

Makers = dict[str, Callable]


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
class LayerSuite:
    """Rows under a name. problem: row -> contestants, and the function of their float64 result."""

    name: str
    about: str
    rows: tuple[LayerRow, ...]
    problem: Callable[[LayerRow], tuple[Makers, Callable]]


# -- inputs ----------------------------------------------------------------------------------------
def seeded_rows(shape, kv_length=None, seed: int = 0) -> tuple[np.ndarray]:
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


def _on_device(arrays: Mapping[str, np.ndarray]) -> dict:
    import cupy

    return {name: cupy.asarray(array) for name, array in arrays.items()}


# -- problems --------------------------------------------------------------------------------------
def _layer_norm_problem(row: LayerRow) -> tuple[Makers, Callable]:
    rng, width = np.random.default_rng(1), row.shape[-1]
    host = {"gamma": rng.normal(1.0, 0.2, width), "beta": rng.normal(0.0, 0.2, width)}
    host = {name: array.astype(np.float32) for name, array in host.items()}

    def ours(x):
        vectors = _on_device(host)
        make = partial(layer_norm.plan, x, vectors["gamma"], vectors["beta"], EPS)
        return Planned("layer_norm", make, NORM_RELATIVE)

    def theirs(x):
        torch, vectors = peers.torch_module(), tensors(host)
        call = partial(
            torch.nn.functional.layer_norm,
            torch.from_dlpack(x),
            (width,),
            vectors["gamma"],
            vectors["beta"],
            EPS,
        )
        return TorchLayer(TORCH, call, NORM_RELATIVE)

    def expected(x, causal=False):
        return reference.layer_norm(checked_rows(x), **host, eps=EPS)

    return {"layer_norm": ours, TORCH: theirs}, expected


def _gelu_problem(row: LayerRow) -> tuple[Makers, Callable]:
    bias = np.random.default_rng(5).normal(0.1, 0.5, row.shape[-1]).astype(np.float32)

    def ours(x):
        vector = _on_device({"bias": bias})["bias"]
        make = partial(bias_gelu.plan, x, vector, row.approximate)
        return Planned("bias_gelu", make, GELU_RELATIVE)

    def theirs(x):
        torch, vector = peers.torch_module(), tensors({"bias": bias})["bias"]
        gelu = partial(torch.nn.functional.gelu, approximate=row.approximate)
        tensor = torch.from_dlpack(x)
        return TorchLayer(TORCH, lambda: gelu(tensor + vector))

    def expected(x, causal=False):
        form = "erf" if row.approximate == "none" else row.approximate
        return reference.gelu(checked_rows(x).astype(np.float64) + bias, approximation=form)

    return {"bias_gelu": ours, TORCH: theirs}, expected


def _mlp_problem(row: LayerRow) -> tuple[Makers, Callable]:
    names = ("w_1", "b_1", "w_2", "b_2")
    weights = seeded_weights(row, 2)
    host = {name: weights[name] for name in names}

    def ours(precision, x):
        arrays = _on_device(host)
        make = partial(mlp.plan, x, *(arrays[name] for name in names), precision=precision)
        return Planned(f"mlp_{precision}", make, OURS[precision])

    def theirs(x):
        torch, state = peers.torch_module(), tensors(torch_state(weights))
        linear, gelu = torch.nn.functional.linear, torch.nn.functional.gelu
        first, second = (
            (state[f"linear{number}.weight"], state[f"linear{number}.bias"]) for number in "12"
        )
        tensor = torch.from_dlpack(x)
        return TorchLayer(TORCH, lambda: linear(gelu(linear(tensor, *first)), *second))

    def expected(x, causal=False):
        rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
        active = reference.gelu(rows @ host["w_1"] + host["b_1"])
        return checked_rows(active @ host["w_2"] + host["b_2"])

    makers = {f"mlp_{precision}": partial(ours, precision) for precision in OURS}
    return {**makers, TORCH: theirs}, expected


def _block_problem(row: LayerRow) -> tuple[Makers, Callable]:
    weights = seeded_weights(row, 3)

    def ours(precision, x):
        if peers.available():  # as a layer of PyTorch is taken over
            state = encoder_layer(weights, row.heads).state_dict()
            block = TransformerBlock.from_torch_state(state, row.heads, precision=precision)
        else:
            block = TransformerBlock(weights, row.heads, precision=precision)
        return Planned(f"block_{precision}", partial(block.plan, x), BLOCK_RELATIVE)

    def theirs(fast, x):
        """TransformerEncoderLayer, by its fused inference path or by its separate operations."""
        torch = peers.torch_module()
        layer, tensor = encoder_layer(weights, row.heads), torch.from_dlpack(x)

        def call():
            torch.backends.mha.set_fastpath_enabled(fast)
            return layer(tensor)

        # The fused path is less exact: its error was 8e-5 where the other's was 4e-7.
        return TorchLayer(TORCH, call, 2e-4 if fast else OURS["fp32"])

    def expected(x, causal=False):
        return checked_rows(reference.transformer_block(x, weights, heads=row.heads, eps=EPS))

    makers = {f"block_{precision}": partial(ours, precision) for precision in OURS}
    return {
        **makers,
        "torch_encoder_layer": partial(theirs, True),
        "torch_encoder_layer_slow_path": partial(theirs, False),
    }, expected


def _swin_problem(row: LayerRow) -> tuple[Makers, Callable]:
    weights = [seeded_weights(row, 4 + number) for number in range(row.blocks)]
    batch, height, width, _ = row.shape
    shifts = [row.side // 2 if number % 2 else 0 for number in range(row.blocks)]

    def ours(precision, x):
        stage = SwinStage(weights, row.heads, row.side, precision=precision)
        return Planned(f"swin_{precision}", partial(stage.plan, x), BLOCK_RELATIVE)

    def theirs(x):
        torch = peers.torch_module()
        states = [tensors(torch_state(one)) for one in weights]
        masks = []
        for one, shift in zip(weights, shifts, strict=True):
            mask = relative_bias(one[BIAS_TABLE], row.side)[None]
            if shift:
                mask = mask + shift_mask(height, width, row.side, shift)[:, None]
                mask = np.tile(mask, (batch, 1, 1, 1))  # of each window of each image
            masks.append(torch.from_numpy(np.ascontiguousarray(mask)).cuda())
        call = partial(swin_stage, states, masks, row.heads, row.side, torch.from_dlpack(x))
        return TorchLayer(TORCH, call)

    def expected(x, causal=False):
        for one, shift in zip(weights, shifts, strict=True):
            x = reference.swin_block(x, one, heads=row.heads, side=row.side, shift=shift, eps=EPS)
        return checked_rows(x)

    makers = {f"swin_{precision}": partial(ours, precision) for precision in OURS}
    return {**makers, TORCH: theirs}, expected


LAYER_SUITES = {
    suite.name: suite
    for suite in (
        LayerSuite(
            "layernorm",
            "layer norm: three small inputs and one of a gigabyte",
            (
                LayerRow((8, 256, 512)),
                LayerRow((4, 512, 768)),
                LayerRow((8, 128, 1024)),
                LayerRow((64, 1024, 4096)),
            ),
            _layer_norm_problem,
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
        ),
        LayerSuite(
            "mlp",
            "linear, GELU, linear",
            (LayerRow((4, 128, 512), 2048), LayerRow((8, 256, 512), 2048)),
            _mlp_problem,
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
        ),
    )
}


# -- running ---------------------------------------------------------------------------------------
def run_row(suite: LayerSuite, row: LayerRow, iterations: int, warmup: int, **how) -> dict:
    """Check and time one row; return its record. how: as of hold_contest()."""
    makers, expected = suite.problem(row)
    result = hold_contest(
        row.shape,
        makers,
        iterations=iterations,
        warmup=warmup,
        inputs=seeded_rows,
        expected=expected,
        **how,
    )
    return summary(row, result)


def summary(row: LayerRow, result: ContestResult) -> dict:
    """Return a row's record: times and errors of all, ours against the best of PyTorch's."""
    timings = result.records()
    rivals = [name for name in timings if name.startswith(TORCH)]
    best = result.measured.fastest(rivals) if rivals else None
    mine = [name for name in timings if name not in rivals]
    plans = {name: result.entrants.contestants[name].plan for name in mine}
    return {
        "label": row.label,
        "shape": list(row.shape),
        "work": work_of(row),
        "timings": timings,
        "refused": result.entrants.refused,
        "wrong": result.entrants.wrong,
        "best_peer": best,
        "ratios": {name: result.measured.ratio(name, best).record() for name in mine if best},
        "launches": {
            name: [call for call, _ in plan.launches.calls] for name, plan in plans.items()
        },
        "clocks": result.measured.clocks,
    }


def work_of(row: LayerRow) -> dict[str, int]:
    """Return the operations of a row's products with weights, and bytes of its input and output."""
    *_, width = row.shape
    rows = int(np.prod(row.shape[:-1]))
    inner = 2 * width * row.hidden + (4 * width * width if row.heads else 0)
    return {"operations": 2 * rows * inner * row.blocks, "bytes": 2 * 4 * rows * width}


def run_layer_suite(
    name: str,
    *,
    iterations: int = 60,
    warmup: int = 10,
    quick: bool = False,
    progress: Callable[[Iterable], Iterable] = iter,
) -> dict:
    """Run a suite and return its record.

    quick: the first row alone.  progress: wraps the rows, as tqdm does.

    Raises:
        KeyError: no such suite. TimingError: no GPU.
    """
    suite = LAYER_SUITES[name]
    require_gpu()
    start = time.perf_counter()
    with ClockWatch() as watch:
        rows = [
            run_row(suite, row, iterations, warmup, backend=resolve_backend())
            for row in progress(suite.rows[:1] if quick else suite.rows)
        ]
    return records.new_record(
        f"bench_{name}",
        kernel_files(suite),
        suite=name,
        about=suite.about,
        torch=peers.torch_version(),
        iterations=iterations,
        warmup=warmup,
        clocks=watch.record(),
        seconds=round(time.perf_counter() - start, 1),
        rows=rows,
    )


def kernel_files(suite: LayerSuite) -> list[str]:
    """The kernels that a suite's layers may run."""
    if suite.name == "layernorm":
        return ["16_layernorm"]
    if suite.name in ("gelu", "mlp"):
        return ["17_bias_gelu"]
    found = {step.file for step in LAYERS}
    return sorted(
        found | {step.file for name in METHODS if name != AUTO for step in steps_of(name)}
    )


# -- reading a record ------------------------------------------------------------------------------
def layer_times(name: str, root: Path = records.RESULTS_FOLDER) -> str:
    """Return the recorded times of a suite, a line each, or how to make the record."""
    found = records.newest_record(f"bench_{name}", root)
    if found is None:
        return records.no_record(name)
    lines = [records.caption(found)]
    for row in found["rows"]:
        lines.append(row["label"])
        for one, timing in row["timings"].items():
            ratio = row["ratios"].get(one)
            text = (
                f"  {one:<30} {timing['median_us']:8.2f} us, error {timing['relative_error']:.1e}"
            )
            faster = f", {ratio['value']:.2f} times as fast as {ratio['peer']}" if ratio else ""
            lines.append(text + faster)
    return "\n".join(lines)
