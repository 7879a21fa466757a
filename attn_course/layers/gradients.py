"""Gradients of layer_norm, bias_gelu and mlp, given the gradient dout of their output.

A function `layer_backward` returns the gradients of sum(dout * layer(...)), in the order of the
layer's arguments. What one pass over memory computes again is computed again, not kept.
"""

from kernelscope.errors import InputError

from attn_course.ladder.checks import check_floats
from attn_course.ladder.choose import current_device
from attn_course.ladder.problem import ceil_div

from .launches import Launches, with_plan
from .operations import (
    APPROXIMATIONS,
    check_approximate,
    check_eps,
    check_like,
    check_matrix,
    check_rows,
    check_vector,
)
from .steps import BIAS_GELU_BACKWARD, COLUMN_SUMS, LAYER_NORM_BACKWARD, Rows


@with_plan
def layer_norm_backward(x, gamma, dout, eps=1e-5, *, dsum=None, backend=None, options=()):
    """Return the gradients of layer_norm(x, gamma, beta): dx, dgamma, dbeta.

    ``layer_norm_backward.plan`` prepares a call on these arrays and returns a LayerPlan.

    Args:
        x: (..., d) float32, as for layer_norm(); where that adds a residual or a bias, the sum.
        gamma: (d,) or None.
        dout: like x, the gradient of the output.
        eps: as in layer_norm().
        dsum: like x, the gradient that reaches x past the norm; added to dx. None: zeros.
        options: compiler options, such as ("-DVECTORS=2", "-DWARPS=4").

    Returns:
        dx like x, dgamma (d,), dbeta (d,), which are sums over rows in an order that the shape and
        the GPU fix: the same bits in every run.

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or extent, with the remedy.
    """
    launches = Launches(backend)
    xp, d = launches.xp, check_rows(x, launches.xp)
    check_vector("gamma", gamma, d, xp)
    check_like("dout", dout, x, xp)
    if dsum is not None:
        check_like("dsum", dsum, x, xp)
    dx, dvectors = xp.empty_like(x), xp.empty((2, d), x.dtype)
    add_layer_norm_backward(launches, x, gamma, dout, dx, dvectors, eps, dsum, options)
    return launches, (dx, *dvectors)


def add_layer_norm_backward(
    launches: Launches, x, gamma, dout, dx, dvectors, eps, dsum=None, options=()
) -> None:
    """Append the gradients of a layer norm of rows x to launches. dvectors: (2, d), of gamma, beta.

    x, dout, dsum, dx: (rows, d).
    """
    arrays = {"x": x, "gamma": gamma, "dout": dout, "dsum": dsum, "dx": dx}
    _with_sums(launches, LAYER_NORM_BACKWARD, arrays, {"eps": check_eps(eps)}, dvectors, options)


@with_plan
def bias_gelu_backward(x, bias, dout, approximate="none", *, backend=None, options=()):
    """Return the gradients of bias_gelu(x, bias, approximate): dx, dbias.

    The derivative at t is P(t) + t P'(t), with P the normal distribution function, or that of the
    form by tanh. ``bias_gelu_backward.plan`` prepares a call on these arrays.

    Args:
        x: (..., width) float32, as for bias_gelu().  bias: (width,) or None.
        dout: like x, the gradient of the output.
        approximate: "none" (by erf) or "tanh".

    Returns:
        dx like x, dbias (width,), which is the sum of dx over rows.

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or value, with the remedy.
    """
    launches = Launches(backend)
    xp, width = launches.xp, check_rows(x, launches.xp)
    check_vector("bias", bias, width, xp)
    check_like("dout", dout, x, xp)
    dx, dbias = xp.empty_like(x), xp.empty(width, x.dtype)
    add_bias_gelu_backward(launches, x, bias, dout, dx, dbias, approximate, options=options)
    return launches, (dx, dbias)


def add_bias_gelu_backward(
    launches: Launches, x, bias, dout, dx, dbias, approximate, out=None, options=()
) -> None:
    """Append the gradients of a GELU of rows x + bias to launches.

    x, dout, dx: (rows, width); dx may be dout.  dbias: (width,).  out: gelu(x + bias) is written
    there, or None.
    """
    arrays = {"x": x, "bias": bias, "dout": dout, "dx": dx, "out": out}
    numbers = {"approximate": APPROXIMATIONS[check_approximate(approximate)]}
    _with_sums(launches, BIAS_GELU_BACKWARD, arrays, numbers, dbias, options)


