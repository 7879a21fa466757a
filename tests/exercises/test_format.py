"""Files of exercises that are wrong: each is refused with the file and the place."""

import pytest

from attn_course.clinic.edits import edits_of
from attn_course.exercises import exercise_names, read_exercise
from attn_course.exercises.exercise import (
    FOLDER,
    LEVELS,
    ExerciseError,
    parse_exercise,
    problem_names,
)

TEXT = (FOLDER / "add_ten.md").read_text(encoding="utf-8")
DEFECTS = {
    "head in TOML": TEXT.replace("+++\n", "", 1),
    "not TOML": TEXT.replace('title = "Add ten"', "title = Add ten"),
    "wrong or missing: lines": TEXT.replace("lines = 2", 'lines = "two"'),
    "wrong or missing: colour": TEXT.replace("lines = 2", "lines = 2\ncolour = 1"),
    "no section Hints": TEXT.replace("## Hints", "## Correct: hint\n\n```c++\nx\n```", 1),
    "a list from 1. to 3.": TEXT.replace("\n2. ", "\nAnd ", 1),
    "what must hold, the idea, a line of code": TEXT.replace(
        "\n\n## Solution", "\n4. x\n\n## Solution"
    ),
    "section 'Hints' is a list": TEXT.replace("## Hints\n", "## Hints\n\nSome."),
    "unknown section 'Remark'": TEXT.replace("## Hints", "## Remark\n\n## Hints"),
    "two sections 'Hints'": TEXT + "\n## Hints\n",
    "Rejected for: PROPERTY": TEXT.replace("Rejected for: in bounds", "Rejected for: style", 1),
    "holds 0 fences": TEXT.replace("```c++", "```cpp"),
    "not once": TEXT.replace("-    if (i < n) out[i]", "-    if (i < m) out[i]", 1),
    "a fence without an end": TEXT.rstrip().removesuffix("```"),
}


def test_the_unchanged_text_is_read():
    found = parse_exercise("add_ten", TEXT)
    assert found.kernel == "add_ten" and len(found.hints) == 3
    assert not any("\n   " in hint or hint[:3] == "2. " for hint in found.hints)


@pytest.mark.parametrize("name", [*exercise_names(), *problem_names()])
def test_the_hints_of_an_exercise_end_in_code_and_have_a_fold_each(name):
    found = read_exercise(name)
    assert len(set(found.hints)) == len(LEVELS) and found.hints[-1].count("`") >= 2
    folds = found.folded_hints.split("</details>")
    assert [one.strip()[:33] for one in folds[:-1]] == [
        f"<details><summary>Hint {number}: {level}"[:33] for number, level in enumerate(LEVELS, 1)
    ]
    assert all(hint in fold for hint, fold in zip(found.hints, folds, strict=False))


@pytest.mark.parametrize("message", DEFECTS)
def test_a_wrong_file_is_refused_by_name(message):
    with pytest.raises(ExerciseError) as raised:
        parse_exercise("add_ten", DEFECTS[message])
    assert message in str(raised.value) and "add_ten" in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new"), [("def setup(", "{}\n\n\ndef setup("), ("    ", "    {}\n    ")]
)
def test_an_error_of_the_specification_names_its_line(old, new):
    before, setup, after = TEXT.partition("def setup(")
    text = (setup + after).replace(old, new.format("x, y = (1, 2, 3)"), 1)
    with pytest.raises(ExerciseError, match="add_ten: .* ValueError: .*, at `x, y = .1, 2, 3.`"):
        _ = parse_exercise("add_ten", before + text).setups


def test_a_range_in_the_last_case_is_refused():
    """Golf and the counters after a pass would compare kernels at different sizes."""
    text = TEXT.replace('{"n": 140000}', '{"n": range(140000, 150000)}')
    assert text != TEXT
    with pytest.raises(ExerciseError, match="add_ten: a range in the last case, which golf"):
        _ = parse_exercise("add_ten", text).setups


def test_a_diff_becomes_edits_hunk_by_hunk():
    diff = " a\n-b\n+c\n@@\n-d\n"
    assert edits_of(diff) == [("a\nb\n", "a\nc\n"), ("d\n", "")]
