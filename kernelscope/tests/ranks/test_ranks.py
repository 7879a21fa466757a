"""Threads as ranks on the simulator: exchanges, agreement, and what goes wrong."""

import time

import numpy as np
import pytest
from kernelscope import Counters, RawModule, observe
from kernelscope.errors import BackendError, InputError
from kernelscope.ranks import LinkError, RankLost, join_ranks, lines, links, rank, run_ranks

ADD = r"""
extern "C" __global__ void add(float* x, float y) { x[threadIdx.x] += y; }
"""


def ring(one):
    """Send what each rank has to the next one, all the way round."""
    there, back = np.full(3, one.rank, np.float32), np.zeros(3, np.float32)
    seen = []
    for _ in range(one.size):
        to, of = (one.rank + 1) % one.size, (one.rank - 1) % one.size
        one.exchange([(there, to)], [(back, of)])
        there[:] = back
        seen.append(int(back[0]))
    return seen


def test_a_ring_of_four():
    found = run_ranks(ring, 4, "simulator")
    assert found == [[(rank - i - 1) % 4 for i in range(4)] for rank in range(4)]


def test_a_rank_sends_to_itself():
    assert run_ranks(ring, 1, "simulator") == [[0]]


def test_kernels_of_all_ranks_are_seen_by_an_observer_of_the_caller():
    module = RawModule(code=ADD, backend="simulator")

    def work(one):
        x = np.zeros(8, np.float32)
        module.get_function("add")((1,), (8,), (x, np.float32(one.rank)))
        return x.sum()

    with observe(Counters()) as seen:
        assert run_ranks(work, 3, "simulator") == [0, 8, 16]
    assert seen.totals["global_store_requests"] == 3


def test_a_rank_that_fails_ends_all_and_is_named():
    def work(one):
        if one.rank == 2:
            raise ValueError("no such file")
        ring(one)

    with pytest.raises(RankLost, match="^rank 2: ValueError: no such file$") as raised:
        run_ranks(work, 3, "simulator")
    assert isinstance(raised.value.__cause__, ValueError)


def test_the_cause_is_what_has_gone_wrong_first():
    def work(one):
        if one.rank == 1:
            raise ValueError("no such file")
        try:
            ring(one)
        except RankLost:
            if one.rank == 0:
                raise KeyError("for want of it") from None
            raise

    with pytest.raises(RankLost, match="^rank 1: ValueError: no such file$") as raised:
        run_ranks(work, 3, "simulator")
    assert isinstance(raised.value.__cause__, ValueError)


def test_an_exchange_that_fails_because_a_rank_is_lost_says_so():
    """As NCCL's do, which are ended from another thread."""
    said = []

    def work(one):
        if one.rank:
            raise ValueError("no such file")

        def aborted(*_):
            while one._line.hub.failure is None:
                time.sleep(0.01)
            raise OSError("unhandled system error")

        one._exchange = aborted
        try:
            one.exchange([], [])
        except RankLost as error:
            said.append(str(error))

    with pytest.raises(RankLost):
        run_ranks(work, 2, "simulator")
    assert said == ["rank 1: ValueError: no such file"]


def test_a_rank_that_leaves_early_is_missed_at_once():
    start = time.monotonic()
    with pytest.raises(RankLost, match="rank 0 receives from rank 1, rank 1 is at the end: "):
        run_ranks(lambda one: one.rank or ring(one), 2, "simulator")
    assert time.monotonic() - start < 5


def test_ranks_at_different_rounds_are_named():
    words = "^rank 0 is at a sum, rank 1 is at the end: all ranks make the same calls"
    with pytest.raises(RankLost, match=words):
        run_ranks(lambda one: one.rank or one.agree({}, "a sum"), 2, "simulator")


def test_a_rank_that_computes_for_long_is_waited_for(monkeypatch):
    monkeypatch.setattr(lines, "GATHER_S", 0.05)

    def work(one):
        time.sleep(0.3 * one.rank)
        seen = ring(one)
        time.sleep(0.3 * one.rank)
        return seen

    assert run_ranks(work, 2, "simulator") == [[1, 0], [0, 1]]


