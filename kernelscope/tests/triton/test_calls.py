"""The front: how a kernel is called, what a call tells, and what it refuses."""

import collections
import subprocess
import sys
from types import SimpleNamespace

import kernelscope
import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from kernelscope import Counters, observe
from kernelscope.errors import (
    ArgumentError,
    CompileError,
    CompilerMissingError,
    InputError,
    LaunchError,
    UserError,
)
from kernelscope.triton import compile, run
from triton_harness import assert_close, normal, poisoned


@triton.jit
def scaled(x, out, N, factor=2.0, B: tl.constexpr = 32):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + at, at < N) * factor, at < N)


def scaled_call(**kwargs):
    x, out = normal(50), poisoned(50)
    return x, out, {"x": x, "out": out, "N": 50} | kwargs


# -- arguments ----------------------------------------------------------------------------------
def test_arguments_by_name_and_by_default():
    x, out, arguments = scaled_call(factor=3)
    run(scaled, (2,), **arguments)
    assert_close(out, 3 * x.astype(np.float64))
    run(scaled, [4], x, out, 50, B=16)
    assert_close(out, 2 * x.astype(np.float64))


def test_a_grid_function_gets_all_parameters():
    x, out, arguments = scaled_call()
    seen = {}

    def grid(meta):
        seen.update(meta)
        return (triton.cdiv(meta["N"], meta["B"]),)

    call = run(scaled, grid, **arguments)
    assert seen["x"] is x and {k: v for k, v in seen.items() if k not in ("x", "out")} == {
        "N": 50,
        "factor": 2.0,
        "B": 32,
    }
    assert call.block == (128, 1, 1) and call.target == "sm_80" and call.config == {}
    assert ".target sm_80" in call.ptx


def specialised(**kwargs) -> tuple[str, ...]:
    """The parameters that are left in the PTX."""
    _, _, arguments = scaled_call(**kwargs)
    call = compile(scaled, **arguments)
    return tuple(one.text for one in call.kernel.entry.parameters[:-2])


def test_values_are_specialised_as_triton_does():
    assert specialised() == ("x: *fp32", "out: *fp32", "N: i32", "factor: fp32")
    assert specialised(N=1) == ("x: *fp32", "out: *fp32", "factor: fp32")  # 1 is a constant
    assert specialised(N=2**40)[2] == "N: i64"


def test_multiples_of_16_bytes_make_wide_accesses():
    def widest(start, **kwargs):
        memory = normal(300)
        x, out = memory[start : start + 256], poisoned(256)
        call = run(copied, (1,), x, out, B=256, num_warps=1, **kwargs)
        assert (out == x).all()
        return "ld.global.v4" in call.ptx

    assert widest(0) and widest(4) and not widest(1)


@triton.jit
def copied(x, out, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, tl.load(x + at))


@triton.jit(do_not_specialize=["n"])
def counted(out, n, m):
    tl.store(out, n + m)


def test_do_not_specialize_keeps_a_parameter():
    out = poisoned(1, dtype="int32")
    call = run(counted, (1,), out, 1, 1)
    assert [one.name for one in call.kernel.entry.parameters[:-2]] == ["out", "n"]
    assert out[0] == 2


def test_one_specialisation_is_compiled_once():
    x, out, arguments = scaled_call()
    first, second = compile(scaled, **arguments), compile(scaled, **(arguments | {"N": 51}))
    assert first.kernel is second.kernel
    assert compile(scaled, **(arguments | {"N": 48})).kernel is not first.kernel


def test_views_share_the_memory_of_their_array():
    matrix, out = normal(12, 40), poisoned(40)
    run(scaled, (1,), matrix[3], out, 40, 1.0, B=64)
    assert_close(out, matrix[3])
    run(scaled, (1,), matrix, matrix[5], 40, 1.0, B=64)
    assert (matrix[5] == matrix[0]).all()
    run(scaled, (1,), matrix[:, ::2], out, 40, 1.0, B=64)
    assert_close(out, matrix[0])  # a kernel sees memory; strides are arguments of their own


class Tensor:
    """What the front uses of a PyTorch tensor on the CPU."""

    def __init__(self, array, dtype="torch.float32", device="cpu"):
        self.array, self.dtype = array, dtype
        self.device = SimpleNamespace(type=device)

    def __dlpack__(self, **_):
        raise AssertionError("torch's bfloat16 cannot be read through DLPack")

    def detach(self):
        return self

    def view(self, dtype):
        return Tensor(self.array.view(dtype))

    def numpy(self):
        return self.array


