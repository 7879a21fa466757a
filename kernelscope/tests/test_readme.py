"""The README: what it shows is what a run gives. Figures of records outside
this folder are checked outside of it."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from kernelscope.cli.main import main

ENGINE = Path(__file__).resolve().parents[1]
README = (ENGINE / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 1290


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    (source,) = blocks("cuda")
    (tmp_path / "transpose.cu").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")


@pytest.mark.usefixtures("in_folder")
def test_the_command_finds_the_race_as_shown(capsys):
    (block,) = blocks("console")
    command, _, shown = block.partition("\n")
    assert main(command.removeprefix("$ kernelscope ").split()) == 1
    assert capsys.readouterr().out == shown and "error: race" in shown


@pytest.mark.usefixtures("in_folder")
def test_the_counters_are_those_shown(capsys):
    (block, _), (shown, _) = blocks("python"), blocks("text")
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out == shown


@pytest.mark.usefixtures("in_folder")
def test_the_race_in_triton_is_found_as_shown(capsys, tmp_path):
    pytest.importorskip("triton", reason="Triton is not installed")
    (_, block), (_, shown) = blocks("python"), blocks("text")
    path = tmp_path / "total.py"
    path.write_text(block)  # Triton reads a kernel's source from its file
    exec(compile(block, str(path), "exec"), {"__name__": "total"})
    assert capsys.readouterr().out == shown


def test_the_picture_shows_this_kernel():
    (source,) = blocks("cuda")
    picture = (ENGINE / "docs" / "race.gif").read_bytes()
    digest = hashlib.sha256(source.encode()).hexdigest()
    assert digest.encode() in picture, "run kernelscope/tools/record_animation.py"
    assert len(picture) < 400_000


def test_links_lead_somewhere_and_the_page_is_short():
    targets = re.findall(r"\]\(([^)#\s]+)", README)
    assert targets
    assert not [one for one in targets if "://" not in one and not (ENGINE / one).exists()]
    assert len(README.split()) <= MOST_WORDS


def test_the_figures_of_values_are_the_records():
    path = ENGINE / "results" / "h200" / "differential.json"
    record, said = json.loads(path.read_text(encoding="utf-8")), " ".join(README.split())
    assert record["gpu"] == "NVIDIA H200" and not record["differences"]
    opcodes, kernels, matrices = (
        record["sections"][name] for name in ("opcodes", "random_kernels", "matrices")
    )
    bounded = sum("documented" in item for item in opcodes["items"])
    agree, count = opcodes["agree"] - bounded, opcodes["count"] - bounded
    assert f"{agree:,} of {count:,} exact PTX opcodes" in said
    assert f"{kernels['agree']:,} of {kernels['count']:,} random kernels agree" in said
    assert f"{bounded} approximate opcodes are within" in said
    sums = sum(item.get("sums", 0) for item in matrices["items"])
    assert f"{matrices['agree']} of {matrices['count']} matrix instructions, {sums:,} sums" in said
