"""What a trace has of mbarriers, bulk copies, products of warp groups and turns, step by step."""

import json

import numpy as np
import pytest
from kernelscope import RawModule, Tracer, observe
from traced_ring import traced_products, traced_ring


@pytest.fixture(scope="module")
def ring():
    return traced_ring().recording


@pytest.fixture(scope="module")
def products():
    return traced_products(threads=(0, 128), names={"A": (0, 2048), "B": (2048, 2048)}).recording


def after(recording, what, number, index=0):
    """The steps at which one mbarrier, tile or group changes, with what it is then."""
    return [
        (frame["step"], tuple(values))
        for frame in recording.frames
        for at, *values in frame["engines"].get(what, ())
        if at == number
    ]


def test_mbarriers_have_their_names_arrivals_bytes_and_parities(ring):
    assert [one["name"] for one in ring.mbarriers] == ["full[0]", "empty[0]", "full[1]", "empty[1]"]
    full = [state for _, state in after(ring, "mbarriers", 0)]
    # started; a copy ordered; landed; the third tile ordered; landed
    assert full == [(1, 1, 0, 0), (0, 1, 2048, 0), (1, 1, 0, 1), (0, 1, 2048, 1), (1, 1, 0, 0)]
    empty = [state for _, state in after(ring, "mbarriers", 1)]
    assert empty == [(4, 4, 0, 0), (4, 4, 0, 1), (4, 4, 0, 0)]
    last = ring.engines_at(-1)["mbarriers"]["full[1]"]
    assert last == {"arrivals": 1, "expected": 1, "bytes": 0, "parity": 1}


def test_each_tile_is_in_flight_landed_read_and_free_in_turn(ring):
    assert [one["name"] for one in ring.destinations] == ["tiles[0]", "tiles[1]"]
    states = [state for _, (state,) in after(ring, "tiles", 0)]
    round_trip = ["in flight", "landed", "read", "landed", "free"]
    assert states == 2 * round_trip
    assert [state for _, (state,) in after(ring, "tiles", 1)] == round_trip
    freed = next(step for step, (state,) in after(ring, "tiles", 0) if state == "free")
    assert freed == next(step for step, state in after(ring, "mbarriers", 1) if state[3] == 1)


def test_what_a_copy_brings_is_in_the_shared_array(ring):
    landed = [step for step, (state,) in after(ring, "tiles", 0) if state == "landed"]
    np.testing.assert_array_equal(ring.shared_at(landed[0])["tiles"][0], np.arange(512))
    ordered = after(ring, "tiles", 0)[0][0]
    assert np.ma.getmaskarray(ring.shared_at(ordered)["tiles"]).all()
    np.testing.assert_array_equal(ring.shared_at(-1)["tiles"][0], np.arange(1024, 1536))


def test_a_warp_waits_until_it_goes_on(ring):
    line = next(n for n, text in enumerate(ring.lines, 1) if "wait(full" in text)
    ((first, last),) = ring.timeline()["warp 0"]["waits at an mbarrier"]
    assert ring.engines_at(last)["work"]["warp 0"] == ("waits at an mbarrier", "full[0], parity 1")
    assert ring.frames[first]["callers"] == ring.frames[last + 1]["callers"] == [line]
    landed = next(s for s, state in after(ring, "tiles", 0) if s > last)
    assert landed == last + 1  # the copy lands when the warp asks again
    copier = [work for _, work in after(ring, "work", 4)]
    assert copier.count(("orders a copy", "")) == 3
    assert ("waits at an mbarrier", "empty[0], parity 0") in copier
    assert copier[-1] == ("ended", "")
    assert not any(work[0] == "waits at a barrier" for _, work in after(ring, "work", 0)[1:])


def test_products_are_named_with_their_tiles_and_stay_open_until_the_wait(products):
    ordered = [p for frame in products.frames for p in frame["engines"].get("products", ())]
    assert [one["group"] for one in ordered] == [0, 0, 1, 1]
    assert {(tuple(one["shape"]), tuple(one["kinds"])) for one in ordered} == {
        ((64, 8, 16), ("f32", "f16", "f16"))
    }
    assert {(one["A"], one["B"]) for one in ordered} == {("A[0]", "B[0]")}
    assert ordered[0]["bytes"] == [[0, 2048], [2048, 2304]]
    timeline = products.timeline()
    ((first, last),) = timeline["warpgroup 0"]["products open"]
    assert products.engines_at(first)["open"]["warpgroup 0"] == 1
    assert products.engines_at(last)["open"]["warpgroup 0"] == 2
    assert products.engines_at(last + 1)["open"]["warpgroup 0"] == 0
    assert "DONE(0)" in products.lines[products.frames[last + 1]["line"] - 1]
    reading = timeline["A[0]"]["read"]
    assert (first, last) in reading
    assert any(
        "warpgroup 0 orders" in row[-1] and "B from B[0]" in row[-1] for row in products.rows()
    )


def test_a_group_waits_for_its_turn_at_a_named_barrier(products):
    timeline = products.timeline()
    ((first, last),) = timeline["warpgroup 1"]["waits at a barrier"]
    assert products.engines_at(first)["work"]["warpgroup 1"] == ("waits at a barrier", "1")
    assert "bar.sync 1" in products.lines[products.frames[first]["line"] - 1]
    arrives = next(n for n, text in enumerate(products.lines, 1) if "bar.arrive 1" in text)
    assert arrives in [products.frames[step]["line"] for step in (last, last + 1)]
    assert timeline["warpgroup 1"]["products open"][0][0] > last
    assert list(timeline)[:2] == ["warpgroup 0", "warpgroup 1"] and list(timeline)[2:] == [
        "A[0]",
        "B[0]",
    ]
    assert len(timeline["warpgroup 0"]["exponentials"]) == 1


def test_without_names_a_place_is_the_array_and_its_offset():
    trace = traced_products(threads=(0,))
    assert [one["name"] for one in trace.destinations] == ["memory + 0", "memory + 2048"]
    assert [one["name"] for one in trace.mbarriers] == ["memory + 4096"]


def test_names_are_of_parts_of_their_own_array():
    trace = traced_ring(names={"even": (0, 2048), "odd": (2048, 2048)})
    assert [one["name"] for one in trace.destinations] == ["even[0]", "odd[0]"]
    assert trace.mbarriers[0]["name"] == "full[0]"  # of another array behind them


def test_only_the_chosen_threads_have_variables(products):
    changed = [c["threads"] for frame in products.frames for c in frame["variables"].values()]
    assert changed and set().union(*changed) == {0, 128}
    assert products.kept == [0, 128] and max(len(f["threads"]) for f in products.frames) == 256
    with pytest.raises(ValueError, match="threads 0 to 255"):
        traced_products(threads=(256,))


def test_frames_are_plain_data(ring):
    assert json.loads(json.dumps(ring.plain()))["frames"] == ring.frames


def test_kernels_without_engines_record_none():
    source = 'extern "C" __global__ void k(float* out) { out[threadIdx.x] = exp2f(1.0f); }'
    with observe(Tracer()) as trace:
        RawModule(code=source, backend="simulator").get_function("k")(
            (1,), (4,), (np.zeros(4, np.float32),)
        )
    assert trace.groups == [] and all(frame["engines"] == {} for frame in trace.frames)
    assert trace.timeline() == {}
