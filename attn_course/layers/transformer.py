"""A pre-norm transformer block: x + attention(norm(x)), then y + mlp(norm(y))."""

from collections import namedtuple
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from kernelscope import resolve_backend
from kernelscope.errors import InputError, InputTypeError
from kernelscope.module import takes_foreign

from attn_course.ladder.checks import check_floats
from attn_course.ladder.methods import AUTO, METHODS, UnsupportedDtype, dtypes_of

from .gradients import add_layer_norm_backward, add_linear_backward, add_mlp_backward
from .launches import Launches, LayerPlan
from .operations import (
    add_layer_norm,
    add_mlp,
    check_approximate,
    check_eps,
    check_integer,
    check_like,
    check_matrix,
    check_vector,
)
from .products import WeightMatrix
from .steps import MERGE_HEADS, SPLIT_HEADS, Rows

MATRICES = ("w_q", "w_k", "w_v", "w_o", "w_1", "w_2")
VECTORS = ("b_q", "b_k", "b_v", "b_o", "b_1", "b_2", "gamma_1", "beta_1", "gamma_2", "beta_2")


class Grouping(NamedTuple):
    """Which tokens attend to each other.

    groups: (B, heads) and n of the attention call: q has shape (B, heads, n, d).
    token: (rows,) int32, the row of the stream for each row of q; None: in order.
    bias: of the scores, as attention() takes it, or None.
    """

    batch: int
    heads: int
    n: int
    token: object = None
    bias: object = None


# What TransformerBlock.forward() keeps for backward(): x (B, L, E); total (B*L, E), the input of
# the second norm; q, k, v, out (B, heads, L, d) and lse (B, heads, L) of attention(); hidden
# (B*L, F), the first product of the MLP. The rest is computed again.
Saved = namedtuple("Saved", "x total q k v out lse hidden")


