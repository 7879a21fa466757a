"""A prepared call of attention(): the same kernels on the same arrays, again and again."""

from attn_course.engine.graphs import capture_graph

from .call import Call, StepLaunch
from .problem import Problem


class Plan:
    """A call of attention() that is ready to run; ``plan()`` runs it and returns ``plan.out``.

    The arrays stay the same: fill them in place before ``plan()``. On a GPU a plan is a CUDA
    graph, replayed on CuPy's current stream; making it runs the call once. On the simulator
    ``plan()`` runs the kernels again.

    Attributes:
        out: (B, H, n, d) of q's dtype, the output.
        lse: (B, H, n) float32, or None where it was not asked for.
        method: the method that runs, also where "auto" was asked for.
        problem: the extents.
        launches: one :class:`StepLaunch` for each kernel launch, in their order.
    """

    def __init__(self, call: Call):
        self.method = call.method
        self.problem: Problem = call.problem
        self.launches: tuple[StepLaunch, ...] = call.launches
        self.out, self.lse = call.arrays["out"], call.arrays.get("lse")
        self._run = capture_graph(call.run) if call.backend == "gpu" else call.run

    def __call__(self):
        self._run()
        return self.out
