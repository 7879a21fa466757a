"""Grades a class: every submission in a sandbox, points by the course's own judge.

`submissions` finds them, `handout` is what the class was given, `grader` grades one submission,
`verdict` has the judge prove itself and asks it about one kernel, `pool` grades many submissions,
here or on a Dask cluster, `store` keeps results, `gradebook` and `feedback` show them, and
`class_run` does all of it for a folder. What touches a submission runs in processes of its own, in
`confined`; no Python of a submission runs at all.
"""

from kernelscope.lazy import lazy

_NAMES = {
    "class_run": "ClassRun grade_class",
    "submissions": "CollectError Submission collect",
    "confined.sandbox": "MODES ProcessLimits Sandbox SandboxError best_sandbox works",
    "grader": "Task grade",
    "verdict": "JudgeError NotJudged",
    "handout": "Handout HandoutError handout_of read_handout",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
