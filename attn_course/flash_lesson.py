"""What the lessons on online softmax, flash attention and asynchronous copies count and say.

Sentences about times are made from a record's figures, whichever way it turns out. The figures of
the examined report stand in one table, :data:`REPORT`, as that report printed them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .attention import compiled, run_steps
from .data import WINDOW
from .events import Observer, observe
from .experiments import VARIANTS, Times, placement, row_of, tile_options
from .ladder import EXPERIMENTS, Problem, step
from .module import RawModule
from .module.limits import OPT_IN_SHARED_KIB
from .observers.counters import Counters
from .occupancy import MULTIPROCESSORS, compiled_registers, occupancy
from .results import caption
from .roofline import attention_work, peak_of, tflops
from .shapes import FLASH_TILES, Device, ceil_div, flash_shared_bytes

NO_RECORD = ("no record of these times yet: on a machine with a GPU, tools/record_experiments.py "
             "makes one")
ALIKE = 0.03  # times that differ by less are called equal
# (B, H, L, D) -> microseconds before and after, and the rate (TFLOP/s) that goes with the latter,
# as the report on large head dimensions gives them.
REPORT = {
    (1, 4, 64, 512): (119, 62, 2.16), (1, 4, 64, 2048): (433, 214, 2.51),
    (1, 4, 64, 4096): (186, 126, 4.26), (1, 1, 16, 8192): (199, 194, 0.69),
}  # fmt: skip
# Architectures that the lessons compare, and what a block of each may have: bytes.
BUDGETS = {f"sm_{number}": 1024 * OPT_IN_SHARED_KIB[number] for number in (80, 86, 89, 90)}


# -- running on the simulator ----------------------------------------------------------------------
def run(which: int | str, q, k, v, *observers: Observer, options: Sequence[str] = (),
        scale: float | None = None, causal: bool = False, heads: int = 1,
        bias: np.ndarray | None = None):
    """One fused kernel on the simulator. q (BH, n, d), k and v (BH_kv, m, d) float32.

    heads: query heads an element of the batch, needed where k has fewer; bias: (heads, n, m).
    Returns the output (BH, n, d).
    """
    (bh, n, d), m = q.shape, k.shape[1]
    strides = (0, n * m) if bias is not None else (0, 0)
    kv_heads = k.shape[0] * heads // bh
    problem = Problem(bh, n, m, d, heads, kv_heads, causal, strides)
    buffers = {"q": q, "k": k, "v": v}
    if bias is not None:
        buffers["bias"] = bias
    scale = d**-0.5 if scale is None else scale
    with observe(*observers):
        found = run_steps([step(which)], buffers, scale, backend="simulator", options=options,
                          problem=problem)  # fmt: skip
    return found["out"]


def counts(which: int | str, q, k, v, **options) -> dict[str, int]:
    """Totals of Counters for one run, see :func:`run`."""
    seen = Counters()
    run(which, q, k, v, seen, **options)
    return seen.totals


def ptx_counts(which: int | str, opcodes: Iterable[str], options: Sequence[str] = ()) -> dict:
    """How many instructions of a kernel's PTX begin with each of these names."""
    text = RawModule(path=str(step(which).path), options=options, backend="simulator").ptx()
    words = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    first = [parts[1] if parts[0].startswith("@") and len(parts) > 1 else parts[0]
             for parts in words]  # fmt: skip
    return {name: sum(word.startswith(name) for word in first) for name in opcodes}


# -- online softmax, block by block ----------------------------------------------------------------
def key_blocks(trace) -> list[dict]:
    """What a trace of kernel 09 says of each block of keys.

    One dict a block: key0, scores (keys,), old_m and new_m, rescale, old_l and row_l, all under
    the kernel's names, and o (d,), the undivided output after it.
    """
    recording = trace.recording
    starts = [(at, value) for at, value in recording.history("key0")]
    found, old_m, old_l = [], -np.inf, 0.0
    for (begin, key0), (end, _) in zip(starts, starts[1:], strict=False):
        here = {name: _last(recording, name, begin, end) for name in ("new_m", "rescale", "row_l")}
        shared = recording.shared_at(end)
        count = int(_last(recording, "count", begin, end))
        found.append({"key0": int(key0), "scores": np.asarray(shared["score"])[:count],
                      "old_m": old_m, "old_l": old_l, **here, "o": np.asarray(shared["o"])})
        old_m, old_l = here["new_m"], here["row_l"]
    return found