class TransformerBlock:
    """x + attention(norm(x)), then y + mlp(norm(y)), with explicit weights.

    One product gives q, k and v; kernels 16, 17 and 22 do the rest between the products. A bias
    or residual is added where the product is read next; the last ones by the product itself.

    Args:
        weights: name -> array (NumPy or the backend's), copied here and rounded to float32: later
            changes of these arrays change nothing. Matrices act from the
            right: ``w_q``, ``w_k``, ``w_v``, ``w_o`` (E, E), ``w_1`` (E, F), ``w_2`` (F, E).
            Optional: their biases ``b_q`` to ``b_2``, and ``gamma_1``, ``beta_1`` of the first
            norm, ``gamma_2``, ``beta_2`` of the second, (E,).
        heads: E is divided into this many.
        causal: token i sees token j only where j <= i.
        eps: of both norms; 0 or more.
        approximate: of GELU, "none" or "tanh".
        method: of attention(), one that takes float32.
        precision: of the products with the weights on a GPU; a key of PRECISIONS.

    Raises:
        ValueError, TypeError: a weight that is missing, unknown, of a wrong shape or no array of
            numbers; another argument's type or value, with the remedy.
        UnknownMethod, UnsupportedDtype: as for attention().
    """

    def __init__(
        self,
        weights: Mapping[str, object],
        heads: int,
        *,
        causal: bool = False,
        eps: float = 1e-5,
        approximate: str = "none",
        method: str = "auto",
        precision: str = "fp32",
        backend: str | None = None,
    ):
        self.backend = resolve_backend(backend)
        check_eps(eps)
        heads = check_integer("heads", heads)
        self.heads, self.causal, self.eps = heads, causal, eps
        self.method = _float32_method(method)
        self.approximate = check_approximate(approximate)
        host = _checked(weights)
        self.names = tuple(host)
        self.width, self.hidden_width = host["w_1"].shape
        if heads < 1 or self.width % heads:
            raise InputError(f"a width of {self.width} does not divide into {heads} heads")
        launches = Launches(self.backend)
        put = launches.xp.asarray
        joined = np.concatenate([host["w_q"], host["w_k"], host["w_v"]], axis=1)  # (E, 3E)
        matrices = {"qkv": joined, **{name: host[f"w_{name}"] for name in "o12"}}
        self.matrices = {
            name: WeightMatrix(array, precision, self.backend) for name, array in matrices.items()
        }
        self.vectors = {name: put(host[name]) if name in host else None for name in VECTORS}
        self.vectors["b_qkv"] = _joined_bias(host, put)

    @classmethod
    def from_torch_state(cls, state_dict: Mapping[str, object], heads: int, **options):
        """Return the block that torch.nn.TransformerEncoderLayer(norm_first=True) computes.

        state_dict: of a layer with ``norm_first=True`` and ``activation="gelu"``, which a state
            does not tell; its tensors, or NumPy arrays. heads: its ``nhead``. options: as for the
            class; the eps of the layer is 1e-5 unless it was changed. Dropout is left out, as in
            ``eval()``.

        Raises:
            ValueError: a state of another layer, or an array of a wrong shape.
            TypeError: no mapping, or one whose values are no arrays of numbers.
        """
        return cls(torch_weights(state_dict), heads, **options)

    @takes_foreign
    def __call__(self, x):
        """Return the block of x: (B, L, E) float32, an array of the backend or as attention()'s."""
        launches, out, _ = self._launches(x)
        launches.run()
        return out

    @takes_foreign
    def plan(self, x) -> LayerPlan:
        """Prepare the block on x: fill x in place, then ``plan()`` returns ``plan.out``."""
        return LayerPlan(*self._launches(x)[:2])

    def forward(self, x):
        """Return the block of x, as a call does, and a Saved for backward(); x must not change.

        Raises UnsupportedOption where the block's method has no log-sum-exp.
        """
        out, *kept = self._forward(x)
        return out, Saved(*kept)

    @takes_foreign
    def _forward(self, x):
        launches, out, saved = self._launches(x, return_lse=True)
        launches.run()
        return (out, *saved)

    def backward(self, saved: Saved, dout, *, deterministic: bool = False):
        """Return the gradients of sum(dout * forward(x)), by attention_backward()'s "auto".

        Args:
            saved: what forward() of this block returned.  dout: (B, L, E) float32, the gradient of
                its output.  deterministic: as for attention_backward().

        Returns:
            dx (B, L, E), and a dict with the gradient of each weight that the block was made of;
            those of w_q, w_k and w_v are columns of one array. Products are in float32.

        Raises:
            TypeError, ValueError: as for attention_backward(), of dout; another saved.
        """
        if not isinstance(saved, Saved):
            raise InputTypeError(
                f"saved is {type(saved).__name__}, not what forward() returns beside the output: "
                "out, saved = block.forward(x), then block.backward(saved, dout)"
            )
        dx, *arrays = self._backward(dout, *saved, deterministic=deterministic)
        return dx, dict(zip(self.names, arrays, strict=True))

    @takes_foreign
    def _backward(self, dout, x, total, q, k, v, out, lse, hidden, grouping=None, *, deterministic):
        """Return dx, the gradients of the weights and, with a bias of the scores, theirs."""
        launches = Launches(self.backend, deterministic=deterministic)
        saved = Saved(x, total, q, k, v, out, lse, hidden)
        check_like("dout", dout, saved.x, launches.xp)
        dx, grouping = launches.xp.empty_like(dout), grouping or Grouping(*q.shape[:3])
        found = self._append_backward(launches, saved, dout.reshape(-1, self.width), dx, grouping)
        launches.run()
        return (dx, *(found[name] for name in self.names), *found["scores"])

    def _append_backward(self, launches: Launches, saved: Saved, dout, dx, grouping) -> dict:
        """Append the gradients to launches; return those of the weights by name.

        dout: (rows, E).  "scores" has those of the scores, if they have a bias.
        """
        shape, empty = dout.shape, launches.xp.empty
        x, dx = saved.x.reshape(shape), dx.reshape(shape)
        weights = {name: matrix.sum_of_parts() for name, matrix in self.matrices.items()}
        found = {}
        for name, array in weights.items():
            found[f"w_{name}"] = empty(array.shape, np.float32)
            found[f"b_{name}"] = empty(array.shape[1], np.float32)
        norms = empty((2, 2, self.width), np.float32)
        normed, dnormed, dtotal = (launches.buffer(n, *shape) for n in ("normed", "dnormed", "dy"))

        add_layer_norm(launches, saved.total, normed, self._norm(2))
        given = (weights["1"], self.vectors["b_1"], weights["2"]), saved.hidden, dout
        gradients = (dnormed, *(found[name] for name in ("w_1", "b_1", "w_2", "b_2")))
        add_mlp_backward(launches, normed, *given, gradients, self.approximate)
        given = (self._norm(2), dnormed, dtotal, norms[1], dout)
        add_layer_norm_backward(launches, saved.total, *given)
        given = (weights["o"], dtotal, found, grouping)
        dqkv = self._append_attention_backward(launches, saved, *given)
        add_layer_norm(launches, x, normed, self._norm(1))
        given = (normed, weights["qkv"], dqkv, dnormed)
        add_linear_backward(launches, *given, found["w_qkv"], found["b_qkv"])
        add_layer_norm_backward(launches, x, self._norm(1), dnormed, dx, norms[0], dtotal)

        for number, norm in zip("12", norms, strict=True):
            found[f"gamma_{number}"], found[f"beta_{number}"] = norm
        for kind in "wb":
            columns = launches.xp.split(found[f"{kind}_qkv"], 3, axis=-1)
            found |= {f"{kind}_{name}": one for name, one in zip("qkv", columns, strict=True)}
        return found

    def _append_attention_backward(self, launches: Launches, saved: Saved, w_o, dout, found, group):
        """Append the gradients of w_o, b_o and attention(); return that of q, k, v, (rows, 3E)."""
        extents, (*_, n, d) = Rows(*dout.shape), saved.q.shape
        numbers = {"n": n, "heads": self.heads, "d": d}
        none = {"k": None, "v": None, "token": group.token}
        mixed, dmixed = (launches.buffer(name, *dout.shape) for name in ("mixed", "dmixed"))
        launches.kernel(MERGE_HEADS, extents, {**none, "q": saved.out, "out": mixed}, numbers)
        add_linear_backward(launches, mixed, w_o, dout, dmixed, found["w_o"], found["b_o"])
        dheads = launches.buffer("dheads", *saved.q.shape)
        arrays = {**none, "bias": None, "qkv": dmixed, "q": dheads}
        launches.kernel(SPLIT_HEADS, extents, arrays, numbers)
        attended = (saved.q, saved.k, saved.v, saved.out, saved.lse)
        how = {"causal": self.causal, "bias": group.bias}
        dq, dk, dv, *found["scores"] = launches.attention_backward(*attended, dheads, **how)
        dqkv = launches.buffer("dqkv", extents.rows, 3 * extents.width)
        arrays = {"q": dq, "k": dk, "v": dv, "token": group.token, "out": dqkv}
        launches.kernel(MERGE_HEADS, extents, arrays, numbers)
        return dqkv

    def _norm(self, number: int) -> tuple:
        """gamma, beta and eps of a norm."""
        return self.vectors[f"gamma_{number}"], self.vectors[f"beta_{number}"], self.eps

    def _launches(self, x, *, return_lse: bool = False):
        """The launches of the block of x, its output, and what backward() needs."""
        launches = Launches(self.backend)
        check_floats("x", x, launches.xp)
        if x.ndim != 3 or x.shape[2] != self.width:
            raise InputError(f"x has shape {x.shape}, not (B, L, {self.width})")
        grouping = Grouping(x.shape[0], self.heads, x.shape[1])
        out = launches.xp.empty_like(x)
        rows = (-1, self.width)
        saved = self.append(launches, x.reshape(rows), out.reshape(rows), grouping, return_lse)
        return launches, out, saved._replace(x=x)

    def append(
        self, launches: Launches, x, out, grouping: Grouping, return_lse: bool = False
    ) -> Saved:
        """Append the block to launches; return the arrays that backward() needs.

        x, out: (rows, E); may be the same array.  return_lse: the log-sum-exp is among them.
        """
        vectors, matrices, parts = self.vectors, self.matrices, self.matrices["qkv"].parts
        rows, width = x.shape
        normed = launches.buffer("normed", rows, parts * width)
        add_layer_norm(launches, x, normed, self._norm(1), parts=parts)
        mixed, *attended = self._attend(launches, normed, grouping, return_lse)
        branch, total = (launches.buffer(name, rows, width) for name in ("branch", "total"))
        launches.multiply(mixed, matrices["o"], branch)
        how = {"residual": branch, "bias": vectors["b_o"], "total": total, "parts": parts}
        add_layer_norm(launches, x, normed, self._norm(2), **how)
        mlp = (matrices["1"], vectors["b_1"], matrices["2"], vectors["b_2"])
        add_mlp(launches, normed, mlp, out, self.approximate, residual=total)
        return Saved(x, total, *attended, launches.buffer("hidden", rows, self.hidden_width))

    def _attend(self, launches: Launches, normed, grouping: Grouping, return_lse: bool):
        """Append q, k, v of rows and their attention.

        Returns the heads side by side, in parts; q, k, v, their attention and its log-sum-exp.
        """
        rows, width, parts = len(normed), self.width, self.matrices["o"].parts
        d, extents = width // self.heads, Rows(rows, width)
        qkv = launches.buffer("qkv", rows, 3 * width)
        launches.multiply(normed, self.matrices["qkv"], qkv)
        shape = (grouping.batch, grouping.heads, grouping.n, d)
        q, k, v, o = (launches.buffer(name, *shape) for name in ("q", "k", "v", "o"))
        arrays = {"qkv": qkv, "bias": self.vectors["b_qkv"], "token": grouping.token}
        numbers = {"n": grouping.n, "heads": self.heads, "d": d}
        launches.kernel(SPLIT_HEADS, extents, {**arrays, "q": q, "k": k, "v": v}, numbers)
        how = {"method": self.method, "causal": self.causal, "bias": grouping.bias}
        lse = launches.attention(q, k, v, o, **how, return_lse=return_lse)
        mixed = launches.buffer("mixed", rows, parts * width)
        arrays = {"q": o, "k": None, "v": None, "token": grouping.token, "out": mixed}
        launches.kernel(MERGE_HEADS, extents, arrays, {**numbers, "parts": parts})
        return mixed, q, k, v, o, lse


