"""Claims on trial: stored verdicts follow from the experiments, and the rules can go either way."""

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from attn_course.cli.main import main
from attn_course.lessons import begin, claims
from attn_course.lessons.claims import COMPUTED, Evidence
from attn_course.lessons.predictions import PredictionError
from attn_course.lessons.working_copy import NOTEBOOKS
from attn_course.measure.records import RESULTS_FOLDER, RecordError
from attn_devtools.claims import CLAIMS, command, trials, write
from attn_devtools.claims.claim import evidence_of

pytestmark = pytest.mark.system

WORDS = tomllib.loads(trials.WORDS.read_text(encoding="utf-8"))
BY_NAME = {one.name: one for one in CLAIMS}
STORED = claims.read()


def test_every_claim_has_words_and_a_trial():
    assert list(WORDS) == list(trials.TRIALS)
    for name, words in WORDS.items():
        assert words.keys() == {"source", "lesson", "said", "why"} and all(words.values()), name
        assert words["source"] in claims.SOURCES, name
        assert (NOTEBOOKS / f"{words['lesson']}.ipynb").is_file(), name


def test_every_claim_is_stored_with_its_evidence():
    assert list(STORED) == list(BY_NAME) and len(STORED) >= 18
    assert {claims.HOLDS, claims.FAILS} < {one.verdict for one in STORED.values()}
    for name, one in STORED.items():
        assert one.evidence and one.why == BY_NAME[name].why, name
        assert (one.said, one.source, one.lesson) == (
            BY_NAME[name].said,
            BY_NAME[name].source,
            BY_NAME[name].lesson,
        )


@pytest.mark.turns(29)
@pytest.mark.parametrize("name", BY_NAME)
def test_an_experiment_gives_the_stored_numbers_and_verdict(name):
    tried = BY_NAME[name].tried()
    found = {one.what: one.value for one in tried.evidence}
    stored = {one.what: one.value for one in STORED[name].evidence}
    assert found == pytest.approx(stored, rel=1e-9)
    assert tried.verdict == STORED[name].verdict


# Numbers that turn a verdict round: a rule that they do not change would be no rule.
TURNED = {
    "shared_100_times": {"latency ratio": 100.0},
    "five_clocks": {"latency, shared": 5.0},
    "strided_is_efficient": {"strided": 4.0},
    "no_bank_conflicts": {"the guide's layout": 32.0},
    "try_tile_64": {"refused": 0.0},
    "operations_58_million": {"multiply-adds": 118e6},
    "attention_bound_by_memory": {"in one kernel": 10.0},
    "half_operation_a_byte": {"64 queries, 64 keys": 0.5},
    "restrict_reorders": {"instructions, __restrict__": 100.0},
    "unroll_removes_the_loop": {"multiply-adds, no pragma": 1.0},
    "six_percent": {"the whole faster": 2.9},
    "quarter_operation_a_byte": {"the whole": 0.25},
    "infinite_compute": {"over the floor": 1.1},
    "online_softmax_gain": {"blocks of keys, at most": 16.0},
    "shared_48_kb": {"sm_80": 48.0},
    "double_buffer_overflows": {"slices run": 0.0},
    "atomic_max_on_bits": {"right with negative scores": 1.0},
    "tensor_cores_slower": {"tensor-core instructions": 64.0},
    "speedup_7_76": {"eager PyTorch over tiled": 7.5},
    "launch_overhead_below_4": {"batch 4, printed": 2.0},
    "bound_by_memory_at_0_4_percent": {"tiled, share of the bandwidth": 90.0},
    "profile_percentages": {"DRAM": 85.0},
    "operations_a_head": {"Q K^T, one head of 64": 402e6},
    "linear_traffic": {"sectors read, 2 L over L": 2.0},
    "tile_16_occupancy": {"TILE 32": 50.0},
    "gelu_error": {"weights as torch.nn.Linear draws them: error": 2.3e-2},
    "first_warp_found": {"right, rows of 32": 0.0},
    "layer_norm_2_to_7": {"8,256,512": 1.0, "4,512,768": 1.0},
    "mlp_handle": {"2048 tokens, made over eager PyTorch": 1.0},
}


def changed(name: str, values: dict[str, float]) -> dict[str, Evidence]:
    """Return a claim's evidence, by what it is, with other, exact values."""
    exact = {"source": COMPUTED, "low": None, "high": None}
    return {
        one.what: replace(one, value=values[one.what], **exact) if one.what in values else one
        for one in STORED[name].evidence
    }


@pytest.mark.parametrize("name", TURNED)
def test_other_numbers_give_another_verdict(name):
    assert TURNED[name].keys() <= {one.what for one in STORED[name].evidence}
    assert BY_NAME[name].judge(changed(name, TURNED[name])) != STORED[name].verdict


def test_gains_decide_by_every_size():
    for name in ("atomics_32_times", "layer_norm_2_to_7", "warp_reduction_gain"):
        what = [one.what for one in STORED[name].evidence]
        low, high = dict.fromkeys(what, 1.0), dict.fromkeys(what, 40.0)
        low |= {key: 8.0 for key in what if "printed" in key}
        assert BY_NAME[name].judge(changed(name, high)) == claims.HOLDS
        assert BY_NAME[name].judge(changed(name, low)) == claims.FAILS


