"""The kernels of the layers: how each is launched, and which constants suit a width."""

from collections.abc import Mapping
from dataclasses import dataclass

from kernelscope.errors import InputError

from attn_course.ladder.problem import MAX_GRID_YZ, Device, Geometry, ceil_div
from attn_course.ladder.steps import Step

WIDEST = 16384  # columns of a row that 32 warps hold, four groups of four a thread
# Groups of four columns a thread, up to a width; of 1 to 8, the fastest on an H200.
QUADS = {1024: 2, WIDEST: 4}
LANES = 128  # threads along the columns
NARROW = 128  # columns of a row up to which 8 lanes share it, and a warp has four rows in flight
# The largest constants of kernels 16 and 17: larger ones compile for minutes, or not at all.
MOST = {"ROWS": 32, "LANES": 32, "WARPS": 32, "VECTORS": 16, "ADDED": 1}


@dataclass(frozen=True)
class Rows:
    """Extents of a launch: rows of `width` columns, in float32."""

    rows: int
    width: int
    dtype: str = "float32"

    def scalars(self) -> dict[str, int]:
        """The kernels' integer parameters by name, where a launch gives no others."""
        return {"rows": self.rows, "width": self.width, "d": self.width, "parts": 1}


def _quads(problem: Rows) -> int:
    return ceil_div(problem.width, 4)


def _hold_a_row(problem: Rows, device: Device) -> dict[str, int]:
    """Constants of kernel 16 for a width."""
    quads = _quads(problem)
    if problem.width <= NARROW:
        return {"LANES": 8, "VECTORS": ceil_div(quads, 8)}
    most = next((most for width, most in QUADS.items() if problem.width <= width), 4)
    warps = min(32, ceil_div(quads, 32 * most))
    if warps == 1:
        return {"VECTORS": ceil_div(quads, 32)}
    return {"WARPS": warps, "VECTORS": min(most, ceil_div(quads, 32 * warps))}


def _check_constants(entry: str, constants: Mapping[str, int]) -> None:
    """Refuse constants for which the kernel is not made."""
    for name, value in constants.items():
        least = int(name != "ADDED")
        if not least <= value <= MOST[name]:
            raise InputError(f"{entry}: {name} is {value}; it can be {least} to {MOST[name]}")


def _warp_or_block(entry: str, problem: Rows, constants: Mapping[str, int]) -> Geometry:
    _check_constants(entry, constants)
    lanes, warps = constants["LANES"], constants["ROWS"]
    if 32 % lanes:
        raise InputError(f"{entry}: LANES is {lanes}; it can be 1, 2, 4, 8, 16 or 32")
    if _quads(problem) <= lanes * constants["VECTORS"]:
        return Geometry(entry, (ceil_div(problem.rows, warps * 32 // lanes), 1, 1), (32, warps, 1))
    widest = 128 * constants["VECTORS"] * constants["WARPS"]
    if problem.width > widest:
        held = f"with VECTORS={constants['VECTORS']} and WARPS={constants['WARPS']} holds {widest}"
        remedy = "leave these options out, or make one of them larger"
        if problem.width > WIDEST:
            held = f"holds {WIDEST} at most"
            remedy = "attn_course.reference.layer_norm computes it in float64"
        raise InputError(f"a row has {problem.width} numbers, and layernorm_block {held}: {remedy}")
    return Geometry("layernorm_block", (problem.rows, 1, 1), (32, constants["WARPS"], 1))


def _quads_of_rows(entry: str, problem: Rows, constants: Mapping[str, int]) -> Geometry:
    _check_constants(entry, constants)
    lanes = min(LANES, 32 * ceil_div(_quads(problem), 32))
    groups = LANES // lanes
    tall = min(MAX_GRID_YZ, ceil_div(problem.rows, constants["ROWS"] * groups))
    return Geometry(entry, (ceil_div(_quads(problem), lanes), tall, 1), (lanes, groups, 1))


def _block_a_token(entry: str, problem: Rows, constants: Mapping[str, int]) -> Geometry:
    return Geometry(entry, (problem.rows, 1, 1), (constants["THREADS"], 1, 1))


def _step(number, file, entry, computes, arguments, writes, geometry, tune=None) -> Step:
    names = tuple(arguments.split()), tuple(writes.split())
    return Step(number, file, entry, computes, *names, geometry, tune)


LAYER_NORM = _step(
    16,
    "16_layernorm",
    "layernorm_warp",
    "y = layer_norm(x + residual + bias)",
    "x residual bias gamma beta sum y rows d parts eps",
    "y sum",
    _warp_or_block,
    _hold_a_row,
)
BIAS_GELU = _step(
    17,
    "17_bias_gelu",
    "bias_gelu",
    "out = gelu(x + bias)",
    "x bias out rows width approximate parts",
    "out",
    _quads_of_rows,
)
BIAS_ADD = _step(
    17,
    "17_bias_gelu",
    "bias_add",
    "out = x + residual + bias",
    "x residual bias out rows width parts",
    "out",
    _quads_of_rows,
)
SPLIT_HEADS = _step(
    22,
    "22_heads",
    "split_heads",
    "q, k, v = heads of qkv + bias",
    "qkv bias token q k v n heads d",
    "q k v",
    _block_a_token,
)
MERGE_HEADS = _step(
    22,
    "22_heads",
    "merge_heads",
    "out = heads side by side",
    "x token out n heads d parts",
    "out",
    _block_a_token,
)
LAYERS = (LAYER_NORM, BIAS_GELU, BIAS_ADD, SPLIT_HEADS, MERGE_HEADS)
