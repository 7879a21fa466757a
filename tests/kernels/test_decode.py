"""Kernels 23 and 34: few queries on a cache. Ragged lengths, pages, grouped heads, refusals."""

import shutil
import subprocess
from dataclasses import replace
from importlib import metadata

import ml_dtypes
import numpy as np
import pytest
from kernelscope.compile import with_headers

from attn_course import Counters, RawModule, Sanitizer, attention, observe, reference
from attn_course.ladder.call import call_steps
from attn_course.ladder.choose import choose
from attn_course.ladder.headers import kernel_path
from attn_course.ladder.matrix_tiles import (
    DECODE_TILES,
    decode_bytes,
    decode_cluster_bytes,
    decode_cluster_config,
    decode_config,
)
from attn_course.ladder.methods import problem_of
from attn_course.ladder.problem import Device, Problem
from attn_course.ladder.steps import step
from attn_devtools.agreement import assert_agrees
from attn_devtools.shares import crossed, in_turns

pytestmark = pytest.mark.system

BFLOAT16, HALF = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
RELATIVE = {BFLOAT16: 4e-3, HALF: 6e-4}
H200 = Device("NVIDIA H200", (9, 0), 132, 227 * 1024)
A100 = Device("A100", (8, 0), 108, 163 * 1024)
LITTLE = Device("sm_86", (8, 6), 84, 99 * 1024)  # the least shared memory of GPUs from sm_80 on
LITTLE_CLUSTERED = Device("sm_120", (12, 0), 170, 99 * 1024)  # and of those with clusters
LENGTHS = (0, 1, 15, 16, 17, 1000)
METHODS = ("decode", "decode_cluster")


@pytest.fixture(autouse=True)
def on_the_simulator(no_gpu):
    """The messages and the counters are the simulator's."""


def inputs(dtype, batch, heads, kv_heads, n, m, d, seed=0):
    """q (batch, heads, n, d), k and v (batch, kv_heads, m, d), rounded to the dtype."""
    rng = np.random.default_rng(seed)
    shapes = ((batch, heads, n, d), *((batch, kv_heads, m, d),) * 2)
    return [rng.normal(0.1, 1.0, shape).astype(dtype) for shape in shapes]


def expected(q, k, v, lengths, causal=False, scale=None):
    """Out and lse of each sequence on its own keys, in float64; without keys zeros and -inf."""
    out, lse = np.zeros(q.shape), np.full(q.shape[:3], -np.inf)
    for b, length in enumerate(lengths):
        if length:
            exact = [
                a[b : b + 1].astype(np.float64) for a in (q, k[:, :, :length], v[:, :, :length])
            ]
            how = {"causal": causal, "scale": scale, "return_lse": True}
            out[b : b + 1], lse[b : b + 1] = reference.attention(*exact, **how)
    return out, lse


def poisoned_past(array, lengths):
    """A copy with NaN past each length."""
    array = array.copy()
    for b, length in enumerate(lengths):
        array[b, :, length:] = np.nan
    return array


def paged(array, page, seed=0):
    """Pages (pages, kv_heads, page, d) in any order among pages of NaN, and their table."""
    batch, kv_heads, m, d = array.shape
    count = m // page
    table = np.random.default_rng(seed).permutation(batch * count + 3)[: batch * count]
    pages = np.full((batch * count + 3, kv_heads, page, d), np.nan, array.dtype)
    split = array.reshape(batch, kv_heads, count, page, d).transpose(0, 2, 1, 3, 4)
    pages[table] = split.reshape(-1, kv_heads, page, d)
    return pages, table.reshape(batch, count).astype(np.int32)


def check(q, k, v, lengths, method="decode", *, page=0, kv_layout="HND", options=(), **how):
    """Run a method on a cache that is NaN where no key is; out starts as NaN."""
    wanted, wanted_lse = expected(q, k, v, lengths, **how)
    k, v = (poisoned_past(array, lengths) for array in (k, v))
    if page:
        (k, table), (v, _) = paged(k, page), paged(v, page)
        how["page_table"] = table
    if kv_layout == "NHD":
        k, v = (np.ascontiguousarray(array.swapaxes(1, 2)) for array in (k, v))
    out = np.full(q.shape, np.nan, q.dtype)
    how |= {"lengths": np.array(lengths, np.int32), "kv_layout": kv_layout, "options": options}
    _, lse = attention(q, k, v, method, out=out, return_lse=True, **how)
    np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(wanted_lse))
    seen = np.isfinite(wanted_lse)
    assert_agrees(lse[seen], wanted_lse[seen], relative=2e-6, name="lse")
    assert_agrees(out, wanted, relative=RELATIVE[q.dtype], name="out")
    assert not out[~seen].any()


