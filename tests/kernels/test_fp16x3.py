"""Kernels 32 and 33: float32 attention in three products of halves, and when it is taken."""

import subprocess
from dataclasses import replace

import numpy as np
import pytest
from kernelscope import RawModule
from kernelscope.compile import with_headers

from attn_course import Counters, Sanitizer, attention, clinic, observe, reference
from attn_course.clinic import Case
from attn_course.ladder.call import run_steps
from attn_course.ladder.choose import choose
from attn_course.ladder.headers import kernel_path
from attn_course.ladder.problem import Device, Problem
from attn_course.ladder.steps import SPLIT_HALVES, step
from attn_course.ladder.warpgroup_tiles import fp16x3_bytes, fp16x3_config
from attn_course.measure import Kernels, Part
from attn_devtools.agreement import assert_agrees
from attn_devtools.shares import crossed, in_turns

from .test_wgmma import H200, ptxas

pytestmark = pytest.mark.system

RELATIVE = 2e-6
EXACT = 6e-7  # of scores as they are: 2.5e-7 to 4.2e-7 here
METHOD = "flash_fp16x3"


def inputs(batch, heads, kv_heads, n, m, d, seed=0):
    """q (batch, heads, n, d), k and v (batch, kv_heads, m, d), float32."""
    rng = np.random.default_rng(seed)
    shapes = ((batch, heads, n, d), *((batch, kv_heads, m, d),) * 2)
    return [rng.normal(0.1, 1.0, shape).astype(np.float32) for shape in shapes]


def check(q, k, v, *, options=(), relative=RELATIVE, columns=False, **how):
    """Compare out and lse with float64; out starts as NaN. columns: each one by itself."""
    out = np.full(q.shape, np.nan, np.float32)
    how |= {"return_lse": True}
    _, lse = attention(q, k, v, METHOD, out=out, options=options, **how)
    expected, expected_lse = reference.attention(q, k, v, **how)
    assert_agrees(lse, expected_lse, relative=2e-6, absolute=2e-6, name="lse")
    if columns:
        top = abs(expected).max((0, 1, 2))
        out, expected = out / top, expected / top
    assert_agrees(out, expected, relative=relative, name="out")


RAGGED = [
    (1, 2, 2, 196, 196, 64),
    (1, 1, 1, 1, 1, 1),
    (2, 4, 2, 33, 300, 80),
    (1, 2, 1, 131, 5, 63),
    (1, 1, 1, 70, 130, 128),
    (1, 1, 1, 3, 1000, 40),
]


@pytest.mark.turns(29)
@pytest.mark.parametrize(("shape", "causal"), in_turns(crossed(RAGGED, [False, True]), 3), ids=str)
def test_ragged_tiles_and_grouped_heads(shape, causal):
    check(*inputs(*shape), causal=causal, relative=EXACT)


@pytest.mark.turns(23)
@pytest.mark.parametrize("d", [16, 100])
def test_a_block_takes_tile_after_tile(d):
    """Rings go round several times, and Q is written over the one of the round before."""
    for heads in (1, 2):
        options = ("-DBLOCKS=1", f"-DHEADS={heads}")
        check(*inputs(1, 3, 3, 200, 200, d), causal=True, options=options, relative=EXACT)


@pytest.mark.turns(7)
def test_arrays_that_are_not_aligned():
    """A float past an aligned address, in rows that vector loads would fit."""
    given = [
        np.concatenate([[0.0], x.ravel()]).astype(np.float32)[1:].reshape(x.shape)
        for x in inputs(1, 1, 1, 40, 50, 64)
    ]
    out = np.full(2561, np.nan, np.float32)[1:].reshape(1, 1, 40, 64)
    attention(*given, METHOD, out=out)
    assert_agrees(out, reference.attention(*given), relative=EXACT, name="out")


@pytest.mark.turns(17)
@pytest.mark.parametrize("times", [3e3, 1e4, 1e8])
def test_huge_scores(times):
    """A maximum of 2^25 and more, from which 14 could not be taken without rounding."""
    q, k, v = inputs(1, 1, 1, 20, 40, 64)
    out, expected = (
        attention(q * times, k * times, v, METHOD),
        reference.attention(q * times, k * times, v),
    )
    assert_agrees(out, expected, relative=RELATIVE, name="out")


@pytest.mark.turns(7)
@pytest.mark.parametrize("scale", [-0.4, 0.0, 3.0])
def test_other_scales(scale):
    check(*inputs(1, 1, 1, 40, 150, 64), scale=scale)


