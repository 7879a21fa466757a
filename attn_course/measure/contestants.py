"""What a user would call instead of a kernel of the course: PyTorch's attention, graph for graph.

PyTorch is optional (the `peers` extra) and is imported when a peer is first asked for. Its inputs
are views of CuPy's arrays, its work is captured by `torch.cuda.graph` and replayed on CuPy's
current stream, so a peer and a kernel take turns on one stream. TF32 is off: float32 means float32.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from functools import lru_cache

import numpy as np

from attn_course.engine.graphs import GraphLaunch

from .timing import GRAPH_CALLS, Replay, require_gpu

# Our name -> the name in torch.nn.attention.SDPBackend.
BACKENDS = {
    "torch_math": "MATH",
    "torch_efficient": "EFFICIENT_ATTENTION",
    "torch_flash": "FLASH_ATTENTION",
    "torch_cudnn": "CUDNN_ATTENTION",
}
EAGER = "torch_eager"  # softmax(q @ k.T * scale) @ v, an operation at a time
PEERS = (*BACKENDS, EAGER)


class PeersMissing(ImportError):
    """PyTorch is not installed, or sees no GPU; says how to install it."""


class PeerRefuses(RuntimeError):
    """A backend does not take these inputs; the message is PyTorch's own reason."""


def torch_module():
    """PyTorch with full float32 matrix products (for the whole process).

    Raises:
        PeersMissing: it is not installed, or sees no GPU.
    """
    try:
        import torch
    except ImportError as error:
        raise PeersMissing(
            "PyTorch is not installed: pip install 'attn-course[peers]' (from the project's "
            "folder: pip install -e '.[peers]') to time the kernels against it"
        ) from error
    if not torch.cuda.is_available():
        raise PeersMissing(f"PyTorch {torch.__version__} sees no GPU: install one built for CUDA")
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    return torch


def available() -> bool:
    """Whether torch_module() would succeed."""
    try:
        torch_module()
    except PeersMissing:
        return False
    return True


class Peer:
    """One of PEERS on given inputs.

    Args:
        name: one of PEERS.
        q, k, v: CuPy arrays (B, H, n, d) and (B, H, m, d), not copied.
        causal: query i sees key j only where j <= i; n == m.
        scale: defaults to 1/sqrt(d).

    Raises:
        KeyError: an unknown name.  PeersMissing: no PyTorch.
        PeerRefuses: the backend does not take these inputs. TimingError: no GPU.
    """

    def __init__(self, name: str, q, k, v, *, causal: bool = False, scale: float | None = None):
        if name not in PEERS:
            raise KeyError(f"no peer {name!r}; there are: {', '.join(PEERS)}")
        require_gpu()
        torch = torch_module()
        self.name = name
        self.inputs = tuple(torch.from_dlpack(array) for array in (q, k, v))
        self.causal = causal
        self.scale = 1 / math.sqrt(q.shape[3]) if scale is None else float(scale)
        self._graph_output = None
        if causal:
            square = torch.ones((q.shape[2],) * 2, dtype=torch.bool, device=self.inputs[0].device)
            self._hidden = square.triu(1)

    def call(self):
        """Run once on PyTorch's current stream; returns a tensor (B, H, n, d).

        Raises:
            PeerRefuses.
        """
        torch = torch_module()
        with torch.no_grad():
            return self._eager(torch) if self.name == EAGER else self._attend(torch)

    def _eager(self, torch):
        q, k, v = self.inputs
        scores = q @ k.mT * self.scale
        if self.causal:
            scores = scores.masked_fill(self._hidden, -math.inf)
        return torch.softmax(scores, dim=-1) @ v

    def _attend(self, torch):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        attend = torch.nn.functional.scaled_dot_product_attention
        with sdpa_kernel([getattr(SDPBackend, BACKENDS[self.name])]):
            return attend(*self.inputs, is_causal=self.causal, scale=self.scale)

    def try_call(self) -> None:
        """Run once and wait. PeerRefuses where the backend does not take the inputs."""
        torch = torch_module()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                self.call()
                torch.cuda.synchronize()
            except RuntimeError as error:
                raise PeerRefuses(refusal(str(error), [str(one.message) for one in said])) from None

    def capture(self, calls: int = GRAPH_CALLS) -> Replay:
        """Capture `calls` calls into a CUDA graph that replays on CuPy's current stream.

        Raises:
            PeerRefuses.
        """
        torch = torch_module()
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries set themselves up here, outside the capture
                self.try_call()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                self._graph_output = self.call()

        def launch() -> None:
            with cupy_stream():
                graph.replay()

        return Replay(GraphLaunch(launch, self), calls)

    def output(self) -> np.ndarray:
        """What the captured graph's last replay wrote, on the host: (B, H, n, d)."""
        torch_module().cuda.synchronize()
        return self._graph_output.cpu().numpy()

    def poison(self) -> None:
        """Fill the graph's output with NaN, so that a replay which wrote nothing would show."""
        self._graph_output.fill_(math.nan)


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
    except PeersMissing:
        return ""
    return f"{torch.__version__.partition('+')[0]} (CUDA {torch.version.cuda})"


def caller(name: str, q, k, v, **options) -> Callable[[], object]:
    """A peer's call on CuPy's current stream, for timing what Python's launch adds."""
    peer = Peer(name, q, k, v, **options)

    def call() -> None:
        with cupy_stream():
            peer.call()

    return call