def _last(recording, name: str, begin: int, end: int, thread: int = 0) -> float:
    """The value that a variable of a thread was last given between two steps."""
    values = [value for at, value in recording.history(name, thread) if begin <= at < end]
    return float(np.ravel(values[-1])[0])


def block_table(blocks: Sequence[Mapping]) -> str:
    """A line for each block of keys of :func:`key_blocks`."""
    lines = [f"{'keys':>7}  {'scores':<18} {'row_m':>6}  {'rescale':>8}  {'row_l before':>12}"
             f"  {'row_l after':>11}"]
    for block in blocks:
        keys = f"{block['key0']}-{block['key0'] + len(block['scores']) - 1}"
        scores = " ".join(f"{score:g}" for score in block["scores"])
        lines.append(f"{keys:>7}  {scores:<18} {block['new_m']:>6g}  {block['rescale']:>8.4f}  "
                     f"{block['old_l']:>12.4f}  {block['row_l']:>11.4f}")
    return "\n".join(lines)


# -- the report on large head dimensions -----------------------------------------------------------
def report_table() -> str:
    """The report's own figures, and the rate that its times give for the shapes it names."""
    lines = [f"{'(B, H, L, D)':<18} {'before':>7} {'after':>7} {'gain':>6}   {'rate: reported':>14}"
             f" {'from the time':>14}"]
    for shape, (before, after, rate) in REPORT.items():
        found = tflops(report_work(shape).operations, after)
        lines.append(f"{shape!s:<18} {before:>7} {after:>7} {before / after:>6.2f}   {rate:>14.2f}"
                     f" {found:>14.2f}")
    return "\n".join(lines)


def report_work(shape):
    """roofline.Work of attention on a shape (B, H, L, D)."""
    b, h, n, d = shape
    return attention_work(Problem(b * h, n, n, d, h, h))


def floor_sentence(shape, time_us: float, gpu: str) -> str:
    """How far above the floor of its bytes and operations a time stands on a GPU."""
    floors = report_work(shape).floors_us(peak_of(gpu))
    words = ", ".join(f"{name} {value:.2f} us" for name, value in floors.items()
                      if name != "exponentials")
    return (f"{shape}, {gpu}: floors {words}; the report recorded {time_us:g} us, "
            f"{time_us / max(floors.values()):.0f} times the larger one")


def placement_table(name: str, shapes, device: Device) -> str:
    """Blocks, busy multiprocessors and threads of a contestant's launches."""
    lines = [f"{'(B, H, L, D)':<18} {'blocks':>6}  {'SMs with a block':>16}  {'idle SMs':>8}"]
    for shape in shapes:
        at = placement(name, shape, device)
        lines.append(f"{shape!s:<18} {at.blocks:>6}  {at.busy_sms:>16}  {at.sms - at.busy_sms:>8}")
    return "\n".join(lines)


# -- times ----------------------------------------------------------------------------------------
def compared(name: str, other: str, value: float) -> str:
    """'A takes 1.5 times as long as B', from the time of A over the time of B."""
    if abs(value - 1) <= ALIKE:
        return f"{name} and {other} take the same time (ratio {value:.2f})"
    if value > 1:
        return f"{name} takes {value:.2f} times as long as {other}"
    return f"{name} takes {value:.2f} of the time of {other}"