# -- the range of float32 --------------------------------------------------------------------------
def apart(x, by):
    """Every other column times `by`."""
    return x * np.where(np.arange(x.shape[-1]) % 2, np.float32(by), np.float32(1))


RANGES = {
    "Q large, K small": lambda q, k, v: (q * 1e18, k * 1e-18, v),
    "Q small, K large": lambda q, k, v: (q * 1e-29, k * 1e29, v),
    "Q tiny, K huge": lambda q, k, v: (q * 1e-33, k * 1e37 * 1e-4, v),
    "V large": lambda q, k, v: (q, k, v * 1e36),
    "V small": lambda q, k, v: (q, k, v * 1e-33),
    "columns of V": lambda q, k, v: (q, k, v * np.logspace(-12, 12, v.shape[-1])),
    "rows of Q": lambda q, k, v: (q * np.where(np.arange(130) % 7, 1, 1e4)[:, None], k, v),
    "a key": lambda q, k, v: (q, k, v * np.where(np.arange(150) % 61, 1, 1e6)[:, None]),
    "rows of K": lambda q, k, v: (q, k * np.where(np.arange(150) % 61, 1, 1e-9)[:, None], v),
    "columns of Q and K": lambda q, k, v: (apart(q, 1e4), apart(k, 1e-4), v),
}


@pytest.mark.parametrize("value", [1e12, np.inf, np.nan])
def test_a_key_that_a_mask_hides_does_not_count(value):
    """Each key of K has a scale of its own: rows that do not see the last one keep their digits."""
    q, k, v = inputs(1, 1, 1, 70, 70, 64)
    expected = reference.attention(q, k, v, causal=True)
    k[..., -1, :] *= np.float32(value)
    out = attention(q, k, v, METHOD, causal=True)
    assert_agrees(out[..., :-1, :], expected[..., :-1, :], relative=EXACT, name="out")


@pytest.mark.turns(11)
@pytest.mark.parametrize(("name", "d"), in_turns(crossed(list(RANGES), [64, 72]), 5))
def test_powers_of_two_bring_numbers_into_range(name, d):
    given = [np.float32(x) for x in RANGES[name](*inputs(1, 1, 1, 130, 150, d))]
    check(*given, relative=RELATIVE, columns=True)


def test_what_is_lost_lies_2_to_the_40_below():
    """The header's limit from both sides: numbers 1e5 apart keep their digits, 1e8 apart lose."""
    q, k, v = inputs(1, 1, 1, 20, 40, 64)
    check(apart(q, 1e5), apart(k, 1e-5), v, relative=EXACT)
    far = apart(q, 1e8), apart(k, 1e-8), v
    out, expected = attention(*far, METHOD), reference.attention(*far)
    assert 1e-5 < np.linalg.norm(out - expected) / np.linalg.norm(expected) < 1e-2


def test_a_number_that_is_not_finite_becomes_nan():
    """In Q its row; in K or V, at least what the reference has."""
    for name, value in (("q", np.inf), ("k", np.nan), ("v", np.nan)):
        arrays = dict(zip("qkv", inputs(1, 1, 1, 70, 70, 64), strict=True))
        arrays[name][0, 0, 3, 5] = value
        found = np.isnan(attention(**arrays, method=METHOD))
        with np.errstate(invalid="ignore"):
            expected = np.isnan(reference.attention(**arrays))
        assert expected.any() and found[expected].all()
        assert name != "q" or (found == expected).all()


SWIZZLE = np.array([np.arange(8), np.arange(8) ^ 1])  # chunks of two rows of factors


def halves_as_floats(halves, d, m, of_v):
    """What tiles of halves (matrices, 136*tiles, 128) stand for: (matrices, m, d) float64."""
    boxes = halves.reshape(len(halves), -1, 136, 2, 64)
    big, small = (boxes[:, :, rows : rows + 64].astype(np.float64) for rows in (0, 64))
    numbers = big + small  # (matrices, tiles, 64, 2, 64)
    down = boxes[:, :, 128:130].swapaxes(2, 3).copy().view(np.float32)  # (.., 2, 2, 32)
    down = down.reshape(*down.shape[:3], 2, 8, 4)[:, :, :, [[0], [1]], SWIZZLE]
    down = down.reshape(*down.shape[:3], 64)
    if of_v != (d > 64):  # these have factors in one box, and nothing was written to the other
        down = down[:, :, :1]
    down = down.astype(np.float64)
    # of keys; or of columns, where two times 64 keys share those of the first box
    numbers = numbers * (down[:, :, None] if of_v else down.swapaxes(2, 3)[..., None])
    numbers = numbers if d > 64 else numbers.swapaxes(2, 3)
    numbers = numbers.reshape(len(halves), -1, 128 if d > 64 else 64)
    assert (numbers[:, m:] == 0).all() and (numbers[:, :, d:] == 0).all()  # past the edges
    return numbers[:, :m, :d]


