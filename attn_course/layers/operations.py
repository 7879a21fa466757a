"""layer_norm, bias_gelu and mlp on arrays of a backend, and their prepared calls."""

import operator
from numbers import Real

import numpy as np
from kernelscope.errors import InputError, InputTypeError

from attn_course.ladder.checks import check_floats, start_of

from .launches import Launches, with_plan
from .products import WeightMatrix
from .steps import BIAS_ADD, BIAS_GELU, LAYER_NORM, Rows

APPROXIMATIONS = {"none": 0, "tanh": 1}  # of GELU, by PyTorch's names


@with_plan
def layer_norm(
    x,
    gamma=None,
    beta=None,
    eps=1e-5,
    *,
    residual=None,
    bias=None,
    return_sum=False,
    backend=None,
    options=(),
):
    """(t - mean) / sqrt(variance + eps) * gamma + beta over the last axis; t = x + residual + bias.

    Sums are in float32: where the squared distances of a row's numbers from their mean add up to
    more than 3.4e38, the row's result is NaN. Distances up to 1e17 are safe.
    ``layer_norm.plan`` prepares a call on these arrays and returns a LayerPlan.

    Args:
        x: (..., d) float32, C-contiguous, d at most 16384; NumPy arrays on the simulator, CuPy
            arrays on a GPU.
        gamma, beta: (d,); ones and zeros where None.
        eps: added to the variance, which is the biased one; 0 or more.
        residual: like x, bias: (d,); added to x first.
        return_sum: also return t, like x.
        options: compiler options, such as ("-DVECTORS=2", "-DWARPS=4").

    Returns:
        (..., d) float32; with ``return_sum`` a pair.

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or extent, with the remedy.
    """
    launches = Launches(backend)
    xp = launches.xp
    check_rows(x, xp)
    for name, vector in (("gamma", gamma), ("beta", beta), ("bias", bias)):
        check_vector(name, vector, x.shape[-1], xp)
    if residual is not None:
        check_like("residual", residual, x, xp)
    y, total = xp.empty_like(x), xp.empty_like(x) if return_sum else None
    how = {"residual": residual, "bias": bias, "total": total, "options": options}
    add_layer_norm(launches, x, y, (gamma, beta, eps), **how)
    return launches, (y, total) if return_sum else y


