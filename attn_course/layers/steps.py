"""The kernels of the layers: how each is launched, and which constants suit a width."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kernelscope.errors import InputError

from attn_course.ladder.problem import MAX_GRID_YZ, Device, Geometry, ceil_div
from attn_course.ladder.steps import Step

WIDEST = 16384  # columns of a row that 32 warps hold, four groups of four a thread
QUADS = 4  # groups of four columns that a thread holds, at most
LANES = 128  # threads along the columns
NARROW = 128  # columns of a row up to which 8 lanes share it, and a warp has four rows in flight
# Columns of a row up to which an H200 was faster with PLAIN=1 and PLAIN=2 in kernel 16.
SHORT, SHORT_FULL = 1024, 4096
# The largest constants of kernels 16, 17 and 26 to 28: larger ones compile for minutes, or not at
# all.
MOST = {"ROWS": 32, "WARPS": 32, "VECTORS": 16, "LANES": 1024, "GROUPS": 32, "RESIDENT": 32}
MOST |= {"BLOCKS": 2**20, "SPAN": 2**30, "PLAIN": 2}


@dataclass(frozen=True)
class Rows:
    """Extents of a launch: rows of `width` columns, in float32.

    plain: kernel 16 or 17 gets what PLAIN=1 needs; see its header.  written: rows that kernel 31
    writes; 0: all.
    """

    rows: int
    width: int
    dtype: str = "float32"
    plain: bool = False
    written: int = 0

    def scalars(self) -> dict[str, int]:
        """The kernels' integer parameters by name, where a launch gives no others."""
        return {"rows": self.rows, "width": self.width, "d": self.width, "parts": 1}


def _quads(problem: Rows) -> int:
    return ceil_div(problem.width, 4)


def _hold_a_row(problem: Rows, device: Device) -> dict[str, int]:
    """Constants of kernel 16: as few threads as hold a row, the fastest of an H200's times."""
    quads = _quads(problem)
    lanes = 8 if problem.width <= NARROW else 32
    warps = min(32, ceil_div(quads, 32 * QUADS))
    vectors = min(QUADS, ceil_div(quads, lanes * warps))
    full = lanes == 32 and problem.width == 4 * lanes * warps * vectors
    short = problem.width <= (SHORT_FULL if full else SHORT)
    plain = 1 + full if problem.plain and short else 0
    rows = 1 if plain == 2 else 2
    return {"LANES": lanes, "ROWS": rows, "WARPS": warps, "VECTORS": vectors, "PLAIN": plain}