# dtype, heads, kv_heads, n, d
RAGGED = [
    (BFLOAT16, 2, 2, 1, 64, {}),
    (HALF, 4, 2, 2, 128, {"causal": True, "page": 16}),
    (BFLOAT16, 8, 2, 3, 80, {"causal": True, "page": 48, "kv_layout": "NHD"}),
    (BFLOAT16, 8, 1, 4, 256, {"causal": True}),
    (HALF, 10, 2, 1, 64, {"page": 112, "kv_layout": "NHD"}),
    (HALF, 1, 1, 4, 30, {"causal": True, "kv_layout": "NHD"}),
]


@pytest.mark.turns(29)
@pytest.mark.parametrize(("method", "case"), in_turns(crossed(METHODS, RAGGED), 6), ids=str)
def test_ragged_lengths(method, case):
    """32 rows are two blocks' of 16; 30 columns are copied element by element."""
    dtype, heads, kv_heads, n, d, how = case
    page = how.get("page", 16)
    m = -(-max(LENGTHS) // page) * page
    check(*inputs(dtype, len(LENGTHS), heads, kv_heads, n, m, d), LENGTHS, method, **how)


@pytest.mark.turns(37)
@pytest.mark.parametrize("blocks", in_turns([1, 2, 5, 40], 2))
def test_any_number_of_blocks(blocks):
    """A block has pieces of many heads, or a head hundreds of keys in many blocks."""
    chosen = (f"-DBLOCKS={blocks}",)
    check(*inputs(BFLOAT16, 3, 4, 2, 1, 700, 32), (700, 3, 450), options=chosen)


@pytest.mark.turns(37)
@pytest.mark.parametrize("cluster", in_turns([1, 2, 4, 8], 2))
def test_any_cluster(cluster):
    """Of 10 rows some blocks finish more than others, or none; 3 keys are one block's."""
    chosen = (f"-DCLUSTER={cluster}",)
    cache = inputs(BFLOAT16, 3, 10, 2, 2, 300, 32)
    check(*cache, (300, 3, 150), "decode_cluster", options=chosen, causal=True)


@pytest.mark.turns(17)
def test_many_sequences():
    """More than a warp has lanes."""
    lengths = [b * 7 % 90 for b in range(70)]
    check(*inputs(HALF, 70, 2, 1, 1, 96, 16), lengths, page=96, options=("-DBLOCKS=11",))


@pytest.mark.turns(23)
def test_without_lengths_and_with_queries_before_the_first_key():
    q, k, v = inputs(BFLOAT16, 2, 6, 3, 5, 40, 64)
    out = attention(q, k, v, "decode", causal=True)
    assert_agrees(out, expected(q, k, v, (40, 40), causal=True)[0], relative=4e-3, name="out")
    check(q, k, v, (2, 33), causal=True)


@pytest.mark.parametrize(("method", "scale"), in_turns(crossed(METHODS, [-0.4, 0.0, 3.0]), 3))
def test_other_scales(method, scale):
    check(*inputs(BFLOAT16, 1, 4, 2, 1, 300, 64), (290,), method, scale=scale)


@pytest.mark.turns(37)
@pytest.mark.parametrize(
    ("method", "option"),
    in_turns([("decode", "-DBLOCKS=1"), ("decode", "-DBLOCKS=3"), ("decode_cluster", "")], 3),
)
def test_huge_logits_that_rise_and_fall(method, option):
    """Later parts have larger shifts than earlier ones, and the reverse."""
    for order in (1, -1):
        q, k, v = inputs(HALF, 1, 2, 2, 1, 400, 64)
        q[..., 0], k[..., 0] = 50.0, np.arange(400)[::order] // 64 * 40.0
        check(q, k, v, (400,), method, options=(option,) if option else ())


@pytest.mark.parametrize(("method", "shift"), in_turns(crossed(METHODS, [1, 4]), 2))
def test_unaligned_caches(method, shift):
    q, k, v = inputs(BFLOAT16, 1, 2, 1, 1, 50, 64)
    block = np.zeros(k.size + shift, k.dtype)
    block[shift:] = k.ravel()
    out = attention(q, block[shift:].reshape(k.shape), v, method)
    assert_agrees(out, expected(q, k, v, (50,))[0], relative=4e-3, name="out")


@pytest.mark.turns(23)
def test_calls_again_and_plans_leave_the_counters_at_zero():
    q, k, v = inputs(BFLOAT16, 2, 4, 2, 1, 300, 64)
    lengths = np.array([300, 120], np.int32)
    how = {"lengths": lengths, "options": ("-DBLOCKS=5",)}
    plan = attention.plan(q, k, v, method="decode", **how)
    for changed in (300, 0, 77):
        lengths[0] = changed
        for out in (plan(), attention(q, k, v, "decode", **how)):
            assert_agrees(out, expected(q, k, v, lengths)[0], relative=4e-3, name="out")


@pytest.mark.turns(37)
@pytest.mark.parametrize(
    ("method", "case"),
    in_turns(
        crossed(
            (("decode", "-DBLOCKS=3"), ("decode_cluster", "-DCLUSTER=4")),
            (((2, 4, 2, 2, 240, 64), (230, 37), 48), ((1, 2, 2, 1, 150, 20), (150,), 0)),
        ),
        4,
    ),
    ids=str,
)
def test_memory_is_used_soundly(method, case):
    (method, option), (shape, lengths, page) = method, case
    how = {"page": page, "options": (option,), "causal": True}
    with observe(Sanitizer()) as report:
        check(*inputs(BFLOAT16, *shape), lengths, method, **how)
    assert report.findings == []


JOINS = "__syncthreads();  // barrier: a fast warp would join parts that "
BARRIERS = ("cluster_wait();   //", f"{JOINS}are not", f"{JOINS}others", "inbox.wait(0);")


@pytest.mark.turns(23)
@pytest.mark.parametrize("line", in_turns(BARRIERS, 4))
def test_every_barrier_of_a_cluster_is_needed(line):
    text = kernel_path("34_decode_cluster").read_text()
    assert text.count(line) == 1
    one = replace(step("decode_cluster"), text=text.replace(line, "// " + line))
    q, k, v = inputs(BFLOAT16, 1, 4, 1, 1, 200, 64)
    arrays = {"q": q, "k": k, "v": v, "out": np.full(q.shape, np.nan, q.dtype)}
    how = {"problem": problem_of(q, k), "options": ("-DCLUSTER=2",)}
    call = call_steps((one,), arrays, 0.1, **how)
    with observe(Sanitizer()) as report:
        call.run()
    assert report.findings


@pytest.mark.turns(47)
def test_a_page_outside_the_cache_is_reported():
    """A plan reads its table when it runs, after the host's check."""
    q, k, _ = inputs(BFLOAT16, 1, 1, 1, 1, 64, 64)
    pages, table = paged(k, 16)
    plan = attention.plan(q, pages, pages, method="decode", page_table=table)
    table[0, 2] = 1000
    with observe(Sanitizer()) as report:
        plan.run()
    assert {finding.kind for finding in report.findings} == {"out-of-bounds"}


@pytest.mark.turns(37)
@pytest.mark.parametrize("d", in_turns([64, 256], 2))
def test_counts(d):
    """Each byte of K and V is read once, whatever the group; conflicts in no tile."""
    products, bulk = [], d == 256
    for heads in (2, 16):
        q, k, v = inputs(BFLOAT16, 1, heads, 2, 1, 256, d)
        with observe(Counters()) as seen:
            attention(q, k, v, "decode", options=("-DBLOCKS=4",))
        of_cache = 2 * 2 * 256 * d * 2
        others = q.nbytes + 4 * 2 * 16 * (d + 8) * 4 + 4 * 4
        assert of_cache < seen.totals["unique_global_bytes_read"] <= of_cache + others
        assert seen.totals["async_copy_requests"] * 32 * 16 == (0 if bulk else of_cache)
        assert seen.totals["bulk_copy_requests"] * 2 * d == (of_cache if bulk else 0)
        assert seen.totals["global_atomic_requests"] == 4
        assert seen.totals["shared_load_conflicts"] == seen.totals["shared_store_conflicts"] == 0
        products.append(seen.totals["tensor_instructions"])
    assert products[0] == products[1] == 2 * 256 // 16 * (2 * d // 16 + 2 * d // 16)


@pytest.mark.turns(23)
def test_counts_of_a_cluster():
    """A byte of the cache is read once; parts travel in shared memory, and nothing is counted."""
    q, k, v = inputs(BFLOAT16, 1, 4, 1, 1, 256, 64)
    with observe(Counters()) as seen:
        attention(q, k, v, "decode_cluster", options=("-DCLUSTER=4",))
    of_cache = k.nbytes + v.nbytes
    assert of_cache < seen.totals["unique_global_bytes_read"] <= of_cache + q.nbytes
    assert seen.totals["unique_global_bytes_written"] == q.nbytes
    assert seen.totals["global_atomic_requests"] == 0
    assert seen.totals["shared_load_conflicts"] == seen.totals["shared_store_conflicts"] == 0


# -- what is chosen, and what is refused -----------------------------------------------------------
def test_auto_takes_it_for_few_queries_and_for_caches():
    few = Problem(64, 1, 8192, 128, 32, 8, dtype="bfloat16")
    for device in (H200, A100):
        method, reason = choose(few, device)
        assert method == "decode" and "8192 keys" in reason and device.name in reason
        for other in ({"n": 64}, {"m": 16}, {"biased": True}):
            assert choose(Problem(**{**few.__dict__, **other}), device)[0] != "decode"
    assert choose(Problem(64, 64, 64, 64, dtype="float16", page=16), H200)[0] == "decode"


def test_auto_takes_a_cluster_a_head_for_few_heads_and_short_caches():
    """Two tiles of each block, or four; what else is needed is whatever decode needs."""
    short = Problem(32, 1, 2048, 128, 32, 8, dtype="bfloat16")
    paged_cache = replace(short, page=16, ragged=True)
    many = {"bh": 128, "heads": 128, "kv_heads": 32}  # clusters of 4 warps, 256 blocks
    for problem in (short, paged_cache, replace(short, **many)):
        assert choose(problem, H200)[0] == "decode_cluster"
        assert choose(problem, A100)[0] == "decode"
    tiles = [decode_cluster_config(one, H200) for one in (short, replace(short, m=512))]
    assert [c["WARPS"] for c in tiles] == [8, 4] and tiles[0]["CLUSTER"] == 8
    for other in ({"m": 2049}, {"bh": 64, "heads": 64, "kv_heads": 16}, many | {"m": 2049}):
        assert choose(replace(short, **other), H200)[0] == "decode"
    assert choose(replace(paged_cache, n=200), H200)[0] == "decode"
    assert choose(replace(short, m=100), H200)[0] != "decode_cluster"


@pytest.mark.parametrize("d", [16, 64, 144, 256])
def test_auto_takes_a_cluster_a_head_up_to_4096_keys_where_heads_are_narrow_or_wide(d):
    """Four tiles of 8 warps of each block, or eight of 4 warps."""
    most = Problem(32, 1, 4096, d, 32, 8, dtype="float16")
    for keys, method in ((4096, "decode_cluster"), (4097, "decode")):
        assert choose(replace(most, m=keys), H200)[0] == method
    if d <= 64:  # two blocks of 8 warps a multiprocessor, of 120
        for heads, warps in ((30, 8), (31, 4)):
            several = replace(most, m=1024, bh=heads, heads=heads, kv_heads=heads)
            assert decode_cluster_config(several, H200)["WARPS"] == warps


@pytest.mark.parametrize("d", [128, 200, 256])
def test_auto_takes_what_fits_where_shared_memory_is_little(d):
    """A cache of pages has to be read, though no tile of a cluster holds wide heads."""
    cache = Problem(8, 1, 512, d, 8, 2, dtype="bfloat16", page=16, ragged=True)
    method, _ = choose(cache, LITTLE_CLUSTERED)
    assert method == ("decode_cluster" if d == 128 else "decode")
    launch = step(method).launch(cache, (), LITTLE_CLUSTERED)
    assert launch.shared_bytes <= LITTLE_CLUSTERED.shared_bytes


def test_few_heads_of_many_keys_have_less_on_its_way():
    """132 blocks: 33 heads are few, and 32 tiles of each block many."""
    long = Problem(4, 1, 131072, 128, 4, 4, dtype="bfloat16")
    for other, stages in (
        ({}, 3),
        ({"m": 140_000}, 2),
        ({"bh": 34, "heads": 34, "kv_heads": 34}, 3),
    ):
        assert decode_config(replace(long, **other), H200)["STAGES"] == stages


@pytest.mark.parametrize("d", [16, 64, 80, 128, 200, 256])
@pytest.mark.parametrize("device", [H200, A100, LITTLE, LITTLE_CLUSTERED])
def test_a_cluster_fits_a_device(d, device):
    problem = Problem(64, 5, 700, d, 8, 2, dtype="float16")
    if device.shared_bytes < A100.shared_bytes and d > 128:
        with pytest.raises(ValueError, match=f"{d} fits no tile on {device.name}.*method decode"):
            step("decode_cluster").launch(problem, (), device)
        return
    launch = step("decode_cluster").launch(problem, (), device)
    assert launch.shared_bytes == decode_cluster_bytes(launch.constants) <= device.shared_bytes
    assert launch.constants["CLUSTER"] == (8 if device.has_clusters else 1)
    assert launch.grid == (16 * launch.constants["CLUSTER"], 2, 1)


@pytest.mark.parametrize("d", [16, 64, 80, 128, 200, 256])
@pytest.mark.parametrize("device", [H200, A100, LITTLE, LITTLE_CLUSTERED])
def test_blocks_fill_a_device_once(d, device):
    problem = Problem(64, 1, 100_000, d, 8, 2, dtype="float16")
    c = decode_config(problem, device)
    assert decode_bytes(c) <= device.shared_bytes
    assert (decode_bytes(c) + 1024) * c["RESIDENT"] <= device.shared_bytes + 1024
    assert step("decode").launch(problem, (), device).grid == (c["BLOCKS"], 1, 1)
    assert c["BLOCKS"] == c["RESIDENT"] * device.sm_count
    more = Problem(64, 5, 100_000, d, 8, 2, dtype="float16")  # 20 rows a head: two tiles of 16
    assert step("decode").launch(more, (), device).grid == (c["BLOCKS"] // 2, 2, 1)


def test_what_it_does_not_take_is_refused():
    q, k, v = inputs(BFLOAT16, 2, 4, 2, 1, 40, 64)
    table = np.zeros((2, 1), np.int32)
    with pytest.raises(ValueError, match="room for 40 keys"):
        attention(q, k, v, "decode", lengths=np.array([41, 3], np.int32))
    with pytest.raises(ValueError, match=r"lengths\[1\] is -1; "):
        attention(q, k, v, "decode", lengths=np.array([40, -1], np.int32))
    with pytest.raises(TypeError, match="lengths is int64, not int32"):
        attention(q, k, v, "decode", lengths=np.array([4, 3]))
    with pytest.raises(ValueError, match=r"lengths has shape \(3,\), not \(2,\): one a seq"):
        attention(q, k, v, "decode", lengths=np.zeros(3, np.int32))
    with pytest.raises(ValueError, match=r"page_table has shape \(1, 2\), not \(2, pages\): a row"):
        attention(q, k, v, "decode", page_table=table.reshape(1, 2))
    with pytest.raises(ValueError, match="a page of k has 40 keys, not a multiple of 16"):
        attention(q, k, v, "decode", page_table=table)
    with pytest.raises(ValueError, match="kv_layout is 'NDH': choose one of HND, NHD"):
        attention(q, k, v, "decode", kv_layout="NDH")
    with pytest.raises(ValueError, match="no lengths of sequences; methods that do: decode"):
        attention(q, k, v, "flash_mma", lengths=np.zeros(2, np.int32))
    with pytest.raises(ValueError, match="no page table; methods that do: decode"):
        attention(q, k[:, :, :32].copy(), v[:, :, :32].copy(), "flash_mma", page_table=table)
    with pytest.raises(ValueError, match="no kv_layout NHD; methods that do: decode"):
        attention(q, *(a.swapaxes(1, 2).copy() for a in (k, v)), "flash_mma", kv_layout="NHD")
    with pytest.raises(ValueError, match="head dim 300, but it takes at most 256"):
        attention(*inputs(HALF, 1, 1, 1, 1, 5, 300), "decode")
    with pytest.raises(ValueError, match="method 'decode' has no bias"):
        attention(q, k, v, "decode", bias=np.zeros((1, 40), np.float32))
    small = Device("small", (8, 0), 1, 40 * 1024)
    assert choose(Problem(64, 1, 4096, 64, dtype="float16"), small)[0] == "flash_mma"


@pytest.mark.parametrize("number", [-1, 4])
def test_a_page_that_the_cache_does_not_have_is_refused_where_a_length_needs_it(number):
    q, k, v = inputs(BFLOAT16, 2, 4, 2, 1, 32, 64)
    k, v = (a.reshape(4, 2, 16, 64) for a in (k, v))  # 4 pages of 16 keys
    table, lengths = np.array([[0, 1], [2, number]], np.int32), np.array([32, 16], np.int32)
    paged_cache = {"page_table": table, "lengths": lengths}
    told = rf"page_table\[1\]\[1\] is {number}; k has pages 0 to 3"
    expected = attention(q, k, v, "decode", **paged_cache)
    lengths[1] = 17
    with pytest.raises(ValueError, match=told):  # the call is a kept one by now
        attention(q, k, v, "decode", **paged_cache)
    with pytest.raises(ValueError, match=told):
        attention(q, k, v, "decode", page_table=table)
    table[1, 1], lengths[1] = 3, 16
    assert np.array_equal(attention(q, k, v, "decode", **paged_cache), expected)


@pytest.mark.parametrize("blocks", [0, 3])
def test_a_size_that_no_cluster_has_is_refused(blocks):
    with pytest.raises(ValueError, match=f"CLUSTER is {blocks}; a cluster has 1, 2, 4 or 8"):
        step("decode_cluster").launch(Problem(4, 1, 64, 64), (f"-DCLUSTER={blocks}",), H200)


def test_the_fastest_tiles_that_fit_are_taken():
    problem = Problem(64, 1, 4096, 128, 8, 2, dtype="float16")
    warps = [decode_config(problem, device)["WARPS"] for device in (H200, A100)]
    assert warps == [c["WARPS"] for c in DECODE_TILES.of(128)[:2]] == [8, 4]


@pytest.mark.turns(23)
@pytest.mark.parametrize("d", in_turns([64, 128], 2))
def test_the_tiles_of_an_h200_are_right(d):
    """But for a stage at d = 128, which sm_80 has no shared memory for."""
    q, k, v = inputs(BFLOAT16, 2, 8, 2, 1, 700, d)
    tiles = DECODE_TILES.of(d)[0] | ({"STAGES": 2} if d == 128 else {})
    options = (*(f"-D{name}={value}" for name, value in tiles.items()), "-DBLOCKS=5")
    check(q, k, v, (700, 333), options=options)


# -- what ptxas makes of it ------------------------------------------------------------------------
def ptxas() -> str:
    """Of the package with nvcc's headers, else of a toolkit on the PATH."""
    files = metadata.files("nvidia-cuda-nvcc-cu12") or ()
    found = [str(file.locate()) for file in files if file.name == "ptxas"]
    return found[0] if found else shutil.which("ptxas") or pytest.skip("no ptxas here")


@pytest.mark.parametrize("d", in_turns([64, 80, 128], 3))
def test_ptxas_spills_nothing(d, tmp_path):
    row = step("decode")
    options = row.launch(Problem(64, 1, 4096, d, dtype="bfloat16"), (), H200).options(())
    text = with_headers(kernel_path(row.file).read_text(), kernel_path(row.file).parent)
    (tmp_path / "23.ptx").write_text(
        RawModule(code=text, options=options, backend="simulator").ptx()
    )
    command = [ptxas(), "-arch=sm_90a", "-v", "23.ptx", "-o", "23.cubin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "0 bytes spill stores, 0 bytes spill loads" in done.stdout + done.stderr
