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
from kernelscope.contest import GRAPH_CALLS, Replay, capture, require_gpu
from kernelscope.errors import UnknownNameError, UserError
from kernelscope.module import GraphLaunch, in_library

from attn_course.clinic.edits import Edit, edited, kernel_text
from attn_course.ladder.call import call_steps
from attn_course.ladder.choose import current_device
from attn_course.ladder.methods import check_options, pick, problem_of, steps_of
from attn_course.ladder.steps import Device, Geometry, Problem, Step, step
from attn_course.reference.comparison import poisoned
from attn_course.reference.dtypes import DTYPES, TOLERANCES


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
        first = self.calls[0].launches[-1]  # what goes before it is another kernel
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
EAGER = "torch_eager"
BACKENDS = {  # our name -> the name in torch.nn.attention.SDPBackend
    "torch_math": "MATH",
    "torch_efficient": "EFFICIENT_ATTENTION",
    "torch_flash": "FLASH_ATTENTION",
    "torch_cudnn": "CUDNN_ATTENTION",
}
EAGER_SLACK = 4  # in 16 bits the plain formula rounds its scores and weights too


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
        mode: of torch.compile(); None: not compiled. What is no single graph is refused, not run
            eagerly. Modes with CUDA graphs of their own do not go into the one captured here.

    Raises:
        BaselinesMissing: no PyTorch. TimingError: no GPU.  BaselineRefuses, of a call: PyTorch does
            not take the inputs, or does not compile.
    """

    stream = None  # of the capture, where it must be a certain one

    def __init__(
        self, call: Callable, relative: float = TOLERANCES["float32"], mode: str | None = None
    ):
        require_gpu()
        torch, self.relative = torch_module(), relative
        how = {"mode": mode, "fullgraph": True, "dynamic": False}
        self._call = torch.compile(call, **how) if mode else call
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
            except Exception as error:  # compilers raise errors of every type
                text = str(error) or type(error).__name__
                raise BaselineRefuses(refusal(text, [str(one.message) for one in said])) from None

    def capture(self, calls: int = GRAPH_CALLS) -> Replay:
        """Capture `calls` calls into a CUDA graph that replays on CuPy's current stream."""
        torch = torch_module()
        graph = torch.cuda.CUDAGraph()
        side = self.stream or torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries set themselves up here, outside the capture
                self._call_and_wait()
        with torch.cuda.graph(graph, stream=self.stream):
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
    """One of BASELINES on given inputs, or another function of PyTorch's attention.

    Args:
        peer: a name of BASELINES, or a function of tensors q, k, v and `causal` that returns a
            call.
        q, k, v: CuPy arrays (B, H, n, d) and (B, H_kv, m, d), not copied; float32, float16,
            bfloat16.
        causal: query i sees key j only where j <= i; n == m.
        mode: of torch.compile(), as TorchCall takes it.

    Raises:
        KeyError: an unknown name.  BaselinesMissing: no PyTorch.
        BaselineRefuses: the backend does not take these inputs. TimingError: no GPU.
    """

    def __init__(self, peer: str | Callable, q, k, v, *, causal=False, mode: str | None = None):
        if isinstance(peer, str) and peer not in BASELINES:
            raise UnknownNameError(f"no peer {peer!r}; there are: {', '.join(BASELINES)}")
        function, torch = BASELINES.get(peer, peer), torch_module()
        self.inputs = tuple(in_library(torch, array) for array in (q, k, v))
        rounds = function is eager and q.dtype != DTYPES["float32"]
        relative = TOLERANCES[q.dtype.name] * (EAGER_SLACK if rounds else 1)
        super().__init__(function(*self.inputs, causal), relative, mode)


def eager(q, k, v, causal: bool) -> Callable:
    """Return a call of softmax(q @ k.T * scale) @ v, an operation at a time."""
    torch, groups, scale = torch_module(), q.shape[1] // k.shape[1], q.shape[3] ** -0.5
    if causal:
        hidden = torch.ones((q.shape[2],) * 2, dtype=torch.bool, device=q.device).triu(1)

    def call():
        keys, values = k, v
        if groups > 1:
            keys, values = (one.repeat_interleave(groups, 1) for one in (k, v))
        scores = q @ keys.mT * scale
        if causal:
            scores = scores.masked_fill(hidden, -math.inf)
        return torch.softmax(scores, dim=-1) @ values

    return call


def sdpa(q, k, v, causal: bool, backend: str = "") -> Callable:
    """Return a call of SDPA; backend: a name of SDPBackend, PyTorch chooses where ""."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attend = torch_module().nn.functional.scaled_dot_product_attention
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    call = partial(attend, q, k, v, is_causal=causal, scale=q.shape[3] ** -0.5, **grouped)

    def by_backend():
        with sdpa_kernel([getattr(SDPBackend, backend)]):
            return call()

    return by_backend if backend else lambda: call()


BASELINES = {name: partial(sdpa, backend=backend) for name, backend in BACKENDS.items()}
BASELINES[EAGER] = eager


@contextmanager
def cupy_stream():
    """PyTorch's work inside the block goes to CuPy's current stream."""
    import cupy

    with torch_module().cuda.stream(_external(cupy.cuda.get_current_stream().ptr)):
        yield


@lru_cache(maxsize=32)
def _external(pointer: int):
    cuda = torch_module().cuda  # its ExternalStream(0) is another stream than the default one
    return getattr(cuda, "get_stream_from_external", cuda.ExternalStream)(pointer)


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
