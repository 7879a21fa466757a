"""`attn-course check`: the sanitizer from the command line."""

import json

import pytest

from attn_course.cli import main


def run_check(capsys, *arguments):
    status = main.main(["check", *arguments])
    return status, capsys.readouterr()


def test_check_a_method(capsys, tmp_path):
    file = tmp_path / "found.json"
    status, shown = run_check(capsys, "tiled", "--shape", "1,2,19,5", "--json", str(file))
    assert status == 0 and "02_scores_tiled.cu: no findings" in shown.out
    record = json.loads(file.read_text())
    assert record["clean"] and record["agrees"] and record["errors"] == 0
    assert [one["file"] for one in record["kernels"]] == [
        "02_scores_tiled.cu",
        "05_softmax_warp.cu",
        "06_output_tiled.cu",
    ]


def test_counters_of_blocks_that_share_a_query_start_at_zero(capsys):
    words = ("decode", "--shape", "1,2,1,16", "--kv-length", "512")
    status, shown = run_check(capsys, *words)
    assert status == 0 and "23_decode.cu: no findings" in shown.out


def test_check_a_broken_kernel(capsys):
    status, shown = run_check(capsys, "broken/missing_first_barrier.cu", "--json", "-")
    record = json.loads(shown.out)
    assert status == 1 and not record["clean"] and record["agrees"]
    (kernel,) = record["kernels"]
    assert {finding["kind"] for finding in kernel["findings"]} == {"race"}
    status, shown = run_check(capsys, "broken/missing_first_barrier.cu", "--shape", "1,1,3,2")
    assert status == 1 and "error: race, line" in shown.out


def test_a_kernel_file_is_found_by_its_bare_name(capsys):
    status, shown = run_check(capsys, "lost_update")
    assert status == 1 and "lost_update.cu: " in shown.out and "race" in shown.out
    status, shown = run_check(capsys, "01_scores_naive", "--shape", "1,1,5,3")
    assert status == 0 and "01_scores_naive.cu: no findings" in shown.out


@pytest.mark.turns(29)
@pytest.mark.system
@pytest.mark.parametrize(
    ("file", "kernels"),
    [
        ("16_layernorm", ["16_layernorm"]),
        ("17_bias_gelu", ["17_bias_gelu: bias_gelu", "17_bias_gelu: bias_add"]),
        ("22_heads.cu", ["22_heads: split_heads", "22_heads: merge_heads"]),
        ("26_layernorm_backward", ["26_layernorm_backward"]),
    ],
)
def test_check_a_file_of_the_layers(capsys, file, kernels):
    status, shown = run_check(capsys, file, "--shape", "1,2,5,3", "--json", "-")
    record = json.loads(shown.out)
    assert status == 0 and record["clean"] and record["agrees"]
    assert [one["file"] for one in record["kernels"]] == kernels


def test_check_a_wrong_result(capsys):
    status, shown = run_check(capsys, "kernels/broken/lost_head_offset.cu")
    assert status == 1 and "no findings" in shown.out and "elements are wrong" in shown.out
    status, _ = run_check(capsys, "kernels/broken/lost_head_offset.cu", "--shape", "1,1,9,5")
    assert status == 0  # one head has no offset to lose


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("broken/nothing.cu",), "no kernel file"),
        (("tiled", "--causal"), "causal"),
        (("tiled", "--backend", "gpu"), "compute-sanitizer"),
        (("fastest",), "no method"),
        (("broken/tile_64.cu", "--causal"), "need --shape"),
        (("02_scores_tiled", "--causal"), "no causal mask"),
        (("14_flash_mma", "--dtype", "bfloat16"), "--dtype: only for a method"),
        (("16_layernorm", "--causal"), "--causal: only for a method of attention()"),
    ],
)
def test_check_refuses_what_it_cannot_do(capsys, arguments, message):
    status, shown = run_check(capsys, *arguments)
    assert status == 2 and message in shown.err
