"""The patients of the lesson: symptoms without spoilers, examinations, mends and discharges."""

import ast
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest

from attn_course.clinic import WRONG_RESULT, broken_kernels
from attn_course.engine.watch.sanitizer.findings import KINDS
from attn_course.lessons.lesson04_clinic import (
    NOTHING,
    PATIENTS,
    VERDICTS,
    Patient,
    instructions_of_line,
    patient,
    run,
)

LESSON = Path(__file__).resolve().parents[2] / "notebooks" / "04_races_and_barriers.ipynb"
RACY = ("A", "B")  # right in lockstep
HINT = re.compile(
    r"<summary>Hint for the mend of (\w)</summary>\s+```python\s+my_mend = (.*?)\s+```", re.DOTALL
)


def hints() -> dict[str, object]:
    """The folded mends of the lesson: letter -> edits."""
    notebook = nbformat.read(LESSON, as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return {letter: ast.literal_eval(code) for letter, code in HINT.findall(text)}


def test_every_patient_is_a_broken_kernel_with_a_hint():
    assert set(PATIENTS.values()) <= {broken.name for broken in broken_kernels()}
    assert len(set(PATIENTS.values())) == len(PATIENTS)
    assert set(hints()) == set(PATIENTS)
    assert set(VERDICTS) - {NOTHING} < set(KINDS)


@pytest.mark.parametrize("letter", PATIENTS)
def test_the_source_gives_nothing_away(letter):
    one = patient(letter)
    assert "<-" in one.broken.path.read_text()
    for text in (one.text, one.source().text):
        assert "<-" not in text
    for word in ("Defect:", "Story:", one.broken.name):
        assert word not in one.source().text
    numbered = [line for line in one.source().text.splitlines() if "__global__" in line]
    number = int(numbered[0].split()[0])
    assert "__global__" in one.broken.path.read_text().splitlines()[number - 1]


@pytest.mark.parametrize("letter", PATIENTS)
def test_the_sanitizer_comes_to_the_verdict_of_the_file(letter):
    one = patient(letter)
    kind = one.broken.kind
    assert one.verdict(one.examine()) == (NOTHING if kind == WRONG_RESULT else kind)


@pytest.mark.parametrize("letter", sorted(set(PATIENTS) - {*RACY, "L"}))
def test_the_symptom_shows_in_lockstep(letter):
    assert patient(letter).run().wrong


@pytest.mark.parametrize("letter", RACY)
def test_an_order_of_warps_brings_the_symptom_out(letter):
    one = patient(letter)
    assert one.run().wrong == 0 and "agrees" in str(one.run())
    counts = {one.run(order).wrong for order in (1, 2, 3)}
    assert min(counts) > 0 and len(counts) > 1


@pytest.mark.parametrize("letter", PATIENTS)
def test_the_hint_heals(letter, capsys):
    one = patient(letter)
    one.discharge(hints()[letter])
    printed = capsys.readouterr().out
    assert "your mend" in printed and "no error" in printed and printed.endswith("discharged\n")
    healed = one.trial(one.mended(hints()[letter]))
    for order in (None, 1, 2):
        assert run(healed, order).wrong == 0


@pytest.mark.parametrize("letter", ["A", "E", "K"])
def test_a_mend_that_changes_nothing_does_not(letter, capsys):
    one = patient(letter)
    first = next(line for line in one.text.splitlines() if line.startswith("// Idea:"))
    one.discharge((first, first + " "))
    assert "stays in the clinic" in capsys.readouterr().out


def test_without_a_mend_the_twin_is_shown(capsys):
    patient("F").discharge(None)
    printed = capsys.readouterr().out
    assert "healthy twin" in printed and "agrees with float64" in printed
    assert printed.endswith("  healthy\n") and "discharged" not in printed


def test_the_optimised_build_hides_what_the_debug_build_shows():
    one = patient("L")
    assert one.examine("optimised") == []
    assert {f.kind for f in one.examine("debug")} == {"race"}
    assert one.run().wrong == one.run(1).wrong == 0
    module = one.trial().kernel.module
    line = 1 + one.text[: one.text.index("score = sum;")].count("\n")
    assert not any(i.startswith("st") for i in instructions_of_line(module.ptx(), line))
    assert any(i.startswith("st") for i in instructions_of_line(module.ptx("debug"), line))


def test_instructions_of_a_line():
    ptx = "\n".join(
        [
            "\t.loc\t1 7 5",
            "\tadd.s32 \t%r1, %r2, %r3;",
            "$L__BB0_1:",
            "\t.loc\t1 8 1",
            "\tret;",
            "\t.loc\t1 7 9, function_name $L1, inlined_at 1 9 3",
            '\t.pragma "nounroll";',
            "\tst.f32 \t[%rd1], %f1;",
        ]
    )
    assert instructions_of_line(ptx, 7) == ["add.s32 %r1, %r2, %r3;", "st.f32 [%rd1], %f1;"]
    assert instructions_of_line(ptx, 8) == ["ret;"] and instructions_of_line(ptx, 9) == []


def test_a_refused_launch_leaves_the_output_unwritten():
    for letter, error in (("D", "MemoryFault"), ("K", "LaunchError")):
        outcome = patient(letter).run()
        assert error in str(outcome) and np.isnan(outcome.result).all()


def test_an_unknown_patient_is_named():
    with pytest.raises(KeyError, match="no patient 'Z'"):
        patient("Z")
    assert isinstance(patient("a"), Patient)
