"""The kernels of the backward pass and the methods that they make up.

A method is a row of METHODS: its launches in their order, and when "auto" takes it. All launches
share the arrays of the call by their names in the kernels: q, k, v, out, lse, dout; bias; dq, dk,
dv, dbias; what else a step names in `scratch` is made for the call, not cleared.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kernelscope.errors import InputError, did_you_mean

from attn_course.ladder.methods import AUTO, UnknownMethod, UnsupportedDtype, UnsupportedOption
from attn_course.ladder.problem import LARGEST_D, Device, Geometry, Problem, ceil_div
from attn_course.ladder.steps import Step

from .mma import MMA_STEPS, suits_mma
from .tf32 import TF32_STEPS, suits_tf32
from .wgmma import WGMMA_STEPS, suits_backward_wgmma

DETERMINISTIC = "DETERMINISTIC"  # the constant of a file that can sum in a fixed order, if asked
# What a method can be asked for, by the kernel parameter that does it.
OPTIONS = {
    "causal": "a causal mask",
    "bias": "a bias",
    "dbias": "a gradient of the bias",
    "kv_heads": "grouped heads (k and v with fewer heads than q)",
}


@dataclass(frozen=True)
class BackwardMethod:
    """A method of attention_backward().

    Attributes:
        steps: in the order in which they run.
        suits: (problem, device) -> why "auto" takes it; "": it does not.
    """

    steps: tuple[Step, ...]
    suits: Callable[[Problem, Device], str]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of q, k, v, out and dout that it takes."""
        return self.steps[-1].dtypes

    @property
    def deterministic(self) -> tuple[str, ...]:
        """The compiler options with which it gives the same bits on every run."""
        able = any(DETERMINISTIC in step.constants() for step in self.steps)
        return (f"-D{DETERMINISTIC}=1",) if able else ()

    def supports(self, option: str) -> bool:
        """Whether its kernels implement an option, a key of OPTIONS."""
        return any(option in step.arguments for step in self.steps)


# -- 21: a warp some rows, of queries or of keys ---------------------------------------------------
def _row_tiles(rows: str, heads: Callable[[Problem], int]):
    """A block for each WARPS*ROWS rows of a head."""

    def geometry(entry, problem, constants):
        if problem.d > min(constants["D"], LARGEST_D):
            raise InputError(
                f"{entry}: head dim {problem.d}, but it takes at most "
                f"{min(constants['D'], LARGEST_D)}; attn_course.reference.attention_backward "
                "takes any"
            )
        own = constants["WARPS"] * constants["ROWS"]
        grid = (heads(problem) * ceil_div(getattr(problem, rows), own), 1, 1)
        shared_bytes = _tile_bytes(own, constants["D"])
        return Geometry(entry, grid, (32 * constants["WARPS"], 1, 1), shared_bytes)

    return geometry


def _tile_bytes(own: int, width: int) -> int:
    """Shared memory of two tiles of `own` rows and two of 32."""
    return 2 * (own + 32) * (width + 4) * 4


def _warp_a_row(entry, problem, constants):
    warps = constants["WARPS"]
    return Geometry(entry, (ceil_div(problem.bh * problem.n, warps), 1, 1), (32 * warps, 1, 1))


def _rows_config(problem: Problem, device: Device) -> dict[str, int]:
    """The padded head dim; rows a warp that fit, and give every multiprocessor a block of 8 warps.

    From a head dim of 129 on, 4 rows a warp do not fit into registers.
    """
    width = 32 * ceil_div(min(problem.d, LARGEST_D), 32)
    rows = min(problem.bh * problem.n, problem.kv_matrices * problem.m)
    most = rows // (8 * device.sm_count)
    rows = next((rows for rows in (4, 2) if rows <= most and rows * width <= 512), 1)
    while rows > 1 and _tile_bytes(8 * rows, width) > device.shared_bytes:
        rows //= 2
    return {"D": width, "ROWS": rows}


def _step(number, file, entry, computes, arguments, writes, geometry, **more) -> Step:
    names = tuple(arguments.split()), tuple(writes.split())
    return Step(number, file, entry, computes, *names, geometry, **more)


