"""The kinds of wrong solutions that an exercise should have."""

from collections.abc import Iterator

from attn_course.exercises.exercise import Exercise

# Kinds of wrong kernels: an exercise has one of each, or says in its head's `without` why not.
KINDS = (
    "hard-coded size",
    "uninitialised",
    "extreme start",
    "forbidden method",
    "method left out",
    "swapped axes",
    "all lanes write",
    "ties",
    "ragged end",
    "narrow type",
)


def kind_faults(exercise: Exercise) -> Iterator[str]:
    """Yield a sentence for each kind that is missing, unknown, or there without a reason."""
    present = {one.kind for one in exercise.wrong} - {""}
    known = ", ".join(KINDS)
    for kind in sorted(present - set(KINDS)):
        yield f"{exercise.name}: {kind!r} is none of the kinds: {known}"
    for kind, reason in exercise.without.items():
        if kind not in KINDS or not isinstance(reason, str) or not reason.strip():
            yield f"{exercise.name}: `without` gives a reason for a kind of: {known}; not {kind!r}"
    for kind in KINDS:
        if (kind in present) == (kind in exercise.without):
            yield f"{exercise.name}: either a wrong solution or a reason for {kind!r}, not both"
