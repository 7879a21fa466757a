"""CUDA graphs: kernel launches are captured once and replayed at the price of one launch."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class GraphLaunch:
    """A captured graph; a call launches it on CuPy's current stream.

    `keeps` keeps alive the arrays whose addresses the graph has.
    """

    launch: Callable[[], object]
    keeps: object

    def __call__(self) -> None:
        self.launch()


def capture_graph(call: Callable[[], object], calls: int = 1) -> GraphLaunch:
    """Capture `calls` runs of a call into one CUDA graph.

    The call runs once before the capture, so that kernels are compiled and loaded; the GPU is
    idle before and after that run. It must only launch work on CuPy's current stream: no
    allocation, no synchronisation. Needs a GPU.
    """
    import cupy

    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        call()
        stream.synchronize()
        stream.begin_capture()
        for _ in range(calls):
            call()
        graph = stream.end_capture()
    return GraphLaunch(graph.launch, call)
