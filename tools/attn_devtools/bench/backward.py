"""The backward pass against PyTorch's: gradients of attention by q, k and v, at long shapes.

Every candidate has its own forward pass behind it; the backward pass alone is timed, as CUDA graphs
in turns. Some heads of the gradients are checked against float64, the others must be finite.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from kernelscope import asnumpy
from kernelscope.errors import InputError, did_you_mean
from kernelscope.module import in_library

from attn_course import attention, reference
from attn_course.backward import METHODS
from attn_course.backward.methods import BackwardRequest, gradients
from attn_course.ladder.problem import Problem
from attn_course.measure import candidates
from attn_course.measure.benchmarks import BenchmarkResult, Shape, shape_label
from attn_course.measure.candidates import Candidate, TorchCall, torch_module
from attn_course.measure.roofline import attention_work, tflops
from attn_course.reference.dtypes import DTYPES, TOLERANCES
from attn_course.reference.inputs import seeded_qkv

from .peers import BACKWARD
from .suite import Suite, fastest

GRADIENTS = ("dq", "dk", "dv")
FIXED = "_deterministic"  # after the name of a method: the same bits on every run
SLACK = 4  # times the tolerance of a forward pass: weights and their gradients are rounded too
EXPONENTS = {2: 0x7F80, 4: 0x7F800000}  # all bits of the exponent, by bytes: bfloat16 and float32


@dataclass(frozen=True)
class BackwardRow:
    """One problem: shape (B, H, L, D) of q, k, v and dout."""

    shape: Shape
    causal: bool = False
    dtype: str = "bfloat16"

    @property
    def label(self) -> str:
        """'4,16,4096,128 causal bfloat16'."""
        return f"{shape_label(self.shape, self.causal)} {self.dtype}"


@dataclass(frozen=True)
class BackwardSuite(Suite):
    """Problems of attention_backward(). Every method takes part, and every peer."""

    rows: tuple[BackwardRow, ...]

    def candidates(self, chosen: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return the names to run: those chosen, else all; peers only where PyTorch is.

        Raises:
            ValueError: an unknown name; lists those there are.
        """
        if chosen is None:
            return (*ours(), *BACKWARD) if candidates.available() else ours()
        known = (*ours(), *BACKWARD)
        for name in (chosen := tuple(dict.fromkeys(chosen))):
            if name not in known:
                near = did_you_mean(name, known)
                raise InputError(f"no method or peer {name!r}{near}; there are: {', '.join(known)}")
        return chosen

    def peers(self, row: BackwardRow, names: Sequence[str]) -> list[str]:
        """Return the peers of a row that are among the names to run."""
        return [name for name in names if name in BACKWARD]

    def files(self, names: Sequence[str], rows: Sequence[dict] = ()) -> list[str]:
        """Return the kernel files that these candidates are made of."""
        methods = {name.removesuffix(FIXED) for name in names} & set(METHODS)
        return sorted({step.file for name in methods for step in METHODS[name].steps})

    def benchmark(self, row: BackwardRow, names: Sequence[str]) -> dict:
        """Return the arguments of run_benchmark() for a row."""
        makers: dict[str, Callable] = {
            name: partial(TorchGradients if name in BACKWARD else OurGradients, name, row.causal)
            for name in names
        }
        return {"makers": makers, "inputs": inputs_of(row), "expected": lambda *_: exact(row)}

    def standing(self, row: BackwardRow, result: BenchmarkResult) -> dict:
        """Return rates, the error of each gradient, and ours against the best peer."""
        measured, operations = result.measured, operations_of(row)
        best = fastest(measured, BACKWARD)
        timings = {
            name: one
            | {
                "tflops": round(tflops(operations, one["median_us"]), 3),
                "errors": errors_of(result.entrants.candidates[name].output(), exact(row)),
            }
            for name, one in result.records().items()
        }
        return {
            "causal": row.causal,
            "dtype": row.dtype,
            "operations": operations,
            "timings": timings,
            "best_peer": best,
            "best_method": fastest(measured, ours()),
            "ratios": {
                name: measured.ratio(name, best).record()
                for name in ours()
                if best and name in timings
            },
        }


def ours() -> tuple[str, ...]:
    """The methods, and again those that can be asked for the same bits on every run."""
    fixed = (f"{name}{FIXED}" for name, method in METHODS.items() if method.deterministic)
    return (*METHODS, *fixed)


# -- one problem -----------------------------------------------------------------------------------
@lru_cache(maxsize=1)
def inputs_of(row: BackwardRow) -> tuple[np.ndarray, ...]:
    """Return q, k, v and dout (B, H, L, D) of the row's dtype."""
    dout = np.random.default_rng(7).standard_normal(row.shape, dtype=np.float32) + 0.2
    return tuple(one.astype(DTYPES[row.dtype]) for one in (*seeded_qkv(row.shape), dout))


