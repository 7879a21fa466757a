"""Golf: the standing of a kernel that passes, by what it costs in the largest case.

The costs are counts of the simulator, the same on every machine. Their sum is the total, by which
kernels are ranked; the lowest is best. The time that is predicted for a GPU stands among them and
ranks nothing: it is a model's.
"""

import hashlib
from collections.abc import Mapping

from kernelscope.timing import Prediction, Time

from .examination import compiled, largest_totals, launch
from .exercise import Exercise

Standing = tuple[str, Mapping[str, int]]  # the name of a kernel, and its costs
TOTAL, US = "total", "us"
COLUMNS = ("sectors", "wavefronts", US, "instructions", TOTAL)
_predicted: dict[tuple[str, str], Prediction] = {}  # exercise, text -> of the largest case
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
    named = known_texts(exercise).items()
    return [(name, costs(largest_totals(exercise, text))) for name, text in named]


def known_texts(exercise: Exercise) -> dict[str, str]:
    """Return the reference and the exercise's other correct solutions, by name."""
    return {"reference": exercise.solution} | {one.name: one.text for one in exercise.correct}


def predicted(exercise: Exercise, text: str) -> Prediction:
    """Return the time of a kernel that passes, in the largest case; a process predicts it once."""
    if (key := (exercise.name, text)) not in _predicted:
        setup, seen = exercise.setups[-1], Time()
        launch(compiled(exercise, text), setup, setup.fresh(), seen)
        [_predicted[key]] = seen.launches
    return _predicted[key]


def with_time(found: Mapping[str, int], us: float | None) -> dict[str, float]:
    """Return costs as COLUMNS has them; without a time where there is none."""
    return {name: us if name == US else found[name] for name in COLUMNS if name != US or us}


def text_hash(text: str) -> str:
    """Return the hash that names a text in a table; blanks at the ends of lines do not count."""
    lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return hashlib.sha256(lines.encode()).hexdigest()[:12]
