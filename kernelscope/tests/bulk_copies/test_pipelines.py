"""Pipelines of bulk copies: stages, warpgroups, the time of each copy, and waits that never end."""

import time

import numpy as np
import pytest
from kernelscope import RawModule, TensorMap
from kernelscope.errors import ArgumentError, MemoryFault, SimulatorError
from kernelscope.machine import Hang
from kernelscope.machine.launch import Run
from kernelscope.machine.speed import workers
from machine_harness import listen, run, zeros
from pipeline_source import CODE

SHARED = 8192 + 1024


def array(rows=48, columns=7 * 32, seed=1):
    numbers = np.random.default_rng(seed).integers(-99, 99, (rows, columns))
    return numbers.astype(np.int32)


def call(name, grid, block, *arguments, **keywords):
    return run(CODE, name, grid, block, *arguments, shared=SHARED, **keywords)


@pytest.mark.system
@pytest.mark.parametrize("order", [None, 1, 2], ids=["lockstep", "one", "two"])
def test_stages_with_a_producer_warp(build, order):
    a, out = array(), zeros((48, 32))
    maps = TensorMap(a, (16, 32)), TensorMap(out, (16, 32))
    call("sums", 3, 384, *maps, np.int32(7), np.int32(-1), build=build, warp_order=order)
    np.testing.assert_array_equal(out, a.reshape(48, 7, 32).sum(axis=1))


@pytest.mark.parametrize("order", [None, 1, 2], ids=["lockstep", "one", "two"])
def test_blocks_of_a_cluster_load_for_each_other(build, order):
    a, out = array(rows=16), zeros((4, 64))
    call(
        "shared_loads",
        4,
        128,
        TensorMap(a, (8, 32)),
        out,
        np.int32(7),
        build=build,
        warp_order=order,
    )
    wanted = np.zeros(64, np.int32)
    for k in range(7):
        for part in a[:, k * 32 : k * 32 + 32].reshape(8, 64):
            wanted = 3 * wanted + part
    assert (out == wanted).all()


@pytest.mark.parametrize("order", [None, 1, 2], ids=["lockstep", "one", "two"])
def test_named_barriers_pass_turns_between_warpgroups(build, order):
    out = zeros((5, 128))
    call("turns", 3, 256, out, np.int32(5), build=build, warp_order=order)
    assert (out == 1000 * np.arange(5)[:, None] + np.arange(127, -1, -1)).all()


@pytest.mark.turns(17)
@pytest.mark.system
@pytest.mark.parametrize("operation", ["store", "add"])
def test_processes_share_a_launch_with_bulk_copies(operation, monkeypatch):
    """What is stored by disjoint blocks may be shared out; what is added up may not."""
    options = (f"-DADD={operation}",)
    kernel = RawModule(code=CODE, options=options, backend="simulator").get_function("rows")
    a, arrays = array(rows=16 * 60), []
    monkeypatch.setattr(workers, "_WORTH_SECONDS", 0)
    monkeypatch.setattr(Run, "most_blocks", 10)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    for count in ("1", "2"):
        monkeypatch.setenv(workers.WORKERS, count)
        out = np.full_like(a, 5)
        maps = TensorMap(a, (16, 32)), TensorMap(out, (16, 32))
        for _ in range(2):
            kernel((60,), (64,), (*maps, np.int32(7), zeros(1)), shared_mem=SHARED)
        arrays.append(out)
    executable = kernel.module.program().executable("rows")
    assert executable.alone == (operation == "add")  # it is left alone, or has been shared out
    wanted = a + 1 if operation == "store" else 5 + 2 * (a + 1)
    assert all((out == wanted).all() for out in arrays)


def test_a_map_is_used_again_and_keeps_its_array_alive():
    a, out = array(), zeros((48, 32))
    maps = TensorMap(a.copy(), (16, 32)), TensorMap(out, (16, 32))
    for tiles in (7, 2):
        call("sums", 3, 384, *maps, np.int32(tiles), np.int32(-1))
        np.testing.assert_array_equal(out, a.reshape(48, 7, 32)[:, :tiles].sum(axis=1))


def test_bytes_arrive_with_the_phase_that_counts_them(build):
    seen, a = zeros(3), array()
    call("early", 1, 1, TensorMap(a, (16, 32)), seen, build=build)
    assert seen.tolist() == [-1, -1, a[0, 0]]