def heads_checked(shape: Shape) -> tuple[int, ...]:
    """The heads, of all batches, whose gradients are checked: the first, a middle one, the last."""
    heads = shape[0] * shape[1]
    return tuple(sorted({0, heads // 2, heads - 1}))


@lru_cache(maxsize=1)
def exact(row: BackwardRow) -> np.ndarray:
    """Return the gradients of heads_checked() in float64, (3, heads, L, D)."""

    def head(number: int) -> np.ndarray:
        at = divmod(number, row.shape[1])
        of_head = (one[at][None, None] for one in inputs_of(row))
        return np.stack(reference.attention_backward(*of_head, causal=row.causal))[:, 0, 0]

    with ThreadPoolExecutor() as pool:
        return np.stack(list(pool.map(head, heads_checked(row.shape))), axis=1)


def operations_of(row: BackwardRow) -> int:
    """The operations of five products, where a forward pass has two."""
    b, h, n, d = row.shape
    work = attention_work(Problem(b * h, n, n, d, h, h, row.causal, dtype=row.dtype))
    return work.operations * 5 // 2


def errors_of(found: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    """The relative error of each gradient, in the Euclidean norm."""
    norm = np.linalg.norm
    return {
        name: float(norm((one - right).ravel()) / norm(right.ravel()))
        for name, one, right in zip(GRADIENTS, found, expected, strict=True)
    }


def checked_heads(heads: Iterable[np.ndarray], finite: bool) -> np.ndarray:
    """Stack gradients on the host; all NaN where another head has an element that is not finite."""
    found = np.stack([one.astype(np.float32) for one in heads])
    return found if finite else np.full_like(found, np.nan)


# -- candidates ------------------------------------------------------------------------------------
class OurGradients(Candidate):
    """A method of attention_backward() on arrays of the backend. ValueError: it refuses them."""

    def __init__(self, name: str, causal: bool, q, k, v, dout):
        out, lse = attention(q, k, v, "auto", causal=causal, return_lse=True)
        how = {"causal": causal, "deterministic": name.endswith(FIXED)}
        given = (q, k, v, out, lse, dout, name.removesuffix(FIXED))
        call = BackwardRequest(*given, **how).call()
        self.call, self.gradients = call.run, gradients(call.arrays)
        self.relative = SLACK * TOLERANCES[q.dtype.name]

    def poison(self) -> None:
        """Fill the gradients with NaN."""
        for one in self.gradients:
            one.view(np.uint8).fill(0xFF)

    def output(self) -> np.ndarray:
        """Return the gradients of heads_checked(), (3, heads, n, d), on the host."""
        finite, found = True, []
        for one in self.gradients:
            exponent = EXPONENTS[one.dtype.itemsize]
            bits = one.view(np.dtype(f"u{one.dtype.itemsize}")) & exponent
            finite &= not bool((bits == exponent).any())
            each = one.reshape(-1, *one.shape[2:])
            found.append(np.stack([asnumpy(each[head]) for head in heads_checked(one.shape)]))
        return checked_heads(found, finite)


class TorchGradients(TorchCall):
    """A peer's backward pass alone; its forward pass runs once, in the first call.

    A backward pass runs on the stream of its forward pass: both are on the stream of the capture.
    """

    def __init__(self, name: str, causal: bool, q, k, v, dout):
        torch, peer = torch_module(), BACKWARD[name]
        if peer.mode:  # what a compiled forward pass keeps is read by every call
            from torch._functorch import config

            config.donated_buffer = False
        tensors = [in_library(torch, one) for one in (q, k, v, dout)]
        self.inputs, self.dout = [one.detach().requires_grad_() for one in tensors[:3]], tensors[3]
        self.stream, self.out = torch.cuda.Stream(), None
        relative = SLACK * TOLERANCES[q.dtype.name]
        super().__init__(peer.function(*self.inputs, causal), relative, peer.mode)

    def call(self):
        """Run the backward pass once; returns the gradients."""
        torch, current = torch_module(), torch_module().cuda.current_stream()
        with torch.cuda.stream(self.stream):
            if self.out is None:
                self.stream.wait_stream(current)
                self.out = self._call()
            return torch.autograd.grad(self.out, self.inputs, self.dout, retain_graph=True)

    def output(self) -> np.ndarray:
        """Return the gradients of heads_checked(), (3, heads, n, d), of the last replay."""
        torch = torch_module()
        torch.cuda.synchronize()
        found = self._graph_output
        finite = all(bool(torch.isfinite(one).all()) for one in found)
        heads = list(heads_checked(found[0].shape))
        return checked_heads(
            (one.flatten(0, 1)[heads].float().cpu().numpy() for one in found), finite
        )

    def poison(self) -> None:
        """Fill the graph's gradients with NaN."""
        for one in self._graph_output:
            one.fill_(float("nan"))


BACKWARD_SUITES = {
    suite.name: suite
    for suite in (
        BackwardSuite(
            "backward",
            "the backward pass of long sequences, bfloat16 and float32, where arithmetic counts",
            (
                BackwardRow((4, 16, 4096, 128)),
                BackwardRow((4, 16, 4096, 128), causal=True),
                BackwardRow((2, 16, 8192, 128)),
                BackwardRow((4, 16, 4096, 64)),
                BackwardRow((4, 16, 4096, 64), causal=True),
                BackwardRow((4, 16, 1024, 128)),
                BackwardRow((4, 16, 2048, 64), dtype="float32"),
                BackwardRow((4, 16, 2048, 128), dtype="float32"),
            ),
        ),
    )
}
