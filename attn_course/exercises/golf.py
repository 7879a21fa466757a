"""Golf: the standing of a kernel that passes, by what it costs in the largest case.

The costs are counts of the simulator, the same on every machine. Their sum is the total, by which
kernels are ranked; the lowest is best.
"""

import hashlib
from collections.abc import Mapping

from .examination import largest_totals
from .exercise import Exercise

Standing = tuple[str, Mapping[str, int]]  # the name of a kernel, and its costs
TOTAL = "total"
_PLACES = ("global_{}_sectors", "shared_{}_wavefronts")
COSTS = {  # the counters that a cost adds up
    place.rpartition("_")[2]: [place.format(kind) for kind in ("load", "store", "atomic")]
    for place in _PLACES
} | {"instructions": ["instructions"]}


def costs(totals: Mapping[str, int]) -> dict[str, int]:
    """Return the costs that the counts of a launch come to, and their total."""
    found = {cost: sum(totals[name] for name in names) for cost, names in COSTS.items()}
    return found | {TOTAL: sum(found.values())}


def known_standings(exercise: Exercise) -> list[Standing]:
    """Return the costs of the reference and of the exercise's other correct solutions."""
    named = [("reference", exercise.solution), *((one.name, one.text) for one in exercise.correct)]
    return [(name, costs(largest_totals(exercise, text))) for name, text in named]


def text_hash(text: str) -> str:
    """Return the hash that names a text in a table; blanks at the ends of lines do not count."""
    lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return hashlib.sha256(lines.encode()).hexdigest()[:12]
