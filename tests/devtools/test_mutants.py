"""Mutants: what the rules change and leave alone, and what becomes of the mutants."""

import json
from dataclasses import replace

import pytest

from attn_course.cli.main import main
from attn_course.exercises import read_exercise
from attn_course.exercises.exercise import FOLDER, ExerciseError, parse_exercise
from attn_devtools.mutants import command, rules, survival
from attn_devtools.mutants.kinds import kind_faults

pytestmark = pytest.mark.system

KERNEL = """#define START __int_as_float(0xff800000)
// if (i < n) in a comment
extern "C" __global__ void f(const float* x, float* out, int n) {
    __shared__ float tile[32][33];
    const int i = threadIdx.x;
    float sum = START;
    for (int c = i; c < n; c += 32) sum = fmaxf(sum, x[c]);
    __syncthreads();
    if (i >= n || i == 3) return;
    out[i] = i > 0 ? tile[i][0] * sum : 0.0f;
}
"""
TEXT = (FOLDER / "add_ten.md").read_text(encoding="utf-8")
REASON = "no numbers are compared"  # of its head, why ties are no kind


def test_every_rule_changes_its_tokens_and_names_the_line():
    changes = {one.change for one in rules.mutants_of(KERNEL)}
    assert changes >= {
        "4: `][33];` -> `][32];`",
        "4: `tile[32][` -> `tile[31][`",
        "5: `threadIdx.x;` -> `threadIdx.y;`",
        "6: `sum = START;` -> `sum = 0.0f;`",
        "6: `float sum = START;` -> `float sum ;`",
        "6: `sum = START;` -> `sum = (-1e30f);`",
        "7: `= i; c` -> `= i + 1; c`",
        "7: `; c < n;` -> `; c <= n;`",
        "7: `c < n; c` -> `c < n - 1; c`",
        "7: `; c += 32)` -> `; c -= 32)`",
        "7: `c += 32) sum` -> `c += 31) sum`",
        "7: `sum = fmaxf(sum` -> `sum = fminf(sum`",
        "7: `x[c])` -> `x[c + 1])`",
        "8: `__syncthreads();` -> `;`",
        "9: `if (i >= n || i == 3) return` -> `if (false) return`",
        "9: `if (i >= n || i` -> `if (false || i`",
        "9: `n || i == 3) return` -> `n || false) return`",
        "9: `|| i == 3)` -> `|| i != 3)`",
        "10: `] = i > 0 ? tile` -> `] = true ? tile`",
        "10: `0] * sum :` -> `0] + sum :`",
        "10: `sum : 0.0f;` -> `sum : 1.0f;`",
    }
    lines = {int(change.partition(":")[0]) for change in changes}
    assert lines == {4, 5, 6, 7, 8, 9, 10}  # no directive, comment or signature
    assert not any("tile[32 + 1" in change or "33 + 1" in change for change in changes)


def test_mutants_differ_from_the_text_and_from_each_other():
    made = rules.mutants_of(KERNEL)
    assert len({one.text for one in made} | {KERNEL}) == len(made) + 1
    assert len({one.change for one in made}) == len(made)
    for one in made:
        line = int(one.change.partition(":")[0])
        old, new = KERNEL.splitlines(), one.text.splitlines()
        assert len(old) == len(new) and old[line - 1] != new[line - 1]
        assert old[: line - 1] + old[line:] == new[: line - 1] + new[line:]


@pytest.fixture(scope="module")
def exercise():
    return read_exercise("add_ten")


@pytest.mark.parametrize(
    ("old", "new", "fate"),
    [
        ("i < n", "i <= n", "killed"),
        ("10.0f", "11.0f", "killed"),
        ("if (i < n)", "if (n > i)", "same code"),
        ("i < n", "i < m", "no kernel"),
        ("out[i] =", "if (n < 0) out[0] = 1.0f; out[i] =", "killed"),
        ("x[i] + 10.0f", "__fadd_rn(x[i], 10.0f) * (n > 0 ? 1.0f : 2.0f)", "passes"),
    ],
)
def test_the_fate_of_a_text(exercise, old, new, fate):
    text = exercise.solution.replace(old, new)
    assert text != exercise.solution
    code = survival.compiled(exercise, exercise.solution).module.ptx()
    assert survival._fate(exercise, code, text) == fate