@pytest.mark.turns(7)
@pytest.mark.parametrize(("d", "threads"), [(40, 256), (64, 64), (128, 1024), (81, 128)])
def test_both_parts_together_are_the_number(d, threads):
    """23 bits of each, V for the keys that share a tile's column, K for each key."""
    _, k, v = inputs(2, 3, 3, 1, 150, d)
    k, v = (x.reshape(6, 150, d) for x in (k, v * np.logspace(-9, 9, d, dtype=np.float32)))
    arrays = {"k": k, "v": v}
    problem = Problem(6, 1, 150, d, 3, 3)
    how = {"problem": problem, "backend": "simulator", "options": (f"-DTHREADS={threads}",)}
    halves = run_steps([SPLIT_HALVES], arrays, 1.0, **how)["halves"]
    for found, given, axis in ((halves[0], k, 2), (halves[1], v, 1)):
        numbers = halves_as_floats(found, d, 150, axis == 1) * (1.0 if axis == 2 else 2.0**14)
        top = abs(given).max(axis, keepdims=True)  # of a key of K, or of a column of V
        assert (abs(numbers - given) <= abs(given) * 2.0**-23 + top * 2.0**-39).all()
        assert (numbers != given).any()  # 23 bits are not 24


METHOD_FILE = "33_flash_fp16x3"


@pytest.mark.turns(23)
@pytest.mark.parametrize(
    "text", ["(x / COUNT == 0 ? D * 128 : 0)", "x / COUNT == 0 ? small[i] : big[i]"]
)
def test_small_products_come_first(text):
    """Of scores, and of the output: last, they are added to large sums, which are cut off."""
    q, k, v = inputs(1, 1, 1, 64, 256, 64, seed=3)
    expected, errors = reference.attention(q, k, v), []
    for edits in ((), ((text, text.replace("== 0", "== 2")),)):
        kernel = Kernels("33", [Part(33, (), edits)], q, k, v)
        kernel.call()
        errors.append(np.linalg.norm(kernel.output() - expected) / np.linalg.norm(expected))
    assert errors[0] < EXACT and errors[1] > 1.3 * errors[0]