_SIDES = "q dout k v bias lse delta {} heads kv_heads n m d bias_batch bias_head scale causal"
DELTA = _step(
    21,
    "21_backward_rows",
    "backward_delta",
    "delta = sum of dout out",
    "out dout delta rows d",
    "delta",
    _warp_a_row,
    tune=_rows_config,
    scratch=lambda geometry, problem: {"delta": (problem.bh, problem.n)},
)
ROWS = _step(
    21,
    "21_backward_rows",
    "backward_rows",
    "dq = scale ds k, ds = p (dout v^T - delta)",
    _SIDES.format("dq dbias"),
    "dq dbias",
    _row_tiles("n", lambda problem: problem.bh),
    tune=_rows_config,
)
KEYS = _step(
    21,
    "21_backward_rows",
    "backward_keys",
    "dk = scale ds^T q, dv = p^T dout",
    _SIDES.format("dk dv"),
    "dk dv",
    _row_tiles("m", lambda problem: problem.kv_matrices),
    tune=_rows_config,
)


def _any_float32(problem: Problem, device: Device) -> str:
    suits = problem.dtype == "float32" and problem.d <= LARGEST_D
    return f"it takes float32 up to head dim {LARGEST_D} on any GPU" if suits else ""


# "auto" takes the first that suits.
METHODS: dict[str, BackwardMethod] = {
    "backward_wgmma": BackwardMethod(WGMMA_STEPS, suits_backward_wgmma),
    "backward_mma": BackwardMethod(MMA_STEPS, suits_mma),
    "backward_tf32x3": BackwardMethod(TF32_STEPS, suits_tf32),
    "backward_rows": BackwardMethod((DELTA, ROWS, KEYS), _any_float32),
}
BACKWARD = tuple(
    dict.fromkeys(
        step
        for method in sorted(METHODS.values(), key=lambda method: method.steps[0].number)
        for step in method.steps
    )
)


# -- which one runs --------------------------------------------------------------------------------
def method_of(name: str) -> BackwardMethod:
    """Return a method by its name.

    Raises:
        UnknownMethod: names the methods there are.
    """
    if name in METHODS:
        return METHODS[name]
    known = (*METHODS, AUTO)
    raise UnknownMethod(
        f"no method {name!r} of attention_backward(){did_you_mean(str(name), known)}; choose one "
        f"of: {', '.join(known)}"
    )


def _wanted(problem: Problem, dbias: bool) -> list[str]:
    """The keys of OPTIONS that are asked for."""
    grouped = problem.heads != problem.kv_heads
    asked = {"causal": problem.causal, "bias": problem.biased, "dbias": dbias, "kv_heads": grouped}
    return [option for option in OPTIONS if asked[option]]


def choose_backward(problem: Problem, device: Device, dbias: bool = False) -> tuple[str, str]:
    """(method, reason) for a problem on a device; dbias: with a gradient of the bias.

    Raises:
        UnsupportedDtype, UnsupportedOption: no method takes the problem.
    """
    able = {name: one for name, one in METHODS.items() if problem.dtype in one.dtypes}
    for name, method in able.items():
        reason = method.suits(problem, device)
        if reason and all(map(method.supports, _wanted(problem, dbias))):
            return name, reason
    taken = "; ".join(f"{name}: {', '.join(one.dtypes)}" for name, one in METHODS.items())
    for option in _wanted(problem, dbias):
        if not any(method.supports(option) for method in able.values()):
            others = ", ".join(name for name, one in METHODS.items() if one.supports(option))
            raise UnsupportedOption(
                f"no method of attention_backward() takes {problem.dtype} with {OPTIONS[option]}; "
                f"with another dtype: {others}; methods, and what they take: {taken}"
            )
    raise UnsupportedDtype(
        f"no method of attention_backward() takes {problem.dtype} with head dim {problem.d} on "
        f"{device.name}; none takes more than head dim {LARGEST_D}; methods, and what they take: "
        f"{taken}. "
        "attn_course.reference.attention_backward takes any head dim, in float64"
    )


def check_method(name: str, problem: Problem, dbias: bool = False) -> None:
    """Refuse what a method does not implement. Raises UnsupportedDtype, UnsupportedOption."""
    method = method_of(name)
    if problem.dtype not in method.dtypes:
        able = ", ".join(other for other, one in METHODS.items() if problem.dtype in one.dtypes)
        raise UnsupportedDtype(
            f"method {name!r} takes {' or '.join(method.dtypes)}, not {problem.dtype}; methods "
            f"that take {problem.dtype}: {able or 'none'}"
        )
    for option in _wanted(problem, dbias):
        if not method.supports(option):
            able = ", ".join(
                f"{other} ({', '.join(one.dtypes)})"
                for other, one in METHODS.items()
                if one.supports(option)
            )
            words = OPTIONS[option].removeprefix("a ")
            raise UnsupportedOption(f"method {name!r} has no {words}; methods that do: {able}")
