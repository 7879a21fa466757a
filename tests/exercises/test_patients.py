"""The clinic's patients: symptoms, verdicts, and kernels of which a healthy twin exists."""

import numpy as np
import pytest
from kernelscope.watch.sanitizer.findings import KINDS

from attn_course import Sanitizer, observe
from attn_course.exercises import VERDICTS, patient, verdict
from attn_course.exercises.exercise import ExerciseError, exercise_names
from attn_course.exercises.patients import NOTHING

pytestmark = pytest.mark.system

KIND = {
    "A": "race",
    "B": "race",
    "C": "divergent-barrier",
    "D": "out-of-bounds",
    "E": NOTHING,
    "F": NOTHING,
    "G": NOTHING,
    "H": NOTHING,
    "I": "uninitialised-read",
    "J": "divergent-barrier",
    "L": "race",
}
RACY = ("A", "B")  # right in lockstep


def test_a_patient_runs_at_any_case_and_on_any_old_memory():
    one = patient("I")
    assert one.cases[1] == "rows = 2, m = 9, d = 32, scale = 1, shift = -3"
    assert one.run(case=1).result.shape == (2, 32)
    assert [one.run(before=value).wrong for value in (0.0, np.inf)] == [0, 210]


def examined(one):
    [output] = one.exercise.setups[-1].expected
    with observe(Sanitizer(uninitialised=[output])) as report:
        one.run()
    return report.findings


def test_each_patient_has_a_verdict():
    letters = {name[-1].upper() for name in exercise_names() if name.startswith("patient_")}
    assert letters == set(KIND)
    assert set(VERDICTS) - {NOTHING} < set(KINDS)


@pytest.mark.turns(29)
@pytest.mark.parametrize("letter", KIND)
def test_the_sanitizer_comes_to_the_verdict(letter):
    assert verdict(examined(patient(letter))) == KIND[letter]


@pytest.mark.turns(29)
@pytest.mark.parametrize("letter", sorted(set(KIND) - {*RACY, "J", "L"}))
def test_the_symptom_shows_in_lockstep(letter):
    assert patient(letter).run().wrong and not patient(letter).twin.run().wrong


@pytest.mark.turns(23)
@pytest.mark.parametrize("letter", RACY)
def test_an_order_of_warps_brings_the_symptom_out(letter):
    one = patient(letter)
    assert one.run().wrong == 0 and "agrees" in str(one.run())
    runs = [one.run(order) for order in (1, 2)]
    assert all(ran.wrong for ran in runs) and runs[0].wrong != runs[1].wrong
    assert one.twin.run(1).wrong == 0


def test_a_shuffle_that_lanes_miss_gets_the_remedy_for_shuffles():
    found = examined(patient("J"))
    assert {finding.kind for finding in found} == {"divergent-barrier", "uninitialised-read"}
    for finding in found:
        assert "neutral value" in finding.remedy and "move the barrier" not in finding.remedy


def test_a_refused_access_leaves_the_output_unwritten():
    outcome = patient("D").run()
    assert "MemoryFault" in str(outcome) and np.isnan(outcome.result).all()


def test_the_optimised_build_of_l_has_no_shared_store():
    module = patient("L").module()
    assert "st.shared" not in module.ptx("optimised")
    assert "st." in module.ptx("debug") and patient("L").run(1).wrong == 0


@pytest.mark.turns(11)
def test_a_patient_fits_into_a_cell():
    for letter in KIND:
        assert len(patient(letter).text.splitlines()) <= 24


def test_the_source_is_the_stub_with_numbers():
    one = patient("a")
    lines = repr(one.source()).splitlines()
    assert [line[5:] for line in lines] == one.exercise.stub.splitlines()


def test_an_unknown_patient_is_named():
    with pytest.raises(ExerciseError, match="no patient 'Z'; the patients are: A, B"):
        patient("Z")
