"""Lines between ranks: small values in rounds, and word of a rank that is lost.

A hub collects a value of every rank in each round and gives all of them to each. Ranks that are
threads share it; ranks that are processes reach rank 0's over TCP, a line of JSON for each message.
A process that ends closes its line; one that is stopped, or whose host is gone, is silent.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import UserError

BEAT_S = 5.0  # a process says that it is there this often
SILENT_S = 30.0  # without a word for so long a rank counts as lost
GATHER_S = 50.0  # that ranks wait for the others in a round
START_S = 60.0  # that a process tries to reach rank 0
REACHED = "joins"  # the first word of a process


class RankLost(UserError, RuntimeError):
    """Another rank has failed, ended or not come; the message names it. Nothing can go on."""


@dataclass
class _Wait:
    """What a rank waits for, and doing what; stuck: what all do, once none of them can go on."""

    ready: Callable[[], object]
    doing: str
    stuck: str = ""


class Hub:
    """Where values of all ranks meet, round after round.

    Attributes:
        size: ranks.
        failure: what has gone wrong first, in words; None.
        changed: held while ranks that are threads look at what they share, notified of changes.
    """

    def __init__(self, size: int):
        self.size, self.failure = size, None
        self.changed = threading.Condition()
        self._rounds: dict[int, dict[int, object]] = {}
        self._waiting: dict[int, _Wait] = {}  # by rank
        self._listeners: list[Callable[[str], object]] = []

    def gather(self, rank: int, number: int, value, what: str, timeout_s: float | None) -> list:
        """Give the value of a rank in a round; return those of all.

        timeout_s: None: without a limit.

        Raises:
            RankLost: a rank has failed, does not come, or is at something else.
        """
        with self.changed:
            values = self._rounds.setdefault(number, {})
            values[rank] = value, what
            self.changed.notify_all()
            self.wait(rank, lambda: len(values) == self.size, f"is at {what}", timeout_s, False)
            if len(values) < self.size and not self.failure:
                away = [str(one) for one in range(self.size) if one not in values]
                who = f"rank {away[0]} has" if len(away) == 1 else f"ranks {', '.join(away)} have"
                self.fail(f"{who} not come to {what} within {timeout_s:g} s")
            places = [f"rank {one} is at {place}" for one, (_, place) in sorted(values.items())]
            if len({place for _, place in values.values()}) > 1:
                self.fail(f"{', '.join(places)}: all ranks make the same calls in the same order")
                raise RankLost(self.failure)
            if len(values) < self.size:
                raise RankLost(self.failure)
            self._rounds.pop(number - 2, None)  # all have left it: they are in the next one
            return [values[one][0] for one in range(self.size)]

    def wait(self, rank: int, ready: Callable, doing: str, timeout_s=None, link=True) -> str:
        """Wait until `ready()`, or until all ranks wait for what none of them will do.

        Call it while `changed` is held.  link: of a send or a receive; other waits leave it to
        these to say that all ranks wait.

        Returns:
            what all ranks do, where nothing can go on; else "".

        Raises:
            RankLost: a rank has failed, and this is of a link.
        """
        self._waiting[rank] = mine = _Wait(ready, f"rank {rank} {doing}")
        waits = self._waiting.values()
        if len(waits) == self.size and not any(one.ready() for one in waits):
            said = ", ".join(one.doing for _, one in sorted(self._waiting.items()))
            for one in waits:
                one.stuck = said
            self.changed.notify_all()
        try:
            self.changed.wait_for(
                lambda: ready() or self.failure or (link and mine.stuck), timeout_s
            )
            if not link or ready():
                return ""
            if self.failure and not mine.stuck:
                raise RankLost(self.failure)
            return mine.stuck
        finally:
            del self._waiting[rank]

    def fail(self, reason: str) -> None:
        """Say that nothing can go on; the first reason counts."""
        with self.changed:
            if self.failure is not None:
                return
            self.failure, listeners = reason, list(self._listeners)
            self.changed.notify_all()
        for tell in listeners:  # what they end may need `changed` to end
            tell(reason)

    def on_failure(self, tell: Callable[[str], object]) -> None:
        """Call `tell` with the reason once something fails."""
        with self.changed:
            self._listeners.append(tell)
            if self.failure is not None:
                tell(self.failure)


class HubLine:
    """A rank's line to a hub in the same process.

    Attributes:
        rank, size: of all ranks.
        hub: with `failure`.
    """

    def __init__(self, hub: Hub, rank: int):
        self.hub, self.rank, self.size, self._round = hub, rank, hub.size, 0

    def gather(self, value, what: str, timeout_s: float | None = None) -> list:
        """Return the values that all ranks give in this round, by rank. Raises RankLost.

        what: where a rank that does not come is missing.  timeout_s: None: GATHER_S between
        processes; threads wait without a limit, since none is lost unnoticed.
        """
        self._begin()
        return self.hub.gather(self.rank, self._round, value, what, timeout_s)

    def fail(self, reason: str) -> None:
        """Tell all ranks that nothing can go on."""
        self.hub.fail(reason)

    def _begin(self) -> None:
        if self.hub.failure is not None:
            raise RankLost(self.hub.failure)
        self._round += 1

    def close(self) -> None:
        """End the line of a rank that is done."""


class FarLine(HubLine):
    """A process's line to the hub of rank 0. Its own hub knows of a failure alone."""

    def __init__(self, address: tuple[str, int], rank: int, size: int):
        super().__init__(Hub(size), rank)
        self._wire = _Wire(_reach(address), "rank 0", self.hub)
        self._answers: list[list] = []
        self._changed = threading.Condition()
        self.hub.on_failure(lambda _: self._wake())
        self._wire.send({REACHED: rank, "name": name_of(rank)})
        self._wire.listen(self._take)

    def gather(self, value, what: str, timeout_s: float | None = None) -> list:
        self._begin()
        timeout_s = GATHER_S if timeout_s is None else timeout_s
        message = {"round": self._round, "value": value, "what": what, "timeout_s": timeout_s}
        self._wire.send(message)
        with self._changed:
            late = timeout_s + SILENT_S
            self._changed.wait_for(lambda: self._answers or self.hub.failure, late)
            if not self._answers:
                raise RankLost(self.hub.failure or f"rank 0 has not answered within {late:g} s")
            return self._answers.pop()

    def fail(self, reason: str) -> None:
        self._wire.send({"failure": reason})
        super().fail(reason)

    def close(self) -> None:
        self._wire.close()

    def _take(self, message: dict) -> None:
        if "failure" in message:
            self.hub.fail(message["failure"])
        else:
            with self._changed:
                self._answers.append(message["values"])
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class OwnLine(HubLine):
    """Rank 0's line: the hub of all processes is here."""

    def __init__(self, address: tuple[str, int], size: int):
        super().__init__(Hub(size), 0)
        self._wires: list[_Wire] = []
        self._answering: dict[_Wire, threading.Thread] = {}
        self._starting = threading.Lock()  # held until a thread in `_answering` has started
        try:
            self._server = socket.create_server(address, backlog=size)
        except OSError as error:
            place = f"{address[0]}:{address[1]}"
            raise RankLost(f"rank 0 cannot listen at {place}: {error.strerror}") from None
        threading.Thread(target=self._admit, daemon=True).start()

    def gather(self, value, what: str, timeout_s: float | None = None) -> list:
        return super().gather(value, what, GATHER_S if timeout_s is None else timeout_s)

    def close(self) -> None:
        """Send the answers of the last round, and end the lines."""
        self._server.close()
        for wire in self._wires:
            with self._starting:
                answer = self._answering.get(wire)
            if answer:
                answer.join(SILENT_S)
            wire.close()

    def _admit(self) -> None:
        for _ in range(self.size - 1):
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # closed
            wire = _Wire(connection, "a process that has not said its rank", self.hub)
            self._wires.append(wire)
            self.hub.on_failure(lambda reason, wire=wire: wire.send({"failure": reason}))
            wire.listen(lambda message, wire=wire: self._serve(wire, message))

    def _serve(self, wire: "_Wire", message: dict) -> None:
        """Do what a process asks for; a round waits for others, so in a thread of its own."""
        if REACHED in message:
            wire.rank, wire.name = message[REACHED], message["name"]
        elif "failure" in message:
            self.hub.fail(message["failure"])
        else:
            answer = threading.Thread(target=self._answer, args=(wire, message), daemon=True)
            with self._starting:
                self._answering[wire] = answer
                answer.start()

    def _answer(self, wire: "_Wire", message: dict) -> None:
        asked = message["round"], message["value"], message["what"], message["timeout_s"]
        try:
            wire.send({"values": self.hub.gather(wire.rank, *asked)})
        except RankLost:
            pass  # the hub has told all processes


