"""What observers are told of bulk copies: an AsyncOperation for each one."""

from __future__ import annotations

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


def global_access(kind: str, target: GlobalPlaces, i: int, lane: int, size: int) -> Access:
    """The Access of the i-th of some copies to global memory; of a box, the part in the array."""
    address = target.first[i : i + 1]
    if target.box is not None:
        first = address
        unit = target.box.unit(first)
        index, inside = target.box.indices(first, unit)
        index = index[0] if inside is None else index[inside]
        address, size = index * unit, unit
    return Access("global", kind, address.astype(np.uint64), np.full(address.size, lane), size)


def of_arrivals(arrival: Arrival, line: int, source: GlobalPlaces | None) -> list[AsyncOperation]:
    """The operations of copies into shared memory; of a multicast, only the first one reads."""
    found, read = [], set()
    kind = "store" if arrival.reduction is None else "atomic"
    for i, lane in enumerate(arrival.lanes.tolist()):
        accesses = []
        if arrival.source is not None:
            accesses.append(shared_access("load", arrival.source, i, lane, arrival.size, PLAIN))
        elif (row := int(arrival.row[i])) not in read:
            accesses.append(global_access("load", source, row, lane, arrival.size))
            read.add(row)
        accesses.append(shared_access(kind, arrival.to, i, lane, arrival.size, arrival.layout))
        mbarrier = int(arrival.phase.block[i]), int(arrival.phase.address[i])
        lanes = np.array([lane])
        ins, how = arrival.instruction, "mbarrier"
        found.append(AsyncOperation(ins, line, lanes, tuple(accesses), how, mbarrier))
    return found


def of_departures(departure: Departure, line: int, lanes: np.ndarray) -> list[AsyncOperation]:
    """The operations of copies out of shared memory."""
    kind = "store" if departure.reduction is None else "atomic"
    layout = departure.target.layout
    found = []
    for i, lane in enumerate(lanes.tolist()):
        accesses = (
            shared_access("load", departure.source, i, lane, departure.size, layout),
            global_access(kind, departure.target, i, lane, departure.size),
        )
        ins, how = departure.instruction, "bulk_group"
        found.append(AsyncOperation(ins, line, np.array([lane]), accesses, how))
    return found
