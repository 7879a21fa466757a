"""Kernel 18 under the sanitizer: nothing is found in it, and much where a line is missing."""

import re
import tomllib

import pytest
from kernelscope.compile import with_headers

from attn_course import clinic
from attn_course.clinic import Case
from attn_course.ladder.headers import kernel_path
from attn_course.ladder.steps import Problem
from attn_devtools.shares import crossed, in_turns

pytestmark = pytest.mark.system

PATH = kernel_path("18_flash_wgmma")
TEXT = with_headers(PATH.read_text(), PATH.parent)
ABLATIONS = tomllib.loads((PATH.parent / "hopper_ablations.toml").read_text())["ablation"]
SMALL = Case(Problem(2, 130, 196, 64))
# Two rounds of each block, and three tiles of keys through a ring of two.
SEVERAL_ROUNDS = Case(Problem(2, 140, 150, 64, heads=2), causal=True)
GROUPED = Case(Problem(4, 140, 150, 56, heads=4, kv_heads=2), causal=True)
TWO_BLOCKS = ("-DBLOCKS=2", "-DBC=64")


def kinds(text=TEXT, case=SMALL, options=()):
    found = clinic.examine(PATH, case, code=text, options=options)
    return found, sorted({finding.kind for finding in found.findings})


def edited(*pairs):
    text = TEXT
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


WIDTHS = [(64, 2), (64, 3), (128, 2), (192, 2), (256, 2)]  # and groups of warps


@pytest.mark.turns(37)
@pytest.mark.parametrize(("width", "causal"), in_turns(crossed(WIDTHS, [False, True]), 5))
def test_nothing_is_found_at_any_width(width, causal):
    width, groups = width
    case = Case(Problem(1, 200, 100, width - 8), causal=causal)
    options = (f"-DD={width}", f"-DGROUPS={groups}", "-DBC=64", "-DBLOCKS=1")
    found, _ = kinds(case=case, options=options)
    assert found.findings == [] and found.comparison.agrees


@pytest.mark.turns(41)
@pytest.mark.parametrize(("keys", "case"), in_turns(crossed([64, 128], [GROUPED, SMALL]), 2))
def test_nothing_is_found_with_other_tiles(keys, case):
    found, _ = kinds(case=case, options=(f"-DBC={keys}", "-DBLOCKS=5"))  # of 8 tiles of rows, or 4
    assert found.findings == [] and found.comparison.agrees


def pairs_of(edits):
    """The texts that an ablation exchanges."""
    for part in edits.split("@@\n"):
        lines = part.splitlines()
        old, new = ([one[1:] for one in lines if one.startswith(sign)] for sign in "-+")
        yield "\n".join(old), "\n".join(new)


@pytest.mark.turns(107)
@pytest.mark.parametrize("ablation", in_turns(ABLATIONS, 10), ids=lambda one: one["name"])
def test_nothing_is_found_without_an_idea(ablation):
    text = edited(*pairs_of(ablation.get("edits", "")))
    options = (*ablation.get("options", ()), *TWO_BLOCKS)
    found, _ = kinds(text, SEVERAL_ROUNDS, options)
    assert found.findings == [] and found.comparison.agrees


@pytest.mark.turns(37)
@pytest.mark.parametrize("stages", in_turns([1, 3], 2))
def test_nothing_is_found_with_other_numbers_of_tiles(stages):
    line = "constexpr int STAGES = 2;"
    text = edited((line, line.replace("2", str(stages))))
    case = Case(Problem(2, 70, 300, 64), shared_bytes=100000)
    found, _ = kinds(text, case, TWO_BLOCKS)
    assert found.findings == [] and found.comparison.agrees


SKIPPED = re.compile(r" +k_ring\.wait_full\(step\);  // others see .*\n +v_ring\.wait_full.*\n")


@pytest.mark.turns(97)
def test_a_release_of_a_tile_that_need_not_be_here_is_found():
    text, times = SKIPPED.subn("", TEXT)
    found, _ = kinds(text, SEVERAL_ROUNDS, TWO_BLOCKS)
    assert times == 1
    assert found.comparison.agrees  # in this run
    assert any("where it comes first it counts for that phase" in e.message for e in found.errors)


FULL, FREE = "wait_for(full(step), step / stages & 1)", "wait_for(free(step), ~(step / stages) & 1)"
WAIT_GROUP = '    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");\n'
READ = '    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");\n'
INIT = '    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");\n'
BYTES = "arrive_and_expect(ring.full(step), Ring::TILE_BYTES)"
# name -> (what is exchanged, a part of the message that names it)
BROKEN = {
    "no proxy fence": ([("    stores_visible();\n", "")], "without a fence.proxy.async"),
    "no barrier before the store": ([("        meet(group);\n", "")], "nothing orders the two"),
    "keys not waited for": ([("k_ring.wait_full(step);\n            my", "my")], "behind a wait"),
    "wrong parity": ([(FULL, FULL.replace("step /", "1 + step /"))], "and passes when"),
    "tiles not waited to be free": ([("    ring.wait_free(step);\n", "")], "may still be writing"),
    "scores too early": ([("products_done<1>();", "")], "uses sums of the wgmma"),
    "output too early": ([("end_output = [&] {\n            products_done<0>();",
                           "end_output = [&] {")], "no wgmma.wait_group has closed"),
    "store not waited for": ([(READ, "")], "when the block has ended"),
    "no wgmma.fence": ([(WAIT_GROUP, "")], "no wgmma.fence lies before"),
    "no init fence": ([(INIT, "")], "no fence lies between its init"),
    "too many bytes": ([(BYTES, BYTES[:-1] + " + 16)")], "it expects 16 more than are copied"),
    "too few bytes": ([(BYTES, BYTES[:-1] + " - 16)")], "more are copied than it expects, by 16"),
    "an arrival more": ([("k_ring.start(4 * GROUPS)", "k_ring.start(4 * GROUPS + 1)")], "hangs"),
}  # fmt: skip


@pytest.mark.turns(41)
@pytest.mark.parametrize("name", in_turns(list(BROKEN), 6))
def test_what_is_missing_is_named(name):
    pairs, says = BROKEN[name]
    found, _ = kinds(edited(*pairs), Case(Problem(2, 70, 196, 64)), TWO_BLOCKS)
    assert any(says in one.message for one in found.errors), found.findings
