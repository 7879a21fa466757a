"""The engine speaks of CUDA alone: no word of it is about the course."""

import re
from pathlib import Path

import pytest

ENGINE = Path(__file__).resolve().parents[2] / "kernelscope"
# Of lower-case text: `re` skips to the letters that a pattern begins with only where case counts
# and no \b stands before them.
WORDS = re.compile(
    r"attn|attention|softmax|flash|l(?<=\bl)(?:adder|essons?\b|earners?\b)|c(?<=\bc)ourses?\b"
    r"|classroom|e(?<=\be)xercises?\b|a(?<=\ba)ssignments?\b|s(?<=\bs)tudents?\b"
    r"|t(?<=\bt)eachers?\b|layer ?norm|transformer"
)
# What people write in Triton, and in CUDA: kernels that the time model is judged by.
_IN_KERNELS = re.compile(r"(?i)softmax|flash|attention|layer ?norm|diffusion transformer")
_SETS = {
    "twelfth": ["layers.cu", "products.cu"],
    "thirteenth": ["matrices.cu"],
    "fourteenth": ["grids.cu", "products.cu", "rows.cu"],
    "sixteenth": ["layers.cu", "products.cu"],
}
# The names that variables of the environment had before; the name of another simulator.
ALIASES = {
    **{
        f"tests/triton/{name}.py": _IN_KERNELS
        for name in ("test_tutorials", "test_puzzles", "test_hopper", "triton_harness")
    },
    **{
        f"tests/timing/{name}": _IN_KERNELS
        for part, files in _SETS.items()
        for name in (
            f"{part}_expected.py",
            *(f"held_out_{part}/{file}" for file in (*files, "kernels.toml")),
        )
    },
    "src/kernelscope/settings.py": re.compile(r"ATTN_COURSE_"),
    "README.md": re.compile(r"FlashGPU-Sim"),
    "docs/time.md": re.compile(r"(?m)^\| \w+ \w+=.*$"),  # rows of such kernels
}


def words_of(text: str) -> list[str]:
    return [match[0] for match in WORDS.finditer(text.lower())]


@pytest.mark.system
def test_the_engine_has_no_word_of_the_course():
    found = {}
    for path in sorted(ENGINE.rglob("*")):
        name = path.relative_to(ENGINE).as_posix()
        kept = path.suffix in (".py", ".md", ".toml", ".js", ".css", ".cu", ".cuh", ".in", ".txt")
        if kept and not {"build", "dist", ".venv"} & set(path.parts):
            text = path.read_text(encoding="utf-8")
            if words := words_of(ALIASES[name].sub("", text) if name in ALIASES else text):
                found[name] = words
    assert not found


@pytest.mark.parametrize(
    "text", ["a Learner", "flash_fp32", "ATTN_COURSE_X", "a course's", "LayerNorm", "(ladders"]
)
def test_such_words_are_found(text):
    assert words_of(text)


@pytest.mark.parametrize(
    "text",
    ["of course_id", "scores", "a flat array", "notebook", "bladder", "recourse", "studentship"],
)
def test_other_words_are_not(text):
    assert not words_of(text)
