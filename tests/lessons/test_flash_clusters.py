"""What kernels 10 and 19 do in clusters, counted by hand, and what records of their tiles say."""

import numpy as np
import pytest

from attn_course.ladder.problem import Device
from attn_course.lessons import flash
from attn_course.measure import tile_model
from attn_course.measure.experiments import RecordedTimes
from attn_course.measure.tile_model import label
from attn_course.reference.inputs import seeded_qkv

TINY = ("-DD=32", "-DROWS=1", "-DKEYS=1", "-DROW_WARPS=1", "-DKEY_WARPS=1")  # 4 rows, 8 keys


def inputs(n, m, d):
    q, k, v = seeded_qkv((1, 1, n, d), kv_length=m)
    return q[0], k[0], v[0]


@pytest.mark.parametrize(("m", "tiles"), [(8, 1), (30, 4)])
def test_kernel_10_waits_twice_a_key_tile_and_once_before(m, tiles):
    options = ("-DCLUSTER=4", "-DCOLS=1", "-DWARPS=4", "-DROWS=2", "-DKEYS=1")  # 8 rows, 8 keys
    use = flash.cluster_use(10, *inputs(5, m, 512), options)
    assert (use.blocks, use.waits) == (4, 1 + 2 * tiles)
    # A tile: 8 x 8 scores as float4, by 16 threads of one warp of each block; then of each of its
    # 2 rows a block sends the weights to 4 blocks, once the factor and once the sum.
    assert use.requests == tiles * 4 * (1 + 2 * (4 + 1 + 1))


@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_kernel_19_waits_twice_and_sends_each_part_once(cluster):
    use = flash.cluster_use(19, *inputs(3, 64, 32), (*TINY, f"-DCLUSTER={cluster}"))
    alone = cluster == 1
    assert (use.blocks, use.waits) == (cluster, 0 if alone else 2)
    assert use.requests == (0 if alone else 2 * cluster)  # o, then m and l, of one warp a block
    # Rows of 4 sectors: 3 of Q a block, and K and V once in all; some more where 512 bytes that a
    # warp copies begin in the middle of a sector.
    least = 4 * (3 * cluster + 2 * 64)
    assert least <= use.sectors <= least * 18 / 16
    table = flash.use_table({"one": use})
    assert table.splitlines()[1].split() == [
        "one",
        str(use.blocks),
        f"{use.sectors / use.blocks:,.0f}",
        str(use.requests),
        str(use.waits),
    ]


def test_the_device_gives_kernel_10_its_tile():
    device = Device("a GPU with clusters", (9, 0), 132, 227 * 1024)
    q, k, v = inputs(16, 16, 8192)
    assert flash.cluster_use(10, q, k, v, device=device).blocks == 32


def test_parts_of_a_row_join_to_its_softmax():
    q, k, v = inputs(3, 61, 20)
    parts = flash.key_parts(q, k, v, 4, TINY)
    scores = (q[0, 0].astype(float) @ k[0].T.astype(float)) / 20**0.5
    assert [part["rank"] for part in parts] == [0, 1, 2, 3]
    assert sorted(first for part in parts for first in part["tiles"]) == list(range(0, 61, 8))
    for part in parts:
        mine = np.concatenate([scores[first : first + 8] for first in part["tiles"]])
        np.testing.assert_allclose(part["row_m"], mine.max(), rtol=1e-5)
        np.testing.assert_allclose(part["row_l"], np.exp(mine - mine.max()).sum(), rtol=1e-5)


def test_a_block_without_keys_has_nothing_to_join():
    *some, last = flash.key_parts(*inputs(3, 24, 32), 4, TINY)
    assert all(len(part["tiles"]) == 1 for part in some)
    assert last["tiles"] == [] and last["row_m"] == -np.inf and last["row_l"] == 0
    lines = flash.parts_table([*some, last]).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["0", "1", "2", "3"]
    assert lines[4].split()[1:] == ["-inf", "0.0000"]


def record(shape, keys, times, blocks):
    """A made-up record of one problem. times and blocks: (method, constants) -> value."""
    row = {
        "shape": list(shape),
        "keys": keys,
        "contestants": {
            label(method, dict(c)): {"median_us": time, "blocks": blocks[method, c]}
            for (method, c), time in times.items()
        },
    }
    return {
        "kind": tile_model.KIND,
        "gpu": "made up",
        "driver": "1",
        "cuda": "1",
        "commit": "c",
        "date": "2000-01-01",
        "kernels": {},
        "rows": [row],
    }


def test_rounds_are_whole():
    def tile(rows, keys):
        return "rows_split", (("CLUSTER", 8), ("ROWS", rows), ("KEYS", keys))

    times = {tile(6, 4): 20.0, tile(4, 4): 30.0, tile(4, 2): 40.0, tile(1, 4): 60.0}
    found = record(
        (1, 4, 64, 4096), 64, times, {one: 32 * -(-64 // (4 * one[1][1][1])) for one in times}
    )
    rows = flash.split_rows(found, (1, 4, 64, 4096))
    assert rows == {24: (12, 96, 20.0), 16: (16, 128, 30.0), 4: (64, 512, 60.0)}  # not 2 keys
    lines = flash.rounds_table(found, (1, 4, 64, 4096), (16, 15)).splitlines()
    assert [line.split()[3:] for line in lines[1:4]] == [
        ["20.0", "20.0", "20.0"],
        ["30.0", "30.0", "15.0"],
        ["60.0", "15.0", "12.0"],
    ]
    assert "made up" in lines[-1]


def test_the_fastest_tile_of_each_cluster_size():
    def tile(method, rows, **cluster):
        rest = {"KEYS": 8, "ROW_WARPS": 1, "KEY_WARPS": 4}
        return method, (*cluster.items(), ("ROWS", rows), *rest.items())

    times = {
        tile("flash_async", 1): 40.0,
        tile("flash_async", 2): 50.0,
        tile("flash_split", 1, CLUSTER=8): 10.0,
        tile("flash_split", 2, CLUSTER=2): 80.0,
    }
    blocks = dict(zip(times, (8, 4, 64, 16), strict=True))
    found = record((1, 8, 1, 64), 8192, times, blocks)
    best = flash.sharing(found, (1, 8, 1, 64), 8192)
    one = "1x8, 1x4"
    assert best == {1: (8, 40.0, one), 2: (16, 80.0, "2x8, 1x4"), 8: (64, 10.0, one)}
    assert list(best) == [1, 2, 8]
    lines = flash.sharing_table(found, [((1, 8, 1, 64), 8192)]).splitlines()
    assert [line.split()[-1] for line in lines[1:4]] == ["1.00", "0.50", "4.00"]
    assert "2x8, 1x4" in lines[2] and lines[0].split()[-7:-5] == ["tile,", "warps"]
    with pytest.raises(KeyError):
        flash.sharing(found, (1, 8, 1, 64), 4096)


def test_sectors_and_time_stand_side_by_side():
    timed = RecordedTimes({"rows_online": 30.0, "rows_split": 12.0}, "")
    assert flash.sectors_and_time((10, 4), timed).endswith("sectors a block 2.50, time 2.50")
    for missing in (None, RecordedTimes({"rows_online": 30.0}, "")):
        assert "no time" in flash.sectors_and_time((10, 4), missing)