def test_sends_to_each_other_outside_a_group_hang_with_a_message():
    def work(one):
        array = np.zeros(4, np.uint8)
        one._communicator.send(array.ctypes.data, 4, links.BYTE, 1 - one.rank)
        one._communicator.recv(array.ctypes.data, 4, links.BYTE, 1 - one.rank)

    def exchanges(one):
        array = np.zeros(4, np.uint8)
        one.exchange([(array, 1 - one.rank)], [])
        one.exchange([], [(array, 1 - one.rank)])

    said = "^rank 0 sends to rank 1, rank 1 sends to rank 0: nothing can go on. .*groupStart"
    for how in [work, exchanges] * 4:
        with pytest.raises(LinkError, match=said):  # whichever is the second
            run_ranks(how, 2, "simulator")


def test_groups_nest_as_nccls_do():
    def work(one):
        there, back = np.full(4, one.rank, np.uint8), np.zeros(4, np.uint8)
        links.groupStart()
        one._communicator.send(there.ctypes.data, 4, links.BYTE, 1 - one.rank)
        one.exchange([(there, 1 - one.rank)], [(back, 1 - one.rank)])
        assert not back.any()  # the inner groupEnd() starts nothing
        one._communicator.recv(back.ctypes.data, 4, links.BYTE, 1 - one.rank)
        links.groupEnd()
        return int(back[0])

    assert run_ranks(work, 2, "simulator") == [1, 0]


def test_the_end_of_no_group_is_refused():
    with pytest.raises(LinkError, match=r"groupEnd\(\) without groupStart\(\)"):
        links.groupEnd()


def test_a_send_and_its_receive_need_no_group():
    def work(one):
        array = np.full(4, one.rank, np.uint8)
        if one.rank == 0:
            one._communicator.send(array.ctypes.data, 4, links.BYTE, 1)
        else:
            one._communicator.recv(array.ctypes.data, 4, links.BYTE, 0)
        return int(array[0])

    assert run_ranks(work, 2, "simulator") == [0, 0]


def test_counts_that_differ_are_named():
    def work(one):
        one.exchange([(np.zeros(one.rank + 1), 1 - one.rank)], [(np.zeros(2), 1 - one.rank)])

    with pytest.raises(RankLost, match="expects 16 bytes from rank 0, which sends 8"):
        run_ranks(work, 2, "simulator")


def test_ranks_agree_before_anything_travels():
    run_ranks(lambda one: one.agree({"length": 8}, "a sum"), 3, "simulator")
    differ = "rank 2 has length 2, rank 0 0, in a sum: it must be the same on all ranks"
    with pytest.raises(InputError, match=differ):
        run_ranks(lambda one: one.agree({"length": one.rank // 2 * 2}, "a sum"), 3, "simulator")


def test_a_fault_of_one_rank_is_heard_by_all():
    said = []

    def work(one):
        try:
            one.agree({}, "a sum", InputError("wrong shape") if one.rank else None)
        except InputError as error:
            said.append(str(error))

    run_ranks(work, 2, "simulator")
    assert sorted(said) == ["rank 1: wrong shape", "wrong shape"]


def test_a_process_finds_its_rank_in_the_environment(monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": 0}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(rank, "PORT_AFTER", 0)
    with join_ranks("simulator") as one:
        assert (one.rank, one.size, one.backend) == (0, 1, "simulator")
        assert one.gather("x", "y") == ["x"]
        one.wait()


@pytest.mark.parametrize("number", ["0", "1"])
def test_processes_are_refused_on_the_simulator_at_once(monkeypatch, number):
    """Rank 1 does not wait for a rank 0 that is refused as well."""
    monkeypatch.setenv("RANK", number)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(rank, "FarLine", None)
    with pytest.raises(InputError, match="processes have no link on the simulator"):
        join_ranks("simulator")


def test_a_missing_nccl_is_named(monkeypatch):
    nccl = pytest.importorskip("cupy.cuda.nccl")
    monkeypatch.setattr(nccl, "available", False)
    with pytest.raises(BackendError, match=r"finds no NCCL.*: pip install nvidia-nccl-cu1\d$"):
        rank.nccl_module()


def test_a_fault_before_an_exchange_leaves_no_group_open():
    def work(one):
        with pytest.raises(AttributeError):
            one.exchange([(None, 0)], [])
        return ring(one)

    assert run_ranks(work, 2, "simulator") == [[1, 0], [0, 1]]


def test_a_process_without_a_rank_is_told_how_to_start(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "mpi4py", None)
    with pytest.raises(InputError, match="torchrun --nproc-per-node=2"):
        join_ranks("simulator")