def test_sources_are_read_late_and_results_appear_late(build):
    out, seen = zeros((16, 32)), zeros(3)
    call("late", 1, 1, TensorMap(out, (16, 32)), out, seen, build=build)
    assert seen.tolist() == [0, 6, 5]
    assert out[0, :3].tolist() == [6, 7, 5]  # of the last store, which nobody waited for


def test_groups_end_one_after_the_other():
    out, seen = zeros((32, 32)), zeros(3)
    call("groups", 1, 1, TensorMap(out, (16, 32)), out, seen)
    assert seen.tolist() == [1, 0, 2]


@pytest.mark.parametrize("where", [0, 1])
def test_maps_may_be_in_global_and_constant_memory(where):
    module = RawModule(code=CODE, backend="simulator")
    first, second, seen = array(seed=2), array(seed=3), zeros(1)
    maps = [TensorMap(one, (16, 32)) for one in (first, second)]
    images = np.concatenate([one.image for one in maps])
    module.get_global("kept")[:] = maps[0].image.view(np.uint8)
    arguments = images, images, np.int32(where), seen
    module.get_function("held")((1,), (1,), arguments, shared_mem=SHARED)
    assert seen[0] == (second, first)[where][0, 0]


MISUSE = {
    "a map in local memory": ("held", "outside of global, constant and parameter memory"),
    "no map": ("held", r"that kernelscope.TensorMap has not made\. Pass a TensorMap as a param"),
    "a misaligned map": ("held", "a tensor map at 0x[0-9a-f]+, no multiple of 64"),
    "an odd place": ("misplaced", "byte 1088 of the .*; the address must be a multiple of 128"),
    "beyond": ("misplaced", "copies 2048 bytes to or from byte .*; the block has 10240 bytes"),
    "a raw mbarrier": ("misplaced", "uses an mbarrier that is not initialised"),
    "other axes": ("misplaced", "a tensor map of 2 axes, with 1 coordinates"),
    "beyond the array": ("plainly", "copies 64 bytes to or from element 96 of data"),
    "an odd start": ("plainly", "copies 64 bytes to or from element 8 .*a multiple of 16"),
    "an odd size": ("plainly", "copies 24 bytes; a bulk copy takes a multiple of 16"),
    "an odd tile": ("plainly", "byte 1032 of .*; the address must be a multiple of 16"),
    "a read-only array": ("pushed", "copies 64 bytes .* The array is read-only"),
}


@pytest.mark.parametrize("what", MISUSE)
def test_misuse_is_named(what):
    a, seen, data = array(), zeros(1), np.zeros(128, np.uint8)
    described = TensorMap(a, (16, 32))
    maps = np.concatenate([described.image] * 2)
    raw = np.zeros(256, np.uint8)
    arguments = {
        "a map in local memory": (maps, maps, 2, seen),
        "no map": (maps, raw, 3, seen),
        "a misaligned map": (maps, raw[16:], 3, seen),
        "an odd place": (described, 64, 0, 2),
        "beyond": (described, 7296, 0, 2),
        "a raw mbarrier": (described, 0, 1, 2),
        "other axes": (described, 0, 0, 1),
        "beyond the array": (data, 96, 64, 0),
        "an odd start": (data, 8, 64, 0),
        "an odd size": (data, 0, 24, 0),
        "an odd tile": (data, 0, 64, 8),
        "a read-only array": (data, 0),
    }[what]
    arguments = [np.int32(one) if isinstance(one, int) else one for one in arguments]
    name, message = MISUSE[what]
    if what == "a read-only array":
        module = RawModule(
            code=CODE.replace("char* data, int offset)", "const char* data, int offset)").replace(
                "pushed(char", "pushed(const char"
            ),
            backend="simulator",
        )
        data.flags.writeable = False
        kernel = module.get_function(name)
        with pytest.raises(SimulatorError, match=message):
            kernel((1,), (1,), tuple(arguments), shared_mem=SHARED)
        return
    with pytest.raises(SimulatorError, match=f"{name} at .*{message}"):
        call(name, 1, 1, *arguments)


@pytest.mark.parametrize(
    ("offset", "kind"), [(96, "out-of-bounds"), (8, "misaligned")], ids=["outside", "odd"]
)
def test_a_copy_that_leaves_its_array_is_a_memory_fault(offset, kind):
    with pytest.raises(MemoryFault) as caught:
        call("plainly", 1, 1, np.zeros(128, np.uint8), *map(np.int32, (offset, 64, 0)))
    assert caught.value.kind == kind and caught.value.threads == (((0, 0, 0), (0, 0, 0)),)
    assert caught.value.line


