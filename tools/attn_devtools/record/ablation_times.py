"""The record `ablations`: kernels 12 and 19 without one idea at a time, timed in turns."""

from dataclasses import asdict
from functools import partial

from attn_course.clinic.ablations import all_variants, sources
from attn_course.ladder.choose import current_device
from attn_course.ladder.steps import Device, Problem, step
from attn_course.lessons.lesson10_ablations import KIND, part_of, variant
from attn_course.measure.benchmarks import Shape, float64_attention, run_benchmark
from attn_course.measure.candidates import Part
from attn_course.measure.records import new_record
from attn_course.measure.timing import ClockWatch, require_gpu
from attn_course.reference.inputs import seeded_qkv

from .compiling import compile_parts

# (B, H, n, d) and causal: few short rows, Swin windows, long rows without and with the mask.
PROBLEMS: tuple[tuple[Shape, bool], ...] = (
    ((8, 1, 128, 64), False),
    ((2, 12, 196, 64), False),
    ((4, 16, 2048, 64), False),
    ((4, 16, 2048, 64), True),
    ((2, 16, 2048, 128), False),
    ((2, 16, 2048, 128), True),
)
ITERATIONS = 60


def parts_to_compile(device: Device | None = None) -> set[Part]:
    """Return every kernel that a record times, with all its compiler options."""
    found = set()
    for part in map(part_of, all_variants().values()):
        for (b, h, n, d), causal in PROBLEMS:
            launch = part.launch(Problem(b * h, n, n, d, h, h, causal), device)
            found.add(part._replace(options=launch.options(part.options)))
    return found


def record(quick: bool = False) -> dict:
    """Return a record of every variant on every problem; quick: on the first alone, in few turns.

    Raises:
        TimingError: no GPU.
    """
    require_gpu()
    device = current_device("gpu")
    compile_parts(parts_to_compile(device))
    problems, iterations = (PROBLEMS[:1], 5) if quick else (PROBLEMS, ITERATIONS)
    with ClockWatch() as watch:
        rows = [measure(shape, causal, iterations) for shape, causal in problems]
    return new_record(
        KIND,
        {step(one.kernel).file for one in all_variants().values()},
        device=asdict(device),
        rows=rows,
        sources=sources(),
        clocks=watch.record(),
    )


def measure(
    shape: Shape, causal: bool, iterations: int = ITERATIONS, backend: str = "gpu", clock=None
) -> dict:
    """Return the row of one problem: all variants, checked against float64 and timed in turns."""
    variants = all_variants()
    makers = {
        label: partial(variant, one, causal=causal, backend=backend)
        for label, one in variants.items()
    }
    result = run_benchmark(
        seeded_qkv(shape),
        makers,
        expected=partial(float64_attention, causal=causal),
        iterations=iterations,
        backend=backend,
        clock=clock,
    )
    facts = result.facts()
    for label in facts:
        full = variants[label].kernel  # the label of the full kernel
        if full in facts:
            facts[label]["over_whole"] = result.measured.ratio(full, label).record()
    return {
        "shape": list(shape),
        "causal": causal,
        "refused": result.entrants.refused,
        "wrong": result.entrants.wrong,
        "variants": facts,
    }
