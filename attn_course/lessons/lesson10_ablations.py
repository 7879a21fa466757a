"""Lesson 10: ablations (`clinic.ablations`) on the simulator, and their recorded times."""

from collections.abc import Sequence

from attn_course.clinic.ablations import Ablation, sources, variants
from attn_course.measure import records
from attn_course.measure.benchmarks import Shape
from attn_course.measure.candidates import Kernels, Part

KIND = "ablations"


def part_of(one: Ablation, options: Sequence[str] = ()) -> Part:
    """Return an ablation as a kernel to launch; options win over the tuning and the ablation's."""
    return Part(one.kernel, (*one.options, *options), one.edits)


def variant(one: Ablation, q, k, v, *, options: Sequence[str] = (), **how) -> Kernels:
    """Return an ablation ready to run on a problem; arguments as of part_of, how: as of Kernels."""
    return Kernels(one.label, [part_of(one, options)], q, k, v, **how)


def worths(
    found: dict, kernel: str, shape: Shape, causal: bool = False
) -> dict[str, tuple[float, float, float]]:
    """Return the worth of each of a kernel's ideas on a problem, as far as the record has it.

    Its ablation's time over the full kernel's, above 1 where the idea saves time, and the ends of
    the 95 % interval, which holds 1 where the difference is within the samples' spread.
    """
    timed = records.row_of(found, shape, causal=causal)["variants"]
    ratios = {
        name: timed[one.label]["over_whole"]
        for name, one in variants(kernel).items()
        if name and kernel in timed and one.label in timed
    }
    return {name: (one["value"], one["low"], one["high"]) for name, one in ratios.items()}


def caption(found: dict) -> str:
    """Return where and when the record was made; STALE where kernels or edits have changed."""
    return records.caption(found, sources=sources(found["kind"]))
