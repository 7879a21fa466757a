"""Candidates of a timing contest: kernels of the course, and PyTorch's attention.

Both run on given inputs, are captured into a CUDA graph, and replay on CuPy's current stream, so
they take turns on one stream. PyTorch is optional (the `peers` extra) and is imported when one of
them is first asked for. TF32 is off: float32 means float32.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from typing import NamedTuple

import numpy as np
from kernelscope import array_module, asnumpy
from kernelscope.errors import UnknownNameError, UserError
from kernelscope.module import GraphLaunch

from attn_course.clinic.edits import Edit, edited, kernel_text
from attn_course.ladder.call import call_steps
from attn_course.ladder.choose import current_device
from attn_course.ladder.methods import check_options, pick, problem_of, steps_of
from attn_course.ladder.steps import Device, Geometry, Problem, Step, step
from attn_course.reference.comparison import poisoned
from attn_course.reference.dtypes import DTYPES, TOLERANCES

from .timing import GRAPH_CALLS, Replay, capture, require_gpu


# -- kernels of the course -------------------------------------------------------------------------
class Part(NamedTuple):
    """One kernel of a candidate.

    step: a ladder step's number, entry point or file; an experiment's file.
    options: compiler options, which win over the tuning.
    edits: replacements in the kernel's text.
    """

    step: int | str
    options: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()

    @property
    def row(self) -> Step:
        """The step, with the edited text. Raises EditError: an edit does not fit the text."""
        row = step(self.step)
        if not self.edits:
            return row
        return replace(row, text=edited(kernel_text(row.path), self.edits, row.file))

    def launch(self, problem: Problem, device: Device | None = None) -> Geometry:
        """Return the geometry for a problem; the part's options win over the tuning.

        Raises:
            ValueError: an extent or an option that the step does not take.
        """
        return self.row.launch(problem, self.options, device)


class Candidate:
    """Work of the course on given inputs.

    Attributes:
        call: launches the work once, on CuPy's current stream.
        out: the array of the backend that it fills.
        relative: the relative error to float64 that is allowed.
    """

    call: Callable[[], object]
    out: object
    relative: float

    def try_call(self) -> None:
        """Launch the work once. Raises what the launch raises."""
        self.call()

    def capture(self, calls: int = GRAPH_CALLS) -> Replay:
        """Capture `calls` calls into one CUDA graph."""
        return capture(self.call, calls)

    def poison(self) -> None:
        """Fill the output with NaN, so that a replay which writes nothing is noticed."""
        self.out.view(np.uint8).fill(0xFF)  # all bits set is a NaN in every dtype

    def output(self) -> np.ndarray:
        """Return the output on the host."""
        return asnumpy(self.out)


class Kernels(Candidate):
    """Kernels that run one after the other on given inputs.

    Everything is made beforehand (buffers, launches, arguments), because a CUDA graph must not
    allocate.

    Args:
        name: as results show it.
        parts: what to launch, in order.
        q, k, v: arrays of the backend, (B, H, n, d) and (B, H_kv, m, d), of a dtype that the steps
            take.

    Raises:
        ValueError: an extent or an option that a step does not take.  EditError: as Part.row.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[Part],
        q,
        k,
        v,
        *,
        causal: bool = False,
        backend: str | None = None,
    ):
        self.name, self.parts = name, [Part(*part) for part in parts]
        problem, rows = problem_of(q, k, causal), [part.row for part in self.parts]
        used = {argument for row in rows for argument in row.arguments}
        arrays = {
            name: array.reshape(-1, *array.shape[2:])
            for name, array in zip("qkv", (q, k, v), strict=True)
        }
        for name in used & {"s", "out"}:
            shape, dtype = problem.shape(name), problem.dtype_of(name)
            arrays[name] = poisoned(shape, dtype, array_module(backend))
        self.out = arrays["out" if "out" in used else "s"].reshape(*q.shape[:3], -1)
        how = {"problem": problem, "backend": backend}
        self.calls = [
            call_steps([row], arrays, q.shape[3] ** -0.5, options=part.options, **how)
            for row, part in zip(rows, self.parts, strict=True)
        ]
        self.relative = max(call.tolerance for call in self.calls)

    def call(self) -> None:
        """Launch all kernels once."""
        for call in self.calls:
            call.run()

    def capture_part(self, calls: int, number: int) -> Replay:
        """Capture calls of one of the kernels, on whatever the buffers hold."""
        return capture(self.calls[number].run, calls)

    def facts(self) -> dict:
        """Return the first kernel's options, blocks, threads, registers and bytes of memory.

        On a GPU also the blocks that a multiprocessor can hold, as the driver reports them, and
        the waves of blocks that follow.
        """
        first = self.calls[0].launches[0]
        launch, kernel = first.geometry, first.kernel
        blocks, threads = prod(launch.grid), prod(launch.block)
        found = {
            "options": list(launch.options(self.parts[0].options)),
            "blocks": blocks,
            "threads": threads,
            "registers": kernel.num_regs,
            "local_bytes": kernel.local_size_bytes,
            "shared_bytes": launch.shared_bytes + kernel.shared_size_bytes,
        }
        if kernel.backend != "gpu":
            return found
        import cupy

        resident = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
            kernel.raw.kernel.ptr, threads, launch.shared_bytes
        )
        waves = blocks / (max(resident, 1) * current_device("gpu").sm_count)
        return found | {"resident_blocks": resident, "waves": round(waves, 3)}