def add_layer_norm(
    launches, x, y, norm, *, residual=None, bias=None, total=None, parts=1, options=()
) -> None:
    """Append a layer norm of rows x to launches.

    norm: gamma, beta and eps.  y: (rows, parts*d).  total: gets x + residual + bias, or None.
    """
    (gamma, beta, eps), d = norm, x.shape[-1]
    added = {"residual": residual, "bias": bias, "sum": total}
    arrays = {"x": x, "gamma": gamma, "beta": beta, "y": y}
    plain = all(array is None for array in added.values()) and _plain(arrays, parts, options)
    numbers = {"parts": parts, "eps": check_eps(eps)}
    rows = Rows(x.size // d, d, plain=plain)
    launches.kernel(LAYER_NORM, rows, arrays | added, numbers, options)


def _plain(arrays, parts: int, options) -> bool:
    """Whether kernel 16 or 17 needs no code for what this call has not: see PLAIN there.

    With options the kernel is the general one: they may change which rows fill their threads.
    """
    if parts > 1 or options or any(array is None for array in arrays.values()):
        return False
    whole = arrays["x"].shape[-1] % 4 == 0
    return whole and all(start_of(array) % 16 == 0 for array in arrays.values())


@with_plan
def bias_gelu(x, bias=None, approximate="none", *, backend=None, options=()):
    """GELU of x + bias: t times the normal distribution function of t.

    Both forms keep the digits of the small results of very negative t: the relative error is below
    1e-5 from -12.5 on by erf, below 4e-6 from -6 on by tanh. ``bias_gelu.plan`` prepares a call on
    these arrays and returns a LayerPlan.

    Args:
        x: (..., width) float32, as for layer_norm().  bias: (width,) or None.
        approximate: "none" (by erf) or "tanh", as in PyTorch.

    Returns:
        an array like x.

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or value, with the remedy.
    """
    launches = Launches(backend)
    check_rows(x, launches.xp)
    check_vector("bias", bias, x.shape[-1], launches.xp)
    out = launches.xp.empty_like(x)
    add_bias_gelu(launches, x, bias, out, approximate, options=options)
    return launches, out


def add_bias_gelu(launches: Launches, x, bias, out, approximate, parts=1, options=()) -> None:
    """Append a GELU of rows x + bias to launches. out: (rows, parts*width)."""
    width = x.shape[-1]
    rows = x.size // width
    numbers = {"approximate": APPROXIMATIONS[check_approximate(approximate)], "parts": parts}
    arrays = {"x": x, "bias": bias, "out": out}
    extents = Rows(rows, width, plain=_plain(arrays, parts, options))
    launches.kernel(BIAS_GELU, extents, arrays, numbers, options)


def add_parts(launches: Launches, x, out, parts) -> None:
    """Append to launches: out (rows, parts*width) = the rows of x, cut into parts."""
    arrays = {"x": x, "residual": None, "bias": None, "out": out}
    launches.kernel(BIAS_ADD, Rows(*x.shape), arrays, {"parts": parts})


@with_plan
def mlp(x, w_1, b_1, w_2, b_2, approximate="none", *, precision="fp32", backend=None):
    """gelu(x w_1 + b_1) w_2 + b_2, by cuBLAS and kernel 17; on the simulator NumPy multiplies.

    ``mlp.plan`` prepares a call and returns a LayerPlan: the matrices are copied then; x and the
    biases are read at each call.

    Args:
        x: (..., E) float32, as for layer_norm().
        w_1: (E, F).  b_1: (F,) or None.  w_2: (F, E).  b_2: (E,) or None.
        approximate: of GELU, "none" or "tanh".
        precision: of the products on a GPU; a key of PRECISIONS.

    Returns:
        an array like x.

    Raises:
        TypeError, ValueError: an argument's type, dtype, shape or value, with the remedy.
        BackendError: no cuBLAS on a GPU.
    """
    launches = Launches(backend)
    xp, width, _ = launches.xp, *check_mlp(x, w_1, b_1, w_2, launches.xp)
    check_vector("b_2", b_2, width, xp)
    first, second = (WeightMatrix(weights, precision, launches.backend) for weights in (w_1, w_2))
    out, rows = xp.empty_like(x), x.reshape(-1, width)
    if first.parts > 1:
        cut = launches.buffer("cut", len(rows), first.parts * width)
        add_parts(launches, rows, cut, first.parts)
        rows = cut
    weights = (first, b_1, second, b_2)
    add_mlp(launches, rows, weights, out.reshape(-1, width), approximate)
    return launches, out


def add_mlp(launches: Launches, rows, weights, out, approximate, residual=None) -> None:
    """Append out = gelu(rows w_1 + b_1) w_2 + b_2 + residual to launches.

    weights: w_1 and w_2 as WeightMatrix, each before its bias.  rows: (count, parts*E).  out,
    residual: (count, E).
    """
    first, b_1, second, b_2 = weights
    count, hidden_width = len(rows), first.shape[1]
    hidden = launches.buffer("hidden", count, hidden_width)
    active = launches.buffer("active", count, second.parts * hidden_width)
    launches.multiply(rows, first, hidden)
    add_bias_gelu(launches, hidden, b_1, active, approximate, second.parts)
    launches.multiply(active, second, out, bias=b_2, residual=residual)


# -- checks ----------------------------------------------------------------------------------------
def check_approximate(approximate: str) -> str:
    """Return the approximation of GELU. ValueError: an unknown one."""
    if approximate not in tuple(APPROXIMATIONS):  # what has no hash is refused as well
        raise InputError(
            f"approximate is {approximate!r}; choose one of: {', '.join(APPROXIMATIONS)}"
        )
    return approximate


def check_eps(eps) -> np.float32:
    """Return the eps of a layer norm as the kernel takes it.

    Raises:
        TypeError: not a number.  ValueError: negative, or not finite in float32.
    """
    if not isinstance(eps, Real):
        raise InputTypeError(f"eps is {eps!r}, a {type(eps).__name__}: pass a number, such as 1e-5")
    try:
        with np.errstate(over="ignore"):
            found = np.float32(eps)
    except OverflowError:  # an int beyond any float
        found = np.float32(np.inf)
    if not 0 <= found < np.inf:
        raise InputError(
            f"eps is {eps}: it is added to a variance, so pass a finite number of 0 or more, "
            "such as 1e-5"
        )
    return found


def check_integer(name: str, value) -> int:
    """Return an integer, NumPy's or Python's, as an int. TypeError: anything else."""
    try:
        return operator.index(value)
    except TypeError:
        raise InputTypeError(
            f"{name} is {value!r}, a {type(value).__name__}: pass an int, such as 4"
        ) from None


def check_rows(x, xp) -> int:
    """Return the width of x; refuse an x that is not (..., width) float32."""
    check_floats("x", x, xp)
    if not x.ndim:
        raise InputError("x has shape (), not (..., width): it needs an axis to work along")
    return x.shape[-1]


def check_mlp(x, w_1, b_1, w_2, xp) -> tuple[int, int]:
    """Return the widths of x and of the hidden layer; refuse arrays that do not fit together."""
    width = check_rows(x, xp)
    check_matrix("w_1", w_1, (width, "F"), xp)
    check_matrix("w_2", w_2, (w_1.shape[1], width), xp)
    check_vector("b_1", b_1, w_1.shape[1], xp)
    return width, w_1.shape[1]


def check_like(name: str, array, x, xp) -> None:
    """Refuse an array that is not float32 of the shape of x."""
    check_floats(name, array, xp)
    if array.shape != x.shape:
        after = " (dout is the last argument that is no option)" if name == "dout" else ""
        raise InputError(f"{name} has shape {array.shape}, x {x.shape}: make them equal{after}")


def check_vector(name: str, vector, width: int, xp) -> None:
    """Refuse a vector that is neither None nor (width,) float32."""
    if vector is None:
        return
    check_floats(name, vector, xp)
    if vector.shape != (width,):
        raise InputError(f"{name} has shape {vector.shape}, not {(width,)}: one number a column")


def check_matrix(name: str, matrix, shape: tuple[int | str, int | str], xp) -> None:
    """Refuse a matrix that is not float32 of a shape; a letter in it stands for any extent."""
    check_floats(name, matrix, xp)
    pairs = zip(matrix.shape, shape, strict=False)
    if matrix.ndim != 2 or any(isinstance(want, int) and want != found for found, want in pairs):
        wanted = ", ".join(map(str, shape))
        raise InputError(
            f"{name} has shape {matrix.shape}, not ({wanted}): matrices act from the right, so "
            "pass the transpose of a weight of torch.nn.Linear"
        )
