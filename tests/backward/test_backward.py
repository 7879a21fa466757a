"""attention_backward() and its kernels against float64, on whichever backend is chosen."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from gradient_runs import H200
from kernelscope import Counters, Sanitizer, observe
from kernelscope.backend import array_module, asnumpy

from attn_course import attention, attention_backward, reference
from attn_course.backward import BACKWARD, METHODS, BackwardMethod, choose_backward, steps, tf32
from attn_course.backward.verify import backward_call, backward_inputs, verify_backward
from attn_course.ladder import Device, Problem
from attn_course.ladder.methods import UnknownMethod, UnsupportedDtype, UnsupportedOption
from attn_course.reference.dtypes import DTYPES
from attn_course.reference.inputs import seeded_qkv
from attn_devtools.agreement import assert_agrees
from attn_devtools.shares import crossed, in_turns

xp = array_module()
NAMES = ("dq", "dk", "dv", "dbias")
FLOAT32 = [name for name, one in METHODS.items() if "float32" in one.dtypes]
# (B, H, n, d), keys, heads of k and v: what divides no tile, the smallest, and each padded width
SHAPES = [
    ((1, 1, 1, 1), 1, 1),
    ((2, 2, 5, 3), 7, 1),
    ((1, 4, 37, 20), 53, 2),
    ((1, 1, 40, 63), 9, 1),
    ((1, 2, 70, 64), 33, 2),
    ((2, 3, 3, 80), 41, 3),
    ((1, 1, 33, 130), 40, 1),
    ((1, 1, 9, 256), 11, 1),
]


def inputs(shape=(1, 2, 20, 12), m=None, kv_heads=None, seed=0, **how):
    """What attention_backward() reads, on the host."""
    return backward_inputs(*seeded_qkv(shape, m, seed, kv_heads=kv_heads), seed=seed, **how)


def on_device(arrays):
    return {name: xp.asarray(array) for name, array in arrays.items()}


def run(method, arrays, **how):
    """Run a method on inputs and judge each gradient; return them on the host."""
    call, oracle = backward_call(method, arrays, **how)
    call.run()
    for name, array in oracle.written.items():
        # Where a row sees one key alone its ds is zero, and in float32 only nearly so.
        assert_agrees(array, oracle.expected[name], name=f"{method}: {name}", absolute=2e-6)
    return {name: asnumpy(array) for name, array in oracle.written.items()}


@pytest.mark.turns(41)
@pytest.mark.system
@pytest.mark.parametrize(
    ("method", "case"), in_turns([*product(FLOAT32, crossed(SHAPES, [False, True]))], 2), ids=str
)
def test_gradients(method, case):
    (shape, m, kv_heads), causal = case
    arrays = inputs(shape, m, kv_heads, causal=causal)
    if method == "backward_tf32x3" and shape[3] > tf32.LARGEST_D:
        with pytest.raises(ValueError, match="at most 128; use method backward_rows"):
            backward_call(method, arrays, causal=causal)
    else:
        run(method, arrays, causal=causal)


@pytest.mark.turns(29)
@pytest.mark.system
@pytest.mark.parametrize(("rows", "warps"), in_turns([*product([1, 2, 4], [2, 8])], 3))
def test_rows_in_every_tile(rows, warps):
    options = (f"-DROWS={rows}", f"-DWARPS={warps}")
    arrays = inputs((1, 2, 37, 40), 46, 1, causal=True)  # a last key is the first of a tile
    run("backward_rows", arrays, causal=True, options=options)


def test_a_problem_of_many_rows_gets_warps_of_several():
    device, few = Device(), Problem(1, 64, 64, 64)
    many = Problem(8, 4096, 4096, 64, heads=8, kv_heads=8)
    for problem, rows in ((few, 1), (many, 4)):
        assert steps.ROWS.launch(problem, (), device).constants == {"D": 64, "ROWS": rows}
    wide = Problem(8, 4096, 4096, 160, heads=8, kv_heads=8)
    assert steps.KEYS.launch(wide, (), device).constants == {"D": 160, "ROWS": 2}
    small = replace(device, shared_bytes=64 * 1024)
    for d, rows in ((64, 4), (128, 2)):
        launch = steps.KEYS.launch(replace(many, d=d), (), small)
        assert launch.constants["ROWS"] == rows and launch.shared_bytes <= small.shared_bytes


@pytest.mark.turns(11)
@pytest.mark.system
@pytest.mark.parametrize("shape", [(9, 13), (3, 9, 13), (2, 1, 9, 13)], ids=str)
def test_a_bias_and_its_gradient(shape):
    bias = np.random.default_rng(3).normal(0.4, 1.0, shape).astype(np.float32)
    bias[..., 2] = -np.inf
    arrays = inputs((2, 3, 9, 16), 13, 1, bias=bias, causal=True)
    found = run("backward_rows", arrays, bias=bias, causal=True, return_dbias=True)
    hidden = ~reference.causal_mask(9, 13)
    assert found["dbias"].shape == (2, 3, 9, 13) and not found["dbias"][..., hidden].any()


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("method", FLOAT32)
def test_rows_that_see_no_key_have_zero_gradients(method):
    arrays = inputs((1, 2, 40, 24), 7, causal=True)
    assert np.isneginf(arrays["lse"][:, :, :33]).all()
    assert not run(method, arrays, causal=True)["dq"][:, :, :33].any()
    if not METHODS[method].supports("bias"):
        return
    bias = np.zeros((20, 20), np.float32)
    bias[4] = bias[:, 6] = -np.inf
    found = run(method, inputs((1, 2, 20, 24), bias=bias), bias=bias)
    assert not found["dq"][:, :, 4].any()
    assert not found["dk"][:, :, 6].any() and not found["dv"][:, :, 6].any()


@pytest.mark.turns(19)
@pytest.mark.parametrize("method", FLOAT32)
def test_huge_logits(method):
    """Scores of some thousands: lse has 2e-4 of rounding, and no exponential overflows."""
    q, k, v = seeded_qkv((1, 2, 40, 16), 50)
    arrays = backward_inputs(300 * q, 4 * k, v)
    call, oracle = backward_call(method, arrays)
    call.run()
    for name, array in oracle.written.items():
        assert_agrees(array, oracle.expected[name], name=name, relative=2e-3)


@pytest.mark.parametrize("method", FLOAT32)
def test_the_bound_knows_the_terms_of_a_sum_that_cancels(method):
    """With one column and two keys dp is nearly delta; an error of their size is still found."""
    call, oracle = backward_call(method, inputs((1, 2, 17, 1), 2, 1, seed=102))
    call.run()
    assert oracle.judge().agrees and not replace(oracle, absolute={}).judge().agrees
    oracle.written["dk"][0, 0, 1] += 1e-4 * oracle.absolute["dk"].max() / 2**-21
    assert not oracle.judge().agrees


@pytest.mark.system
@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_the_bound_of_many_terms_hides_no_wrong_factor(name):
    """In 16 bits, too: a tenth too much is found, and the right gradients pass."""
    qkv = [one.astype(DTYPES["bfloat16"]) for one in seeded_qkv((1, 2, 64, 64))]
    _, oracle = backward_call("backward_mma", backward_inputs(*qkv), "simulator")
    for other, array in oracle.written.items():
        array[...] = oracle.expected[other]
    assert oracle.judge().agrees
    oracle.written[name][...] = 1.1 * oracle.expected[name]
    assert not oracle.judge().agrees


@pytest.mark.turns(37)
@pytest.mark.system
@pytest.mark.parametrize("method", in_turns([*METHODS], 2))
def test_the_same_bits_on_every_run(method):
    dtype = DTYPES[METHODS[method].dtypes[0]]
    qkv = (one.astype(dtype) for one in seeded_qkv((1, 2, 70, 24), 90, kv_heads=1))
    call, oracle = backward_call(method, backward_inputs(*qkv), deterministic=True)
    call.run()
    first = {name: asnumpy(array).copy() for name, array in oracle.written.items()}
    for array in oracle.written.values():
        array[...] = np.nan
    call.run()
    for name, array in oracle.written.items():
        np.testing.assert_array_equal(asnumpy(array), first[name])


def test_arrays_that_no_vector_load_fits_and_margins():
    """d % 4 == 0, but an array may start anywhere; nothing beside a gradient is written."""
    arrays = inputs((1, 2, 9, 16), 13)
    call, oracle = backward_call("backward_rows", arrays)
    blocks = {}
    for name in (*arrays, "dq", "dk", "dv"):
        array = call.arrays[name]
        blocks[name] = xp.full(array.size + 10, np.nan, np.float32)
        moved = blocks[name][5 : 5 + array.size].reshape(array.shape)
        moved[...] = array
        call.arrays[name] = moved
    call.run()
    for name in ("dq", "dk", "dv"):
        assert_agrees(call.arrays[name], oracle.expected[name], name=name)
        block = asnumpy(blocks[name])
        assert np.isnan(block[:5]).all() and np.isnan(block[-5:]).all()


@pytest.mark.turns(23)
@pytest.mark.system
def test_after_attention_and_prepared():
    """The whole way: attention(), its out and lse, the gradients; and again with new values."""
    host = seeded_qkv((2, 4, 21, 24), 30, kv_heads=2)
    dout = np.random.default_rng(1).normal(0.3, 1.0, host[0].shape).astype(np.float32)
    q, k, v, dout = map(xp.asarray, (*host, dout))
    how = {"causal": True, "scale": 0.3}
    plan = None
    for factor in (1, 2):
        q *= factor
        out, lse = attention(q, k, v, "auto", return_lse=True, **how)
        if plan is None:
            kept_out, kept_lse = out, lse
            plan = attention_backward.plan(q, k, v, kept_out, kept_lse, dout, **how)
        kept_out[...], kept_lse[...] = out, lse
        expected = reference.attention_backward(*map(asnumpy, (q, k, v, dout)), **how)
        for found in (attention_backward(q, k, v, out, lse, dout, **how), plan()):
            for name, array, wanted in zip(NAMES, found, expected, strict=False):
                assert_agrees(array, wanted, name=name)
    assert plan.method == "backward_rows" and plan.out[0].shape == q.shape
    assert [one.geometry.entry for one in plan.launches] == [one.entry for one in BACKWARD[:3]]


def test_a_verdict_sees_one_wrong_element(monkeypatch):
    q, k, v = seeded_qkv((1, 2, 9, 8), 11)
    assert verify_backward("backward_rows", q, k, v).agrees
    right = reference.attention_backward
    for spoiled, name in enumerate(NAMES[:3]):

        def wrong(*arrays, spoiled=spoiled, **how):
            found = right(*arrays, **how)
            found[spoiled].flat[-1] += 0.01
            return found

        monkeypatch.setattr(reference, "attention_backward", wrong)
        verdict = verify_backward("backward_rows", q, k, v)
        assert not verdict.agrees and f"backward_rows: {name}" in verdict.comparison.message


# -- what the kernels do ---------------------------------------------------------------------------
@pytest.mark.turns(7)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_verdict_in_16_bits_sees_one_pair_too_few(dtype):
    """A causal mask that hides the last key from one query: each gradient alone is refused."""
    q, k, v = (one.astype(DTYPES[dtype]) for one in seeded_qkv((1, 1, 70, 16), 84))
    arrays = backward_inputs(q, k, v, causal=True)
    call, oracle = backward_call("backward_mma", arrays, causal=True)
    call.run()
    assert oracle.judge().agrees
    hidden = np.zeros((70, 84), np.float32)
    hidden[0, 14] = -np.inf  # of 15 keys that it sees
    given = arrays["q"], arrays["k"], arrays["v"], arrays["dout"]
    found = reference.attention_backward(*given, causal=True, bias=hidden)
    for name, wrong in zip(("dq", "dk", "dv"), found, strict=True):
        right = call.arrays[name].copy()
        call.arrays[name][...] = array_module().asarray(wrong.astype(DTYPES[dtype]))
        assert not oracle.judge().agrees, name
        call.arrays[name][...] = right
    assert oracle.judge().agrees


def simulated(arrays, **how):
    call, oracle = backward_call("backward_rows", arrays, "simulator", **how)
    return call.launches, call.arrays, oracle


@pytest.mark.turns(23)
@pytest.mark.system
def test_the_sanitizer_is_silent():
    bias = np.random.default_rng(2).normal(size=(37, 53)).astype(np.float32)
    arrays = inputs((1, 4, 37, 20), 53, 2, causal=True, bias=bias)
    launches, on, oracle = simulated(arrays, causal=True, bias=bias, return_dbias=True)
    for launch in launches:
        with observe(Sanitizer(tuple(set(launch.step.writes) - {"dbias"}))) as seen:
            launch.run(on)
        assert not seen.findings
    assert oracle.judge().agrees


@pytest.mark.turns(47)
@pytest.mark.system
def test_counts():
    """7 products; a tile is read once for WARPS*ROWS rows; no bank conflicts, no atomics."""
    sectors, ffma = [], 0
    for rows in (1, 4):
        launches, on, _ = simulated(inputs((1, 1, 64, 64), 96), options=(f"-DROWS={rows}",))
        for launch in launches[1:]:
            with observe(Counters()) as seen:
                launch.run(on)
            totals = seen.totals
            assert not totals["shared_load_conflicts"] and not totals["shared_store_conflicts"]
            assert not totals["atomic_requests"]
            sectors.append(totals["global_load_sectors"])
            ffma += totals["ffma_thread_instructions"]
    assert 1 < ffma / (2 * 7 * 64 * 96 * 64) < 1.05  # exponentials have a few
    bytes_of = {"own": 2 * 64 * 64 * 4, "other": 2 * 96 * 64 * 4}
    for rows, found in ((1, sectors[0]), (4, sectors[2])):
        tiles = bytes_of["own"] + bytes_of["other"] * (64 / (8 * rows))
        assert tiles / 32 < found < 1.2 * tiles / 32


# -- which method, and refusals --------------------------------------------------------------------
@pytest.mark.system
def test_refusals_name_the_argument():
    arrays = on_device(inputs())
    cases = [
        ({"lse": arrays["lse"][0]}, ValueError, r"lse has shape \(2, 20\), not \(1, 2, 20\)"),
        ({"dout": arrays["dout"][..., :3].copy()}, ValueError, "dout has shape"),
        ({"out": arrays["out"].astype(np.float64)}, TypeError, "out is float64"),
        ({"k": arrays["k"][:, [0, 0, 0]].copy()}, ValueError, "multiple"),
        ({"dout": arrays["dout"].swapaxes(2, 3)}, ValueError, "dout is not C-contiguous"),
        ({"method": "fastest"}, UnknownMethod, "choose one of: .*backward_rows"),
        ({"options": ("-DTILE=3",)}, ValueError, "no constant TILE"),
        ({"causal": "yes"}, TypeError, "causal is 'yes': pass True or False"),
        ({"deterministic": None}, TypeError, "deterministic is None: pass True or False"),
        ({"causal": 0.0}, TypeError, "causal is 0.0: pass True or False"),
    ]
    attention_backward(**arrays)  # False is kept, and 0.0 is not it
    for changed, error, message in cases:
        with pytest.raises(error, match=message):
            attention_backward(**arrays | changed)
    wide = on_device(inputs((1, 1, 2, 257)))
    with pytest.raises(ValueError, match="head dim 257 .* none takes more than head dim 256;"):
        attention_backward(**wide)
    with pytest.raises(ValueError, match="takes at most 256"):
        attention_backward(**wide, method="backward_rows")
    halves = {name: one.astype(np.float16) for name, one in arrays.items() if name != "lse"}
    with pytest.raises(UnsupportedDtype, match="'backward_rows' takes float32, not float16"):
        attention_backward(**arrays | halves, method="backward_rows")


def test_options_that_a_method_lacks_are_refused_by_name(monkeypatch):
    """A method without bias, chosen by hand; "auto" goes to the next one that has it."""
    plain = BackwardMethod((steps.DELTA,), lambda problem, device: "it is plain")
    monkeypatch.setattr(steps, "METHODS", {"plain": plain, **METHODS})
    arrays, bias = on_device(inputs()), xp.zeros((20, 20), np.float32)
    with pytest.raises(UnsupportedOption, match="'plain' has no bias; .* do: backward_rows"):
        attention_backward(**arrays, method="plain", bias=bias)
    problem = Problem(2, 20, 20, 12)
    halves = replace(problem, biased=True, dtype="float16")
    with pytest.raises(
        UnsupportedOption, match="takes float16 with a bias; with another dtype: backward_rows;"
    ):
        choose_backward(halves, Device())
    assert choose_backward(problem, Device()) == ("plain", "it is plain")
    assert choose_backward(problem, Device(), True)[0] == "backward_rows"
    assert choose_backward(replace(problem, biased=True), Device())[0] == "backward_rows"


# For d of at most 64, and for more: blocks of the first kernel, whose rows fill tiles, and of the
# last one. 420 rows, 70 to a head; 16 or 8 a block; tiles of 64 or, of 30, 32.
ROW_BLOCKS = {
    "backward_mma": [(48, 27), (96, 53)],
    "backward_wgmma": [(48, 27), (96, 53)],
    "backward_tf32x3": [(36, 27), (72, 53)],
}


@pytest.mark.parametrize("method", ROW_BLOCKS)
def test_blocks_of_what_goes_row_by_row(method):
    one = METHODS[method]
    for d, blocks in zip((64, 72), ROW_BLOCKS[method], strict=True):
        problem = Problem(6, 70, 33, d, 3, 3, dtype=one.dtypes[0])
        launches = [one.steps[at].launch(problem, (), H200) for at in (0, -1)]
        assert [launch.grid for launch in launches] == [(number, 1, 1) for number in blocks]
        assert all(launch.block == (256, 1, 1) for launch in launches)


def test_auto_says_what_it_picks(caplog):
    with caplog.at_level("INFO", "attn_course.backward"):
        call, _ = backward_call("auto", inputs())
    assert call.method == "backward_rows" and "float32" in call.reason
    assert "auto picks backward_rows" in caplog.text


# -- the oracle ------------------------------------------------------------------------------------
@pytest.mark.parametrize("causal", [False, True])
def test_the_oracle_agrees_with_finite_differences(causal):
    """The central difference along a random direction of all inputs at once, in float64."""
    rng = np.random.default_rng(7)
    shapes = {"q": (2, 4, 5, 3), "k": (2, 2, 6, 3), "v": (2, 2, 6, 3), "bias": (4, 5, 6)}
    given = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    along = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    dout, step = rng.normal(size=shapes["q"]), 1e-5

    def loss(sign):
        moved = {name: given[name] + sign * step * along[name] for name in given}
        return (dout * reference.attention(**moved, causal=causal, scale=0.7)).sum()

    how = {"causal": causal, "scale": 0.7, "return_dbias": True}
    found = reference.attention_backward(**given, dout=dout, **how)
    assert [one.shape for one in found] == [*(given[name].shape for name in "qkv"), (2, 4, 5, 6)]
    gradients = dict(zip(given, (*found[:3], found[3].sum(axis=0)), strict=True))
    slope = sum((gradients[name] * along[name]).sum() for name in given)
    assert slope == pytest.approx((loss(1) - loss(-1)) / (2 * step), rel=1e-8)
