"""`attn-course trace`: a table, a page, JSON, and what it refuses."""

import json

import pytest

from attn_course.cli.main import main

SMALL = ["--shape", "1,1,3,4"]


def test_the_table_shows_lines_and_values(capsys):
    assert main(["trace", "naive", *SMALL]) == 0
    text = capsys.readouterr().out
    assert "scores_naive, block (0, 0, 0)" in text
    assert "score = fmaf(" in text and "reads q[0][0][0]" in text
    assert "naive: agrees" in text


def test_the_page_holds_everything_itself(tmp_path, capsys):
    page = tmp_path / "trace.html"
    assert main(["trace", "naive", *SMALL, "--html", str(page)]) == 0
    assert str(page) in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert "mount(document.getElementById(" in text
    for outside in ("<link", 'src="', "@import", "import(", "https://"):
        assert outside not in text


def test_json_has_the_frames(capsys):
    assert main(["trace", "naive", *SMALL, "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["agrees"] and data["method"] == "naive"
    first = data["recordings"][0]
    assert first["kernel"] == "scores_naive" and first["frames"][0]["step"] == 0


def test_one_kernel_one_warp_and_a_limit(capsys):
    options = "--kernel scores_naive --warp 0 --limit 4 --json -".split()
    assert main(["trace", "naive", *SMALL, *options]) == 0
    (recording,) = json.loads(capsys.readouterr().out)["recordings"]
    assert recording["warp"] == 0 and len(recording["frames"]) == 4
    assert all(thread < 32 for frame in recording["frames"] for thread in frame["threads"])
    assert "limit" in recording["truncated"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "gpu"], "simulator"),
        (["--kernel", "nothing"], "'nothing'; it has scores_naive, softmax_output_serial"),
        (["--at", "9"], "(9, 0, 0)"),
        (["--warp", "99"], "warps go from 0"),
    ],
)
def test_what_cannot_be_traced_is_said(arguments, words, capsys):
    assert main(["trace", "naive", *SMALL, *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("block", ["a", "1,2,3,4", "-1", ""])
def test_a_block_has_up_to_three_numbers(block, capsys):
    assert main(["trace", "naive", f"--at={block}"]) == 2
    assert "place in the grid" in capsys.readouterr().err