def test_an_observer_that_goes_on_hears_of_misuse():
    listener = listen(
        CODE, "plainly", 1, 1, np.zeros(128, np.uint8), *map(np.int32, (8, 64, 0)), shared=SHARED
    )
    assert [fault.kind for fault in listener.faults] == ["misaligned"]


def test_a_map_of_the_other_machine_is_refused():
    described = TensorMap(array(), (16, 32))
    described.backend = "gpu"
    with pytest.raises(ArgumentError, match="a tensor map of an array on the gpu; this is the s"):
        call("early", 1, 1, described, zeros(3))


# -- waits that never end ----------------------------------------------------------------------
def hang(name, grid, block, *arguments, build="optimised"):
    """The message of a launch that hangs; five seconds leave room for a busy machine."""
    call("backwards" if name == "unbounded" else "unbounded", 1, 128, zeros(128))  # compiled by now
    start = time.monotonic()
    with pytest.raises(Hang) as caught:
        call(name, grid, block, *arguments, build=build)
    assert time.monotonic() - start < 5
    assert caught.value.line > 0
    assert f" at kernel.cu:{caught.value.line} `" in str(caught.value)  # in the kernel itself
    return str(caught.value)


def test_a_wrong_count_of_bytes_names_the_phase_and_what_is_missing():
    a, out = array(), zeros((48, 32))
    maps = TensorMap(a, (16, 32)), TensorMap(out, (16, 32))
    text = hang("sums", 3, 384, *maps, np.int32(7), np.int32(1))
    assert "256 threads wait (warps 4 to 11; first: block (0, 0, 0), thread (128, 0, 0))" in text
    assert "a phase of parity 0: the mbarrier at full[1] waits for" in text
    assert "waits for 0 of 1 arrivals and 16 bytes of its phase of parity 0" in text
    assert "1 thread waits (warp 0; first: block (0, 0, 0), thread (0, 0, 0))" in text
    assert "waits for 256 of 256 arrivals of its phase" in text


def test_more_bytes_than_are_expected_are_named():
    maps = TensorMap(array(), (16, 32)), TensorMap(zeros((48, 32)), (16, 32))
    text = hang("sums", 3, 384, *maps, np.int32(7), np.int32(-3))  # 16 fewer for the second tile
    assert "0 of 1 arrivals and -16 bytes (more were copied than it expects) of its phase" in text


def test_a_ring_of_waits_names_all_of_them(build):
    text = hang("ring", 2, 96, zeros(96), build=build)
    assert "32 threads wait (warp 0; first: block (0, 0, 0), thread (0, 0, 0))" in text
    assert "1 thread waits (warp 1; first: block (0, 0, 0), thread (32, 0, 0))" in text
    assert "the mbarrier at full[0] waits for 1 of 1 arrivals of its phase" in text
    assert "waits for 32 of 32 arrivals" in text
    lines = [number for number, line in enumerate(CODE.splitlines(), 1) if "wait(&full, 0)" in line]
    assert all(f"at kernel.cu:{lines[-1] + more} `wait(" in text for more in (0, 3))
    assert text.count(" (in kernel.cu:") == 2  # of both waits
    assert "(barrier 3 for 96 threads; first: block (0, 0, 0), thread (33, 0, 0))" in text


def test_registers_that_are_never_there_are_named():
    text = hang("greedy", 1, 384, zeros(384))
    assert "128 threads wait (warps 8 to 11; first: block (0, 0, 0), thread (256, 0, 0))" in text
    assert "for 248 registers a thread: the block's pool has 8192 free" in text


def test_a_part_of_a_warpgroup_at_setmaxnreg_is_named():
    text = hang("partly", 1, 256, zeros(256))
    assert "96 threads wait (warps 0 to 2" in text
    assert "other threads of the warpgroup of 128 do not come there" in text
    assert "160 threads wait at kernel.cu" in text and "(barrier 0; first" in text


def test_an_observer_that_goes_on_lets_them_pass():
    out = zeros(384)
    listener = listen(CODE, "greedy", 1, 384, out)
    assert [fault.kind for fault in listener.faults] == ["divergent-barrier"]
    assert out.tolist() == [1] * 384


def test_setmaxnreg_goes_one_way_and_needs_bounds():
    with pytest.raises(SimulatorError, match=r"setmaxnreg.inc for 24 reg.* has 248 \(at entry"):
        call("backwards", 1, 128, zeros(128))
    out = zeros(128)
    call("unbounded", 1, 128, out)  # without the second launch bound ptxas drops it
    assert out.tolist() == [1] * 128
