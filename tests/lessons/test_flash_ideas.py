"""The lesson's tables and figure of what each idea of kernels 12 and 19 is worth."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from attn_course.clinic.ablations import Ablation, whole
from attn_course.figures import flash
from attn_course.lessons.flash import ideas
from attn_course.measure.ablations import PROBLEMS, all_variants, sources, variants
from attn_course.reference.inputs import seeded_qkv

LANE = np.arange(32)
TILE = ("-DD=32", "-DROWS=2", "-DKEYS=2", "-DROW_WARPS=1", "-DKEY_WARPS=1")
RATIOS = {"lanes": 1.25, "turn": 0.9, "relaxed": 1.002}  # the others: as long as the whole


def record(**changed):
    """A record in which a missing idea costs what RATIOS says, more where rows are causal."""
    rows = []
    for shape, causal in PROBLEMS:
        timed = {}
        for one in all_variants():
            ratio = 2.0 if causal and one.name == "heads" else RATIOS.get(one.name, 1.0)
            timed[one.label] = {
                "median_us": 50 * ratio,
                "over_whole": {"value": ratio, "low": ratio - 0.01, "high": ratio + 0.01},
            }
        rows.append({"shape": list(shape), "causal": causal, "variants": timed, "wrong": {}})
    return {
        "kind": "ablations",
        "gpu": "G",
        "driver": "1",
        "cuda": "1",
        "date": "2026-01-02",
        "commit": "a",
        "kernels": {},
        "sources": sources(),
        "rows": rows,
    } | changed


@pytest.mark.parametrize(
    ("offsets", "passes"),
    [
        (LANE // 2 % 8 * 68, 2),
        (LANE % 8 * 68, 4),  # K: rows of 64 floats and a pad
        (LANE // 2 % 8 * 4, 2),
        (LANE % 8 * 4, 4),  # V: columns of one row
        ((LANE // 16 * 2 + LANE % 2) * 68, 2),
        (LANE // 8 * 68, 2),  # Q: 4 rows
        (LANE % 8 * 64, 32),
        (0 * LANE, 2),
        (LANE * 4, 4),
    ],
)  # no pad; all alike; all apart
def test_passes_of_a_16_byte_load(offsets, passes):
    assert ideas.load_wavefronts(offsets) == passes


def test_counts_say_what_the_others_have_more():
    q, k, v = (array[0] for array in seeded_qkv((1, 1, 16, 32)))
    pad = Ablation("flash_async", "pad", "", "", (("STRIDE = D + 4;", "STRIDE = D;"),))
    found = ideas.counts([whole("flash_async"), pad], q, k, v, TILE)
    more = (
        found["flash_async without pad"]["shared_load_wavefronts"]
        - found["flash_async"]["shared_load_wavefronts"]
    )
    head, first, second = ideas.count_table(found).splitlines()
    assert more > 0 and f"+{more:,}" in second and second.count("same") >= 2
    assert f"{found['flash_async']['instructions']:,}" in first and "barriers" in head


def test_the_table_has_a_percentage_for_each_idea():
    text = ideas.worth_table(record(), "flash_async")
    lines = text.splitlines()
    assert "recorded" in lines[0] and len(lines) == len(PROBLEMS) + 3
    columns = lines[1].replace("last rows", "last_rows").replace("late V", "late_V").split()
    assert columns == [one.name.replace(" ", "_") for one in variants("flash_async")[1:]]
    assert lines[2].split() == ["8,1,128,64", "50.0", "+25.0", "-10.0", *["(+0.0)"] * 4]
    assert "+100.0" in lines[5] and lines[5].startswith("4,16,2048,64 causal")
    assert "(+0.2)" in ideas.worth_table(record(), "flash_split")
    assert "recorded 2026-01-02 on G" in lines[-1]


def test_an_idea_that_was_not_timed_is_a_dash():
    found = record()
    del found["rows"][0]["variants"]["flash_async without turn"]
    assert ideas.worth_table(found, "flash_async").splitlines()[2].split()[3] == "-"


def test_without_a_record_the_table_says_how_to_make_one():
    assert "attn-course record ablations" in ideas.worth_table(None, "flash_async")


def test_the_most_missed_idea_is_one_of_the_choices():
    choices = ideas.choices("flash_async")
    found = {
        name: ideas.most_missed(record(), "flash_async", *case)
        for name, case in ideas.CASES.items()
    }
    assert choices[found["long rows"]].startswith("lanes")
    assert choices[found["long rows, causal"]].startswith("heads")
    assert set(ideas.CASES.values()) <= set(PROBLEMS)


def test_the_figure_has_a_panel_a_problem_and_pale_bars_where_nothing_is_clear():
    bars = ideas.bars(record(), "flash_async")
    assert bars["8,1,128,64"]["lanes"] == pytest.approx((25, 24, 26))
    figure = flash.worth_of_ideas(bars, source="s", title="t")
    assert isinstance(figure, Figure)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() or axes.get_title("left") for axes in panels] == list(bars)
    colours = [bar.get_facecolor() for bar in panels[0].patches]
    assert len(colours) == 6 and len(set(colours)) == 3  # slower, faster, neither
    odd = dict(list(bars.items())[:3])
    assert sum(axes.get_visible() for axes in flash.worth_of_ideas(odd, source="").axes) == 3
    with pytest.raises(ValueError, match="each idea"):
        flash.worth_of_ideas({"a": {"lanes": (1, 0, 2)}, "b": {}}, source="")


def test_changes_of_the_loop_leave_out_those_behind_it():
    places, inside = ideas.loop_changes("11_flash_fp32", "12_flash_async")
    shown = "\n".join(inside)
    assert places > len(inside) >= 2 and "V is here" in shown
    assert "where there is no key" not in shown  # behind the loop
    with pytest.raises(ValueError, match="01_scores_naive has no loop"):
        ideas.loop_changes("11_flash_fp32", "01_scores_naive")
