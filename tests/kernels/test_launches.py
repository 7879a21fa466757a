"""Which method and which constants a problem gets on a device, and what a launch costs to ask for.

No GPU is needed: a launch that does not raise, and fits what the device has, can be made there.
"""

import os
import random
import re

import numpy as np
import pytest
from kernelscope.backend import array_module, asnumpy, resolve_backend
from kernelscope.module.limits import OPT_IN_SHARED_KIB

from attn_course import reference
from attn_course.ladder import tiles
from attn_course.ladder.call import compiled
from attn_course.ladder.choose import ONLINE_BYTES, choose
from attn_course.ladder.methods import attention, steps_of
from attn_course.ladder.steps import LARGEST_D, Device, Geometry, Problem, Step, ceil_div, step
from attn_course.reference.inputs import seeded_qkv
from attn_devtools.agreement import assert_agrees

pytestmark = pytest.mark.system

TUNED = ("rows_split", "flash_fp32", "flash_async", "flash_split", "split_tf32x3")
KB = 1024
# Every capability there is, with few SMs and with many; the last ones are smaller than any GPU.
GPUS = [
    Device(f"sm_{number} x {sms}", divmod(number, 10), sms, kib * KB)
    for number, kib in OPT_IN_SHARED_KIB.items()
    for sms in (1, 132)
]
SMALL = [
    Device(f"{capability} with 16 KB", capability, 1, 16 * KB)
    for capability in ((6, 1), (8, 6), (9, 0), (12, 0))
]
DIMS = (1, 33, 64, 65, 128, 200, 256, 257, 512, 513, 640, 1025, 2048, 5000, 8192)
DIMS += (8193, 13_000, 30_000, 60_000)
LARGEST_ARRAY = 192 * 2**30  # bytes of q, or of the scores where they are kept


def problems(count):
    """Seeded problems whose q fits into a GPU's memory."""
    rng = random.Random(7)
    while count:
        bh, n = rng.choice((1, 3, 24, 4096)), rng.choice((1, 5, 64, 1000, 300_000, 40_000_000))
        found = Problem(
            bh, n, rng.choice((1, 9, 64, 5000, 10**6)), rng.choice(DIMS), causal=rng.random() < 0.5
        )
        if 4 * bh * n * found.d <= LARGEST_ARRAY and bh * n < 2**31:
            count -= 1
            yield found


@pytest.mark.turns(23)
@pytest.mark.parametrize("gpu", [*GPUS, *SMALL], ids=lambda gpu: gpu.name)
def test_what_is_chosen_can_be_launched(gpu):
    seen = set()
    for problem in problems(150):
        method, reason = choose(problem, gpu)
        if method == "tiled" and 4 * problem.bh * problem.n * problem.m > LARGEST_ARRAY:
            continue
        seen.add(method)
        assert str(problem.d) in reason
        for row in steps_of(method):
            launch = row.launch(problem, device=gpu)
            room = gpu.shared_bytes - (ONLINE_BYTES if method == "rows_online" else 0)
            assert launch.shared_bytes <= room and launch.block[0] * launch.block[1] <= 1024
    assert ("flash_split" in seen) <= (gpu.capability >= (9, 0))
    assert ("flash_async" in seen) <= (gpu.capability >= (8, 0))
    assert len(seen) >= (3 if gpu in GPUS else 2)


@pytest.mark.parametrize("d", [256, 600])
def test_more_queries_than_a_grid_of_tiles_holds(d):
    """The tiles of head dims like these have few rows: 65535 of them are soon too few."""
    many, gpu = Problem(1, 40_000_000, 9, d), Device("sm_61", (6, 1), 28, 48 * KB)
    assert choose(many, gpu)[0] == "rows_online"
    for method in TUNED:
        if method != "rows_split" and d > LARGEST_D:
            continue
        with pytest.raises(ValueError, match=r"40000000 queries .*sm_61.*rows_online"):
            step(method).launch(many, device=gpu)
    assert step("rows_online").launch(many, device=gpu).grid == (40_000_000, 1, 1)


