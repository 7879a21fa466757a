"""Instructions in which the lanes of a warp talk to each other: shuffles, votes, matches.

Values arrive as arrays over the active lanes; `lanes` are their sorted lane ids (32 a warp). A full
table of 32 places a warp is filled first, so that an inactive source lane is visible as such.
"""

from __future__ import annotations

import numpy as np

from .memory import spread


def _table(values: np.ndarray, lanes: np.ndarray, fill=0):
    """(warps, 32) table of the active lanes' values, and the row number of each lane's warp."""
    first = int(lanes[0]) >> 5
    rows = (int(lanes[-1]) >> 5) - first + 1
    table = np.full(rows * 32, fill, values.dtype)
    table[lanes - (first << 5)] = values
    return table, first << 5


def shuffle(mode: str, value, b, c, lanes: np.ndarray):
    """shfl.sync: returns (value, predicate, reads_inactive) over the active lanes.

    value: (lanes,) uint32; b: source lane or distance; c: clamp in bits 4:0, segment mask in 12:8.
    reads_inactive: (lanes,) bool, where the source lane exists but is not active.
    """
    count = lanes.size
    value = spread(value, count)
    lane = (lanes & 31).astype(np.int64)
    b = spread(b, count).astype(np.int64) & 31
    c = spread(c, count).astype(np.int64)
    clamp, segment = c & 31, (c >> 8) & 31
    limit = (lane & segment) | (clamp & ~segment)
    if mode == "up":
        source = lane - b
        inside = source >= limit
    elif mode == "down":
        source = lane + b
        inside = source <= limit
    elif mode == "bfly":
        source = lane ^ b
        inside = source <= limit
    else:  # idx
        source = (lane & segment) | (b & ~segment & 31)
        inside = source <= limit
    source = np.where(inside, source, lane)
    table, base = _table(value, lanes)
    active, _ = _table(np.ones(count, bool), lanes, False)
    place = (lanes - base) - lane + source
    reads_inactive = ~active[place]
    return np.where(reads_inactive, value, table[place]), inside, reads_inactive


def ballot(predicate, lanes: np.ndarray, members) -> np.ndarray:
    """vote.ballot: bit i of each warp's result is lane i's predicate; (lanes,) uint32."""
    count = lanes.size
    bits = spread(predicate, count).astype(np.uint32) << (lanes & 31).astype(np.uint32)
    table, base = _table(bits, lanes)
    whole = np.bitwise_or.reduce(table.reshape(-1, 32), axis=1)
    return whole[(lanes - base) >> 5] & spread(members, count).astype(np.uint32)


def vote(mode: str, predicate, lanes: np.ndarray, members):
    """vote.{all,any,uni,ballot}: (lanes,) bool, or uint32 for ballot."""
    predicate = spread(predicate, lanes.size)
    true = ballot(predicate, lanes, members)
    if mode == "ballot":
        return true
    if mode == "any":
        return true != 0
    false = ballot(~predicate, lanes, members)
    return (false == 0) if mode == "all" else (false == 0) | (true == 0)


def match_any(value, lanes: np.ndarray, members) -> np.ndarray:
    """match.any: the mask of lanes of the warp that hold the same value; (lanes,) uint32."""
    count = lanes.size
    value, members = spread(value, count), spread(members, count)
    result = np.zeros(count, np.uint32)
    table, base = _table(value, lanes)
    active = ballot(np.bool_(True), lanes, members)
    warp_start = (lanes - base) & ~np.int64(31)
    for lane in range(32):
        same = table[warp_start + lane] == value
        result |= same.astype(np.uint32) << np.uint32(lane)
    return result & active & members.astype(np.uint32)


def match_all(value, lanes: np.ndarray, members):
    """match.all: (mask or 0, predicate)."""
    same = match_any(value, lanes, members)
    active = ballot(np.bool_(True), lanes, members)
    agree = same == active
    return np.where(agree, active, np.uint32(0)).astype(np.uint32), agree


_REDUCE = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def reduce(operation: str, value, lanes: np.ndarray, members) -> np.ndarray:
    """redux.sync over the active members of each warp; integers of 32 bits, dtype kept."""
    value = spread(value, lanes.size)
    members = spread(members, lanes.size).astype(np.uint32)
    info = np.iinfo(value.dtype)
    fill = {
        "add": 0,
        "or": 0,
        "xor": 0,
        "and": -1 if info.min < 0 else info.max,
        "min": info.max,
        "max": info.min,
    }[operation]
    inside = (members >> (lanes & 31).astype(np.uint32)) & np.uint32(1)
    table, base = _table(np.where(inside != 0, value, value.dtype.type(fill)), lanes, fill)
    whole = _REDUCE[operation].reduce(table.reshape(-1, 32), axis=1).astype(value.dtype)
    return whole[(lanes - base) >> 5]


def first_active(lanes: np.ndarray, members):
    """elect.sync: (leader lane of the warp, is this lane the leader)."""
    active = ballot(np.bool_(True), lanes, members)
    lowest = active & (~active + np.uint32(1))
    leader = np.bitwise_count(lowest - np.uint32(1)).astype(np.uint32)
    return leader, leader == (lanes & 31).astype(np.uint32)
