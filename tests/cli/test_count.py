"""`attn-course count`."""

import json

from kernelscope.watch.counters.counters import NAMES

from attn_course import reference
from attn_course.cli import main


def test_the_count_command_writes_totals_and_lines(tmp_path, capsys):
    path = tmp_path / "counts.json"
    assert main.main(["count", "tiled", "--shape", "1,2,40,16", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    record = json.loads(path.read_text())
    assert record["method"] == "tiled" and record["backend"] == "simulator" and record["agrees"]
    assert [k["kernel"] for k in record["kernels"]] == [
        "scores_tiled",
        "softmax_warp",
        "output_tiled",
    ]
    for name in NAMES:
        assert record["totals"][name] == sum(k["totals"][name] for k in record["kernels"])
        for kernel in record["kernels"]:
            by_line = sum(line["counts"][name] for line in kernel["lines"])
            # A byte that two lines touch is counted on both, and once in the total.
            same = by_line == kernel["totals"][name]
            assert same or (name.startswith("unique") and by_line > kernel["totals"][name])
    assert f"{record['kernels'][0]['totals']['global_load_sectors']:,}" in out
    assert "__syncthreads();" in out and "tiled: agrees" in out


def test_the_count_command_refuses_a_gpu_and_fails_where_the_result_is_wrong(capsys, monkeypatch):
    assert main.main(["count", "tiled", "--backend", "gpu"]) == 2
    assert "attn-course profile" in capsys.readouterr().err
    right = reference.attention
    monkeypatch.setattr(reference, "attention", lambda *a, **k: right(*a, **k) + 0.01)
    assert main.main(["count", "naive", "--shape", "1,1,5,4", "--totals"]) == 1
    assert "global_load_sectors" in capsys.readouterr().out
