"""Problem sets: problems with points, what an answer earns, and the notebooks made from them.

A problem is an exercise with points (`exercises/assignments`). `sets` lists the problem sets and
their cells, `notebooks` makes the notebooks, `points` turns examined cases into points, `scoring`
examines an answer, `gpu_bonus` times it on a GPU, `session` is the notebook's side (`earn`,
`bonus`), `grading` grades a class.
"""

from kernelscope.lazy import lazy

_NAMES = {
    "notebooks": "released_notebook",
    "points": "Points PropertyPoints",
    "scoring": "score",
    "session": "earn bonus",
    "sets": "ProblemSet SetCell problem_set problem_set_names problem_sets",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