def _with_sums(launches: Launches, step, arrays, numbers, total, options) -> None:
    """Append a kernel whose blocks leave sums over their rows, and what adds these into total."""
    width = arrays["x"].shape[-1]
    extents = Rows(arrays["x"].size // width, width)
    blocks = step.launch(extents, options, current_device(launches.backend)).grid[0]
    sums = launches.buffer("sums", blocks, total.size)
    launches.kernel(step, extents, {**arrays, "sums": sums}, numbers, options)
    add_column_sums(launches, sums, total)


def add_column_sums(launches: Launches, x, out) -> None:
    """Append to launches: out (width) = the sums of the columns of x (rows, width)."""
    rows, width = x.shape
    span = COLUMN_SUMS.constants()["SPAN"]
    while rows > span:
        fewer = launches.buffer("column_sums", ceil_div(rows, span), width)
        launches.kernel(COLUMN_SUMS, Rows(rows, width), {"x": x, "out": fewer}, {})
        x, rows = fewer, len(fewer)
    launches.kernel(COLUMN_SUMS, Rows(rows, width), {"x": x, "out": out}, {})


@with_plan
def mlp_backward(x, w_1, b_1, w_2, hidden, dout, approximate="none", *, backend=None):
    """Return the gradients of mlp(x, w_1, b_1, w_2, b_2, approximate).

    ``mlp_backward.plan`` prepares a call on these arrays, which are read at each call.

    Args:
        x, w_1, b_1, w_2: as for mlp().
        hidden: (..., F), x w_1 as mlp(.., return_hidden=True) returns it.
        dout: like x, the gradient of the output.
        approximate: of GELU, "none" or "tanh".

    Returns:
        dx, dw_1, db_1, dw_2, db_2: of the shapes of x, w_1, b_1, w_2, b_2, float32. Products are
        computed in float32.

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or value, with the remedy.
        BackendError: no cuBLAS on a GPU.
    """
    launches = Launches(backend)
    xp, width = launches.xp, check_rows(x, launches.xp)
    check_matrix("w_1", w_1, (width, "F"), xp)
    inner = w_1.shape[1]
    check_matrix("w_2", w_2, (inner, width), xp)
    check_vector("b_1", b_1, inner, xp)
    check_floats("hidden", hidden, xp)
    if hidden.shape != (*x.shape[:-1], inner):
        raise InputError(f"hidden has shape {hidden.shape}, not {(*x.shape[:-1], inner)}: x w_1")
    check_like("dout", dout, x, xp)
    shapes = (x.shape, w_1.shape, (inner,), w_2.shape, (width,))
    gradients = tuple(xp.empty(shape, x.dtype) for shape in shapes)
    rows, hidden, dout = x.reshape(-1, width), hidden.reshape(-1, inner), dout.reshape(-1, width)
    dx, *others = gradients
    add_mlp_backward(
        launches, rows, w_1, b_1, w_2, hidden, dout, (dx.reshape(-1, width), *others), approximate
    )
    return launches, gradients


def add_mlp_backward(
    launches: Launches, rows, w_1, b_1, w_2, hidden, dout, gradients, approximate
) -> None:
    """Append the gradients of an MLP of rows (count, E) to launches.

    hidden: (count, F).  dout: (count, E).  gradients: dx (count, E), dw_1, db_1, dw_2, db_2.
    """
    dx, dw_1, db_1, dw_2, db_2 = gradients
    active, dhidden = (launches.buffer(name, *hidden.shape) for name in ("active", "dhidden"))
    add_column_sums(launches, dout, db_2)
    launches.product(dout, w_2.T, dhidden)  # of the GELU's output: the kernel works in place
    how = (dhidden, dhidden, db_1, approximate)
    add_bias_gelu_backward(launches, hidden, b_1, *how, out=active)
    launches.product(active.T, dout, dw_2)
    launches.product(rows.T, dhidden, dw_1)
    launches.product(dhidden, w_1.T, dx)
