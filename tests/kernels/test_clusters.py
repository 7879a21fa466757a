"""Clusters and barriers of kernels 10 to 12, 19, 20 and 29 under the Sanitizer, on the simulator.

What a result cannot show: a place read before it is written, a store that overtakes a read. Each
kernel must be clean where blocks of a cluster have no keys, no columns or no rows of their own, and
must not be clean when any one of its barriers is taken out.
"""

import math
import re
from contextlib import suppress

import numpy as np
import pytest
from kernelscope.compile import CompileError, with_headers
from kernelscope.machine import launch as launches
from kernelscope.module import RawModule

from attn_course import Sanitizer, observe, reference
from attn_course.ladder.call import StepLaunch, numbers_of
from attn_course.ladder.methods import attention, problem_of
from attn_course.ladder.steps import step
from attn_course.reference.comparison import poisoned
from attn_course.reference.inputs import seeded_qkv
from attn_devtools.agreement import assert_agrees
from attn_devtools.shares import crossed, in_turns

pytestmark = pytest.mark.system

RELATIVE = 2e-6
CLUSTERS = (1, 2, 4, 8)
METHODS = ("rows_split", "flash_split", "split_tf32x3")
SINGLE = (*METHODS, "flash_async", "flash_fp32", "flash_rows")


@pytest.fixture(autouse=True)
def on_the_simulator(monkeypatch):
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")


def smallest(method, cluster, **more):
    """Constants of small tiles: 4 rows a block, or 16, of which a cluster of 8 may have none."""
    if method == "split_tf32x3":
        return {"CLUSTER": cluster, "D": 64, "ROW_WARPS": 1, "KEY_WARPS": 2, "BC": 8} | more
    if method == "rows_split":
        return {"CLUSTER": cluster, "COLS": 1, "WARPS": 2, "ROWS": 1, "KEYS": 2} | more
    tile = {"D": 64, "ROWS": 1, "KEYS": 1, "ROW_WARPS": 1, "KEY_WARPS": 2}
    return {"CLUSTER": cluster} | tile | more


def as_options(constants):
    return tuple(f"-D{name}={value}" for name, value in constants.items())


def check(method, constants, q, k, v, **asked):
    """Output and log-sum-exp against float64, and what the Sanitizer finds: nothing."""
    out = poisoned(q.shape)
    with observe(Sanitizer()) as report:
        _, lse = attention(
            q, k, v, method=method, return_lse=True, out=out, options=as_options(constants), **asked
        )
    assert not report.findings, report.findings[0]
    expected, expected_lse = reference.attention(q, k, v, return_lse=True, **asked)
    assert_agrees(out, expected, name=method, relative=RELATIVE)
    assert_agrees(lse, expected_lse, name=f"{method} lse", relative=RELATIVE, absolute=RELATIVE)


# (B, H, n, d), keys, causal: with more queries than keys, causal rows see no key
SHAPES = [
    ((1, 2, 5, 63), 21, True),
    ((1, 1, 1, 1), 1, False),
    ((2, 1, 3, 31), 37, False),
    ((1, 1, 9, 64), 5, True),
    ((1, 2, 13, 36), 1, True),
]


# Two shapes for each method, all of them for the three: other sizes of a cluster have a test below.
@pytest.mark.turns(29)
@pytest.mark.parametrize(("method", "cluster"), in_turns(crossed(METHODS, (2, 8)), 3))
def test_the_sanitizer_finds_nothing(method, cluster):
    """Rows, keys and columns that leave some blocks of a cluster without any of them."""
    shapes = [shape for one, shape in crossed(METHODS, SHAPES, each=2) if one == method]
    for extents, keys, causal in shapes:
        q, k, v = seeded_qkv(extents, kv_length=keys, seed=cluster)
        check(method, smallest(method, cluster), q, k, v, causal=causal)


