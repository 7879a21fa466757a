"""Links: what moves arrays from rank to rank. NCCL between GPUs, memory between threads.

Loopback has the names and arguments of CuPy's NcclCommunicator: addresses, counts, a data type, a
peer, a stream. As in NCCL a send alone waits for its receiver, so two ranks that send to each other
hang unless both put send and receive into one group; here the hang ends with a message, as soon as
all ranks wait. A rank that computes for long is waited for.
"""

import ctypes
import threading
from collections import defaultdict
from operator import itemgetter

from ..errors import UserError
from .lines import Hub

BYTE = 0  # NCCL's int8: arrays travel as bytes
RECEIVE, SEND = 0, 1  # in which order a group waits


class LinkError(UserError, RuntimeError):
    """A send without its receive, or the other way round, or one of another length."""


class Mail:
    """Messages between threads that are on their way."""

    def __init__(self, hub: Hub):
        self._hub = hub
        self._sent: dict[tuple[int, int], list] = defaultdict(list)  # (from, to) -> messages

    def put(self, route: tuple[int, int], data: bytes) -> list:
        """Offer a message; it is [data] until it is taken, then []."""
        message = [data]
        with self._hub.changed:
            self._sent[route].append(message)
            self._hub.changed.notify_all()
        return message

    def take(self, route: tuple[int, int]) -> bytes:
        """Wait for the next message of a route and return it."""
        with self._hub.changed:
            self._wait(route[1], lambda: self._sent[route], f"receives from rank {route[0]}")
            data = self._sent[route].pop(0).pop()
            self._hub.changed.notify_all()
            return data

    def wait_taken(self, message: list, route: tuple[int, int]) -> None:
        with self._hub.changed:
            self._wait(route[0], lambda: not message, f"sends to rank {route[1]}")

    def _wait(self, rank: int, ready, doing: str) -> None:
        if stuck := self._hub.wait(rank, ready, doing):
            raise LinkError(
                f"{stuck}: nothing can go on. Each send needs a receive; where ranks send to each "
                "other, each puts its send and its receive between groupStart() and groupEnd()"
            )


class Loopback:
    """A communicator between threads, with the names of NcclCommunicator."""

    def __init__(self, mail: Mail, rank: int):
        self._mail, self._rank = mail, rank

    def rank_id(self) -> int:
        """Return this rank's number."""
        return self._rank

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream=0) -> None:
        """Send `count` bytes at an address to a rank."""
        route, data = (self._rank, peer), ctypes.string_at(sendbuf, count)

        def start():
            message = self._mail.put(route, data)
            return lambda: self._mail.wait_taken(message, route)

        _now_or_in_group(SEND, start)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream=0) -> None:
        """Receive `count` bytes of a rank into memory at an address."""
        route = (peer, self._rank)

        def finish() -> None:
            data = self._mail.take(route)
            if len(data) != count:
                raise LinkError(
                    f"rank {route[1]} expects {count} bytes from rank {route[0]}, which sends "
                    f"{len(data)}: make the two counts equal"
                )
            ctypes.memmove(recvbuf, data, count)

        _now_or_in_group(RECEIVE, lambda: finish)

    def abort(self) -> None:
        """End; the hub tells threads that wait."""

    destroy = abort


_group = threading.local()  # of this thread: what waits for groupEnd(), and how many are open


def groupStart() -> None:
    """Begin a group: its sends and receives start together at groupEnd(), the outermost one's."""
    if not getattr(_group, "depth", 0):
        _group.depth, _group.waiting = 0, []
    _group.depth += 1


def groupEnd() -> None:
    """Start all of the group and wait for it: for receives first, sends wait for those of others.

    Raises:
        LinkError: no group is open; NCCL calls this an invalid usage.  LinkError, RankLost.
    """
    if not getattr(_group, "depth", 0):
        raise LinkError("groupEnd() without groupStart()")
    _group.depth -= 1
    if _group.depth:
        return
    started = [(kind, start()) for kind, start in _group.waiting]
    for _, finish in sorted(started, key=itemgetter(0)):
        finish()


def _now_or_in_group(kind: int, start) -> None:
    """Start and finish now, or leave that to groupEnd()."""
    if getattr(_group, "depth", 0):
        _group.waiting.append((kind, start))
    else:
        start()()
