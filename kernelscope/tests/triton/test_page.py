"""The page about kernels in Python: its example runs, and each row of its table is tested."""

import ast
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from kernelscope.errors import UserError
from kernelscope.triton import run
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton_harness import normal, poisoned

HERE = Path(__file__).resolve().parent
PAGE = (HERE.parents[1] / "docs" / "python_kernels.md").read_text(encoding="utf-8")
PAGE = PAGE.partition("## Triton\n")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if re.match(r"\| (?!feature|-)", line)
]
REFUSALS = {feature: result for feature, result, _ in ROWS if result.startswith("refused")}


def test_the_example_prints_what_the_page_shows(tmp_path, monkeypatch, capsys):
    (source,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    path = tmp_path / "scale.py"
    path.write_text(source)
    exec(compile(source, str(path), "exec"), {"__name__": "scale"})
    assert capsys.readouterr().out == shown


def test_every_row_names_a_test():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in HERE.glob("test_*.py")]
    tests = {node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert len(ROWS) > 25 and {test for _, _, test in ROWS} <= tests
    assert all(result == "works" or result.startswith("refused") for _, result, _ in ROWS)
    assert len(REFUSALS) == len(CALLS)


# -- what is refused ----------------------------------------------------------------------------
@triton.jit
def with_block_pointer(x):
    tl.store(x, tl.load(tl.make_block_ptr(x, (4,), (1,), (0,), (4,), (0,))))


@triton.jit
def copied(x, out):
    tl.store(out, tl.load(x))


@triton.jit
def added(x, total):
    at = tl.arange(0, 4)
    tl.atomic_add(total + at, tl.load(x + at, at < 3, 0.0), mask=at < 3)


@gluon.jit
def in_gluon(x):
    gl.store(x, 1.0)


class OnAGpu:
    """An array whose DLPack device is a GPU."""

    def __dlpack__(self, **how):
        raise AssertionError("nobody asks for its memory")

    def __dlpack_device__(self):
        return 2, 0


CALLS = {
    "block pointers": lambda: (with_block_pointer, normal(4)),
    "a tensor descriptor": lambda: (copied, type("TensorDescriptor", (), {})(), poisoned(1)),
    "`e4m3`": lambda: (copied, *(poisoned(1, dtype=ml_dtypes.float8_e4m3fn),) * 2),
    "atomics on bfloat16": lambda: (
        added, normal(3, dtype=ml_dtypes.bfloat16), np.zeros(3, ml_dtypes.bfloat16)
    ),
    "Gluon": lambda: (in_gluon, poisoned(1)),
    "arrays in a GPU's memory": lambda: (copied, OnAGpu(), poisoned(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_refused_features(name):
    ((feature, result),) = [one for one in REFUSALS.items() if one[0].startswith(name)]
    message = re.search(r"`([^`]+)`$", result)[1]
    target = re.search(r'target="(\w+)"', feature)
    kernel, *arguments = CALLS[name]()
    with pytest.raises(UserError, match=re.escape(message)):
        run(kernel, (1,), *arguments, target=target[1] if target else "sm_80")