@pytest.mark.turns(79)
def test_survivors_are_those_that_the_cases_do_not_reject_and_the_file_does_not_list(exercise):
    sizes = 'SIZES = [{"n": 256}]\n'
    blunt = replace(exercise, specification=f"{exercise.specification}\n\n{sizes}")
    found = survival.survival(blunt)
    guard = "4: `if (i < n) out` -> `if (true) out`"
    assert guard in found.survivors and not found.holds
    assert found.of == found.killed + len(found.survivors)
    reasons = [f"- {change}: one full block has no idle thread" for change in found.survivors]
    listed = survival.survival(replace(blunt, equivalent="\n".join(reasons)))
    assert listed.holds and listed.of == listed.killed == found.killed
    assert listed.equivalent == found.equivalent + len(reasons)
    refuted = survival.survival(replace(exercise, equivalent=f"- {guard}: it is not"), jobs=2)
    assert refuted.refuted == (guard,) and not refuted.holds and not refuted.survivors


@pytest.mark.turns(23)
def test_a_share_of_the_mutants_is_chosen_by_their_words(exercise):
    whole, *parts = (survival.survival(exercise, one_in=share) for share in (1, 3, 3))
    assert parts[0] == parts[1] and 0 < parts[0].of < whole.of


def test_equivalent_mutants_and_kinds_are_read():
    section = "\n## Equivalent mutants\n\n- 4: `i < n` -> `i != n` (2): no\n  reason.\n"
    text = TEXT.replace("Rejected for: agrees", "Rejected for: agrees\nKind: narrow type", 1)
    text = text.replace(REASON, "nothing is compared")
    read = parse_exercise("add_ten", text + section)
    assert survival.equivalent_mutants(read) == {"4: `i < n` -> `i != n` (2)": "no reason."}
    assert "narrow type" in [one.kind for one in read.wrong]
    assert read.without["ties"] == "nothing is compared"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TEXT + "\n## Equivalent mutants\n\n- the guard\n", "as attn-course mutants prints it"),
    ],
)
def test_a_wrong_list_is_refused(text, words):
    with pytest.raises(ExerciseError, match=words):
        survival.equivalent_mutants(parse_exercise("add_ten", text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TEXT.replace("for: agrees", "for: agrees\nKind: odd", 1), "none of the kinds"),
        (TEXT.replace('"ties" =', '"odd" ='), "gives a reason"),
        (TEXT.replace(REASON, " "), "gives a reason"),
    ],
)
def test_a_kind_that_is_unknown_or_without_a_reason_is_a_fault(text, words):
    read = parse_exercise("add_ten", text)
    assert words in " ".join(kind_faults(read)) and not list(kind_faults(read_exercise("add_ten")))


@pytest.mark.parametrize(
    ("survivors", "refuted", "status"), [((), (), 0), (("4: `a` -> `b`",), (), 1), ((), ("x",), 1)]
)
def test_the_command_lists_the_mutants_that_pass(
    monkeypatch, capsys, tmp_path, survivors, refuted, status
):
    found = survival.Survival("add_ten", 12, survivors, 1, refuted)
    monkeypatch.setattr(command, "survival", lambda exercise, jobs: found)
    file = tmp_path / "mutants.json"
    assert main(["mutants", "add_ten", "--json", str(file)], [command]) == status
    printed = capsys.readouterr().out
    assert f"add_ten: 12 of {12 + len(survivors)} mutants killed, 1 equivalent" in printed
    assert all(change in printed for change in survivors + refuted)
    [record] = json.loads(file.read_text())["mutants"]
    assert (record["killed"], record["of"]) == (12, 12 + len(survivors))
    assert tuple(record["survivors"]) == survivors and record["equivalent"] == 1
