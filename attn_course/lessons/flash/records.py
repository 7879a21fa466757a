"""Tables and sentences from recorded times, whichever way those turn out.

The figures of the examined report stand in one table, :data:`REPORT`, as that report printed them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attn_course.ladder.steps import EXPERIMENTS, Problem, step
from attn_course.measure.contests import Shape, shape_label
from attn_course.measure.experiments import VARIANTS, RecordedTimes, row_of
from attn_course.measure.hardware.devices import peak_of
from attn_course.measure.records import caption, no_record
from attn_course.measure.roofline import Work, attention_work, tflops

NO_RECORD = no_record("experiments")
# (B, H, L, D) -> microseconds before and after, and the rate (TFLOP/s) that goes with the latter,
# as the report on large head dimensions gives them.
REPORT = {
    (1, 4, 64, 512): (119, 62, 2.16),
    (1, 4, 64, 2048): (433, 214, 2.51),
    (1, 4, 64, 4096): (186, 126, 4.26),
    (1, 1, 16, 8192): (199, 194, 0.69),
}


# -- the report on large head dimensions -----------------------------------------------------------
def report_table() -> str:
    """The report's own figures, and the rate that its times give for the shapes it names."""
    lines = [
        f"{'(B, H, L, D)':<18} {'before':>7} {'after':>7} {'gain':>6}   {'rate: reported':>14}"
        f" {'from the time':>14}"
    ]
    for shape, (before, after, rate) in REPORT.items():
        found = tflops(report_work(shape).operations, after)
        lines.append(
            f"{shape!s:<18} {before:>7} {after:>7} {before / after:>6.2f}   {rate:>14.2f}"
            f" {found:>14.2f}"
        )
    return "\n".join(lines)


def report_work(shape: Shape) -> Work:
    """What attention on a shape (B, H, L, D) has to compute and to move."""
    b, h, n, d = shape
    return attention_work(Problem(b * h, n, n, d, h, h))


def floor_sentence(shape: Shape, time_us: float, gpu: str) -> str:
    """How far above the floor of its bytes and operations a time stands on a GPU."""
    floors = report_work(shape).floors_us(peak_of(gpu))
    words = ", ".join(
        f"{name} {value:.2f} us" for name, value in floors.items() if name != "exponentials"
    )
    return (
        f"{shape}, {gpu}: floors {words}; the report recorded {time_us:g} us, "
        f"{time_us / max(floors.values()):.0f} times the larger one"
    )


def experiment_outcome(entry: str) -> str:
    """What an experiment's header says was reported of it, and what to look at."""
    return next(row.header.outcome for row in EXPERIMENTS if row.entry == entry)


# -- times -----------------------------------------------------------------------------------------
def time_table(found: Mapping[Shape, RecordedTimes | None], names: Sequence[str]) -> str:
    """Medians of contestants over shapes, in microseconds, with the caption of their record."""
    present = {shape: one for shape, one in found.items() if one is not None}
    if not present:
        return NO_RECORD
    width = max(map(len, names)) + 2
    lines = [
        "recorded medians, microseconds",
        " " * width + "".join(f"{shape_label(shape):>14}" for shape in present),
    ]
    for name in names:
        cells = (one.median_us.get(name) for one in present.values())
        lines.append(
            name.ljust(width)
            + "".join(f"{'-' if cell is None else format(cell, '.1f'):>14}" for cell in cells)
        )
    return "\n".join([*lines, next(iter(present.values())).caption])


def medians(
    found: Mapping[Shape, RecordedTimes | None], names: Sequence[str]
) -> dict[str, list[float | None]]:
    """Contestant -> its median at each shape in microseconds, None where there is none."""
    return {
        name: [one.median_us.get(name) if one else None for one in found.values()] for name in names
    }


def gains(found: Mapping[Shape, RecordedTimes | None], slow: str, fast: str) -> str:
    """How many times faster one contestant is than another, shape by shape."""
    present = [(shape, one.median_us) for shape, one in found.items() if one is not None]
    if not present:
        return NO_RECORD
    said = [
        f"  {shape_label(shape):<14} {times[slow] / times[fast]:.2f}"
        for shape, times in present
        if slow in times and fast in times
    ]
    return "\n".join([f"recorded times, {slow} over {fast}:", *said])


def outcome_table(found: dict | None, shapes: Sequence[Shape] = tuple(REPORT)) -> str:
    """Every attempt against the kernel it started from: times faster by shape; above 1 it pays."""
    if found is None:
        return NO_RECORD
    rows = [row_of(found, shape)["contestants"] for shape in shapes]
    lines = [
        "recorded, times faster than the kernel it started from",
        " " * 36 + "".join(f"{shape_label(shape):>13}" for shape in shapes),
    ]
    for name, (file, _) in VARIANTS.items():
        if "/" not in file:
            continue
        base = step(step(file).number)
        cells = (
            f"{row[base.entry]['median_us'] / row[name]['median_us']:.2f}"
            if name in row
            else "refused"
            for row in rows
        )
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
            lines.append(f"{shape_label(shape)}: causal takes {share:.2f} of the whole")
    return "\n".join(lines)


def against_torch(suite: dict | None, shapes: Sequence[Shape], name: str = "auto") -> str:
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