@pytest.mark.turns(59)
@pytest.mark.parametrize(("method", "cluster"), in_turns(crossed(METHODS, CLUSTERS), 3))
def test_heads_and_biases_in_clusters(method, cluster):
    """Each size of a cluster with another sharing of the bias."""
    q, k, v = seeded_qkv((2, 4, 6, 20), kv_length=19, seed=cluster)
    bias = np.random.default_rng(cluster).normal(0, 2, (2, 4, 6, 19)).astype(np.float32)
    bias[0, 1, 3] = bias[:, :, 4, :18] = bias[:, :, 5, 2:17] = -np.inf
    k, v = k[:, :2].copy(), v[:, :2].copy()
    shared = {1: bias[0, 0], 2: bias[:, :1], 4: bias[0], 8: bias}[cluster].copy()
    check(method, smallest(method, cluster), q, k, v, bias=shared, causal=True)


@pytest.mark.turns(37)
@pytest.mark.parametrize(("cluster", "method"), in_turns(crossed(CLUSTERS, METHODS), 4))
def test_no_order_of_warps_and_blocks_changes_a_bit(method, cluster, monkeypatch):
    q, k, v = seeded_qkv((1, 2, 11, 50), kv_length=45, seed=cluster)
    call = {"method": method, "causal": True, "options": as_options(smallest(method, cluster))}
    expected = attention(q, k, v, **call)
    for seed in (1, 2):
        monkeypatch.setenv(launches.WARP_ORDER, str(seed))
        monkeypatch.setattr(launches, "LANES_PER_CHUNK", 512 * seed)
        np.testing.assert_array_equal(attention(q, k, v, **call), expected)


@pytest.mark.turns(29)
@pytest.mark.parametrize("cluster, width, keys", [(1, 64, 64), (2, 80, 56), (4, 64, 56)])
def test_large_tiles_of_29(cluster, width, keys):
    """The last tile has some of its keys; blocks of a cluster of 4 have none."""
    tile = smallest("split_tf32x3", cluster, D=width, BC=keys)
    q, k, v = seeded_qkv((1, 1, 18, width - 3), kv_length=2 * keys * min(cluster, 2) + 21, seed=1)
    check("split_tf32x3", tile, q, k, v, causal=True)


# -- what is not a number ----------------------------------------------------------------------
def tuned(method):
    more = {} if method == "split_tf32x3" else {"ROWS": 2}
    return smallest(method, 4, **more) if method in METHODS else {}


@pytest.mark.turns(23)
@pytest.mark.parametrize(("method", "value"), crossed(SINGLE, [np.nan, np.inf, -np.inf]), ids=str)
def test_a_query_that_is_no_number_spoils_its_row_alone(method, value):
    q, k, v = seeded_qkv((1, 2, 11, 24), kv_length=30, seed=5)
    call = {"method": method, "return_lse": True, "options": as_options(tuned(method))}
    expected, expected_lse = attention(q, k, v, **call)
    q[0, 1, 4, 3] = value
    out, lse = attention(q, k, v, **call)
    assert np.isnan(out[0, 1, 4]).all() and np.isnan(lse[0, 1, 4])
    out[0, 1, 4], lse[0, 1, 4] = expected[0, 1, 4], expected_lse[0, 1, 4]
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, expected_lse)


@pytest.mark.turns(29)
@pytest.mark.parametrize("method", SINGLE)
def test_a_key_that_is_no_number_spoils_the_rows_that_see_it(method):
    q, k, v = seeded_qkv((1, 2, 30, 24), seed=5)
    k[0, 0, 17, 2] = np.nan
    bias = np.zeros((30, 30), np.float32)
    bias[20, 3], bias[21, 4] = np.inf, np.nan
    call = {"method": method, "return_lse": True, "options": as_options(tuned(method))}
    for given in (None, bias):
        out, lse = attention(q, k, v, causal=True, bias=given, **call)
        with np.errstate(invalid="ignore"):
            expected = reference.attention(q, k, v, causal=True, bias=given, return_lse=True)
        np.testing.assert_array_equal(np.isnan(out), np.isnan(expected[0]))
        np.testing.assert_array_equal(np.isnan(lse), np.isnan(expected[1]))
        assert np.isnan(out[0, 0, 17:]).all() and np.isfinite(out[0, 0, :17]).all()