@pytest.mark.parametrize(
    ("method", "options", "limit"),
    [
        ("rows_split", ("-DROWS=1",), 65535 * 4),
        ("flash_async", ("-DROWS=1", "-DROW_WARPS=2"), 65535 * 8),
        ("flash_split", ("-DROWS=2", "-DROW_WARPS=1"), 65535 * 8),
    ],
)
def test_rows_that_options_make_too_few(method, options, limit):
    device = Device("H200", (9, 0), 132, 227 * KB)
    assert step(method).launch(Problem(1, limit, 9, 64), options, device).grid[1] == 65535
    with pytest.raises(ValueError, match=rf"{limit + 1} queries.*at most {limit} .*rows_online"):
        step(method).launch(Problem(1, limit + 1, 9, 64), options, device)


@pytest.mark.parametrize("method", ["flash_fp32", "flash_async", "flash_split"])
def test_long_rows_are_summed_in_spans(method):
    """The keys that a warp sums in one chain grow with the root of all its keys."""
    chains = []
    for m in (2048, 8192, 100_000, 10_000_000):
        row = step(method)
        c = row.constants(row.launch(Problem(1, 8, m, 64)).options())
        chains.append(c["SPAN"] * 8 * c["KEYS"])
        warps = c["KEY_WARPS"] * c.get("CLUSTER", 1)
        assert (c["SPAN"] == 0) == (m < 8192)
        assert chains[-1] <= max(2 * (m / warps) ** 0.5, 4 * 8 * c["KEYS"])
    assert chains[-1] > chains[1] > 0


@pytest.mark.parametrize("method", TUNED)
def test_a_device_too_small_for_any_tile(method):
    small = Device("a toy", (9, 0), 1, 2 * KB)
    with pytest.raises(ValueError, match=r"a toy.* 2 KB .*rows_online"):
        step(method).launch(Problem(1, 4, 4, 256), device=small)
    assert choose(Problem(1, 4, 4, 256), small)[0] == "rows_online"


def test_a_device_that_only_a_cluster_s_tiles_fit():
    tight, problem = Device("tight", (9, 0), 8, 18 * KB), Problem(1, 40, 40, 64)
    assert tiles.best_tile("flash_async", problem, tight) is None
    assert choose(problem, tight)[0] == "flash_split"
    (row,) = steps_of("flash_split")
    assert row.launch(problem, device=tight).shared_bytes <= tight.shared_bytes


@pytest.mark.turns(29)
def test_a_row_that_no_shared_memory_holds():
    (row,) = steps_of("rows_online")
    gpu = Device("sm_61", (6, 1), 28, 48 * KB)
    most = (gpu.shared_bytes - ONLINE_BYTES) // 4
    assert choose(Problem(1, 2, 3, most), gpu)[0] == "rows_online"
    assert choose(Problem(1, 2, 3, most + 1), gpu)[0] == "tiled"
    kernel = compiled(row.path, entry=row.entry, backend="simulator")
    assert kernel.shared_size_bytes == ONLINE_BYTES
    q, k, v = seeded_qkv((1, 1, 2, 41_700), kv_length=3)
    out = attention(q, k, v, method="auto", backend="simulator")
    assert_agrees(out, reference.attention(q, k, v))  # sums of 41,700 products: not to 2e-6


# -- constants -----------------------------------------------------------------------------------
def derived(path, constants):
    """The kernel's own `constexpr int` values for constants of its own."""
    values = dict(constants)
    for name, text in re.findall(r"^constexpr int (\w+) = ([^;]+);", path.read_text(), re.M):
        values[name] = eval(text.replace("/", "//"), {}, values)
    return values


def header_formula(header, pattern):
    return re.search(pattern, header.launch)[1]


@pytest.mark.parametrize("method", TUNED)
def test_launches_are_those_of_the_header(method):
    """Grid, block and shared memory as the kernel's own header gives them."""
    row, problem = step(method), Problem(6, 1001, 77, 200, 3, 3)
    for gpu in (Device(), GPUS[-1], Device("H200", (9, 0), 132, 227 * KB)):
        launch = row.launch(problem, device=gpu)
        known = derived(row.path, row.constants(launch.options()))
        shared = header_formula(row.header, r"dynamic shared (\(.*\)\*4) bytes")
        assert launch.shared_bytes == eval(shared, {}, known)
        assert launch.block == (
            eval(header_formula(row.header, r"block (\([^)]*\))"), {}, known),
            1,
            1,
        )
        assert header_formula(row.header, r"grid \(.*(, ceil\(n/BR\)\))")
        heads = header_formula(row.header, r"grid \((.*?)batch\*heads,")
        clusters = known["CLUSTER"] if heads == "CLUSTER*" else 1
        assert launch.grid == (clusters * 6, ceil_div(1001, known["BR"]), 1)


