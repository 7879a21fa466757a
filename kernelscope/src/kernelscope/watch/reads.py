"""Reads of each element of each array in global memory."""

import math

import numpy as np
from kernelscope.events import InstructionEvent, Launch, Observer

from ..errors import InputError, UnknownNameError


class ReadCounts(Observer):
    """Counts, for every element of the arrays a kernel is given, the threads that load it.

    with observe(ReadCounts()) as reads:
        kernel(grid, block, args)
    reads.of("k")  # int64, the shape of the argument k

    A load of several elements at once (float4) counts once for each of them. Caches, which may
    serve one fetch to many threads, are not modelled. Several launches add up as long as an array
    keeps its name and shape.
    """

    def __init__(self):
        super().__init__()
        self._counts: dict[str, np.ndarray] = {}
        self._buffers: tuple = ()

    def of(self, name: str) -> np.ndarray:
        """Return the reads of each element of an array, by the name of the kernel's parameter.

        Raises KeyError, which lists the known arrays.
        """
        if name not in self._counts:
            known = ", ".join(sorted(self._counts)) or "none: no kernel has run"
            raise UnknownNameError(f"no array {name!r} in what was observed; there are: {known}")
        return self._counts[name]

    def launch_started(self, launch: Launch) -> None:
        self._buffers = tuple(
            buffer
            for buffer in launch.buffers
            if buffer.space == "global"
            and buffer.dtype is not None
            and math.prod(buffer.shape)
            and buffer.name != "kernel parameters"
        )
        for buffer in self._buffers:
            kept = self._counts.get(buffer.name)
            if kept is None:
                self._counts[buffer.name] = np.zeros(buffer.shape, np.int64)
            elif kept.shape != buffer.shape:
                raise InputError(
                    f"{buffer.name} had shape {kept.shape} in an earlier launch and has "
                    f"{buffer.shape} now: observe them with a ReadCounts() each"
                )

    def concerns(self, instruction) -> bool:
        return False

    def instruction(self, event: InstructionEvent) -> None:
        for access in event.accesses:
            if access.space == "global" and access.kind == "load":
                valid = slice(None) if access.valid is None else access.valid
                self._add(access.address[valid].astype(np.int64), access.size)

    def _add(self, address: np.ndarray, size: int) -> None:
        for buffer in self._buffers:
            inside = (address >= buffer.start) & (address < buffer.start + buffer.size)
            if not inside.any():
                continue
            flat = self._counts[buffer.name].reshape(-1)
            first = (address[inside] - buffer.start) // buffer.dtype.itemsize
            for element in range(max(1, size // buffer.dtype.itemsize)):
                flat += np.bincount(first + element, minlength=flat.size)