def test_tensors_of_the_cpu_share_their_memory(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "int16", np.int16, raising=False)
    monkeypatch.setattr(Tensor, "__module__", __name__ + ".cpu")
    monkeypatch.setitem(sys.modules, __name__.partition(".")[0], sys.modules[__name__])
    x, out = normal(50), poisoned(50)
    run(scaled, (2,), Tensor(x), Tensor(out), 50)
    assert_close(out, 2 * x.astype(np.float64))
    halves, narrow = x.astype(ml_dtypes.bfloat16), poisoned(50, dtype=ml_dtypes.bfloat16)
    run(scaled, (2,), *(Tensor(one, "torch.bfloat16") for one in (halves, narrow)), 50)
    assert_close(narrow, 2 * halves.astype(np.float64))
    with pytest.raises(ArgumentError, match=r"argument x: the array is on 'cuda'.*array\.cpu\(\)"):
        run(scaled, (2,), Tensor(x, device="cuda"), out, 50)


def test_arrays_of_other_libraries_come_through_dlpack():
    class Foreign:
        def __init__(self, array):
            self.array = array
            self.__dlpack_device__ = array.__dlpack_device__

        def __dlpack__(self, **how):
            return self.array.__dlpack__(**how)

    class OnDevice(Foreign):
        def __dlpack__(self, **how):
            raise BufferError("no such device")

    x, out = normal(50), poisoned(50)
    run(scaled, (2,), Foreign(x), Foreign(out), 50)
    assert_close(out, 2 * x.astype(np.float64))
    with pytest.raises(ArgumentError, match=r"x: NumPy cannot share .*no such device.*NumPy array"):
        run(scaled, (2,), OnDevice(x), out, 50)


Pair = collections.namedtuple("Pair", "first second")


@triton.jit
def of_a_pair(out, pair):
    tl.store(out, pair.first * pair.second)


def test_named_tuples():
    out = poisoned(1, dtype="int32")
    run(of_a_pair, (1,), out, Pair(6, 7))
    assert out[0] == 42


# -- decorators -----------------------------------------------------------------------------------
def small_first(configs, named, **kwargs):
    return [one for one in configs if one.kwargs["B"] < named["N"]]