# -- weights ---------------------------------------------------------------------------------------
def host_array(array) -> np.ndarray:
    """Return a copy of a NumPy, CuPy or PyTorch array on the host, as float32."""
    if hasattr(array, "detach"):  # PyTorch, which is not imported; NumPy has no bfloat16 of its own
        array = array.detach().cpu().float().numpy()
    array = array.get() if hasattr(array, "get") else array
    return np.array(array, dtype=np.float32, order="C")


def host_weight(name: str, array) -> np.ndarray:
    """Return host_array(array). TypeError: not real numbers, or masked, by the weight's name."""
    if isinstance(array, np.ma.MaskedArray):
        raise InputTypeError(f"{name} is a masked array: pass its numbers, {name}.filled(value)")
    try:
        found = array if hasattr(array, "dtype") else np.asarray(array)
        kind = getattr(found.dtype, "kind", "f")  # PyTorch's dtypes have none
        if kind not in "SUOcMm" and "complex" not in str(found.dtype):
            return host_array(found)
    except (TypeError, ValueError):
        pass  # said below, with the name
    what = f"an array of {array.dtype}" if hasattr(array, "dtype") else type(array).__name__
    raise InputTypeError(f"{name} is {what}: pass an array of real numbers, such as float32")


def check_mapping(name: str, given, remedy: str) -> None:
    """Refuse weights that are no mapping of names to arrays."""
    if not isinstance(given, Mapping):
        raise InputTypeError(
            f"{name} is {type(given).__name__}, not a mapping of names to arrays: {remedy}"
        )