def ours(method: str, q, k, v, causal: bool = False) -> Kernels:
    """Return a method of attention() as a candidate. ValueError: it does not take the problem."""
    problem = problem_of(q, k, causal)
    chosen = pick(method, problem, "gpu")
    check_options(chosen, problem)
    return Kernels(method, [Part(row.number) for row in steps_of(chosen)], q, k, v, causal=causal)


# -- PyTorch ---------------------------------------------------------------------------------------
# Our name -> the name in torch.nn.attention.SDPBackend.
BACKENDS = {
    "torch_math": "MATH",
    "torch_efficient": "EFFICIENT_ATTENTION",
    "torch_flash": "FLASH_ATTENTION",
    "torch_cudnn": "CUDNN_ATTENTION",
}
EAGER = "torch_eager"  # softmax(q @ k.T * scale) @ v, an operation at a time
FLEX = "torch_flex"  # flex_attention, compiled for the problem
BASELINES = (*BACKENDS, EAGER, FLEX)


class BaselinesMissing(UserError, ImportError):
    """PyTorch is not installed, or sees no GPU; says how to install it."""


class BaselineRefuses(UserError, RuntimeError):
    """A backend does not take these inputs; the message is PyTorch's own reason."""


def torch_module():
    """PyTorch with full float32 matrix products (for the whole process).

    Raises:
        BaselinesMissing: it is not installed, or sees no GPU.
    """
    try:
        import torch
    except ImportError as error:
        raise BaselinesMissing(
            "PyTorch is not installed: pip install 'attn-course[peers]' (from the project's "
            "folder: pip install -e '.[peers]') to time the kernels against it"
        ) from error
    if not torch.cuda.is_available():
        raise BaselinesMissing(
            f"PyTorch {torch.__version__} sees no GPU: install one built for CUDA"
        )
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    return torch


def available() -> bool:
    """Whether torch_module() would succeed."""
    try:
        torch_module()
    except BaselinesMissing:
        return False
    return True


class TorchCall:
    """A call of PyTorch as a candidate.

    Args:
        call: runs once on PyTorch's current stream and returns a tensor.
        relative: the relative error to float64 that is allowed.

    Raises:
        BaselinesMissing: no PyTorch. TimingError: no GPU.  BaselineRefuses, of a call: PyTorch does
            not take the inputs.
    """

    def __init__(self, call: Callable[[], object], relative: float = TOLERANCES["float32"]):
        require_gpu()
        torch_module()
        self._call, self.relative = call, relative
        self._graph_output = None

    def call(self):
        """Run once on PyTorch's current stream; returns a tensor."""
        with torch_module().no_grad():
            return self._call()

    def try_call(self) -> None:
        """Run once, then in a CUDA graph. BaselineRefuses: PyTorch does not take one of them."""
        self._call_and_wait()
        try:
            self.capture(1)
        except RuntimeError as error:
            raise BaselineRefuses(f"no CUDA graph: {refusal(str(error), [])}") from None

    def _call_and_wait(self) -> None:
        torch = torch_module()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                self.call()
                torch.cuda.synchronize()
            except RuntimeError as error:
                raise BaselineRefuses(
                    refusal(str(error), [str(one.message) for one in said])
                ) from None

    def capture(self, calls: int = GRAPH_CALLS) -> Replay:
        """Capture `calls` calls into a CUDA graph that replays on CuPy's current stream."""
        torch = torch_module()
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries set themselves up here, outside the capture
                self._call_and_wait()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                self._graph_output = self.call()

        def launch() -> None:
            with cupy_stream():
                graph.replay()

        return Replay(GraphLaunch(launch, self), calls)

    def output(self) -> np.ndarray:
        """Return the output of the captured graph's last replay, on the host."""
        torch_module().cuda.synchronize()
        output = self._graph_output
        if output.dtype == torch_module().bfloat16:  # which NumPy does not have
            output = output.float()
        return output.cpu().numpy()

    def poison(self) -> None:
        """Fill the graph's output with NaN, so that a replay which wrote nothing would show."""
        self._graph_output.fill_(math.nan)


