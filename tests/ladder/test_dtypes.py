"""Dtypes of attention(): which method takes which, what auto picks, tiles, and the refusals."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from attn_course import attention, reference
from attn_course.cli import main
from attn_course.ladder.choose import choose
from attn_course.ladder.matrix_tiles import (
    MATRIX_TILES,
    matrix_candidates,
    matrix_config,
    matrix_rows,
)
from attn_course.ladder.methods import (
    METHODS,
    UnsupportedDtype,
    UnsupportedOption,
    dtypes_of,
    pick,
    problem_of,
)
from attn_course.ladder.problem import Device, Problem
from attn_course.ladder.steps import step
from attn_course.ladder.verify import verify_method, verify_step
from attn_course.reference.comparison import compare, poisoned
from attn_course.reference.dtypes import DTYPES, HALVES, TOLERANCES
from attn_course.reference.inputs import seeded_qkv

pytestmark = pytest.mark.system

HOPPER = Device("H200", (9, 0), 132, 227 * 1024)
GPUS = [Device(), Device("sm_86", (8, 6), 84, 99 * 1024), HOPPER]


def rounded(dtype, shape=(1, 2, 9, 12), keys=None):
    return [array.astype(DTYPES[dtype]) for array in seeded_qkv(shape, kv_length=keys)]


@pytest.fixture(autouse=True)
def on_the_simulator(no_gpu):
    """The refusals are the same on a GPU, with CuPy's arrays in the messages."""


def test_every_dtype_has_methods_and_every_method_a_dtype():
    taken = {method: dtypes_of(method) for method in METHODS}
    assert all(taken.values()) and set(DTYPES) == {
        name for found in taken.values() for name in found
    }
    assert taken["tiled"] == taken["flash_tf32x3"] == ("float32",)
    assert taken["flash_wmma"] == taken["flash_mma"] == HALVES


@pytest.mark.turns(17)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_output_has_the_dtype_of_the_inputs(dtype):
    q, k, v = rounded(dtype, keys=21)
    out, lse = attention(q, k, v, method="auto", causal=True, return_lse=True)
    assert out.dtype == DTYPES[dtype] and lse.dtype == np.float32
    expected = reference.attention(q, k, v, causal=True)
    assert compare(out, expected, relative=TOLERANCES[dtype])
    again = poisoned(q.shape, q.dtype)
    assert attention(q, k, v, method="auto", causal=True, out=again) is again
    assert np.array_equal(again, out)


def test_auto_goes_by_the_dtype():
    assert pick("auto", problem_of(*rounded("bfloat16")[:2])) == "flash_mma"
    assert pick("auto", problem_of(*rounded("float32")[:2])) != "flash_mma"
    for dtype in HALVES:
        method, reason = choose(Problem(4, 64, 64, 64, dtype=dtype), HOPPER)
        assert dtype in dtypes_of(method) and dtype in reason and "H200" in reason
        with pytest.raises(ValueError, match=f"{dtype} with head dim 300.*float32"):
            choose(Problem(4, 64, 64, 300, dtype=dtype), HOPPER)
        with pytest.raises(ValueError, match=f"{dtype} need.*8.0, T4 has 7.5.*float32"):
            choose(Problem(4, 64, 64, 64, dtype=dtype), Device("T4", (7, 5), 40, 64 * 1024))


def test_refusals_name_the_way_out():
    q, k, v = rounded("float16")
    asked = """'tiled', the default, takes float32, not float16: pass method="auto".*flash_wmma"""
    with pytest.raises(UnsupportedDtype, match=asked):
        attention(q, k, v)
    assert issubclass(UnsupportedDtype, TypeError) and issubclass(
        UnsupportedDtype, UnsupportedOption
    )
    full = [array.astype(np.float32) for array in (q, k, v)]
    with pytest.raises(UnsupportedDtype, match=r"takes bfloat16 or float16.*auto.*ml_dtypes\.bf"):
        attention(*full, method="flash_wmma")
    with pytest.raises(TypeError, match=r"k is bfloat16, q float16: pass k.astype\(q.dtype\)"):
        attention(q, k.astype(ml_dtypes.bfloat16), v, method="flash_wmma")
    with pytest.raises(TypeError, match=r"q is float64, not float32 \(nor float16 or bfloat16\)"):
        attention(q.astype(np.float64), k, v)
    with pytest.raises(TypeError, match="out is float32, not float16"):
        attention(q, k, v, method="flash_wmma", out=np.empty(q.shape, np.float32))
    with pytest.raises(TypeError, match="bias is float16, not float32"):
        attention(q, k, v, method="flash_wmma", bias=np.zeros((9, 9), np.float16))
    wide = rounded("bfloat16", (1, 1, 3, 300))
    with pytest.raises(ValueError, match="head dim 300.*rows_split or rows_online.*float32"):
        attention(*wide, method="flash_wmma")


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("entry", MATRIX_TILES)
def test_tiles_fit_the_device(entry, gpu):
    """Every head dim has a tile, many queries get the largest that fits, few a smaller one."""
    row = step(entry)
    for d in (1, 40, 64, 100, 128, 200, 256):
        for dtype in row.dtypes:
            few, many = (Problem(b, 64, 64, d, dtype=dtype) for b in (1, 9999))
            for problem in (few, many):
                launch = row.launch(problem, device=gpu)
                assert launch.shared_bytes <= gpu.shared_bytes and d <= launch.constants["D"]
                flag = {"bfloat16": 1, "float16": 0, "float32": None}[dtype]
                assert launch.constants.get("BFLOAT16") == flag
            found = matrix_candidates(entry, many, gpu)
            assert matrix_config(entry, many, gpu) == found[0]
            assert matrix_config(entry, few, gpu) == found[-1]


