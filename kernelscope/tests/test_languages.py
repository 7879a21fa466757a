"""Messages in the words of the language of a kernel."""

import ast
import re
from pathlib import Path

import kernelscope
import numpy as np
import pytest
from kernelscope import LaunchError, Sanitizer, SimulatorError, observe
from kernelscope.errors import Advice, in_words
from kernelscope.module import PtxModule
from kernelscope.numba.words import WORDS as NUMBA
from kernelscope.triton.words import WORDS as TRITON

PACKAGE = Path(kernelscope.__file__).parent
OF_MESSAGES = ("watch/sanitizer", "machine", "module/limits.py")
# Of CUDA C alone: no kernel of Numba or Triton has asynchronous copies, tensor maps or tiles of
# warp groups of its own.
ONLY_CUDA_C = {"__pipeline_wait_prior", "__grid_constant__", "__align__"}


def texts():
    """The text constants of the modules that write messages; a docstring is none."""
    for place in OF_MESSAGES:
        path = PACKAGE / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    node.value.value = ""
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


@pytest.mark.turns(11)
@pytest.mark.system
@pytest.mark.parametrize("words", [NUMBA, TRITON], ids=["numba", "triton"])
def test_each_row_of_a_table_is_part_of_a_message(words):
    every = "\n".join(texts())
    assert [name for name in words if name not in every] == []


@pytest.mark.turns(23)
@pytest.mark.system
def test_no_function_of_cuda_c_is_left_in_a_message():
    named = r"(?<!\w)__[a-z]\w*"
    names = {name for text in texts() for name in re.findall(named, text) if " " in text}
    assert {"__syncthreads", "__threadfence", "__syncwarp"} <= names - ONLY_CUDA_C
    left = {n for text in texts() for n in re.findall(named, in_words(text, NUMBA)) if " " in text}
    assert left == ONLY_CUDA_C & names
    triton = {n for t in texts() for n in re.findall(named, in_words(t, TRITON)) if " " in t}
    of_source = {"__constant__", "__device__"}  # of arrays that no kernel of it has
    assert triton <= ONLY_CUDA_C | of_source


def test_both_wordings_of_an_advice_are_replaced():
    advice = Advice("__syncthreads() here", "put __syncthreads() there")
    found = in_words(advice, NUMBA)
    assert (found.python, found.shell) == (
        "cuda.syncthreads() here",
        "put cuda.syncthreads() there",
    )


PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 x) .maxntid 64 {
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    .shared .align 8 .b64 bar;
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd2, %rd1, %rd2;
    ld.global.u32 %r2, [%rd2+4];
    st.global.u32 [%rd2], %r2;
    mov.u32 %r1, bar;
    mbarrier.arrive.shared.b64 %rd3, [%r1];
    ret;
}
"""


def kernel(words):
    return PtxModule(PTX, "", "k.py", words=words).get_function("k")


@pytest.mark.parametrize("words, barrier", [(NUMBA, "cuda.syncthreads"), (TRITON, "tl.debug_")])
def test_findings_and_errors_are_in_the_words_of_the_language(words, barrier):
    with observe(Sanitizer()) as found:
        kernel(words)((1,), (64,), (np.zeros(65, np.int32),))
    remedies = [one.remedy for one in found.findings if one.kind == "race"]
    assert remedies and all(barrier in remedy for remedy in remedies)
    with pytest.raises(SimulatorError, match=re.escape(f"a barrier such as {barrier}")):
        kernel(words)((1,), (64,), (np.zeros(65, np.int32),))


@pytest.mark.parametrize("words, said", [(NUMBA, "launch_bounds= of"), (TRITON, "num_warps")])
def test_a_wrong_launch_is_told_in_the_words_of_the_language(words, said):
    with pytest.raises(LaunchError, match=said):
        kernel(words)((1,), (96,), (np.zeros(97, np.int32),))
