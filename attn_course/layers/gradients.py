"""Gradients of layer_norm, bias_gelu and mlp, given the gradient dout of their output.

A function `layer_backward` returns the gradients of sum(dout * layer(...)), in the order of the
layer's arguments; its `plan` prepares a call. Sums over rows have an order that the shape and the
GPU fix: the same bits in every run.
"""

from attn_course.ladder.choose import current_device
from attn_course.ladder.problem import ceil_div

from .launches import Launches, with_plan
from .operations import (
    APPROXIMATIONS,
    check_approximate,
    check_eps,
    check_like,
    check_mlp,
    check_rows,
    check_vector,
)
from .steps import BIAS_GELU_BACKWARD, COLUMN_SUMS, LAYER_NORM_BACKWARD, Rows


@with_plan
def layer_norm_backward(x, gamma, dout, eps=1e-5, *, dsum=None, backend=None, options=()):
    """Return the gradients of layer_norm(x, gamma, beta): dx like x, dgamma and dbeta (d,).

    Args:
        x: (..., d) float32, as for layer_norm(); where that adds a residual or a bias, the sum.
        gamma: (d,) or None.  eps: as in layer_norm().
        dout: like x, the gradient of the output.
        dsum: like x, the gradient that reaches x past the norm; added to dx. None: zeros.
        options: compiler options, such as ("-DVECTORS=2", "-DWARPS=4").

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
    add_layer_norm_backward(launches, x, (gamma, None, eps), dout, dx, dvectors, dsum, options)
    return launches, (dx, *dvectors)


def add_layer_norm_backward(launches, x, norm, dout, dx, dvectors, dsum=None, options=()) -> None:
    """Append the gradients of a layer norm of rows x to launches.

    norm: gamma, beta, eps.  x, dout, dsum, dx: (rows, d).  dvectors: (2, d), of gamma and beta.
    """
    gamma, _, eps = norm
    arrays = {"x": x, "gamma": gamma, "dout": dout, "dsum": dsum, "dx": dx}
    _with_sums(launches, LAYER_NORM_BACKWARD, arrays, {"eps": check_eps(eps)}, dvectors, options)


@with_plan
def bias_gelu_backward(x, bias, dout, approximate="none", *, backend=None, options=()):
    """Return the gradients of bias_gelu(x, bias, approximate): dx like x, and dbias (width,).

    Args:
        x: (..., width) float32, as for bias_gelu().  bias: (width,) or None.
        dout: like x, the gradient of the output.
        approximate: "none" (by erf) or "tanh".

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
    launches, x, bias, dout, dx, dbias, approximate, out=None, options=()
) -> None:
    """Append the gradients of a GELU of rows x + bias to launches.

    x, dout, dx: (rows, width); dx may be dout.  dbias: (width,).  out: for gelu(x + bias), or None.
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


def add_linear_backward(launches: Launches, x, weights, dout, dx, dweights, dbias=None) -> None:
    """Append the gradients of x weights + bias to launches, with products in float32.

    x, dx: (rows, k).  weights, dweights: (k, n).  dout: (rows, n).  dbias: (n,) or None.
    """
    launches.multiply(dout, weights.T, dx)
    launches.multiply(x.T, dout, dweights)
    if dbias is not None:
        add_column_sums(launches, dout, dbias)


@with_plan
def mlp_backward(x, w_1, b_1, w_2, dout, approximate="none", *, backend=None):
    """Return the gradients of mlp(x, w_1, b_1, w_2, b_2, approximate).

    The hidden layer is computed again. Products are in float32.

    Args:
        x, w_1, b_1, w_2, approximate: as for mlp().
        dout: like x, the gradient of the output.

    Returns:
        dx, dw_1, db_1, dw_2, db_2: like x, w_1, b_1, w_2, b_2.

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or value, with the remedy.
        BackendError: no cuBLAS on a GPU.
    """
    launches = Launches(backend)
    xp, width, inner = launches.xp, *check_mlp(x, w_1, b_1, w_2, launches.xp)
    check_like("dout", dout, x, xp)
    rows, dout = x.reshape(-1, width), dout.reshape(-1, width)
    shapes = rows.shape, w_1.shape, (inner,), w_2.shape, (width,)
    dx, *others = found = [xp.empty(shape, x.dtype) for shape in shapes]
    hidden = launches.buffer("hidden", len(rows), inner)
    launches.multiply(rows, w_1, hidden)
    add_mlp_backward(launches, rows, (w_1, b_1, w_2), hidden, dout, found, approximate)
    return launches, (dx.reshape(x.shape), *others)


def add_mlp_backward(launches: Launches, x, weights, hidden, dout, gradients, approximate) -> None:
    """Append the gradients of an MLP of rows to launches.

    weights: w_1, b_1, w_2.  hidden: (rows, F), x w_1.  x, dout: (rows, E).  gradients: dx (rows,
    E), dw_1, db_1, dw_2, db_2.
    """
    (w_1, b_1, w_2), (dx, dw_1, db_1, dw_2, db_2) = weights, gradients
    active, dhidden = (launches.buffer(name, *hidden.shape) for name in ("active", "dhidden"))
    launches.multiply(dout, w_2.T, dhidden)  # of the GELU's output: the kernel works in place
    how = (dhidden, dhidden, db_1, approximate)
    add_bias_gelu_backward(launches, hidden, b_1, *how, out=active)
    launches.multiply(active.T, dout, dw_2)
    add_column_sums(launches, dout, db_2)
    add_linear_backward(launches, x, w_1, dhidden, dx, dw_1)
