"""Lines between ranks: rounds of values, and what is said of a rank that is lost."""

import socket
import threading
import time

import pytest
from kernelscope.ranks import Hub, RankLost, lines
from kernelscope.ranks.lines import FarLine, HubLine, OwnLine
from kernelscope.ranks.rank import unique_id


def in_threads(*works):
    """Run functions at once; return what they return, or the exceptions."""
    found = [None] * len(works)

    def run(number):
        try:
            found[number] = works[number]()
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


@pytest.fixture
def processes(monkeypatch):
    """Lines of three ranks over TCP, all of them in this process."""
    monkeypatch.setattr(lines, "BEAT_S", 0.05)
    monkeypatch.setattr(lines, "SILENT_S", 1.0)
    own = OwnLine(("localhost", 0), 3)
    address = "localhost", own._server.getsockname()[1]
    found = [own, *(FarLine(address, rank, 3) for rank in (1, 2))]
    yield found
    for line in found:
        line.close()


def threads_lines():
    hub = Hub(3)
    return [HubLine(hub, rank) for rank in range(3)]


def rounds(line):
    first = line.gather({"rank": line.rank}, "the start")
    return first, [line.gather(10 * line.rank + i, "the middle") for i in range(3)]


def test_all_ranks_get_the_values_of_all():
    for found in in_threads(*(lambda line=line: rounds(line) for line in threads_lines())):
        assert found == ([{"rank": i} for i in range(3)], [[i, 10 + i, 20 + i] for i in range(3)])


def test_so_do_processes(processes):
    for found in in_threads(*(lambda line=line: rounds(line) for line in processes)):
        assert found == ([{"rank": i} for i in range(3)], [[i, 10 + i, 20 + i] for i in range(3)])


def test_an_id_of_nccl_reaches_all_ranks_as_the_bytes_it_is(processes):
    """CuPy's communicator takes bytes of this length, and nothing else."""

    class Nccl:
        @staticmethod
        def get_unique_id():
            return bytes(range(128, 256))

    found = in_threads(*(lambda line=line: unique_id(line, Nccl) for line in processes))
    assert found == [Nccl.get_unique_id()] * 3


def test_a_rank_that_does_not_come_is_named(processes):
    for some in (threads_lines(), processes):
        late = [lambda line=line: line.gather(1, "the sum", 0.2) for line in some[:2]]
        for error in in_threads(*late):
            assert isinstance(error, RankLost)
            assert str(error) == "rank 2 has not come to the sum within 0.2 s"


def test_several_are_named():
    [error] = in_threads(lambda: threads_lines()[0].gather(1, "the sum", 0.1))
    assert str(error) == "ranks 1, 2 have not come to the sum within 0.1 s"


def test_a_process_that_ends_is_named_at_once(processes):
    in_threads(*(lambda line=line: rounds(line) for line in processes))
    told = []
    for line in processes[:2]:
        line.hub.on_failure(told.append)
    processes[2]._wire._connection.shutdown(2)
    errors = in_threads(*(lambda line=line: line.gather(1, "x") for line in processes[:2]))
    end = time.monotonic() + 10
    while len(told) < 2 and time.monotonic() < end:
        time.sleep(0.01)  # a gather may hear of it before the listeners do
    assert all(str(one).startswith("rank 2 (process ") for one in (*errors, *told))
    assert all(str(one).endswith("has ended") for one in (*errors, *told)) and len(told) == 2


def test_the_end_of_rank_0_is_seen_by_the_others(processes):
    in_threads(*(lambda line=line: rounds(line) for line in processes))
    for wire in processes[0]._wires:
        wire._closed = True  # a process that has ended complains of nobody
    for wire in processes[0]._wires:
        wire._connection.shutdown(2)
    errors = in_threads(*(lambda line=line: line.gather(1, "x") for line in processes[1:]))
    assert [str(one) for one in errors] == ["rank 0 has ended"] * 2


def test_a_silent_process_is_named(processes, monkeypatch):
    in_threads(*(lambda line=line: rounds(line) for line in processes))
    monkeypatch.setattr(processes[1]._wire, "send", lambda message: None)  # stopped: no beats
    errors = in_threads(*(lambda line=line: line.gather(1, "x") for line in processes[::2]))
    assert all("rank 1 (process" in str(one) and "silent for 1 s" in str(one) for one in errors)


def test_a_failure_is_told_to_all(processes):
    in_threads(*(lambda line=line: rounds(line) for line in processes))
    processes[1].fail("rank 1: ValueError: wrong")
    errors = in_threads(*(lambda line=line: line.gather(1, "x") for line in processes))
    assert {str(one) for one in errors} == {"rank 1: ValueError: wrong"}


def test_a_process_that_says_goodbye_is_not_lost(processes):
    in_threads(*(lambda line=line: rounds(line) for line in processes))
    processes[2].close()
    [error] = in_threads(lambda: processes[0].gather(1, "one more", 0.3))
    assert "not come to one more within 0.3 s" in str(error)


def test_the_answers_of_the_last_round_go_before_the_goodbye_of_rank_0(processes, monkeypatch):
    own, *others = processes
    in_threads(*(lambda line=line: line.gather(0, "x") for line in processes))
    send = lines._Wire.send

    def slow(wire, message):
        if "values" in message:
            time.sleep(0.3)
        send(wire, message)

    monkeypatch.setattr(lines._Wire, "send", slow)

    def last():
        found = own.gather(1, "the end")
        own.close()
        return found

    found = in_threads(last, *(lambda line=line: line.gather(1, "the end") for line in others))
    assert found == [[1, 1, 1]] * 3


class Wire:
    """A wire of rank 1 that keeps what goes over it, an answer only after a while."""

    rank = 1

    def __init__(self):
        self.sent = []

    def send(self, message):
        time.sleep(0.05)
        self.sent.append(message)

    def close(self):
        self.sent.append("goodbye")


@pytest.mark.parametrize("started", [False, True])
def test_a_line_ends_after_an_answer_whose_thread_is_just_being_started(monkeypatch, started):
    own, wire, start = OwnLine(("localhost", 0), 1), Wire(), threading.Thread.start
    own.hub = Hub(2)
    own.hub._rounds[1] = {0: (6, "the end")}
    own._wires.append(wire)
    message = {"round": 1, "value": 7, "what": "the end", "timeout_s": 5.0}
    asking = threading.Thread(target=own._serve, args=(wire, message))
    closing = threading.Event()

    def pause(thread):
        if threading.current_thread() is not asking:
            return start(thread)
        if started:
            start(thread)
        closing.set()
        time.sleep(0.05)
        return None if started else start(thread)

    monkeypatch.setattr(threading.Thread, "start", pause)
    asking.start()
    assert closing.wait(10)
    own.close()
    asking.join(10)
    assert wire.sent == [{"values": [6, 7]}, "goodbye"]


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("localhost", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(RankLost, match=f"rank 0 cannot listen at localhost:{port}: "):
            OwnLine(("localhost", port), 2)


def test_nobody_answers(monkeypatch):
    monkeypatch.setattr(lines, "START_S", 0.0)
    with pytest.raises(RankLost, match="rank 0 does not answer at localhost:1"):
        FarLine(("localhost", 1), 1, 2)
