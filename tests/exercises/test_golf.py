"""Golf: costs, standings after a pass, and the learner's own table."""

import json

import pytest
from kernelscope.timing import Prediction

from attn_course.cli.main import main
from attn_course.exercises import judge, read_exercise, session
from attn_course.exercises.golf import COSTS, US, costs, known_standings, predicted, text_hash
from attn_course.exercises.judgement import Judgement
from attn_course.lessons.working_copy import PROGRESS, WorkingCopy

pytestmark = pytest.mark.system

EXERCISE = read_exercise("transpose")


@pytest.fixture
def copy(tmp_path, monkeypatch) -> WorkingCopy:
    (tmp_path / PROGRESS).write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "_written", {})
    return WorkingCopy(tmp_path)


def test_costs_add_the_counters_of_each_kind_and_their_total():
    totals = judge(EXERCISE, EXERCISE.solution).totals
    found = costs(totals)
    assert found["sectors"] == totals["global_load_sectors"] + totals["global_store_sectors"] > 0
    assert found["wavefronts"] > totals["shared_load_wavefronts"] > 0
    assert found["instructions"] == totals["instructions"]
    assert found["total"] == sum(found[name] for name in COSTS)
    assert costs(dict.fromkeys(totals, 1)) == {
        "sectors": 3,
        "wavefronts": 3,
        "instructions": 1,
        "total": 7,
    }


@pytest.mark.turns(23)
def test_a_pass_shows_its_standing_beside_the_reference_and_the_best(copy):
    known = dict(known_standings(EXERCISE))
    best = min(known, key=lambda name: known[name]["total"])
    judgement = session.attempt(EXERCISE, EXERCISE.correct[0].text, copy)
    mine = known[EXERCISE.correct[0].name]
    counts = {
        name: {cost: count for cost, count in costs.items() if cost != US}
        for name, costs in judgement.standings.items()
    }
    assert counts == {
        "yours": mine,
        "reference": known["reference"],
        f"best known: {best}": known[best],
    }
    shown = repr(judgement)
    assert f"best known: {best}" in shown and f"{mine['total']:,}" in shown
    assert [*judgement.standings["yours"]].index(US) == 2
    one, reference = judgement.times
    assert (one.us, reference.us) == tuple(
        judgement.standings[name][US] for name in ("yours", "reference")
    )
    times = f"{one.us:>18.3g}{reference.us:>12.3g}  {one.gpu}"
    assert f"predicted microseconds{times}\n" in shown
    intervals = [f"{kernel.low:.2g} to {kernel.high:.2g}" for kernel in judgement.times]
    assert f"their interval{intervals[0]:>24}{intervals[1]:>12}\n  The case is small: " in shown
    assert "limited by" not in shown  # a case for the simulator is small
    kept = copy.progress()["transpose"].passes[text_hash(EXERCISE.correct[0].text)]
    assert kept.us == one.us
    assert "best known" in judgement._repr_html_()
    assert max(map(len, shown.splitlines())) <= 100
    assert "best known" not in repr(session.attempt(EXERCISE, EXERCISE.wrong[0].text, copy))


@pytest.mark.turns(29)
def test_an_own_pass_can_be_the_best_known(copy):
    lean = EXERCISE.solution
    session.attempt(EXERCISE, lean, copy)
    mine = copy.progress()["transpose"].passes[text_hash(lean)]
    copy.note("transpose", lambda attempts: setattr(attempts.passes[text_hash(lean)], "total", 1))
    again = session.attempt(EXERCISE, f"{lean}\n// the same code, another text\n", copy)
    assert "best known: a kernel of yours" in again.standings
    assert len(copy.progress()["transpose"].passes) == 2 and mine.total > 1


@pytest.mark.turns(23)
def test_a_pass_of_before_the_predictions_has_no_time(copy):
    lean = EXERCISE.solution
    session.attempt(EXERCISE, lean, copy)
    old = {"total": 1, US: None}

    def age(attempts):
        for name, value in old.items():
            setattr(attempts.passes[text_hash(lean)], name, value)

    copy.note("transpose", age)
    again = session.attempt(EXERCISE, f"{lean}\n// the same code, another text\n", copy)
    assert US not in again.standings["best known: a kernel of yours"]
    lines = repr(again).splitlines()
    [head] = [line for line in lines if "golf" in line]
    own = next(line for line in lines if line.startswith("  best known "))
    assert len(head) == len(own) and not own[head.index(US) - 10 : head.index(US) + 2].strip()


@pytest.mark.turns(11)
def test_a_kernel_with_conflicts_is_predicted_to_be_slower():
    """The time is that of the text: the same products, with 32 times the wavefronts."""
    texts = {one.name: one.text for one in EXERCISE.correct}
    padded = predicted(EXERCISE, texts["a padded tile"])
    assert predicted(EXERCISE, EXERCISE.solution).us > 1.05 * padded.us > 0


def test_blanks_at_the_ends_of_lines_make_no_other_text():
    assert text_hash("a \nb\n\n") == text_hash("a\nb") != text_hash("a\nc")


@pytest.mark.turns(23)
def test_the_command_shows_the_passes_beside_the_known_solutions(copy, capsys):
    session.attempt(EXERCISE, EXERCISE.solution, copy)
    session.attempt(EXERCISE, EXERCISE.wrong[0].text, copy)
    assert main(["golf", "transpose", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["standings"]
    [own] = [row for row in rows if row["kernel"] == "yours"]
    reference = next(row for row in rows if row["kernel"] == "reference")
    assert own["text"] == text_hash(EXERCISE.solution) and own["total"] == reference["total"]
    assert [row["total"] for row in rows] == sorted(row["total"] for row in rows)
    assert len(rows) == 2 + len(EXERCISE.correct)
    assert own[US] == reference[US] == predicted(EXERCISE, EXERCISE.solution).us
    assert main(["golf", "transpose"]) == 0
    shown = capsys.readouterr().out
    assert f"{own['total']:,}" in shown and own["date"] in shown


@pytest.mark.turns(23)
def test_without_a_working_copy_the_command_shows_the_known_solutions(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["golf", "add_ten"]) == 0
    assert "reference" in capsys.readouterr().out
    assert main(["golf", "no_such"]) == 2


@pytest.mark.parametrize(
    ("limit", "bound", "words"),
    [
        ("DRAM", 1.4, "yours: limited by DRAM"),
        ("latency", 1.4, "yours: limited by latency; busiest unit: DRAM"),
        ("launch and starts", 9.0, "yours: limited by launch and starts, many short blocks; busie"),
        (
            "launch and starts",
            1.4,
            "yours: limited by launch and starts, as the case is small; bus",
        ),
    ],
)
def test_a_limit_in_words(limit, bound, words):
    """Beside a reference that a unit limits: of a launch with many blocks the launch is no part."""
    bounds = {"DRAM": 8.0, "L2": 2.0, "launch and starts": bound}
    mine, theirs = (
        Prediction("k", "a GPU", 12.0, 9.6, 15.0, bounds, name, start_us=1.37)
        for name in (limit, "L2")
    )
    counters = {"instructions": (1, 1, "")}
    shown = repr(Judgement("e", "text", counters=counters, times=(mine, theirs)))
    assert f"  {words}" in shown and "  reference: limited by L2; busiest unit: DRAM" in shown
    assert f"their interval{'9.6 to 15':>24}{'9.6 to 15':>12}\n" in shown