def _float32_method(method: str) -> str:
    """The method of attention(). UnsupportedDtype: it takes no float32, in which blocks compute."""
    if method != AUTO and "float32" not in dtypes_of(method):
        able = [name for name in METHODS if "float32" in dtypes_of(name)]
        raise UnsupportedDtype(
            f"method {method!r} takes {' or '.join(dtypes_of(method))}, and a block computes in "
            f'float32: pass method="{AUTO}", or one of {", ".join(able)}'
        )
    return method


def _checked(weights: Mapping[str, object]) -> dict[str, np.ndarray]:
    """The weights on the host, all of the shapes that they must have."""
    check_mapping("weights", weights, 'pass a dict such as {"w_q": w_q, ...}')
    unknown = sorted(set(weights) - {*MATRICES, *VECTORS}, key=str)
    missing = [name for name in MATRICES if weights.get(name) is None]
    wrong = [f"lack {missing}"] * bool(missing)
    wrong += [f"have {unknown}, which no block has"] * bool(unknown)
    if wrong:
        raise InputError(
            f"weights {' and '.join(wrong)}; there are {', '.join((*MATRICES, *VECTORS))}"
        )
    given = {name: array for name, array in weights.items() if array is not None}
    found = {name: host_weight(name, array) for name, array in given.items()}
    for name in MATRICES:
        check_matrix(name, found[name], ("E", "F") if name in ("w_1", "w_2") else ("E", "E"), np)
    width, hidden = found["w_o"].shape[0], found["w_1"].shape[1]
    shapes = dict.fromkeys(MATRICES, (width, width)) | {
        "w_1": (width, hidden),
        "w_2": (hidden, width),
    }
    for name in MATRICES:
        check_matrix(name, found[name], shapes[name], np)
    for name in VECTORS:
        check_vector(name, found.get(name), hidden if name == "b_1" else width, np)
    return found


