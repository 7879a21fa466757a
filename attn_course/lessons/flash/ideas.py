"""What each idea of kernels 12 and 19 is worth: in counters, and in recorded time."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from attn_course.engine.events import observe
from attn_course.engine.watch.counters.counters import Counters
from attn_course.engine.watch.counters.traffic import Lanes, count_wavefronts
from attn_course.ladder.steps import step
from attn_course.measure.ablations import (
    PROBLEMS,
    Ablation,
    Worth,
    caption,
    row_of,
    variant,
    variants,
    worths,
)
from attn_course.measure.contests import Shape, shape_label
from attn_course.measure.records import no_record

NO_RECORD = no_record("ablations")
COUNTED = {
    "shared_load_wavefronts": "passes of shared loads",
    "barriers": "barriers",
    "instructions": "instructions",
    "ffma_thread_instructions": "multiply-adds",
}
# The problems that the lesson asks about, by what they are an example of.
CASES: dict[str, tuple[Shape, bool]] = {
    "short rows": ((2, 12, 196, 64), False),
    "long rows": ((4, 16, 2048, 64), False),
    "long rows, causal": ((4, 16, 2048, 64), True),
}


def choices(kernel: str) -> dict[str, str]:
    """The ideas of a kernel under the letters a, b, ..: options of a prediction."""
    found = variants(kernel)[1:]
    return {
        letter: f"{one.name}: {one.idea}" for letter, one in zip("abcdefgh", found, strict=False)
    }


def loop_changes(before: str, after: str) -> tuple[int, list[str]]:
    """How many places of two kernels' code differ, and the diff of those in `after`'s key loop.

    The comments at the top of a file do not count.
    Raises ValueError where `after` has no loop `for (int key0 ..` at the function's own level.
    """
    old, new = (
        step(name).path.read_text(encoding="utf-8").splitlines() for name in (before, after)
    )
    start = next((at for at, line in enumerate(new) if line.startswith("    for (int key0")), None)
    if start is None:
        raise ValueError(f"{after} has no loop over key0")
    stop = new.index("    }", start)
    code = next(at for at, line in enumerate(new) if line and not line.startswith("//"))
    places = [
        place
        for place in difflib.SequenceMatcher(None, old, new).get_opcodes()
        if place[0] != "equal" and place[3] >= code
    ]
    inside = [
        "\n".join([*("-" + line for line in old[a:b]), *("+" + line for line in new[c:d])])
        for _, a, b, c, d in places
        if start < c < stop
    ]
    return len(places), inside


# -- counters --------------------------------------------------------------------------------------
def load_wavefronts(offsets: np.ndarray) -> int:
    """Passes over the banks of one 16-byte load. offsets: (32,) floats from a tile's beginning."""
    addresses = 4 * np.asarray(offsets).astype(np.uint64)
    return count_wavefronts(Lanes(np.arange(32)), addresses, 16, "load")[0]


def counts(
    chosen: Iterable[Ablation], q, k, v, options: Sequence[str] = ()
) -> dict[str, dict[str, int]]:
    """Totals of Counters by label. q (BH, n, d), k and v (BH, m, d)."""
    found = {}
    for one in chosen:
        made = variant(one, q[None], k[None], v[None], backend="simulator", options=options)
        with observe(Counters()) as seen:
            made.call()
        found[one.label] = seen.totals
    return found


def count_table(found: Mapping[str, Mapping[str, int]]) -> str:
    """Counts of the first, the whole kernel, and how many more or fewer the others have."""
    width = max(map(len, found)) + 2
    lines = [" " * width + "".join(f"{title:>23}" for title in COUNTED.values())]
    whole = next(iter(found.values()))
    for label, totals in found.items():
        cells = (
            f"{totals[name]:,}"
            if totals is whole
            else f"{totals[name] - whole[name]:+,}"
            if totals[name] != whole[name]
            else "same"
            for name in COUNTED
        )
        lines.append(label.ljust(width) + "".join(f"{cell:>23}" for cell in cells))
    return "\n".join(lines)


# -- recorded times --------------------------------------------------------------------------------
def worth_table(found: dict | None, kernel: str) -> str:
    """A kernel's time on each problem, and the percentage that each missing idea adds to it.

    A percentage whose 95 % interval holds 0 stands in brackets.
    """
    if found is None:
        return NO_RECORD
    lines = [
        f"recorded: {kernel}, us, and what each missing idea adds to it, percent",
        " " * 28 + "".join(f"{one.name:>11}" for one in variants(kernel)[1:]),
    ]
    for shape, causal in PROBLEMS:
        timed = {one.ablation.name: one for one in worths(found, kernel, shape, causal)}
        whole = row_of(found, shape, causal)["variants"].get(kernel)
        cells = (_percent(timed.get(one.name)) for one in variants(kernel)[1:])
        time = f"{whole['median_us']:.1f}" if whole else "-"
        lines.append(
            f"{shape_label(shape, causal):<20} {time:>7}" + "".join(f"{cell:>11}" for cell in cells)
        )
    return "\n".join([*lines, caption(found)])


def _percent(one: Worth | None) -> str:
    if one is None:
        return "-"
    text = f"{round(100 * (one.ratio - 1), 1) + 0.0:+.1f}"  # 0.0 added: no -0.0
    return text if one.is_clear else f"({text})"


def most_missed(found: dict, kernel: str, shape: Shape, causal: bool = False) -> str:
    """The letter, as of choices(), of the idea without which the kernel is slowest."""
    slowest = max(worths(found, kernel, shape, causal), key=lambda one: one.ratio).ablation.name
    names = [one.name for one in variants(kernel)[1:]]
    return "abcdefgh"[names.index(slowest)]


def bars(found: dict, kernel: str) -> dict[str, dict[str, tuple[float, float, float]]]:
    """For a figure: problem -> idea -> percent of time that its lack adds, low and high ends."""
    return {
        shape_label(shape, causal): {
            one.ablation.name: tuple(100 * (x - 1) for x in (one.ratio, one.low, one.high))
            for one in worths(found, kernel, shape, causal)
        }
        for shape, causal in PROBLEMS
    }