# -- each barrier is needed ----------------------------------------------------------------------
WAITS = re.compile(
    r"^ +((?:__sync\w+|copies_arrived<\d>|cluster_wait)\(\)|\w*inbox\.wait\([^;]*\));", re.MULTILINE
)
# Parts of more rows than K has keys, so that they reach into V.
TALL = {"D": 32, "ROWS": 4, "KEYS": 1, "ROW_WARPS": 1, "KEY_WARPS": 2}
NEEDED_BY = {
    "rows_split": ({"CLUSTER": 2, "COLS": 1, "WARPS": 2, "ROWS": 2, "KEYS": 4}, (1, 1, 5, 126), 70),
    "flash_split": (smallest("flash_split", 2, D=32), (1, 1, 5, 31), 70),
    "split_tf32x3": (smallest("split_tf32x3", 2, D=32), (1, 1, 5, 32), 70),
    "flash_async": (TALL, (1, 1, 9, 31), 40),
    "flash_fp32": (TALL, (1, 1, 9, 31), 40),
    "flash_rows": ({"D": 32, "WARPS": 2}, (1, 1, 3, 31), 70),
}


class FoundAny(Exception):
    """Ends a launch that has a finding: the others are not needed."""


class UntilAny(Sanitizer):
    def instruction(self, event):
        super().instruction(event)
        if len(self.found):
            raise FoundAny


def with_a_switch(source):
    """Return (source, texts): each barrier of a kernel is passed over when `skipped` is its number.

    One compilation serves all the barriers; the texts say where each of them is. In the place of a
    wait for an inbox stays a barrier of the block, which must not be enough.
    """
    body = source.index('extern "C"')
    parts, end, texts = [source[:body], "__device__ int skipped = -1;\n"], body, []
    for found in WAITS.finditer(source, body):
        start, instead = found.start(), ""
        if "inbox" in found[0]:
            instead = "__syncthreads();"
        text = source[start : found.end()]
        parts += [source[end:start], f"if (skipped != {len(texts)}) {{ {text} }}"]
        parts += [f" else {{ {instead} }}"]
        end = found.end()
        texts.append(f"line {source.count(chr(10), 0, found.start()) + 1}: {found[0].strip()}")
    return "".join([*parts, source[end:]]), texts


@pytest.mark.turns(41)
@pytest.mark.parametrize("method", in_turns(SINGLE, 6))
def test_every_barrier_is_needed(method):
    """Without it the Sanitizer finds a race, at the least; so none waits for nothing."""
    constants, extents, keys = NEEDED_BY[method]
    row, options = step(method), as_options(constants)
    source, barriers = with_a_switch(with_headers(row.path.read_text(), row.path.parent))
    assert len(barriers) >= (4 if method == "flash_rows" else 5)
    q, k, v = seeded_qkv(extents, kv_length=keys, seed=5)
    blind = seeded_qkv((1, 1, 40, extents[3]), kv_length=1, seed=5)  # first rows see no key
    problems = [(problem_of(q, k), q, k, v), (problem_of(*blind[:2], causal=True), *blind)]
    launch = row.launch(problems[0][0], options)
    module = RawModule(code=source, options=options)
    kernel = module.get_function(row.entry)
    kernel.max_dynamic_shared_size_bytes = launch.shared_bytes
    for skipped in range(-1, len(barriers)):
        module.get_global("skipped").view(np.int32)[:] = skipped
        for problem, q, k, v in problems:
            numbers = numbers_of(problem, 1 / math.sqrt(q.shape[3]))
            called = StepLaunch(row, row.launch(problem, options), kernel, numbers)
            with suppress(FoundAny), observe(UntilAny()) as report:
                called.run({"q": q, "k": k, "v": v, "out": poisoned(q.shape)})
            if report.findings:
                break
        if skipped < 0:
            assert not report.findings, report.findings[0]
        else:
            assert report.findings, barriers[skipped]


