"""What observers are told of bulk copies: an AsyncOperation for each one."""

from __future__ import annotations

from math import prod

import numpy as np
from kernelscope.events import Access, AsyncOperation

from .places import CHUNK, PLAIN, RowLayout, SharedPlaces
from .transfers import Arrival, Departure, GlobalPlaces


def shared_access(kind: str, at: SharedPlaces, i: int, lane: int, size: int, layout: RowLayout):
    """The Access of the i-th of some copies to shared memory: one run, or its chunks."""
    run = CHUNK if layout.swizzle else size
    address = at.address[i : i + 1]
    if layout.swizzle:
        address = at.part(slice(i, i + 1)).chunk_addresses(size, layout)[0]
    lanes, block = np.full(address.size, lane), np.full(address.size, at.block[i])
    return Access("shared", kind, address.astype(np.uint64), lanes, run, None, block)


def global_access(kind: str, target: GlobalPlaces, i: int, lane: int, size: int):
    """(Access, box, rows) of the i-th of some copies to global memory, as of an AsyncOperation."""
    address, shape, rows = target.first[i : i + 1], None, None
    if target.box is not None:
        first = address
        unit = target.box.unit(first)
        index, inside = target.box.indices(first, unit)
        shape = prod(target.box.counts[1:]), target.box.counts[0] * target.box.item
        rows = np.arange(index.shape[1]) * unit // shape[1]
        if inside is not None:
            index, rows = index[inside], rows[inside[0]]
        address, size = index.ravel() * unit, unit
    lanes = np.full(address.size, lane)
    return Access("global", kind, address.astype(np.uint64), lanes, size), shape, rows


def of_arrivals(arrival: Arrival, line: int, source: GlobalPlaces | None) -> list[AsyncOperation]:
    """The operations of copies into shared memory; of a multicast, only the first one reads."""
    found, read = [], set()
    kind = "store" if arrival.reduction is None else "atomic"
    for i, lane in enumerate(arrival.lanes.tolist()):
        accesses, box = [], ()
        if arrival.source is not None:
            accesses.append(shared_access("load", arrival.source, i, lane, arrival.size, PLAIN))
        elif (row := int(arrival.row[i])) not in read:
            access, *box = global_access("load", source, row, lane, arrival.size)
            accesses.append(access)
            read.add(row)
        accesses.append(shared_access(kind, arrival.to, i, lane, arrival.size, arrival.layout))
        mbarrier = int(arrival.phase.block[i]), int(arrival.phase.address[i])
        lanes = np.array([lane])
        ins, how = arrival.instruction, "mbarrier"
        found.append(AsyncOperation(ins, line, lanes, tuple(accesses), how, mbarrier, *box))
    return found


def of_departures(departure: Departure, line: int, lanes: np.ndarray) -> list[AsyncOperation]:
    """The operations of copies out of shared memory."""
    kind = "store" if departure.reduction is None else "atomic"
    layout = departure.target.layout
    found = []
    for i, lane in enumerate(lanes.tolist()):
        read = shared_access("load", departure.source, i, lane, departure.size, layout)
        written, *box = global_access(kind, departure.target, i, lane, departure.size)
        ins, how = departure.instruction, "bulk_group"
        lane_ids = np.array([lane])
        found.append(AsyncOperation(ins, line, lane_ids, (read, written), how, None, *box))
    return found