def test_the_last_tile_of_each_list_fits_every_gpu():
    for clusters, table in ((False, tiles.FLASH_TILES), (True, tiles.CLUSTER_TILES)):
        for width in table:
            tiny = Device("48 KB", (9, 0), 1, 48 * KB)
            found = tiles.flash_candidates(Problem(1, 5, 5, width), tiny, clusters)
            assert found and tiles.flash_shared_bytes(found[-1]) <= 48 * KB
            last = tuple(
                found[-1][name]
                for name in (("CLUSTER",) if clusters else ())
                + ("ROWS", "KEYS", "ROW_WARPS", "KEY_WARPS")
            )
            assert last == table[width][-1]


def test_the_model_takes_devices_of_one_multiprocessor():
    one = Device("one SM", (9, 0), 1, 99 * KB)
    for d in (64, 300, 2048):
        problem = Problem(3, 50, 70, d)
        found = tiles.split_candidates(problem, one)
        assert found and all(tiles.split_clocks(c, problem, one, tiles.PRICES) > 0 for c in found)
        assert d > LARGEST_D or all(
            tiles.flash_clocks(c, problem, one) > 0
            for c in tiles.flash_candidates(problem, one, True)
        )


def test_more_multiprocessors_never_take_longer():
    problem = Problem(24, 196, 196, 64)
    for entry in ("flash_async", "flash_split", "split_tf32x3"):
        times = [
            tiles.best_tile(entry, problem, Device("", (9, 0), sms, 227 * KB))[0]
            for sms in (1, 8, 66, 132, 264)
        ]
        assert times == sorted(times, reverse=True) and times[0] > 8 * times[-1]


@pytest.mark.parametrize(
    "shape, faster, slower",  # tiles of 29, 8 % or more apart on an H200
    [
        ((4, 128, 64), (2, 1, 4, 16), (4, 2, 4, 8)),  # a cluster of 4 starts later
        ((4, 128, 128), (2, 1, 4, 16), (4, 2, 4, 8)),  # and has twice the parts to join
        ((8, 256, 64), (1, 1, 8, 32), (2, 2, 4, 32)),
        ((24, 1024, 64), (1, 6, 2, 40), (1, 6, 1, 32)),  # 6 warps are few: one block a time
        ((15, 333, 96), (1, 3, 4, 32), (2, 3, 4, 24)),
        ((128, 196, 64), (1, 4, 1, 40), (1, 3, 4, 32)),  # 4 warps of the same rows: two blocks
        ((8, 196, 64), (1, 1, 4, 56), (1, 1, 4, 32)),  # one round of keys
        ((8, 256, 64), (1, 1, 8, 32), (1, 1, 4, 64)),  # 4 warps with large tiles wait
    ],
)
def test_the_model_of_29_knows_the_faster_tile(shape, faster, slower):
    heads, n, d = shape
    problem, gpu = Problem(heads, n, n, d), Device("H200", (9, 0), 132, 227 * KB)
    clocks = [
        tiles.joined_clocks({"D": d, **dict(zip(tiles.JOINED_SIZES, c, strict=True))}, problem, gpu)
        for c in (faster, slower)
    ]
    assert clocks[0] < clocks[1]


def test_large_tiles_of_29_spill_little():
    gpu = Device("H200", (9, 0), 132, 227 * KB)
    for d, expected in ((64, {56, 64}), (80, {56}), (96, set()), (128, set())):
        found = tiles.joined_candidates(Problem(24, 512, 512, d), gpu)
        assert {c["BC"] for c in found} & {56, 64} == expected
    windows = tiles.tile_config("split_tf32x3", Problem(24, 196, 196, 64), gpu)
    assert windows["BC"] == 56 and 32 * windows["ROW_WARPS"] * windows["KEY_WARPS"] == 384


def test_callers_may_change_the_constants_they_get():
    problem, gpu = Problem(4, 50, 50, 300), Device()
    config = step(20).tune(problem, gpu)
    config["ROWS"] = 99
    assert (
        step(20).tune(problem, gpu)["ROWS"]
        == tiles.best_tile("rows_split", problem, gpu)[1]["ROWS"]
        != 99
    )


