"""What observers are told of bulk copies, and what counters count of them."""

import numpy as np
from copy_model import before
from kernelscope import Counters, Sanitizer, TensorMap, observe
from kernelscope.differential.copies import CopyCase, run_case
from kernelscope.differential.machines import Machine
from kernelscope.events import Observer
from machine_harness import run, zeros
from pipeline_source import CODE

SHARED = 8192 + 1024


class Hears(Observer):
    """Keeps what it is told of asynchronous work, in order."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def async_issued(self, operation, machine):
        self.heard.append(("issued", operation))

    def async_read(self, operation, machine):
        self.heard.append(("read", operation))

    def async_completed(self, operation, machine):
        self.heard.append(("completed", operation))


def heard(name, *arguments):
    with observe(Hears()) as listener:
        run(CODE, name, 1, 1, *arguments, shared=SHARED)
    return listener.heard


def test_a_load_is_issued_and_completes_with_its_phase():
    a = np.arange(48 * 32, dtype=np.int32).reshape(48, 32)
    (first, operation), (last, same) = heard("early", TensorMap(a, (16, 32)), zeros(3))
    assert (first, last) == ("issued", "completed") and operation is same
    assert operation.completion == "mbarrier" and operation.mbarrier == (0, 0)
    assert operation.lanes.tolist() == [0] and operation.line == 23
    read, written = operation.accesses
    assert (read.space, read.kind, written.space, written.kind) == (
        "global",
        "load",
        "shared",
        "store",
    )
    assert read.size * read.address.size == 2048
    assert (written.address.tolist(), written.size) == ([1024], 2048)


class Asks(Observer):
    """Keeps what an mbarrier holds when a copy that counts there is issued, and at its end."""

    def __init__(self):
        super().__init__()
        self.states = []

    def async_issued(self, operation, machine):
        self.states.append(machine.mbarrier(*operation.mbarrier))

    async_completed = async_issued


def test_the_state_of_an_mbarrier_can_be_asked():
    a = np.arange(48 * 32, dtype=np.int32).reshape(48, 32)
    with observe(Asks()) as asks:
        run(CODE, "early", 1, 1, TensorMap(a, (16, 32)), zeros(3), shared=SHARED)
    before, after = asks.states
    assert before == (0, 1, 2048, 0)  # pending arrivals, expected ones, bytes, parity
    assert after == (1, 1, 0, 1)


def test_a_store_is_read_and_then_completes():
    out = zeros((16, 32))
    told = heard("late", TensorMap(out, (16, 32)), out, zeros(3))
    assert [what for what, _ in told] == ["issued", "read", "completed"] * 2
    operation = told[0][1]
    assert operation.completion == "bulk_group" and operation.mbarrier is None
    assert [one.kind for one in operation.accesses] == ["load", "store"]


def test_chunks_of_a_swizzle_are_told_where_they_go():
    case = CopyCase("load", (16, 64), "uint16", (8, 64), (0, 0), 128, offset=2048)
    with observe(Hears()) as listener:
        run_case(Machine("simulator"), case)
    written = listener.heard[0][1].accesses[1]
    assert written.size == 16
    lines = (written.address.astype(int) - 1024 - 2048).reshape(8, 8)
    assert lines.tolist() == [[128 * r + 16 * (c ^ r) for c in range(8)] for r in range(8)]


def test_a_multicast_reads_once():
    with observe(Hears(), Counters()) as (listener, counted):
        run_case(Machine("simulator"), CopyCase("multicast", box=(1040,), mask=6, offset=16))
    issued = [one for what, one in listener.heard if what == "issued"]
    assert [[access.space for access in one.accesses] for one in issued] == [
        ["global", "shared"],
        ["shared"],
    ]
    assert [one.mbarrier[0] for one in issued] == [1, 2]
    totals = counted.totals
    assert (totals["bulk_copy_requests"], totals["bulk_load_bytes"]) == (1, 1040)


def count(case):
    with observe(Counters()) as counted:
        run_case(Machine("simulator"), case)
    return counted.totals


def test_counts_of_boxes_leave_out_what_is_outside():
    case = CopyCase("load", (37, 80), "uint16", (16, 32), (-8, 30), 64)
    totals = count(case)
    assert totals["bulk_copy_requests"] == 1
    assert totals["bulk_load_bytes"] == 7 * 24 * 2  # 7 rows and 24 columns are in the array
    assert totals["bulk_load_sectors"] == 7 * 2
    assert totals["bulk_fill_sectors"] == 7 + 9 * 2  # 16 bytes of each of these rows, whole others
    wide = CopyCase("load", (37, 80), "uint16", (16, 32), (16, 0), 64)
    assert count(wide)["bulk_load_sectors"] == 16 * 2  # rows of 160 bytes, 64 bytes of each
    assert count(wide)["bulk_store_bytes"] == 0


def test_rows_of_a_box_have_sectors_of_their_own():
    """As an H200's counters have it: 640 bytes in a row, but rows of 80 bytes."""
    totals = count(CopyCase("store", (8, 40), "uint16", (8, 40), (0, 0)))
    assert (totals["bulk_store_bytes"], totals["bulk_store_sectors"]) == (640, 8 * 3)
    assert totals["bulk_fill_sectors"] == 0


def test_work_on_mbarriers_is_no_shared_request():
    totals = count(CopyCase("load", (37, 80), "uint16", (16, 32), (0, 0), 64))
    assert totals["mbarrier_arrivals"] == 1 and totals["mbarrier_waits"] >= 1
    assert totals["shared_atomic_requests"] == totals["atomic_requests"] == 0


def test_counts_of_stores_and_reductions():
    case = CopyCase("plain store", (512,), "u32", (1024,), operation="add")
    totals = count(case)
    assert (totals["bulk_store_bytes"], totals["bulk_store_sectors"]) == (1024, 32)
    assert totals["bulk_load_bytes"] == 0 and totals["bulk_copy_requests"] == 1
    io = before(case)[0].size  # the kernel fills shared memory from it, and dumps it there
    assert totals["unique_global_bytes_written"] == io + 1024 + 4
    assert totals["unique_global_bytes_read"] == io + 1024


def test_arrays_of_maps_have_the_names_of_their_parameters():
    class Names(Observer):
        def launch_started(self, launch):
            self.names = [one.name for one in launch.buffers if one.space == "global"]

    a, out = np.zeros((48, 32), np.int32), zeros(3)
    with observe(Names()) as seen:
        run(CODE, "early", 1, 1, TensorMap(a, (16, 32)), out, shared=SHARED)
    assert seen.names == ["seen", "kernel parameters", "in"]


def test_the_sanitizer_takes_what_a_copy_has_brought_as_written():
    a = np.arange(48 * 224, dtype=np.int32).reshape(48, 224)
    out = zeros((48, 32))
    maps = TensorMap(a, (16, 32)), TensorMap(out, (16, 32))
    with observe(Sanitizer()) as found:
        run(CODE, "sums", 3, 384, *maps, np.int32(7), np.int32(-1), shared=SHARED)
    assert not found.findings
    with observe(Sanitizer()) as found:  # its first read comes before the copy
        run(CODE, "early", 1, 1, TensorMap(a, (16, 32)), zeros(3), shared=SHARED)
    assert not [one for one in found.findings if one.kind == "uninitialised-read"]