# -- what is chosen, and what is made of it --------------------------------------------------------
def test_auto_takes_it_on_hopper_for_many_rows_and_keys():
    long = Problem(64, 2048, 2048, 128, 16, 16)
    assert choose(long, H200)[0] == METHOD
    for other in ({"d": 32}, {"biased": True}, {"d": 136}, {"n": 8}, {"m": 128}):
        assert choose(replace(long, **other), H200)[0] != METHOD
    for device in (Device(), replace(H200, capability=(8, 0)), replace(H200, capability=(10, 0))):
        assert choose(long, device)[0] != METHOD
    for n in (1, 9, 64, 160):  # as many rows, in tiles that are half empty
        assert choose(replace(long, n=n, bh=64 * 2048 // n), H200)[0] != METHOD
    many = Problem(119, 128, 192, 64)  # 0.9 tiles a multiprocessor, and 192 keys: both are needed
    assert choose(many, H200)[0] == METHOD
    assert METHOD not in (
        choose(replace(many, **one), H200)[0] for one in ({"bh": 118}, {"m": 191})
    )
    edge = Problem(60, 128, 384, 64, causal=True)  # 0.45 of them, and 384 keys, seen or not
    assert choose(edge, H200)[0] == METHOD
    assert METHOD not in (choose(replace(edge, **one), H200)[0] for one in ({"bh": 59}, {"m": 383}))
    few = Problem(4, 2048, 2048, 64, 4, 4)  # 64 tiles of rows
    assert choose(few, H200)[0] == METHOD and choose(replace(few, bh=2), H200)[0] != METHOD
    assert choose(replace(few, m=300), H200)[0] != METHOD
    halved = Problem(256, 256, 256, 64, 16, 16)
    assert choose(halved, H200)[0] == METHOD
    assert choose(replace(halved, causal=True), H200)[0] != METHOD


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [1, 64, 65, 128])
def test_constants_fit_an_h200(d, causal):
    for bh, n in ((1, 1), (64, 1024), (70000, 3000)):
        problem = Problem(bh, n, n, d, causal=causal)
        geometry = step(METHOD_FILE).launch(problem, (), H200)
        c = step(METHOD_FILE).constants() | fp16x3_config(problem, H200)
        assert geometry.shared_bytes == fp16x3_bytes(c) <= H200.shared_bytes
        assert geometry.grid[0] <= 132


def test_what_it_does_not_take_is_refused_with_the_method_that_does():
    q, k, v = inputs(1, 1, 1, 5, 7, 20)
    with pytest.raises(ValueError, match="has no bias; methods that do: .*flash_tf32x3"):
        attention(q, k, v, METHOD, bias=np.zeros((5, 7), np.float32))
    with pytest.raises(ValueError, match=r"A100 has 8\.0; use method flash_tf32x3"):
        fp16x3_config(Problem(1, 64, 64, 64), Device("A100", (8, 0), 108, 163 * 1024))
    wide = inputs(1, 1, 1, 5, 7, 129)
    with pytest.raises(ValueError, match="head dim 129"):
        attention(*wide, METHOD)


def test_counts():
    """One tile of 128 rows and two of 128 keys: three products for one."""
    with observe(Counters()) as seen:
        check(*inputs(1, 1, 1, 128, 256, 64))
    warps, tiles, columns = 8, 2, 64
    products = tiles * (
        2 * columns // 16 + 128 // 16
    )  # of a warp: 64 keys at once, 16 keys at once
    assert seen.totals["tensor_instructions"] == 3 * warps * products
    assert seen.totals["bulk_load_bytes"] == 2 * tiles * 136 * 128 * 2  # K and V
    assert seen.totals["shared_store_conflicts"] == 0


@pytest.mark.turns(5)
@pytest.mark.parametrize("d", [40, 128])
def test_the_sanitizer_finds_nothing_in_the_split(d):
    _, k, v = (x.reshape(-1, *x.shape[2:]) for x in inputs(1, 2, 2, 1, 70, d))
    with observe(Sanitizer(("halves",))) as watch:
        run_steps([SPLIT_HALVES], {"k": k, "v": v}, 1.0, problem=Problem(2, 1, 70, d, 2, 2))
    assert watch.findings == []


@pytest.mark.turns(59)
@pytest.mark.parametrize(("m", "d"), [(180, 56), (120, 128)])
def test_the_sanitizer_finds_nothing(m, d):
    """A block takes two heads, of two tiles of keys each; one group sees no key of the last one."""
    case = Case(Problem(2, 120, m, d, heads=2, kv_heads=1), causal=True)
    found = clinic.examine(kernel_path(METHOD_FILE), case, options=("-DBLOCKS=1",))
    assert found.findings == [] and found.comparison.agrees


@pytest.mark.turns(17)
def test_stores_that_the_tensor_cores_may_not_see_are_found():
    text = with_headers(kernel_path(METHOD_FILE).read_text(), kernel_path(METHOD_FILE).parent)
    assert text.count("        stores_visible();\n") == 1
    text = text.replace("        stores_visible();\n", "")
    found = clinic.examine(kernel_path(METHOD_FILE), Case(Problem(1, 70, 70, 64)), code=text)
    assert "asynchronous" in str(found.findings) or not found.comparison.agrees, found.findings


@pytest.mark.turns(11)
@pytest.mark.parametrize("d", [64, 128])
def test_ptxas_serialises_nothing(d, tmp_path):
    """No C7508 (setmaxnreg ignored), C7510 and C7515 (products one after the other)."""
    row = step(METHOD_FILE)
    options = (*row.flags, *row.launch(Problem(64, 4096, 4096, d, 16, 16), (), H200).options(()))
    text = with_headers(kernel_path(row.file).read_text(), kernel_path(row.file).parent)
    ptx = RawModule(code=text, options=options, backend="simulator").ptx()
    (tmp_path / "33.ptx").write_text(ptx)
    command = [ptxas(), "-arch=sm_90a", "-v", "33.ptx", "-o", "33.cubin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "C75" not in done.stdout + done.stderr