@pytest.mark.parametrize(
    ("method", "constants", "message"),
    [
        ("rows_split", {"CLUSTER": 3}, "1, 2, 4 or 8 blocks"),
        ("rows_split", {"CLUSTER": 16}, "1, 2, 4 or 8 blocks"),
        ("rows_split", {"COLS": 3}, "whole rows of a tile"),
        ("rows_split", {"WARPS": 33}, "at most 32 warps"),
        ("rows_split", {"WARPS": 2, "COLS": 1, "ROWS": 16, "KEYS": 1}, "lie where K lay"),
        ("flash_split", {"CLUSTER": 3}, "1, 2, 4 or 8 blocks"),
        ("flash_split", {"D": 48}, "32 columns at once"),
        ("flash_split", {"ROW_WARPS": 8, "KEY_WARPS": 5}, "at most 32 warps"),
        ("flash_split", {"D": 256, "KEY_WARPS": 1}, "a row of a tile is copied at once"),
        ("split_tf32x3", {"CLUSTER": 3}, "1, 2, 4 or 8 blocks"),
        ("split_tf32x3", {"D": 40}, "16 columns, 8 keys, 32 warps"),
        ("split_tf32x3", {"D": 256, "ROW_WARPS": 1, "KEY_WARPS": 1}, "a row of a tile is copied"),
        ("flash_async", {"ROWS": 8, "KEY_WARPS": 2, "KEYS": 4}, "parts are joined"),
        ("flash_fp32", {"ROWS": 8, "KEY_WARPS": 2, "KEYS": 4}, "parts are joined"),
    ],
    ids=str,
)
def test_constants_that_a_kernel_cannot_take_do_not_compile(method, constants, message):
    path = step(method).path
    source = with_headers(path.read_text(), path.parent)
    with pytest.raises(CompileError, match=message):
        RawModule(code=source, options=as_options(constants)).compile()


@pytest.mark.turns(37)
@pytest.mark.parametrize("key_warps", in_turns([1, 2], 2))
def test_11_and_12_give_the_same_bits(key_warps):
    """The same sums in the same order, as 12's header says."""
    constants = {"D": 64, "ROWS": 2, "KEYS": 2, "ROW_WARPS": 2, "KEY_WARPS": key_warps}
    q, k, v = seeded_qkv((1, 2, 37, 50), kv_length=45, seed=4)
    first, second = (
        attention(q, k, v, method=method, causal=True, options=as_options(constants))
        for method in ("flash_fp32", "flash_async")
    )
    np.testing.assert_array_equal(first, second)


# -- long rows -----------------------------------------------------------------------------------
ONE_WARP = {"D": 32, "ROWS": 1, "KEYS": 1, "ROW_WARPS": 1, "KEY_WARPS": 1}  # tiles of 8 keys
LONG = {"flash_fp32": ONE_WARP, "flash_async": ONE_WARP, "flash_split": ONE_WARP | {"CLUSTER": 2}}


# flash_async has the bits of flash_fp32, as a test above says.
@pytest.mark.turns(47)
@pytest.mark.parametrize("method", in_turns(["flash_fp32", "flash_split"], 2))
def test_long_rows_keep_their_digits(method):
    """One float32 sum over as many keys would have four times this error, or more."""
    q, k, v = seeded_qkv((1, 1, 1, 8), kv_length=9_003, seed=3)
    v += 1
    options = as_options(LONG[method] | {"KEYS": 4})
    out = attention(q, k, v, method=method, options=options)
    expected = reference.attention(q, k, v)
    assert np.linalg.norm(out - expected) < 3e-7 * np.linalg.norm(expected)


@pytest.mark.turns(23)
@pytest.mark.parametrize(("method", "keys"), in_turns(crossed(list(LONG), [25, 64, 135]), 3))
def test_rows_that_end_about_where_a_span_does(method, keys):
    """Spans are 4 tiles of 8 keys; -inf hides all keys of the first ones, in some rows."""
    q, k, v = seeded_qkv((1, 1, 5, 20), kv_length=keys, seed=keys)
    bias = np.zeros((5, keys), np.float32)
    bias[1, :70] = bias[2] = -np.inf
    check(method, LONG[method] | {"SPAN": 4}, q, k, v, bias=bias, causal=True)
