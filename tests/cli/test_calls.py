"""Every command takes the same names: methods, kernels of the course, broken ones, own files."""

import json
import re
from itertools import product

import pytest

from attn_course.cli import main
from attn_course.cli.calls import KINDS, kernel_file
from attn_devtools.defects import broken_kernels
from attn_devtools.shares import in_turns

pytestmark = pytest.mark.system

COMMANDS = ("run", "count", "check", "trace")
# name -> (words of the kind, status of each command)
NAMES = {
    "naive": ("a method of attention()", (0, 0, 0, 0)),
    "02_scores_tiled": ("a kernel of attention", (0, 0, 0, 0)),
    "backward_rows": ("a method of attention_backward()", (0, 0, 0, 0)),
    "17_bias_gelu": ("a kernel of the layers", (0, 0, 0, 0)),
    "broken/lost_head_offset": ("a kernel of attention", (1, 1, 1, 1)),
    "missing_first_barrier": (
        "a kernel of attention",
        (0, 0, 1, 1),
    ),
}

# of the second a race is all: its result is right
BROKEN = ("broken/lost_head_offset", "missing_first_barrier")


def shown(capsys, *arguments) -> tuple[int, dict]:
    """(exit status, JSON) of one command on the simulator."""
    backend = () if arguments[0] != "run" else ("--backend", "simulator")
    status = main.main([*arguments, *backend, "--json", "-"])
    return status, json.loads(capsys.readouterr().out)


def test_each_name_is_of_one_kind():
    for name, (words, _) in NAMES.items():
        assert next(kind.words for kind in KINDS if kind.holds(kernel_file(name))) == words
    for broken in broken_kernels():
        kind = next(kind for kind in KINDS if kind.holds(broken.path))
        assert kind.words == "a kernel of attention", broken.name


@pytest.mark.turns(23)
@pytest.mark.parametrize(("command", "name"), in_turns([*product(COMMANDS, NAMES)], 5))
def test_each_command_takes_each_name(capsys, command, name):
    shape = () if name in BROKEN else ("--shape", "1,2,5,3")
    status, record = shown(capsys, command, name, *shape)
    assert status == NAMES[name][1][COMMANDS.index(command)]
    assert record["method"] == name and record["backend"] == "simulator"
    assert record["agrees"] is (name != "broken/lost_head_offset")


@pytest.mark.turns(11)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_broken_kernel_runs_at_its_own_case_or_at_a_shape(capsys, command):
    name = "broken/lost_head_offset"
    (case,) = (one.case.problem for one in broken_kernels() if one.path == kernel_file(name))
    _, record = shown(capsys, command, name)
    assert record["problem"] == [case.bh, case.n, case.m, case.d]
    status, record = shown(capsys, command, name, "--shape", "1,1,9,5", "--kv-length", "4")
    assert status == 0 and record["problem"] == [1, 9, 4, 5]  # one head has no offset to lose


@pytest.mark.turns(17)
def test_the_trace_of_a_broken_kernel_shows_the_finding_on_its_step(capsys):
    assert main.main(["trace", "broken/missing_first_barrier"]) == 1
    assert re.search(r"step \d+, line \d+: race: ", capsys.readouterr().out)


def test_a_trace_of_one_kernel_of_a_file(capsys):
    words = ("trace", "22_heads", "--shape", "1,1,2,3", "--kernel", "merge_heads")
    _, record = shown(capsys, *words)
    assert [one["kernel"] for one in record["recordings"]] == ["merge_heads"]
    assert main.main([*words[:-1], "nothing"]) == 2
    assert "it has split_heads, merge_heads" in capsys.readouterr().err


def test_a_copy_of_a_broken_kernel_keeps_its_case(capsys, tmp_path):
    copy = tmp_path / "mine.cu"
    copy.write_text(kernel_file("lost_head_offset").read_text())
    status, record = shown(capsys, "check", str(copy))
    assert status == 1 and not record["agrees"] and record["problem"] == [3, 18, 19, 7]


def test_a_run_names_the_file_that_ran(capsys):
    _, record = shown(capsys, "run", "broken/lost_head_offset")
    assert [step["file"] for step in record["steps"]] == ["lost_head_offset"]


def test_a_launch_of_a_part_of_a_problem_has_no_result_to_compare(capsys):
    partial = next(one for one in broken_kernels() if one.case.is_partial)
    status, record = shown(capsys, "check", partial.name)
    assert status == 1 and record["agrees"] is None
