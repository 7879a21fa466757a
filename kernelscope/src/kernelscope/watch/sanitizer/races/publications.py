"""The order that fences give with atomics, flags and locks: between blocks, and inside one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

NEVER_ACQUIRED = 1 << 62  # later than every time
_FEW = 4  # cases that are not worth sorting


@dataclass(slots=True)
class _Taking:
    """Strong accesses of a block at one address, one for each state that was published there.

    first, last: the times of the first and of the last access to this state; acquired: the time of
    the fence or barrier that follows the first one, or NEVER_ACQUIRED; lock: was it an atomic that
    may take a lock? takers: those of the block who were there, as far as they are told apart.
    """

    first: int
    last: int
    acquired: int
    lock: bool
    takers: set[int]


class Publications:
    """Order between blocks: writes, a fence, and an atomic that another block reads afterwards.

    The rule: an access of block A is ordered before one of block B when A, after its access, ran
    __threadfence() and then an atomic or volatile write (or one that releases, without a fence) at
    an address where B, before its own access and after A's atomic, did an atomic or volatile access
    and then a fence (or one that acquires). That covers tickets ("the last block to finish"), flags
    and locks. A fence by one thread after a block barrier counts for its block. On B's side a
    barrier of its block does as well as a fence: CUDA's own example of tickets has no more. The
    order goes on through further blocks: one that has taken what A gave, and then gives, gives what
    A did too.

    A lock that A itself took without a fence after it orders only this way round: had B taken it
    first, B's accesses would not be ordered before A's. So such an order counts as unfenced too.
    """

    def __init__(self, per_block: int):
        self.per_block = self.per_giver = per_block  # lanes of a block, and of those told apart
        self.members = 1  # how many are told apart in a block
        self.fences: dict[int, int] = {}  # block -> time of its last fence
        self.released: dict[tuple[int, int], int] = {}  # (block, address) -> of its last release
        # block -> address -> (time of the fence, time of the write, cover), one for each fence
        self.given: dict[int, dict[int, list[tuple]]] = defaultdict(dict)
        self.taken: dict[int, dict[int, list[_Taking]]] = defaultdict(dict)  # block -> address
        self.fresh: dict[int, list[_Taking]] = defaultdict(list)  # of `taken`: no fence since
        self.takers: dict[int, set[int]] = defaultdict(set)  # address -> blocks
        self.newest: dict[int, int] = {}  # address -> time of the last write with a fence before

    def fence(self, lanes: np.ndarray, time: int) -> None:
        for block in np.unique(lanes // self.per_block).tolist():
            self.fences[block] = time
            self.acquire(block, time)

    def acquire(self, block: int, time: int) -> None:
        """A fence or a barrier follows what the block has taken so far."""
        for one in self.fresh.pop(block, ()):
            one.acquired = time

    def acquire_at(self, lanes: np.ndarray, addresses: np.ndarray, time: int) -> None:
        """Accesses that acquire: they order what their blocks have taken there, and no more."""
        if not self.fresh:
            return
        pairs = np.unique(np.stack([addresses, lanes // self.per_block]), axis=1)
        for address, block in pairs.T.tolist():
            last = self.taken[block][address][-1:] if address in self.taken[block] else ()
            for one in last:
                one.acquired = min(one.acquired, time)
                self.fresh[block] = [other for other in self.fresh[block] if other is not one]
                if not self.fresh[block]:
                    del self.fresh[block]

    def barrier(self, blocks: np.ndarray, time: int) -> None:
        """Blocks, by their numbers, passed a barrier."""
        if self.fresh:
            for block in blocks.tolist():
                self.acquire(block, time)

    def strong(self, lanes, addresses, time: int, writes: bool, lock: bool, releases: bool) -> None:
        """Atomic or volatile accesses; of use only after a first fence or release, or where they
        may take a lock.
        """
        if not (self.fences or self.given or lock or releases):
            return
        pairs = np.unique(np.stack([addresses, lanes // self.per_giver]), axis=1)
        for address, giver in pairs.T.tolist():
            block = giver * self.per_giver // self.per_block
            self.take(block, giver, address, time, lock)
            given = self.give(block, giver, address, time, releases) if writes else None
            if given is not None:
                known = self.given[block].setdefault(address, [])
                fence, _, cover = given
                if not any(one[0] == fence and one[2] == cover for one in known[-self.members :]):
                    known.append(given)
                    self.newest[address] = time

    def give(self, block: int, giver: int, address: int, time: int, releases: bool):
        """Return (time of the fence, time, cover) of a write that publishes something, or None.

        cover: the time up to which it publishes the writes of each warp; None: to the fence.
        """
        if releases:
            self.released[block, address] = time - 1
        fence = max(self.fences.get(block, 0), self.released.get((block, address), 0))
        return (fence, time, None) if fence else None

    def take(self, block: int, giver: int, address: int, time: int, lock: bool) -> None:
        takings = self.taken[block].setdefault(address, [])
        if takings and takings[-1].last == time:  # another warp, by the same instruction
            takings[-1].takers.add(giver)
            return
        # Atomics of one instruction are done in the order of the blocks.
        if takings and self.newest.get(address, -1) < takings[-1].last:
            takings[-1].last = time
            takings[-1].takers.add(giver)
            return
        takings.append(_Taking(time, time, NEVER_ACQUIRED, lock, {giver}))
        self.takers[address].add(block)
        self.fresh[block].append(takings[-1])

    def relation(self, time, earlier, later) -> tuple[np.ndarray, np.ndarray]:
        """Two (n,) bool for accesses at `time` by block `earlier`, followed now by block `later`.

        Ordered where a fence follows the atomic or volatile access of `later`, and where one
        followed when `earlier` took the lock that they share; and ordered at all.
        """
        return self._relation(np.stack([time, earlier, later]))

    def _relation(self, cases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """cases: (3 or more, n), the arguments of _ordered in columns."""
        if not self.given:
            return (np.zeros(cases.shape[1], bool),) * 2
        place: np.ndarray | slice = slice(None)
        if cases.shape[1] > _FEW:
            cases, place = np.unique(cases, axis=1, return_inverse=True)
            place = place.ravel()
        columns = [tuple(one) for one in cases.T.tolist()]
        answers = {one: self._ordered(True, *one) for one in columns}
        fenced = np.array([answers[one] for one in columns], bool)
        if fenced.all():
            return fenced[place], fenced[place]
        answers = {one: yes or self._ordered(False, *one) for one, yes in answers.items()}
        return fenced[place], np.array([answers[one] for one in columns], bool)[place]

    def _ordered(
        self,
        fenced: bool,
        time: int,
        earlier: int,
        later: int,
        met: int = NEVER_ACQUIRED,
        taker: int = -1,
    ) -> bool:
        """earlier: one of those told apart; later: a block, and `taker` the one of it that is
        concerned, or -1 where it took nothing itself; met: when it last met the others.
        """
        first = earlier * self.per_giver // self.per_block
        # block -> its fences from this time on publish what `earlier` did until `time`
        since, blocks = {first: time + 1}, [first]
        while blocks:
            giver = blocks.pop()
            warp = earlier if giver == first else None
            for address, at in self._published(giver, since[giver], warp):
                if fenced and giver == first and self._unfenced_lock(giver, address, time):
                    continue
                if self._takes(later, address, giver, at, fenced, met, taker) is not None:
                    return True
                for other in self.takers[address]:
                    acquired = self._takes(other, address, giver, at, True)
                    if acquired is not None and acquired < since.get(other, NEVER_ACQUIRED):
                        since[other] = acquired
                        blocks.append(other)
        return False

    def _published(self, block: int, since: int, warp: int | None) -> Iterator[tuple[int, int]]:
        """Yield (address, time of the write) of the first publication at each address.

        warp: whose writes they have to cover; None: anyone's.
        """
        for address, given in self.given.get(block, {}).items():
            for fence, at, cover in given:
                covers = warp is None or cover is None or cover[warp % len(cover)] >= since
                if fence >= since and covers:
                    yield address, at
                    break

    def _unfenced_lock(self, block: int, address: int, time: int) -> bool:
        """Had a block taken a lock at this address, and run no fence since, at some time?"""
        takings = self.taken.get(block, {}).get(address, ())
        return any(one.lock and one.first < time < one.acquired for one in takings)

    def _takes(
        self,
        block: int,
        address: int,
        giver: int,
        at: int,
        fenced: bool,
        met: int = NEVER_ACQUIRED,
        taker: int = -1,
    ) -> int | None:
        """Return when a block has acquired what was published at `at`; None: it has not.

        met, taker: as of `_ordered`.
        """
        for one in self.taken.get(block, {}).get(address, ()):
            # Atomics of one instruction are done in the order of the blocks.
            if at < one.first + (giver < block):
                reached = one.first < met or taker in one.takers
                known = reached and (one.acquired != NEVER_ACQUIRED or not fenced)
                return one.acquired if known else None
        return None


class GridPublications(Publications):
    """Order between blocks, where the warps of a block are told apart.

    A fence publishes what its own warp did, and what the others did before the warp last met them:
    at a barrier or an mbarrier, or with an atomic or volatile access, which may have waited for
    theirs. So does the write behind the fence, and so a warp comes after what another one of its
    block has taken only once the two have met.
    """

    def __init__(self, per_block: int, warps: int):
        """per_block: lanes of a block; warps: of the grid."""
        super().__init__(per_block)
        self.per_giver, self.members = 32, per_block >> 5
        self.met = np.zeros(
            (warps // self.members, self.members), np.int64
        )  # when, by block and warp
        self.fenced = np.zeros_like(self.met)  # time of each warp's last fence
        self.covered = np.zeros_like(self.met)  # and when it had met the others before
        self.covers: dict[tuple[int, int], list[int]] = {}  # by block and address: of releases
        self.last: tuple[int, int, list[int]] = (-1, -1, [])  # a warp, a time, and its cover then
        self.own = np.full(warps, -1)  # the number of each warp that has taken something itself

    def take(self, block: int, giver: int, address: int, time: int, lock: bool) -> None:
        self.own[giver] = giver
        super().take(block, giver, address, time, lock)

    def meet(self, lanes: np.ndarray, time: int) -> None:
        """Lanes come after what others of their blocks did."""
        self.met.ravel()[lanes >> 5] = time

    def barrier(self, blocks: np.ndarray, time: int) -> None:
        super().barrier(blocks, time)
        self.met[blocks] = time

    def fence(self, lanes: np.ndarray, time: int) -> None:
        super().fence(lanes, time)
        warps = lanes >> 5
        self.fenced.ravel()[warps] = time
        self.covered.ravel()[warps] = self.met.ravel()[warps]

    def give(self, block: int, giver: int, address: int, time: int, releases: bool):
        if self.members == 1:
            return super().give(block, giver, address, time, releases)
        if block not in self.fences and not releases and (block, address) not in self.covers:
            return None
        warp = giver % self.members
        if self.last[:2] != (giver, time):
            self.last = giver, time, self._cover(block, warp)
        cover = self.last[2]
        if releases:
            met = int(self.met[block, warp])
            cover = [max(one, met) for one in cover]
            cover[warp] = time - 1
            self.covers[block, address] = cover
        elif (block, address) in self.covers:
            cover = list(map(max, cover, self.covers[block, address]))
        last = max(cover)
        return (last, time, cover) if last else None

    def _cover(self, block: int, warp: int) -> list[int]:
        """The times up to which fences of a block cover what each warp did, for a write now."""
        met = int(self.met[block, warp])
        fenced, covered = self.fenced[block].tolist(), self.covered[block].tolist()
        known = [w for w, at in enumerate(fenced) if at and (at < met or w == warp)]
        others = max((covered[w] for w in known), default=0)
        return [max(others, at) if w in known else others for w, at in enumerate(fenced)]

    def relation(self, time, earlier, later) -> tuple[np.ndarray, np.ndarray]:
        """Publications.relation for accesses by lane `earlier`, followed now by lane `later`."""
        warp, block = later >> 5, later // self.per_block
        met = self.met.ravel()[warp]
        return self._relation(np.stack([time, earlier >> 5, block, met, self.own[warp]]))


class LanePublications:
    """Order inside a block: the rule of Publications between warps, and between lanes of one warp.

    A fence by one lane counts for its whole warp where another warp reads; lanes of one warp are
    told apart. Fences of any scope do.
    """

    def __init__(self):
        self.members, self.single = Publications(32), Publications(1)

    def fence(self, lanes: np.ndarray, time: int) -> None:
        self.members.fence(lanes, time)
        self.single.fence(lanes, time)

    def strong(self, *accesses, **how) -> None:
        self.members.strong(*accesses, **how)
        self.single.strong(*accesses, **how)

    def acquire_at(self, *accesses) -> None:
        self.members.acquire_at(*accesses)
        self.single.acquire_at(*accesses)

    def barrier(self, lanes: np.ndarray, time: int) -> None:
        """Lanes passed a barrier of their block or warp: it serves as the fence behind a lock."""
        if self.single.fresh:
            self.members.barrier(np.unique(lanes >> 5), time)
            self.single.barrier(lanes, time)

    def relation(self, time, earlier, later) -> tuple[np.ndarray, np.ndarray]:
        """Publications.relation for accesses by lane `earlier`, followed now by lane `later`."""
        if not self.members.given:
            return (np.zeros(time.size, bool),) * 2
        apart = earlier >> 5 != later >> 5
        warps = self.members.relation(time, earlier >> 5, later >> 5)
        lanes = self.single.relation(time, earlier, later)
        return np.where(apart, warps[0], lanes[0]), np.where(apart, warps[1], lanes[1])
