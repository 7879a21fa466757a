"""Launches in the order in which they run, on fixed arrays: what a layer is made of."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps

import numpy as np
from kernelscope import array_module, capture_graph, resolve_backend
from kernelscope.module import takes_foreign

from attn_course.backward.methods import BackwardRequest, gradients
from attn_course.ladder.call import StepLaunch, step_launch
from attn_course.ladder.headers import checked_options
from attn_course.ladder.methods import AUTO, Request
from attn_course.ladder.steps import Step

from .products import WeightMatrix, numpy_product
from .steps import Rows


class Launches:
    """Kernels, products and attention calls in sequence; ``run()`` runs them all.

    Attributes:
        backend: "gpu" or "simulator".
        deterministic: of calls of attention_backward().
        calls: (name, function), one for each kernel, product or attention call.
        launches: of the kernels among them.
    """

    def __init__(self, backend: str | None = None, *, deterministic: bool = False):
        self.backend, self.deterministic = resolve_backend(backend), deterministic
        self.xp = array_module(self.backend)
        self.calls: list[tuple[str, Callable[[], object]]] = []
        self.launches: list[StepLaunch] = []
        self._buffers: dict[tuple, object] = {}

    def buffer(self, name: str, *shape: int):
        """Return float32 scratch memory; the same for the same name and shape."""
        key = (name, shape)
        if key not in self._buffers:
            self._buffers[key] = self.xp.empty(shape, np.float32)
        return self._buffers[key]

    def kernel(
        self,
        step: Step,
        extents: Rows,
        arrays: Mapping[str, object],
        numbers: Mapping[str, object],
        options: Sequence[str] = (),
    ) -> None:
        """Append a kernel.

        arrays: by name, None where the kernel takes a null pointer.  numbers: its other arguments,
        where they are not those of `extents`.
        """
        given = {name: array for name, array in arrays.items() if array is not None}
        numbers = {**dict.fromkeys(arrays), **extents.scalars(), **numbers}
        options = checked_options(options, step.constants())
        launch = step_launch(step, extents, given, numbers, options, self.backend)
        self.launches.append(launch)
        self.calls.append((launch.geometry.entry, partial(launch.run, given)))

    def multiply(self, a, b, out, *, bias=None, residual=None) -> None:
        """Append out = a b + bias + residual.

        a: (m, parts*k).  b: a WeightMatrix, or an array (k, n) for a product in float32. Arrays are
        C-contiguous, or transposes of such.  out, residual: (m, n); may be the same.  bias: (n,).
        """
        compute = b.compute if isinstance(b, WeightMatrix) else "fp32"
        b = b.data if isinstance(b, WeightMatrix) else b
        if self.backend == "gpu":
            from .cublas import WORKSPACE, Product

            how = {"bias": bias, "residual": residual, "compute": compute}
            how["workspace"] = self.buffer("workspace", WORKSPACE // 4)
            run = Product(a, b, out, **how).run
        else:
            run = partial(numpy_product, a, b, out, bias, residual)
        self.calls.append(("product", run))

    def attention(self, q, k, v, out, *, method, causal=False, bias=None, return_lse=False):
        """Append a call of attention(), by the kernels of a method; return its log-sum-exp."""
        call = Request(q, k, v, method, causal, None, self.backend, bias, return_lse, out).call()
        self.calls.append((call.method, call.run))
        return call.arrays.get("lse")

    def attention_backward(self, q, k, v, out, lse, dout, *, causal=False, bias=None) -> tuple:
        """Append a call of attention_backward(); return dq, dk, dv and, with a bias, dbias."""
        given = (q, k, v, out, lse, dout, AUTO, causal, None, self.backend, bias, bias is not None)
        call = BackwardRequest(*given, self.deterministic).call()
        self.calls.append((call.method, call.run))
        return gradients(call.arrays)

    def run(self) -> None:
        """Run all in order."""
        for _, call in self.calls:
            call()


class LayerPlan:
    """A layer on fixed arrays; ``plan()`` computes it again and returns ``plan.out``.

    Fill the inputs in place before ``plan()``. On a GPU the launches are captured into a CUDA
    graph, which ``plan()`` replays on CuPy's current stream; making the plan runs them once. On
    the simulator ``plan()`` runs them again.

    Attributes:
        out: the output array, or all of them where the layer returns several.
        launches: what runs, in order.
        run: what ``plan()`` calls.
    """

    def __init__(self, launches: Launches, out):
        self.launches, self.out = launches, out
        gpu = launches.backend == "gpu"
        self.run = capture_graph(launches.run) if gpu else launches.run

    def __call__(self):
        self.run()
        return self.out


def with_plan(prepare: Callable[..., tuple[Launches, object]]):
    """Make a function that returns launches and their output one that runs them.

    It gets `plan`, which takes the same arguments and returns a LayerPlan of them.
    """

    @takes_foreign
    @wraps(prepare)
    def layer(*arrays, **options):
        launches, out = prepare(*arrays, **options)
        launches.run()
        return out

    @takes_foreign
    @wraps(prepare)
    def plan(*arrays, **options) -> LayerPlan:
        return LayerPlan(*prepare(*arrays, **options))

    layer.plan = plan
    return layer