def _joined_bias(host: Mapping[str, np.ndarray], put):
    """b_q, b_k and b_v in a row, zeros for those that are missing; None without any."""
    given = [host.get(f"b_{name}") for name in "qkv"]
    if all(bias is None for bias in given):
        return None
    zeros = np.zeros(len(host["w_q"]), np.float32)
    return put(np.concatenate([zeros if bias is None else bias for bias in given]))


TORCH_MATRICES = {"o": "self_attn.out_proj", "1": "linear1", "2": "linear2"}


def torch_weights(state_dict: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Return the weights by our names from the state of a torch.nn.TransformerEncoderLayer.

    PyTorch's matrices act from the left, (out, in); ours are their transposes.

    Raises:
        ValueError: a key that such a layer has is missing, or there is one that it has not; an
            array of a wrong shape, by its key.
        TypeError: no mapping, or a value in it that is no array of numbers.
    """
    state = _checked_state(state_dict)
    found = {}
    for kind in ("weight", "bias"):
        joined = state.get(f"self_attn.in_proj_{kind}")  # (3E, E) or (3E,)
        if joined is not None:
            parts = zip("qkv", np.split(joined, 3), strict=True)
            found |= {f"{kind[0]}_{name}": part.T for name, part in parts}
    for name, key in TORCH_MATRICES.items():
        found[f"w_{name}"] = state[f"{key}.weight"].T
        found[f"b_{name}"] = state.get(f"{key}.bias")
    for number in "12":
        found[f"gamma_{number}"] = state.get(f"norm{number}.weight")
        found[f"beta_{number}"] = state.get(f"norm{number}.bias")
    return {name: array for name, array in found.items() if array is not None}


def _checked_state(state_dict: Mapping[str, object]) -> dict[str, np.ndarray]:
    """The arrays of a torch.nn.TransformerEncoderLayer's state on the host, of its shapes."""
    check_mapping("state_dict", state_dict, "pass what the layer's state_dict() returns")
    needed = ["self_attn.in_proj_weight", *(f"{key}.weight" for key in TORCH_MATRICES.values())]
    needed += ["norm1.weight", "norm2.weight"]
    biases = [key.replace("weight", "bias") for key in needed]
    given = [key for key in biases if key in state_dict]
    for key in needed + biases * bool(given):
        if key not in state_dict:
            raise InputError(f"the state has no {key!r}: {_not_that_of_a_layer(state_dict, key)}")
    first = host_weight("linear1.weight", state_dict["linear1.weight"])
    hidden, width = first.shape[0], first.shape[-1]
    shapes = {
        "linear1.weight": (hidden, width),
        "self_attn.in_proj_weight": (3 * width, width),
        "self_attn.in_proj_bias": (3 * width,),
        "self_attn.out_proj.weight": (width, width),
        "self_attn.out_proj.bias": (width,),
        "linear1.bias": (hidden,),
        "linear2.weight": (width, hidden),
        "linear2.bias": (width,),
    } | {f"norm{i}.{name}": (width,) for i in "12" for name in ("weight", "bias")}
    if unknown := sorted(set(state_dict) - set(shapes), key=str):
        raise InputError(f"the state has {unknown}, which no TransformerEncoderLayer has")
    found = {key: host_weight(key, state_dict[key]) for key in shapes if key in state_dict}
    for key, array in found.items():
        if array.shape != shapes[key]:
            raise InputError(
                f"{key} has shape {array.shape}, not {shapes[key]}: linear1.weight has the shape "
                f"{first.shape}, so that d_model is {width} and dim_feedforward {hidden}"
            )
    return found


def _not_that_of_a_layer(state_dict: Mapping[str, object], key: str) -> str:
    """What a state is in which a key is missing."""
    longer = [str(name) for name in state_dict if str(name).endswith(f".{key}")]
    if longer:
        return (
            f"it has {longer[0]!r}, so it is that of a larger module; pass the state_dict() of one "
            "of its layers, such as model.layers[0]"
        )
    if key.endswith("bias"):
        return "a layer has all of its biases, or with bias=False none"
    return "it is not that of a torch.nn.TransformerEncoderLayer"
