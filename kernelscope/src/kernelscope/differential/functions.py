"""CUDA's mathematical functions on both machines: how far their results are apart."""

from dataclasses import dataclass

import numpy as np
from kernelscope.differential.bounds import INTRINSICS, Bound, judge, ulps

COUNT = 2048
# The farthest two results may be apart, in ulp: both sides are within the few ulp that the CUDA C
# Programming Guide, "Mathematical Functions", documents.
FLOAT_ULPS, DOUBLE_ULPS = 8.0, 4.0

_ANY, _POSITIVE, _UNIT, _SMALL = "any", "positive", "unit", "small"


def _ranges(text: str) -> dict[str, str]:
    """'sin:small atan:any' -> {"sin": "small", "atan": "any"}: each function's operands."""
    return dict(pair.split(":") for pair in text.split())


_UNARY = _ranges("""
    exp:small exp2:small exp10:unit expm1:small log:positive log2:positive log10:positive
    log1p:positive sin:small cos:small tan:small sinpi:small cospi:small asin:unit acos:unit
    atan:any sinh:small cosh:small tanh:small asinh:any acosh:positive atanh:unit erf:small
    erfc:small erfinv:unit erfcx:small normcdf:small lgamma:positive tgamma:small cbrt:any
    rcbrt:any sqrt:positive rsqrt:positive j0:small logb:positive rint:any round:any floor:any
    ceil:any trunc:any
""")
_BINARY = _ranges("""
    pow:positive atan2:any fmod:positive remainder:positive hypot:small fdim:any fmax:any
    nextafter:any copysign:any
""")
# Functions whose result the guide gives as exact.
_EXACT = set(
    "rint round floor ceil trunc logb sqrt fmod remainder fdim fmax nextafter copysign".split()
)
# Fast single-precision intrinsics, with bounds of their own unless their results are exact.
_FAST = _ranges("""
    __expf:small __exp10f:small __logf:positive __log2f:positive __log10f:positive __sinf:small
    __cosf:small __tanf:small __frsqrt_rn:positive __saturatef:small
""")
_FAST_BINARY = _ranges("__powf:unit __fdividef:unit")


@dataclass(frozen=True)
class MathFunction:
    """One function: `kind` "f32" or "f64", its operands' range, and how far apart the two
    machines' results may be: `ulps`, or each within `bound` of the exact result.
    """

    name: str
    kind: str
    operands: int
    range: str
    ulps: float = 0.0

    @property
    def bound(self) -> Bound | None:
        return INTRINSICS.get(self.name)

    @property
    def entry(self) -> str:
        return f"run_{self.name}"

    @property
    def source(self) -> str:
        c = "float" if self.kind == "f32" else "double"
        arguments = ", ".join(["a[i]", "b[i]"][: self.operands])
        head = f'extern "C" __global__ void {self.entry}(const {c}* a, const {c}* b, {c}* out)'
        return (
            f"{head} {{\n  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
            f"  out[i] = {self.name}({arguments});\n}}\n"
        )

    def arguments(self) -> list[np.ndarray]:
        dtype = np.float32 if self.kind == "f32" else np.float64
        rng = np.random.default_rng(len(self.name) * 101 + ord(self.name[-1]))
        a = operands(self.range, dtype, rng)
        b = operands(_UNIT if self.name in ("pow", "powf", "__powf") else self.range, dtype, rng)
        return [a, b, np.zeros(COUNT, dtype)]


def operands(name: str, dtype, rng) -> np.ndarray:
    """(2048,) numbers of a range, the first ones special."""
    if name == _ANY:
        x = rng.standard_normal(COUNT) * np.exp2(rng.integers(-30, 30, COUNT))
    elif name == _POSITIVE:
        x = np.exp2(rng.uniform(-60, 60, COUNT))
    elif name == _UNIT:
        x = rng.uniform(-1, 1, COUNT)
    else:
        x = rng.uniform(-12, 12, COUNT)
    x = x.astype(dtype)
    tiny = np.finfo(dtype).tiny
    special = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, np.inf, -np.inf, np.nan, tiny, 1 + 2.0**-20, 1e4]
    x[: len(special)] = special
    return x


def functions() -> list[MathFunction]:
    out = []
    for kind, suffix, limit in (("f32", "f", FLOAT_ULPS), ("f64", "", DOUBLE_ULPS)):
        for count, table in ((1, _UNARY), (2, _BINARY)):
            for name, where in table.items():
                ulps = 0.0 if name in _EXACT else limit
                out.append(MathFunction(name + suffix, kind, count, where, ulps))
    for count, table in ((1, _FAST), (2, _FAST_BINARY)):
        for name, where in table.items():
            out.append(MathFunction(name, "f32", count, where))
    return out


def compare(function: MathFunction, first: np.ndarray, second: np.ndarray) -> dict:
    """The lanes that are farther apart than allowed, and how far apart the results are."""
    x, y = first.astype(np.float64), second.astype(np.float64)
    operands = function.arguments()[: function.operands]
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    if function.bound:
        values = [operand.astype(np.float64) for operand in operands]
        verdict = judge(function.bound, values, x, y, function.kind)
        bad, facts = verdict.apart | verdict.special & ~same, verdict.facts
    else:
        with np.errstate(all="ignore"):
            apart = np.where(same, 0.0, ulps(x, y, function.kind))
        bad = ~same & ~(apart <= function.ulps)
        facts = {"max_ulp": float(apart[np.isfinite(apart)].max(initial=0))}
    return {
        "function": function.name,
        "lanes": COUNT,
        "differing_lanes": int((~same).sum()),
        **facts,
        "max_ulp": round(facts["max_ulp"], 3),
        "mismatches": int(bad.sum()),
        "examples": [
            {
                "operands": [float(v[i]) for v in operands],
                "first": repr(float(x[i])),
                "second": repr(float(y[i])),
            }
            for i in np.flatnonzero(bad)[:4]
        ],
    }