class _Wire:
    """A TCP connection: lines of JSON both ways, and beats that say that a process is there."""

    def __init__(self, connection: socket.socket, name: str, hub: Hub):
        self.rank, self.name, self._hub, self._closed = -1, name, hub, False
        self._connection, self._lock = connection, threading.Lock()
        connection.settimeout(SILENT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: dict) -> None:
        """Send a message; where the other end is gone, `listen` says so."""
        try:
            with self._lock:
                self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass

    def listen(self, take: Callable[[dict], object]) -> None:
        """Call `take` with each message, in a thread, and send beats in another one."""
        threading.Thread(target=self._read, args=(take,), daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def close(self) -> None:
        """Say goodbye and close."""
        self.send({"bye": self.rank})
        self._closed = True
        self._connection.close()

    def _read(self, take: Callable[[dict], object]) -> None:
        end = "has ended"
        try:
            with self._connection.makefile() as lines:
                for line in lines:
                    message = json.loads(line)
                    self._closed |= "bye" in message
                    if message and not self._closed:
                        take(message)
        except TimeoutError:
            end = f"has been silent for {SILENT_S:g} s"
        except (OSError, ValueError):
            pass  # reset, or cut off in a line
        if not self._closed:
            self._hub.fail(f"{self.name} {end}")

    def _beat(self) -> None:
        while not self._closed and self._hub.failure is None:
            time.sleep(BEAT_S)
            self.send({})


def name_of(rank: int) -> str:
    """Return "rank 1 (process 4711 on HOST)"."""
    return f"rank {rank} (process {os.getpid()} on {socket.gethostname()})"


def _reach(address: tuple[str, int]) -> socket.socket:
    """Connect to rank 0, which may start later. Raises RankLost."""
    end = time.monotonic() + START_S
    while True:
        try:
            return socket.create_connection(address, timeout=SILENT_S)
        except OSError as error:
            if time.monotonic() > end:
                place = f"{address[0]}:{address[1]}"
                raise RankLost(f"rank 0 does not answer at {place}: {error}") from None
            time.sleep(0.1)