@triton.autotune(
    [triton.Config({"B": 64}, num_warps=2), triton.Config({"B": 16}, num_warps=1)], ["N"]
)
@triton.heuristics({"EVEN": lambda named: named["N"] % named["B"] == 0})
@triton.jit
def tuned(x, out, N, EVEN: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    if EVEN:
        tl.store(out + at, tl.load(x + at))
    else:
        tl.store(out + at, tl.load(x + at, at < N), at < N)


def per_tile(meta):
    return (triton.cdiv(meta["N"], meta["B"]),)


@pytest.mark.parametrize(
    ("config", "tile", "warps"), [(None, 64, 2), (1, 16, 1), ({"B": 16}, 16, 1)]
)
def test_an_autotuner_takes_one_configuration_and_says_which(config, tile, warps):
    x, out = normal(48), poisoned(48)
    call = run(tuned, per_tile, x, out, 48, config=config)
    assert (out == x).all()
    assert call.config["B"] == tile and call.config["num_warps"] == warps
    assert call.block == (32 * warps, 1, 1) and call.meta["EVEN"] == (tile == 16)
    assert f"'B': {tile}" in repr(call)


def test_a_configuration_that_its_own_rule_leaves_out():
    pruned = triton.autotune(
        tuned.configs, ["N"], prune_configs_by={"early_config_prune": small_first}
    )
    x, out = normal(48), poisoned(48)
    assert run(pruned(tuned.fn), per_tile, x, out, 48).config["B"] == 16


def test_hooks_of_a_configuration_run():
    seen = []
    config = triton.Config({"B": 16}, pre_hook=lambda named: seen.append(named["N"]))
    run(triton.autotune([config], ["N"])(tuned.fn), per_tile, normal(48), poisoned(48), 48)
    assert seen == [48]


# -- refusals ------------------------------------------------------------------------------------
def refused(error, match, *args, fn=scaled, grid=(2,), **kwargs):
    _, _, arguments = scaled_call()
    given = {} if args else arguments
    with pytest.raises(error, match=match) as caught:
        run(fn, grid, *args, **(given | kwargs))
    assert isinstance(caught.value, UserError) and "\n" not in str(caught.value)


def test_wrong_names_and_counts():
    refused(
        ArgumentError,
        r"no parameter 'Bs' \(did you mean 'B'\?\); it has: x, out, N, factor, B",
        Bs=3,
    )
    refused(
        ArgumentError,
        "scaled: missing a required argument: 'N'; its parameters: x,",
        normal(5),
        normal(5),
    )
    refused(ArgumentError, "scaled: too many positional arguments", *normal(9))


def test_wrong_values():
    refused(
        ArgumentError,
        "argument x: Triton has no pointer to complex64; it has bool,",
        x=np.zeros(3, "c8"),
    )
    refused(ArgumentError, "argument x: Triton has no pointer to >f4", x=np.zeros(3, ">f4"))
    refused(ArgumentError, "argument x: got a list; pass an array", x=[1.0, 2.0])
    refused(ArgumentError, "scaled: failed to specialize argument of type: str", factor="two")
    frozen = normal(50)
    frozen.flags.writeable = False
    refused(ArgumentError, "argument x: the array is read-only", x=frozen)
    refused(ArgumentError, "argument x: strides of .* negative", x=normal(50)[::-1])


def test_wrong_grids():
    refused(LaunchError, r"scaled: grid \(0,\) holds 0; every size must be at least 1", grid=(0,))
    refused(LaunchError, r"scaled: grid \(1, -2\) holds -2", grid=lambda meta: (1, -2))
    refused(LaunchError, "scaled: grid is 4; it must be a tuple", grid=4)
    refused(LaunchError, r"holds 1.5, which is no integer", grid=(1.5,))


def test_wrong_options():
    refused(InputError, r"target is 'sm_81'; it must be one of sm_75, sm_80", target="sm_81")
    refused(ArgumentError, "scaled: num_warps must be a power of 2", num_warps=3)
    refused(InputError, "scaled has no autotuner; leave out config=", config=0)
    call = tuned, per_tile
    refused(
        InputError, r"tuned has no configuration 7; it has: 0: B=64, .*; 1: B=16",
        normal(9), poisoned(9), 9, fn=call[0], grid=call[1], config=7,
    )  # fmt: skip
    refused(
        ArgumentError, "tuned: B is given in the call and by the autotuner's configuration",
        normal(9), poisoned(9), 9, fn=call[0], grid=call[1], B=32,
    )  # fmt: skip
    refused(InputError, "is no Triton kernel: it needs a function with @triton.jit", fn=refused)


@triton.jit
def helper(x):
    return x + undefined_name  # noqa: F821


@triton.jit
def with_a_mistake(x, out, N, factor, B: tl.constexpr):
    tl.store(out, helper(factor))


def test_what_triton_does_not_compile_names_function_line_and_reason():
    refused(
        CompileError,
        r"^Triton cannot compile scaled: test_calls\.py:\d+ `at = tl\.program_id\(0\) \* B \+ "
        r"tl\.arange\(0, B\)`: arange's range must be a power of 2$",
        B=33,
    )
    refused(
        CompileError,
        r"^Triton cannot compile with_a_mistake: test_calls\.py:\d+ `return x \+ undefined_name",
        fn=with_a_mistake,
        B=32,
        factor=2.0,
    )
    with pytest.raises(CompileError) as caught:
        run(scaled, (1,), **scaled_call(B=33)[2])
    line = scaled.starting_line_number + 2
    assert caught.value.line == line and caught.value.file == __file__


SCALE = tl.constexpr(3)


@triton.jit
def with_a_global(out):
    tl.store(out, SCALE)


def test_a_global_that_has_changed(monkeypatch):
    out = poisoned(1)
    run(with_a_global, (1,), out)
    assert out[0] == 3
    monkeypatch.setattr(sys.modules[__name__], "SCALE", tl.constexpr(4))
    monkeypatch.setitem(with_a_global.fn.__globals__, "SCALE", tl.constexpr(4))
    with pytest.raises(InputError, match="global SCALE = .*3.*, which has changed"):
        run(with_a_global, (1,), out)


@triton.jit
def product(x, y, out, K: tl.constexpr):
    i, k = tl.arange(0, 64), tl.arange(0, K)
    a = tl.load(x + i[:, None] * K + k[None, :])
    b = tl.load(y + k[:, None] * 64 + i[None, :])
    tl.store(out + i[:, None] * 64 + i[None, :], tl.dot(a, b))


def test_products_of_warp_groups():
    x, y = normal(64, 32, dtype="float16"), normal(32, 64, dtype="float16", seed=1)
    for target in ("sm_90", "sm_80"):
        out = poisoned(64, 64)
        with observe(Counters()) as seen:
            run(product, (1,), x, y, out, K=32, target=target)
        assert_close(out, x.astype(np.float64) @ y.astype(np.float64), 1e-6)
        assert (seen.totals["wgmma_shared_bytes"] > 0) == (target == "sm_90")


def test_a_descriptor_of_the_caller_is_refused():
    descriptor = type("TensorDescriptor", (), {})()
    refused(ArgumentError, "argument x: a tensor descriptor made by the caller", x=descriptor)


# -- without Triton -------------------------------------------------------------------------------
def test_missing_triton_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(CompilerMissingError, match=r"pip install kernelscope\[triton\]"):
        run(scaled, (1,))


def test_the_engine_imports_triton_at_the_first_call_only():
    code = (
        "import sys, kernelscope, kernelscope.triton, kernelscope.module; kernelscope.triton.run; "
        "sys.exit('triton' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert "triton" not in kernelscope.__all__


@pytest.mark.turns(23)
@pytest.mark.system
def test_nothing_is_written_outside_of_the_given_folders(tmp_path):
    code = f"""
import sys
sys.path.insert(0, {str(__file__.rsplit("/", 1)[0])!r})
from test_calls import *
run(scaled, (1,), normal(5), poisoned(5), 5)
"""
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "TRITON_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert done.returncode == 0
    assert not [one for one in tmp_path.rglob("*") if "triton" in str(one)]
