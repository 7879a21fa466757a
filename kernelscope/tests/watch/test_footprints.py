"""One warp's addresses and the cache lines of a launch, on accesses small enough to do by hand."""

from pathlib import Path

import numpy as np
import pytest
from kernelscope.events import observe
from kernelscope.module import RawModule
from kernelscope.watch.counters.counters import Counters
from kernelscope.watch.footprints import Footprint, Footprints, LineLookups

SCORES = Path(__file__).resolve().parents[1] / "kernels" / "scores_tiled.cu"
COPY = """extern "C" __global__ void k(const float* x, float* out, int stride, int active)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= active) return;
    float value = x[t * stride];
    out[t] = value;
}"""


def run(observer, stride, active=64, threads=64, blocks=1):
    kernel = RawModule(code=COPY, backend="simulator").get_function("k")
    x = np.zeros(threads * blocks * stride + 1, np.float32)
    out = np.zeros(threads * blocks, np.float32)
    with observe(observer) as seen:
        kernel((blocks,), (threads,), (x, out, np.int32(stride), np.int32(active)))
    return seen


@pytest.mark.parametrize(("stride", "sectors"), [(1, 4), (2, 8), (4, 16), (8, 32), (64, 32)])
def test_sectors_of_a_strided_load(stride, sectors):
    found = run(Footprints(warp=1), stride).of(5, "global")
    assert len(found.sectors) == sectors and found.bytes_asked == 128
    assert found.lanes.tolist() == list(range(32)) and found.size == 4
    assert (np.diff(found.address) == 4 * stride).all()


def test_bytes_by_sector():
    seen = run(Footprints(), 16)  # a lane in every other sector
    used = seen.of(5, "global").by_sector(seen.arrays["x"], (3, 128))
    assert used.tolist() == [[4, 0, 4, 0]] * 3
    seen = run(Footprints(warp=1), 1)
    used = seen.of(5, "global").by_sector(seen.arrays["x"], (2, 128))
    assert used.tolist() == [[0] * 4, [32] * 4]


def test_the_warp_and_block_asked_for_are_kept():
    for block, warp in ((0, 0), (2, 1)):
        seen = run(Footprints(block=block, warp=warp), 1, active=192, blocks=3)
        first = seen.of(5, "global").address[0] - seen.arrays["x"]
        assert first == 4 * (64 * block + 32 * warp)


def test_a_partial_warp_keeps_its_active_lanes():
    found = run(Footprints(warp=1), 1, active=41).of(5, "global")
    assert found.lanes.tolist() == list(range(9)) and len(found.sectors) == 2
    assert found.first(8).bytes_asked == 32


def test_an_access_that_was_not_made_is_refused():
    seen = run(Footprints(warp=1), 1, active=32)
    assert seen.found == []
    with pytest.raises(KeyError, match="no global load on line 5"):
        seen.of(5, "global")
    with pytest.raises(KeyError, match="global.*load"):
        run(Footprints(), 1).of(5, "shared")


@pytest.mark.parametrize(("stride", "lines"), [(1, 1), (2, 2), (32, 32), (64, 32)])
def test_lines_looked_up(stride, lines):
    found = run(LineLookups(), stride)
    assert found.by_line[5] == 2 * lines and found.by_line[6] == 2
    assert found.total == 2 * lines + 2


def test_bank_load():
    t = np.arange(32)
    column = Footprint(1, "shared", "load", t, 128 * t, 4)
    assert column.bank_load()[0] == 32 and column.bank_load()[1:].max() == 0
    padded = Footprint(1, "shared", "load", t, 132 * t, 4)
    assert (padded.bank_load() == 1).all()
    wide = Footprint(1, "shared", "load", t, 128 * t, 16)
    assert wide.bank_load()[:4].tolist() == [32] * 4
    assert wide.first(8).bank_load()[:5].tolist() == [8, 8, 8, 8, 0]


def scores(observer, options):
    rng = np.random.default_rng(2)
    q, k = rng.standard_normal((2, 1, 40, 64)).astype(np.float32)
    kernel = RawModule(path=SCORES, options=options, backend="simulator").get_function(
        "scores_tiled"
    )
    sizes = np.array([40, 40, 64], np.int32)
    with observe(observer) as seen:
        kernel((2, 2), (32, 32), (q, k, np.zeros((1, 40, 40), np.float32), *sizes))
    return seen


def line_of(text):
    source = SCORES.read_text().splitlines()
    return next(n for n, line in enumerate(source, 1) if text in line)


@pytest.mark.parametrize(("pad", "size", "worst"), [(0, 16, 32), (1, 4, 1)])
def test_merged_loads_are_seen_at_their_full_width(pad, size, worst):
    """Rows of 32 floats are aligned to 16 bytes and read four floats at a time; of 33 not."""
    seen = scores(Footprints(), ("-DK_TILE=1", f"-DPAD={pad}"))
    line = line_of("tile_key[tx][i]")
    keys = [one for one in seen.found if one.line == line and not one.is_broadcast]
    assert {one.size for one in keys} == {size}
    assert seen.of(line, "shared") is keys[0] and keys[0].bank_load().max() == worst
    assert any(one.is_broadcast for one in seen.found if one.line == line)  # tile_query


def test_lookups_and_sectors_agree_where_every_lane_has_its_own_line():
    """K_TILE 0 reads K 256 bytes apart; its other requests stay within a line or two."""
    lookups = scores(LineLookups(), ("-DK_TILE=0",))
    sectors = scores(Counters(), ("-DK_TILE=0",)).by_line
    line = line_of("const float element =")
    assert lookups.by_line[line] == sectors[line]["global_load_sectors"]
    query = line_of("tile_query[ty][tx] =")
    assert lookups.by_line[query] * 4 == sectors[query]["global_load_sectors"]