def time_table(found: Mapping[tuple, Times | None], names: Sequence[str]) -> str:
    """Medians of contestants over shapes, in microseconds, with the caption of their record."""
    present = {shape: one for shape, one in found.items() if one is not None}
    if not present:
        return NO_RECORD
    width = max(map(len, names)) + 2
    lines = ["recorded medians, microseconds",
             " " * width + "".join(f"{','.join(map(str, shape)):>14}" for shape in present)]
    for name in names:
        cells = (one.median_us.get(name) for one in present.values())
        lines.append(name.ljust(width) + "".join(
            f"{'-' if cell is None else format(cell, '.1f'):>14}" for cell in cells))
    return "\n".join([*lines, next(iter(present.values())).caption])


def gains(found: Mapping[tuple, Times | None], slow: str, fast: str) -> str:
    """How many times faster one contestant is than another, shape by shape."""
    present = [(shape, one.median_us) for shape, one in found.items() if one is not None]
    if not present:
        return NO_RECORD
    said = [f"  {','.join(map(str, shape)):<14} {times[slow] / times[fast]:.2f}"
            for shape, times in present if slow in times and fast in times]
    return "\n".join([f"recorded times, {slow} over {fast}:", *said])


def outcome_table(found: dict | None, shapes=tuple(REPORT)) -> str:
    """Every attempt against the kernel it started from: times faster by shape; above 1 it pays."""
    if found is None:
        return NO_RECORD
    rows = [row_of(found, shape)["contestants"] for shape in shapes]
    lines = ["recorded, times faster than the kernel it started from",
             " " * 36 + "".join(f"{','.join(map(str, shape)):>13}" for shape in shapes)]
    for name, (file, _) in VARIANTS.items():
        if "/" not in file:
            continue
        base = step(step(file).number)
        cells = (f"{row[base.entry]['median_us'] / row[name]['median_us']:.2f}"
                 if name in row else "refused" for row in rows)
        begin = f"{name:<27}over {base.number:02}  "
        lines.append(begin + "".join(f"{cell:>13}" for cell in cells))
    return "\n".join([*lines, caption(found)])


def causal_gains(suite: dict | None, name: str) -> str:
    """What share of the full problem's time a causal one takes, from a suite's record."""
    if suite is None:
        return NO_RECORD
    rows = {(tuple(row["shape"]), row["causal"]): row["timings"] for row in suite["rows"]}
    lines = [caption(suite)]
    for (shape, causal), timings in rows.items():
        full = rows.get((shape, False), {})
        if causal and name in timings and name in full:
            share = timings[name]["median_us"] / full[name]["median_us"]
            lines.append(f"{','.join(map(str, shape))}: causal takes {share:.2f} of the whole")
    return "\n".join(lines)


def against_torch(suite: dict | None, shapes, name: str = "auto") -> str:
    """How a method stands to the best of PyTorch's backends in a suite's record."""
    if suite is None:
        return NO_RECORD
    lines = [caption(suite)]
    for row in suite["rows"]:
        best, timings = row.get("best_backend"), row["timings"]
        if tuple(row["shape"]) in {tuple(shape) for shape in shapes} and name in timings and best:
            ours, peer = timings[name]["median_us"], timings[best]["median_us"]
            said = f"{peer / ours:.2f} times as fast as" if ours <= peer else "slower than"
            lines.append(f"{row['label']}: {name} {ours:.1f} us, {said} {best} with {peer:.1f} us")
    return "\n".join(lines)


def tile_fits(d: int) -> str:
    """Which of kernel 11's tiles for a head dim fit each architecture, and the blocks an SM holds.

    Blocks by shared memory and warps alone: registers depend on the compiler.
    """
    tiles = FLASH_TILES[next(limit for limit in FLASH_TILES if d <= limit)]
    lines = [f"{'rows x keys':<12}{'bytes':>9}" + "".join(f"{arch:>8}" for arch in BUDGETS)]
    for tile in tiles:
        options = tile_options(tile, 32 * ceil_div(d, 32))
        rows, keys = tile_extents(options)
        need = flash_shared_bytes(step("flash_fp32").constants(options))
        threads = 32 * tile[2] * tile[3]
        held = (occupancy(threads, 0, need, MULTIPROCESSORS[arch]).blocks if need <= size else None
                for arch, size in BUDGETS.items())
        lines.append(f"{f'{rows} x {keys}':<12}{need:>9,}" + "".join(
            f"{'-' if blocks is None else blocks:>8}" for blocks in held))
    return "\n".join(lines)