@pytest.mark.parametrize(
    ("entry", "causal", "heads", "rows"),
    [
        ("flash_mma", False, 131, 64),
        ("flash_mma", False, 132, 128),
        ("flash_mma", True, 395, 64),
        ("flash_mma", True, 396, 128),
        ("flash_tf32x3", False, 197, 64),
        ("flash_tf32x3", False, 198, 128),
        ("flash_tf32x3", True, 1055, 64),
        ("flash_tf32x3", True, 1056, 128),
    ],
)
def test_blocks_from_which_large_tiles_are_taken(entry, causal, heads, rows):
    """Of 132 multiprocessors; blocks of 128 rows."""
    dtype = "float32" if entry == "flash_tf32x3" else "bfloat16"
    for d in (64, 128):
        problem = Problem(heads, 128, 128, d, causal=causal, dtype=dtype)
        assert matrix_rows(matrix_config(entry, problem, HOPPER)) == rows


def test_a_share_is_that_of_the_first_tile():
    """A device without room for it gives the next tile to whoever fills the multiprocessors."""
    problem = Problem(84, 64, 64, 128, causal=True)
    assert matrix_config("flash_tf32x3", problem, GPUS[1])["BC"] == 64
    assert matrix_config("flash_tf32x3", replace(problem, bh=83), GPUS[1])["BC"] == 32


def test_a_device_without_the_shared_memory_is_named():
    small = Device("small", (8, 0), 8, 8 * 1024)
    with pytest.raises(ValueError, match="fit no tile on small.*8 KB.*float32 arrays.*rows_online"):
        matrix_config("flash_wmma", Problem(1, 9, 9, 64, dtype="float16"), small)
    with pytest.raises(ValueError, match="8 KB.*65535 tiles.*use method rows_online"):
        matrix_config("flash_tf32x3", Problem(1, 9, 9, 64), small)


def test_arrays_that_begin_within_an_element_are_refused():
    q, k, v = rounded("float32")
    astray = np.empty(4 * k.size + 1, np.uint8)[1:].view(np.float32).reshape(k.shape)
    with pytest.raises(ValueError, match=r"k is not aligned to its elements: pass k.copy\(\)"):
        attention(q, astray, v)


def test_auto_names_no_method_that_has_no_tile():
    with pytest.raises(ValueError, match="8388481 queries.*65535 tiles"):
        choose(Problem(1, 65535 * 128 + 1, 9, 60, dtype="bfloat16"), HOPPER)


@pytest.mark.turns(11)
def test_a_step_is_judged_in_a_dtype_that_it_takes():
    q, k, v = (array[0] for array in seeded_qkv((1, 2, 9, 12)))
    found = verify_step(step("flash_mma"), q, k, v)
    assert found.agrees and found.dtype == "bfloat16"
    assert found.outputs["out"].dtype == DTYPES["bfloat16"]
    assert found.comparison.relative_error > 1e-4  # bfloat16's rounding, not float32's
    assert verify_step(step("rows_online"), q, k, v).dtype == "float32"
    assert verify_method("flash_mma", *rounded("float16")).dtype == "float16"


@pytest.mark.turns(41)
@pytest.mark.parametrize("command", ["run", "count", "check", "trace"])
def test_commands_take_a_dtype(command, capsys):
    small = ["--shape", "1,1,9,12", "--dtype", "float16"]
    assert main.main([command, "flash_mma", *small]) == 0
    assert "relative error" in capsys.readouterr().out
    assert main.main([command, "tiled", *small]) == 2
    assert "methods that take float16: flash_wmma" in capsys.readouterr().err