def _hold_a_row_and_its_gradient(problem: Rows, device: Device) -> dict[str, int]:
    """Constants of kernel 26 for a width: 8 warps a block, and more only for a longer row."""
    quads = _quads(problem)
    vectors = min(QUADS, ceil_div(quads, 32))
    warps = min(32, ceil_div(quads, 32 * vectors))
    blocks = 2 * device.sm_count  # as many as there are registers for
    return {"WARPS": warps, "ROWS": max(1, 8 // warps), "VECTORS": vectors, "BLOCKS": blocks}


def _with_plain(problem: Rows, device: Device) -> dict[str, int]:
    """Constants of kernel 17: what the arrays of the call allow to leave out."""
    return {"PLAIN": int(problem.plain)}


def _lanes_of_a_row(problem: Rows, device: Device) -> dict[str, int]:
    """Constants of kernel 27 for a width: 512 threads a block."""
    lanes = min(LANES, 32 * ceil_div(_quads(problem), 32))
    resident = 3
    blocks = resident * device.sm_count
    return {"LANES": lanes, "ROWS": 512 // lanes, "RESIDENT": resident, "BLOCKS": blocks}


def _check_constants(entry: str, problem: Rows, constants: Mapping[str, int]) -> None:
    """Refuse constants for which the kernel is not made."""
    for name, value in constants.items():
        least = int(name != "PLAIN")
        if not least <= value <= MOST[name]:
            raise InputError(f"{entry}: {name} is {value}; it can be {least} to {MOST[name]}")
    if constants.get("PLAIN") and not problem.plain:
        raise InputError(f"{entry}: PLAIN follows from the arrays of a call: leave it out")


def _warp_or_block(entry: str, problem: Rows, constants: Mapping[str, int]) -> Geometry:
    _check_constants(entry, problem, constants)
    lanes, warps = constants["LANES"], constants["ROWS"]
    if 32 % lanes:
        raise InputError(f"{entry}: LANES is {lanes}; it can be 1, 2, 4, 8, 16 or 32")
    if _quads(problem) <= lanes * constants["VECTORS"]:
        return Geometry(entry, (ceil_div(problem.rows, warps * 32 // lanes), 1, 1), (32, warps, 1))
    _check_row("layernorm_block", problem, constants)
    return Geometry("layernorm_block", (problem.rows, 1, 1), (32, constants["WARPS"], 1))


def _check_row(entry: str, problem: Rows, constants: Mapping[str, int]) -> None:
    """Refuse a row that the warps of a block do not hold."""
    widest = 128 * constants["VECTORS"] * constants["WARPS"]
    if problem.width > widest:
        held = f"with VECTORS={constants['VECTORS']} and WARPS={constants['WARPS']} holds {widest}"
        remedy = "leave these options out, or make one of them larger"
        if problem.width > WIDEST:
            held = f"holds {WIDEST} at most"
            remedy = "attn_course.reference computes it in float64"
        raise InputError(f"a row has {problem.width} numbers, and {entry} {held}: {remedy}")


def _quads_of_rows(entry: str, problem: Rows, constants: Mapping[str, int]) -> Geometry:
    _check_constants(entry, problem, constants)
    lanes = min(LANES, 32 * ceil_div(_quads(problem), 32))
    groups = LANES // lanes
    tall = min(MAX_GRID_YZ, ceil_div(problem.rows, constants["ROWS"] * groups))
    return Geometry(entry, (ceil_div(_quads(problem), lanes), tall, 1), (lanes, groups, 1))


def _rows_in_turn(entry: str, problem: Rows, constants: Mapping[str, int]) -> Geometry:
    """Blocks that take ROWS rows after ROWS rows, of all columns or of some."""
    _check_constants(entry, problem, constants)
    rows, lanes = constants["ROWS"], constants.get("LANES")
    columns = 1 if lanes is None else ceil_div(_quads(problem), lanes)
    lanes = lanes or 32 * constants["WARPS"]
    if lanes * rows > 1024:
        raise InputError(f"{entry}: {rows} rows of {lanes} threads are more than 1024: lower ROWS")
    if "WARPS" in constants:
        _check_row(entry, problem, constants)
    blocks = max(1, constants["BLOCKS"] // columns)
    grid = (min(blocks, ceil_div(problem.rows, rows)), columns, 1)
    return Geometry(entry, grid, (lanes, rows, 1))


def _spans_of_columns(entry: str, problem: Rows, constants: Mapping[str, int]) -> Geometry:
    _check_constants(entry, problem, constants)
    grid = (ceil_div(problem.rows, constants["SPAN"]), ceil_div(problem.width, 32), 1)
    return Geometry(entry, grid, (32, constants["GROUPS"], 1))


def _block_a_token(entry: str, problem: Rows, constants: Mapping[str, int]) -> Geometry:
    return Geometry(entry, (problem.rows, 1, 1), (constants["THREADS"], 1, 1))


def _octets_of_rows(entry: str, problem: Rows, constants: Mapping[str, int]) -> Geometry:
    lanes, groups = constants["LANES"], constants["GROUPS"]
    return Geometry(
        entry, (ceil_div(problem.written or problem.rows, groups), 1, 1), (lanes, groups, 1)
    )


def _lanes_of_octets(problem: Rows, device: Device) -> dict[str, int]:
    """Constants of kernel 31 for a width: 256 threads a block."""
    lanes = min(256, 1 << (ceil_div(problem.width, 8) - 1).bit_length())
    return {"LANES": lanes, "GROUPS": 256 // lanes}


def _step(kernel: str, computes: str, geometry, tune=None) -> Step:
    """A kernel from "file: entry(arguments) -> writes", names separated by blanks."""
    file, entry, arguments, writes = re.fullmatch(r"(\w+): (\w+)\((.*)\) -> (.*)", kernel).groups()
    names = tuple(arguments.split()), tuple(writes.split())
    return Step(int(file[:2]), file, entry, computes, *names, geometry, tune)


LAYER_NORM = _step(
    "16_layernorm: layernorm_warp(x residual bias gamma beta sum y rows d parts eps) -> y sum",
    "y = layer_norm(x + residual + bias)",
    _warp_or_block,
    _hold_a_row,
)
BIAS_GELU = _step(
    "17_bias_gelu: bias_gelu(x bias out rows width approximate parts) -> out",
    "out = gelu(x + bias)",
    _quads_of_rows,
    _with_plain,
)
BIAS_ADD = _step(
    "17_bias_gelu: bias_add(x residual bias out rows width parts) -> out",
    "out = x + residual + bias",
    _quads_of_rows,
)
SPLIT_HEADS = _step(
    "22_heads: split_heads(qkv bias token q k v n heads d) -> q k v",
    "q, k, v = heads of qkv + bias",
    _block_a_token,
)
MERGE_HEADS = _step(
    "22_heads: merge_heads(q k v token out n heads d parts) -> out",
    "out = heads side by side",
    _block_a_token,
)
LAYER_NORM_BACKWARD = _step(
    "26_layernorm_backward: layernorm_backward(x gamma dout dsum dx sums rows d eps) -> dx sums",
    "dx, dgamma, dbeta of layer_norm(x)",
    _rows_in_turn,
    _hold_a_row_and_its_gradient,
)
BIAS_GELU_BACKWARD = _step(
    "27_bias_gelu_backward: "
    "bias_gelu_backward(x bias dout dx out sums rows width approximate) -> dx out sums",
    "dx, dbias of out = gelu(x + bias)",
    _rows_in_turn,
    _lanes_of_a_row,
)
COLUMN_SUMS = _step(
    "28_column_sums: column_sums(x out rows width) -> out",
    "out = sums over SPAN rows of x",
    _spans_of_columns,
)
JOIN_PARTS = _step(
    "31_join_parts: join_parts(a a_lse b b_lse out out_lse heads rows first part d) -> out out_lse",
    "attention over two sets of keys from attention over each",
    _octets_of_rows,
    _lanes_of_octets,
)
FORWARD = (LAYER_NORM, BIAS_GELU, BIAS_ADD, SPLIT_HEADS, MERGE_HEADS)
LAYERS = (*FORWARD, LAYER_NORM_BACKWARD, BIAS_GELU_BACKWARD, COLUMN_SUMS, JOIN_PARTS)
