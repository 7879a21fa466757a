"""Exercises: the learner writes a kernel, the machine examines it.

An exercise is one Markdown file of the folder `exercises`: statement, stub, specification, hints,
solution, other correct solutions and wrong ones. `exercise` reads it, `setups` is what its
specification is written with, `examination` judges a kernel, `judgement` shows the outcome,
`proof` examines every solution of the file, `session` connects a notebook (`%%cuda NAME`, `check`),
`diagnosis` names the known mistake of a kernel, `golf` ranks those that pass.
"""

from kernelscope.lazy import lazy

_NAMES = {
    "exercise": "Exercise ExerciseError exercise_names read_exercise",
    "examination": "judge",
    "proof": "prove",
    "patients": "VERDICTS patient show_findings verdict",
    "session": "check current_text hint step",
    "judgement": "PROPERTIES Judgement",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