def registers_table(names: Sequence[str], arch: str = "sm_90") -> str:
    """Registers a thread that ptxas gives each contestant, without a GPU."""
    lines = [f"{'':<24} {'registers':>9}  {'warps an SM can hold':>20}"]
    for name in names:
        file, options = VARIANTS[name]
        found = compiled_registers(file, step(file).entry, options, arch)
        at = placement(name, (1, 4, 64, 512))
        held = occupancy(at.threads, found, at.shared_bytes)
        lines.append(f"{name:<24} {found:>9}  {held.blocks * held.warps_a_block:>20}")
    return "\n".join(lines)


# -- flash attention: what stays on chip, what travels ---------------------------------------------
@dataclass(frozen=True)
class TileTraffic:
    """One tile of kernel 11: rows and keys a block, bytes that stay on chip, bytes loaded."""

    rows: int
    keys: int
    resident_bytes: int
    shared_bytes: int
    loaded: int
    formula: int
    read: int


def tile_extents(options: Sequence[str]) -> tuple[int, int]:
    """Query rows and keys of a block of kernel 11 under these compiler options."""
    c = step("flash_fp32").constants(options)
    return 4 * c["ROWS"] * c["ROW_WARPS"], 8 * c["KEYS"] * c["KEY_WARPS"]


def loaded_bytes(n: int, m: int, d: int, rows: int) -> int:
    """Bytes that kernel 11 loads for one head: q once, k and v once for each tile of rows."""
    return 4 * (n * d + ceil_div(n, rows) * 2 * m * d)


def tile_traffic(q, k, v, options: Sequence[str]) -> TileTraffic:
    """Run kernel 11 with a tile and count what it loads. q (1, n, d), k and v (1, m, d)."""
    rows, keys = tile_extents(options)
    (_, n, d), m = q.shape, k.shape[1]
    totals = counts("flash_fp32", q, k, v, options=options)
    return TileTraffic(
        rows, keys, 2 * 4 * rows * d, flash_shared_bytes(step("flash_fp32").constants(options)),
        32 * totals["global_load_sectors"], loaded_bytes(n, m, d, rows),
        totals["unique_global_bytes_read"])  # fmt: skip


def traffic_table(found: Sequence[TileTraffic]) -> str:
    """A line for each tile."""
    lines = [f"{'rows':>4} {'keys':>4}  {'shared memory':>13}  {'loaded':>12}  {'formula':>12}"
             f"  {'distinct':>9}"]
    for one in found:
        lines.append(f"{one.rows:>4} {one.keys:>4}  {one.shared_bytes:>13,}  {one.loaded:>12,}  "
                     f"{one.formula:>12,}  {one.read:>9,}")
    return "\n".join(lines)


def visited(reads_of_k: np.ndarray, n: int, rows: int, keys: int) -> np.ndarray:
    """(row tiles, key tiles) bool: which tiles were computed, from reads of k (m, d).

    Row tiles skip from the right: a key tile that r of R row tiles have read was read by the last.
    """
    tiles, times = ceil_div(n, rows), reads_of_k[::keys, 0]
    return np.arange(tiles)[:, None] >= tiles - times[None, :]


def row_states(trace, row: int) -> list[dict]:
    """What a trace of kernel 11 with ROWS = 1 says of one row, tile by tile.

    One dict a tile: key0, new_m, rescale, and row_l (8,), the parts of the sum that the row's eight
    lanes have; they are joined at the end.
    """
    recording, lanes = trace.recording, range(8 * row, 8 * row + 8)
    starts = recording.history("key0", lanes[0])
    found = []
    for (begin, key0), (end, _) in zip(starts, starts[1:], strict=False):
        here = recording.variables_at(end)
        found.append({"key0": int(key0), "new_m": _last(recording, "new_m", begin, end, lanes[0]),
                      "rescale": _last(recording, "rescale", begin, end, lanes[0]),
                      "row_l": np.ravel(here["row_l"])[list(lanes)]})
    return found