class Baseline(TorchCall):
    """One of BASELINES on given inputs.

    Args:
        name: one of BASELINES.
        q, k, v: CuPy arrays (B, H, n, d) and (B, H_kv, m, d), not copied; float32, float16,
            bfloat16. Only flex_attention and scaled_dot_product_attention take H_kv below H.
        causal: query i sees key j only where j <= i; n == m.

    Raises:
        KeyError: an unknown name.  BaselinesMissing: no PyTorch.
        BaselineRefuses: the backend does not take these inputs. TimingError: no GPU.
    """

    def __init__(self, name: str, q, k, v, *, causal: bool = False):
        if name not in BASELINES:
            raise UnknownNameError(f"no peer {name!r}; there are: {', '.join(BASELINES)}")
        own = {EAGER: self._eager, FLEX: self._flex}
        call = own.get(name) or partial(self._attend, BACKENDS[name])
        super().__init__(call, TOLERANCES[q.dtype.name])
        torch = torch_module()
        self.inputs = tuple(_tensor(torch, array) for array in (q, k, v))
        self.causal = causal
        self._grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
        self.scale = 1 / math.sqrt(q.shape[3])
        if causal and name == EAGER:
            square = torch.ones((q.shape[2],) * 2, dtype=torch.bool, device=self.inputs[0].device)
            self._hidden = square.triu(1)
        if name == FLEX:
            self._compiled, self._mask = _flex_attention(q.shape[2], k.shape[2], causal)

    def _eager(self):
        torch = torch_module()
        q, k, v = self.inputs
        scores = q @ k.mT * self.scale
        if self.causal:
            scores = scores.masked_fill(self._hidden, -math.inf)
        return torch.softmax(scores, dim=-1) @ v

    def _attend(self, backend: str):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        attend = torch_module().nn.functional.scaled_dot_product_attention
        how = {"is_causal": self.causal, "scale": self.scale}
        with sdpa_kernel([getattr(SDPBackend, backend)]):
            return attend(*self.inputs, **how, **self._grouped)

    def _flex(self):
        how = {"block_mask": self._mask, "scale": self.scale}
        return self._compiled(*self.inputs, **how, **self._grouped)


@lru_cache(maxsize=8)
def _flex_attention(n: int, m: int, causal: bool) -> tuple[Callable, object]:
    """flex_attention compiled for one problem, and its mask of blocks."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def seen(batch, head, query, key):
        return query >= key

    mask = create_block_mask(seen, None, None, n, m) if causal else None
    torch_module().compiler.reset()  # one function is compiled eight times at most
    return torch_module().compile(flex_attention, dynamic=False), mask


def _tensor(torch, array):
    """A tensor in an array's memory; bfloat16 goes by way of its bits."""
    if array.dtype == DTYPES["bfloat16"]:
        return torch.from_dlpack(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)


@contextmanager
def cupy_stream():
    """PyTorch's work inside the block goes to CuPy's current stream."""
    import cupy

    with torch_module().cuda.stream(_external(cupy.cuda.get_current_stream().ptr)):
        yield


@lru_cache(maxsize=32)
def _external(pointer: int):
    return torch_module().cuda.ExternalStream(pointer)


def refusal(error: str, said: list[str]) -> str:
    """One line of why PyTorch refused: the most telling of its warnings, else the error itself."""
    telling = [one for one in said if "Expected" in one or "dtype" in one or "head" in one]
    text = (telling or [error])[0]
    text = text.partition("(Triggered internally")[0]
    return " ".join(text.split())[:160]


def torch_version() -> str:
    """'2.11.0 (CUDA 13.0)', or '' where PyTorch is missing."""
    try:
        torch = torch_module()
    except BaselinesMissing:
        return ""
    return f"{torch.__version__.partition('+')[0]} (CUDA {torch.version.cuda})"


def caller(name: str, q, k, v, **options) -> Callable[[], object]:
    """A baseline's call on CuPy's current stream, for timing what Python's launch adds."""
    baseline = Baseline(name, q, k, v, **options)

    def call() -> None:
        with cupy_stream():
            baseline.call()

    return call
