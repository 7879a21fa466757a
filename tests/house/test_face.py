"""What `import attn_course` gives: the engine's public names, and kernels found from anywhere."""

import subprocess
import sys

import kernelscope
import pytest

import attn_course

ENGINE_NAMES = (
    "RawModule",
    "RawKernel",
    "observe",
    "Counters",
    "Sanitizer",
    "Tracer",
    "asnumpy",
    "xp",
    "UserError",
)


def test_the_course_gives_the_engines_own_names():
    for name in ENGINE_NAMES:
        assert getattr(attn_course, name) is getattr(kernelscope, name)
        assert name in dir(attn_course)
    with pytest.raises(AttributeError, match="no attribute 'RawModul'"):
        _ = attn_course.RawModul


def test_importing_the_course_imports_nothing_heavy():
    program = (
        "import sys, attn_course; "
        "print([n for n in ('numpy', 'cupy', 'kernelscope.module') if n in sys.modules])"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_kernels_of_the_course_are_found_from_anywhere_and_checked_strictly(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    naive = attn_course.RawModule(path="kernels/01_scores_naive.cu", backend="simulator")
    assert naive.strict and naive.get_function(naive.kernels[0]).strict
    assert not attn_course.RawModule(path=naive.path, backend="simulator", strict=False).strict
    needs = attn_course.RawModule("// Needs: sm_90a\n__global__ void k() {}", backend="simulator")
    assert needs.arch == "compute_90a"