def keys_seen(totals: Mapping[str, int], d: int) -> int:
    """(query, key) pairs whose products a kernel computed, from its multiply-adds."""
    return totals["ffma_thread_instructions"] // (2 * d)


# -- windows that shift ----------------------------------------------------------------------------
def relative_position_bias(heads: int, seed: int = 0) -> np.ndarray:
    """(heads, 196, 196) float32 bias by the offset between two tokens of a window, from a table.

    Swin transformers (Liu et al., arXiv:2103.14030) learn a table of 27 x 27 offsets a head; this
    one is a seeded slope that falls with distance, steeper from head to head.
    """
    rng = np.random.default_rng(seed)
    row, column = np.divmod(np.arange(WINDOW * WINDOW), WINDOW)
    down, across = row[:, None] - row[None, :], column[:, None] - column[None, :]
    slope = np.linspace(0.05, 0.6, heads)[:, None, None]
    table = -slope * np.hypot(*np.mgrid[-WINDOW + 1 : WINDOW, -WINDOW + 1 : WINDOW])
    table = table + 0.1 * rng.standard_normal(table.shape)
    chosen = table[:, down + WINDOW - 1, across + WINDOW - 1]
    return np.ascontiguousarray(chosen, dtype=np.float32)


def shifted_regions(shift: int = WINDOW // 2) -> np.ndarray:
    """(14, 14) region numbers of the last window after a cyclic shift: only alike may meet."""
    side = (np.arange(WINDOW) >= WINDOW - shift).astype(int)
    return 2 * side[:, None] + side[None, :]


def shift_mask(regions: np.ndarray) -> np.ndarray:
    """(196, 196) float32, 0 where two tokens are of one region and -inf elsewhere."""
    flat = regions.reshape(-1)
    return np.where(flat[:, None] == flat[None, :], 0.0, -np.inf).astype(np.float32)


# -- shared-memory budgets -------------------------------------------------------------------------
def shared_need(which: str, d: int, options: Sequence[str] = (), n: int = 64) -> int:
    """Shared memory in bytes of a block of a fused kernel at a head dim: static and dynamic."""
    row = step(which)
    kernel = compiled(row.path, tuple(options), entry=row.entry, backend="simulator")
    return row.launch(Problem(1, n, n, d), options).shared_bytes + kernel.shared_size_bytes


def largest_dim(which: str, budget: int, options: Sequence[str] = (), step_of: int = 4) -> int:
    """The largest head dim, a multiple of step_of, at which a kernel's block fits a budget."""
    low, high = 0, 1 << 16
    while high - low > step_of:
        middle = (low + high) // 2 // step_of * step_of
        fits = shared_need(which, middle, options) <= budget
        low, high = (middle, high) if fits else (low, middle)
    return low


def budget_table(rows: Mapping[str, tuple[str, Sequence[str]]]) -> str:
    """The largest head dim of each kernel by architecture. rows: label -> (kernel, options)."""
    width = max(map(len, rows)) + 2
    lines = [" " * width + "".join(f"{f'{arch} {size // 1024} KB':>16}"
                                   for arch, size in BUDGETS.items())]
    for label, (which, options) in rows.items():
        cells = (largest_dim(which, size, options) for size in BUDGETS.values())
        lines.append(label.ljust(width) + "".join(f"{cell:>16,}" for cell in cells))
    return "\n".join(lines)


def experiment_outcome(entry: str) -> str:
    """What an experiment's header says was reported of it, and what to look at."""
    return next(row.header.outcome for row in EXPERIMENTS if row.entry == entry)
