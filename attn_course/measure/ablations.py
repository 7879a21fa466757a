"""Kernels 12 and 19 with one idea taken away at a time: what each idea is worth.

An ablation is a kernel's own source, headers included, with a few exact replacements
(`clinic.ablations`). It computes the same attention, so the difference to the full kernel, in
counters or in time, is the idea's.
Counters come from the simulator; times come from a GPU, where all variants of a problem take turns,
or from its record.
"""

import difflib
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

from kernelscope.errors import UnknownNameError

from attn_course.clinic.ablations import ABLATIONS, Ablation, whole
from attn_course.clinic.edits import edited, kernel_text
from attn_course.ladder.choose import current_device
from attn_course.ladder.steps import Device, Problem, step

from . import records
from .contestants import Kernels, Part, compile_parts
from .contests import Shape, hold_contest, shape_label
from .timing import ClockWatch, require_gpu

KIND = "ablations"
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


# -- source ----------------------------------------------------------------------------------------
def ablation(kernel: str, name: str) -> Ablation:
    """Return an ablation by its kernel's entry point and its name. KeyError: lists all."""
    for one in ABLATIONS:
        if (one.kernel, one.name) == (kernel, name):
            return one
    raise UnknownNameError(
        f"no ablation {name!r} of {kernel}; there are: " + ", ".join(one.label for one in ABLATIONS)
    )


def variants(kernel: str) -> tuple[Ablation, ...]:
    """Return the full kernel and each of its ablations."""
    return (whole(kernel), *(one for one in ABLATIONS if one.kernel == kernel))


def all_variants() -> tuple[Ablation, ...]:
    """Return `variants` of every kernel that has ablations."""
    kernels = dict.fromkeys(one.kernel for one in ABLATIONS)
    return tuple(one for kernel in kernels for one in variants(kernel))


def source(one: Ablation) -> str:
    """Return the kernel's text with the edits made. EditError: an edit does not fit."""
    return edited(kernel_text(step(one.kernel).path), one.edits, one.label)


def difference(one: Ablation) -> str:
    """Return the edits as a unified diff without context; without edits, the options."""
    if not one.edits:
        return " ".join(one.options)
    before = source(whole(one.kernel)).splitlines()
    lines = list(difflib.unified_diff(before, source(one).splitlines(), lineterm="", n=0))[2:]
    return "\n".join("..." if line.startswith("@@") else line for line in lines)


def source_hash(one: Ablation) -> str:
    """Return the SHA-256 of the source and the options."""
    text = "\n".join((source(one), *one.options))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sources() -> dict[str, str]:
    """Return `source_hash` of all variants by label: the edits as they are now."""
    return {one.label: source_hash(one) for one in all_variants()}


# -- running ---------------------------------------------------------------------------------------
def part_of(one: Ablation, options: Sequence[str] = ()) -> Part:
    """Return an ablation as a kernel to launch; options win over the tuning and the ablation's."""
    return Part(one.kernel, (*one.options, *options), one.edits)


def variant(one: Ablation, q, k, v, *, options: Sequence[str] = (), **how) -> Kernels:
    """Return an ablation ready to run on a problem; arguments as of part_of, how: as of Kernels."""
    return Kernels(one.label, [part_of(one, options)], q, k, v, **how)


def parts_to_compile(device: Device | None = None) -> set[Part]:
    """Return every kernel that a record times, with all its compiler options."""
    found = set()
    for one in all_variants():
        for (b, h, n, d), causal in PROBLEMS:
            part = part_of(one)
            launch = part.launch(Problem(b * h, n, n, d, h, h, causal), device)
            found.add(part._replace(options=launch.options(part.options)))
    return found


# -- measuring -------------------------------------------------------------------------------------
def record(quick: bool = False) -> dict:
    """Return a record of every variant on every problem; quick: on the first alone, in few turns.

    Raises:
        TimingError: no GPU.
    """
    require_gpu()
    compile_parts(parts_to_compile(current_device("gpu")))
    problems, iterations = (PROBLEMS[:1], 5) if quick else (PROBLEMS, ITERATIONS)
    with ClockWatch() as watch:
        rows = [measure(shape, causal, iterations) for shape, causal in problems]
    return records.new_record(
        KIND,
        {step(one.kernel).file for one in all_variants()},
        device=asdict(current_device("gpu")),
        rows=rows,
        sources=sources(),
        clocks=watch.record(),
    )


def measure(
    shape: Shape, causal: bool, iterations: int = ITERATIONS, backend: str = "gpu", clock=None
) -> dict:
    """Return the row of one problem: all variants, checked against float64 and timed in turns."""
    makers = {
        one.label: partial(variant, one, causal=causal, backend=backend) for one in all_variants()
    }
    result = hold_contest(
        shape, makers, causal=causal, iterations=iterations, backend=backend, clock=clock
    )
    facts, measured = result.facts(), result.measured
    for one in all_variants():
        if one.label in facts and one.kernel in measured.timings:  # the label of the full kernel
            facts[one.label]["over_whole"] = measured.ratio(one.kernel, one.label).record()
    return {
        "shape": list(shape),
        "causal": causal,
        "refused": result.entrants.refused,
        "wrong": result.entrants.wrong,
        "variants": facts,
    }


def report(found: dict) -> str:
    """Return each problem's times, and the ratios to the full kernel's."""
    lines = []
    for row in found["rows"]:
        lines.append(shape_label(row["shape"], row["causal"]))
        for name, one in row["variants"].items():
            ratio = one.get("over_whole", {"value": float("nan")})
            lines.append(
                f"  {name:<32} {one['median_us']:10.2f} us  {ratio['value']:6.3f} of the full "
                f"kernel  {one['registers']:3} registers, {one['local_bytes']} bytes spilled"
            )
    return "\n".join(lines)


# -- reading a record ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Worth:
    """An ablation's time on one problem beside the full kernel's, microseconds, and their ratio.

    ratio: ablation over full, above 1 where the idea saves time; low and high: its 95 % interval.
    """

    ablation: Ablation
    median_us: float
    whole_us: float
    ratio: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether 1 is outside the interval: the difference is more than the samples' spread."""
        return not self.low <= 1 <= self.high


def caption(found: dict) -> str:
    """Return where and when the record was made; STALE where kernels or edits have changed."""
    return records.caption(found, sources=sources())


def row_of(found: dict, shape: Shape, causal: bool = False) -> dict:
    """Return a record's row of one problem. KeyError: it has none."""
    for row in records.rows_of(found, shape):
        if row["causal"] == causal:
            return row
    raise UnknownNameError(f"no row of shape {shape}, causal {causal} in this record")


def worths(found: dict, kernel: str, shape: Shape, causal: bool = False) -> list[Worth]:
    """Return the worth of each of a kernel's ideas on a problem, as far as the record has it."""
    timed = row_of(found, shape, causal)["variants"]
    if kernel not in timed:
        return []
    return [
        Worth(
            one,
            timed[one.label]["median_us"],
            timed[kernel]["median_us"],
            *(timed[one.label]["over_whole"][key] for key in ("value", "low", "high")),
        )
        for one in variants(kernel)[1:]
        if one.label in timed
    ]
