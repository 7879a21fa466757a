"""A model of bulk copies, element by element, for the tests: it shares no code with the machine."""

import numpy as np
from kernelscope.differential.copies import TILE
from kernelscope.tensor_map.fields import ELEMENTS

NAN = {2: 0x7FF7, 4: 0x7FF77FF7, 8: 0x7FF77FF77FF77FF7}  # as an H200 has it


def elements(case):
    """Yield (byte of shared memory, index in the array or None) of each element of a case's box."""
    size, axes = ELEMENTS[case.kind][1], len(case.shape)
    steps = case.steps or (1,) * axes
    counts = [-(-box // step) for box, step in zip(case.box, steps, strict=True)]
    row = counts[-1] * size
    start = case.first[::-1]
    for number, index in enumerate(np.ndindex(*counts)):
        at = tuple(f + i * s for f, i, s in zip(start, index, steps, strict=True))
        inside = all(0 <= one < extent for one, extent in zip(at, case.shape, strict=True))
        line, place = divmod(number * size, row)
        address = case.offset + line * (case.swizzle or row) + place
        if case.swizzle:
            line, chunk = address // 128, address // 16 % 8
            address = line * 128 + (chunk ^ line % (case.swizzle // 16)) * 16 + address % 16
        yield address, at if inside else None


def loaded(case, shared: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Shared memory, (TILE,) uint8, after a load of a box."""
    wanted, size = shared.copy(), ELEMENTS[case.kind][1]
    fill = NAN[size] if case.fill == "nan" else 0
    for address, at in elements(case):
        value = np.array([fill if at is None else data[at]], f"u{size}")
        wanted[address : address + size] = converted(case.kind, value).view(np.uint8)
    return wanted


def stored(case, shared: np.ndarray, data: np.ndarray, combine=None) -> np.ndarray:
    """The array after a store of a box; combine(old, new) -> value, of a reduction."""
    wanted, size = data.copy(), ELEMENTS[case.kind][1]
    for address, at in elements(case):
        if at is not None:
            value = shared[address : address + size].view(data.dtype)[0]
            wanted[at] = value if combine is None else combine(wanted[at], value)
    return wanted


def converted(kind: str, value: np.ndarray) -> np.ndarray:
    """What a load makes of one element."""
    if kind in ("float32_ftz", "tfloat32_ftz"):
        number = value.view(np.float32)
        if abs(number[0]) < np.finfo(np.float32).tiny:
            value = (np.copysign(np.float32(0), number)).view(np.uint32)
    if kind.startswith("tfloat32") and np.isfinite(value.view(np.float32)[0]):
        kept, rest = divmod(int(value[0]), 1 << 13)
        kept += rest > 1 << 12 or (rest == 1 << 12 and kept % 2 == 1)
        value = np.array([kept << 13], np.uint32)
    return value


def before(case) -> tuple[np.ndarray, np.ndarray]:
    """(shared memory as (TILE,) uint8, the array) that a case starts with."""
    size = int(case.kind.strip("bsuf")) // 8 if case.kind not in ELEMENTS else 0
    size = size or ELEMENTS[case.kind][1]
    shared = case.numbers((case.blocks * TILE // size,), 2).view(np.uint8)
    return shared, case.numbers(case.shape, 1)