# -- asked for at every call ---------------------------------------------------------------------
def counting_step(tmp_path, monkeypatch):
    """A step of its own file, and the problems that it was tuned for."""
    file, tuned_for = tmp_path / "30_made_up.cu", []
    file.write_text("#ifndef TILE\n#define TILE 4\n#endif\n#ifndef WIDE\n#define WIDE 1\n#endif\n")

    def tune(problem, device):
        tuned_for.append((problem, device))
        return {"WIDE": device.sm_count}

    def geometry(entry, problem, constants):
        if problem.m > 100:
            raise ValueError("too many keys")
        return Geometry(entry, (constants["TILE"], 1, 1), (constants["WIDE"], 1, 1))

    monkeypatch.setattr("attn_course.ladder.steps.kernel_path", lambda name: file)
    return Step(30, "30_made_up", "made_up", "", (), (), geometry, tune), file, tuned_for


def test_a_launch_is_worked_out_once(tmp_path, monkeypatch):
    row, file, tuned_for = counting_step(tmp_path, monkeypatch)
    few, wide = Problem(1, 2, 3, 4), Device("wide", (9, 0), 7)
    for _ in range(3):
        assert row.launch(few, device=wide).block == (7, 1, 1)
    assert tuned_for == [(few, wide)]
    assert row.launch(few, device=Device()).block == (108, 1, 1)
    assert row.launch(few, ("-DTILE=9",), wide).grid == (9, 1, 1)
    assert row.launch(few, ["-DWIDE=9"], wide).block == (9, 1, 1)
    assert len(tuned_for) == 4


def test_an_edited_kernel_is_read_again(tmp_path, monkeypatch):
    row, file, _ = counting_step(tmp_path, monkeypatch)
    assert row.launch(Problem(1, 2, 3, 4)).grid == (4, 1, 1)
    file.write_text(file.read_text().replace("TILE 4", "TILE 6"))
    os.utime(file, ns=(1, 1))
    assert row.launch(Problem(1, 2, 3, 4)).grid == (6, 1, 1)


def test_what_is_refused_is_refused_every_time(tmp_path, monkeypatch):
    row, _, tuned_for = counting_step(tmp_path, monkeypatch)
    for _ in range(2):
        with pytest.raises(ValueError, match="too many keys"):
            row.launch(Problem(1, 2, 300, 4))
    assert len(tuned_for) == 2


@pytest.mark.turns(23)
def test_calls_of_different_problems_do_not_share_launches():
    """Shapes, masks and options in turn: each result is that of its own call."""
    calls = [
        ((1, 2, 5, 40), {}),
        ((1, 2, 9, 40), {}),
        ((1, 2, 5, 40), {"causal": True}),
        ((1, 2, 5, 70), {}),
        ((1, 2, 5, 40), {"options": ("-DROWS=1", "-DROW_WARPS=1")}),
    ]
    for extents, asked in calls * 2:
        q, k, v = seeded_qkv(extents, kv_length=11, seed=1)
        out = attention(q, k, v, method="flash_async", backend="simulator", **asked)
        expected = reference.attention(q, k, v, causal=asked.get("causal", False))
        assert_agrees(out, expected, relative=2e-6)
        assert out.dtype == np.float32


@pytest.mark.turns(23)
@pytest.mark.parametrize("method", ["flash_rows", "flash_fp32", "flash_async"])
def test_an_unchanged_maximum_rescales_by_one(method):
    """The first key has the maximum, the early half of the others +1, the late half -1: a factor
    of 1 + 1e-7 at each tile would leave 1e-5 of it. It arises on a GPU, where ptxas fuses a product
    and a difference that PTX leaves apart; without one, fewer tiles run the same statements."""
    xp = array_module(resolve_backend())
    on_gpu = resolve_backend() == "gpu"
    keys, maxima = 4097 if on_gpu else 513, np.linspace(2.1, 6.9, 8, dtype=np.float32)
    q = np.zeros((1, 1, maxima.size, 32), np.float32)
    q[..., 0] = maxima
    k = np.zeros((1, 1, keys, 32), np.float32)
    k[0, 0, 0, 0] = 1
    v = np.ones_like(k)
    v[0, 0, 0], v[0, 0, keys // 2 + 1 :] = 0, -1
    options = () if method == "flash_rows" else ("-DKEYS=1", "-DKEY_WARPS=1")  # many small tiles
    inputs = [xp.asarray(array) for array in (q, k, v)]
    out = attention(*inputs, method=method, scale=1.0, options=options)
    assert np.abs(asnumpy(out)).max() < 2e-6