def test_a_handle_is_the_cause_only_if_keeping_it_is_the_cure():
    def judged(kept, made, cost=2000.0):
        values = {"8 tokens, kept over eager PyTorch": kept}
        values |= {"8 tokens, made over eager PyTorch": made}
        values |= {"8 tokens, cost of a handle": cost, "the loss, printed": 2150.0}
        made_up = {what: evidence_of(what, value, "", COMPUTED) for what, value in values.items()}
        return BY_NAME["mlp_handle"].judge(made_up)

    assert judged(kept=1.0, made=3.0) == claims.HOLDS
    assert judged(kept=1.0, made=3.0, cost=200.0) == claims.HOLDS_WHEN
    assert judged(kept=3.0, made=3.0, cost=0.0) == claims.FAILS
    assert judged(kept=0.9, made=1.0, cost=100.0) == claims.FAILS


def measured(value: float, low: float | None, high: float | None) -> Evidence:
    return evidence_of("a ratio", value, "times", "recorded on a GPU", low, high)


def test_an_interval_decides_and_a_median_does_not():
    straddling, above, without = (
        measured(2.004, 1.99, 2.13),
        measured(2.004, 2.001, 2.007),
        measured(2.004, None, None),
    )
    assert [trials.at_least(one, 2) for one in (straddling, above, without)] == [None, True, None]
    assert [trials.below(one, 2) for one in (straddling, above)] == [None, False]
    assert trials.at_least(without, 1.5) and trials.at_least(without, 2.6) is False
    assert trials.within(straddling, 2.0, 0.05) is None and trials.within(above, 2.0, 0.05)
    assert trials.within(above, 3.0, 0.05) is False
    assert straddling.spread == "1.99 to 2.13" and without.spread == "no spread"


@pytest.mark.parametrize(
    "held, verdict",
    [
        ((True, True), claims.HOLDS),
        ((True, False), claims.HOLDS_WHEN),
        ((False, False), claims.FAILS),
        ((True, None), claims.UNDECIDED),
        ((False, None), claims.UNDECIDED),
        ((True, False, None), claims.HOLDS_WHEN),
    ],
)
def test_an_open_case_is_no_verdict_where_it_would_change_it(held, verdict):
    assert trials._each(held) == verdict


def test_a_learners_verdict_stands_beside_the_stored_one(capsys):
    begin()
    claims.ask([STORED["try_tile_64"]], " w ")
    claims.show([STORED["try_tile_64"]])
    said = capsys.readouterr().out
    assert "your prediction  w: holds only when" in said and "n: does not hold" in said
    assert "a: computed" in said and "not as predicted" in said


def test_verdicts_are_letters_in_the_order_of_the_claims(capsys):
    begin()
    tried = list(STORED.values())[:3]
    claims.ask(tried, "n -")
    said = capsys.readouterr().out
    assert f"{tried[0].name}: your prediction is n: does not hold" in said
    assert said.count("your prediction is none yet") == 2
    with pytest.raises(PredictionError, match="3 letters expected, 4 given"):
        claims.ask(tried, "nw hu")


def test_a_file_that_does_not_fit_is_named(tmp_path):
    with pytest.raises(RecordError, match="claims --write"):
        claims.read(tmp_path)
    path = write(STORED.values(), tmp_path)
    assert path.read_bytes() == (RESULTS_FOLDER / "claims.json").read_bytes()
    content = json.loads(path.read_text())
    content["claims"][0]["verdict"] = "maybe"
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match="shared_100_times"):
        claims.read(tmp_path)
    content["claims"][0]["evidence"][0]["value"] = "fast"
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=r"evidence\[0\].value"):
        claims.read(tmp_path)


def test_the_command_tries_and_compares(capsys, monkeypatch):
    assert main(["claims", "operations_a_head", "try_tile_64"]) == 0
    said = capsys.readouterr().out
    assert "33,554,432 operations" in said and "verdict: does not hold" in said
    changed = {name: one for name, one in STORED.items() if name != "try_tile_64"}
    monkeypatch.setattr(command, "read", lambda: changed)
    assert main(["claims", "try_tile_64"]) == 1
    assert "says 'nothing'" in capsys.readouterr().out


def test_writing_says_what_it_changes(capsys, monkeypatch, tmp_path):
    tried = [STORED["try_tile_64"], STORED["operations_a_head"]]
    before = {"try_tile_64": replace(tried[0], verdict="holds"), "operations_a_head": tried[1]}
    written = []
    monkeypatch.setattr(command, "try_all", lambda _: (tried, {}))
    monkeypatch.setattr(command, "read", lambda: before)
    monkeypatch.setattr(command, "write", lambda all_: written.append(all_) or "the file")
    assert main(["claims"]) == 1 and not written
    assert main(["claims", "--write"]) == 0 and written == [tried]
    said = capsys.readouterr().out
    assert "json says 'holds', and now it is 'does not hold'" in said
    assert "json said 'holds', and now it is 'does not hold'" in said and "every" not in said

    def unreadable():
        raise RecordError("no file: attn-course claims --write makes one")

    monkeypatch.setattr(command, "read", unreadable)
    assert main(["claims"]) == 2 and main(["claims", "--write"]) == 0 and len(written) == 2


@pytest.mark.parametrize("call", (["claims", "no_such"], ["claims", "try_tile_64", "--write"]))
def test_calls_that_cannot_run(call, capsys):
    assert main(call) == 2
    assert capsys.readouterr().err


def test_yes_and_no_are_words():
    yes, no = (evidence_of("it runs", value, "", COMPUTED) for value in (np.True_, False))
    assert (str(yes), str(no), str(evidence_of("blocks", 1, "", COMPUTED))) == ("yes", "no", "1")
    assert yes.value == 1.0
