"""Arrays and variables in the threads' local memory, by the names that the debug build gives."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from attn_course.engine.events import InstructionEvent

from .call_sites import executing
from .elements import Array


class LocalArrays:
    """What lies where in the frames of a kernel and of the functions that it calls."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.variables: dict[str, tuple] = {}  # LocalVariables of each function met

    def around(self, event: InstructionEvent) -> list[Array]:
        """Those of the function that an instruction belongs to, then those of its callers.

        Variables that have ended, or do not exist yet, come last in their function.
        """
        found: list[Array] = []
        for instance, index in self.calls(event):
            arrays = [
                (variable.place_at(index) is None, _array(variable, frame + offset))
                for variable, frame, offset in self.placed(instance)
                if variable.dtype
            ]
            found += [array for _, array in sorted(arrays, key=lambda pair: pair[0])]
        return found

    def gaps(self, event: InstructionEvent, bytes_: list[int]) -> list[bool]:
        """Which bytes are padding: in a struct, but in none of its members."""
        arrays, structs = self.around(event), []
        for instance, _ in self.calls(event):
            for variable, frame, _ in self.placed(instance):
                start, size = variable.struct
                structs.append(range(frame + start, frame + start + size))
        return [
            holding(arrays, byte) is None and any(byte in one for one in structs) for byte in bytes_
        ]

    @staticmethod
    def calls(event: InstructionEvent) -> Iterator[tuple]:
        """(instance, index of its instruction) of the running function and then of its callers."""
        running = executing(event.chunk, event.instruction, event.lanes.size)
        instance, instruction = (running[0] if running else None), event.instruction
        while instance is not None:
            yield instance, instruction.index
            instance, instruction = instance.called_from or (None, None)

    def placed(self, instance) -> Iterator[tuple]:
        """(variable, first byte of its frame, offset in it) of what is in local memory."""
        for variable in self.of_function(instance.function.name):
            places = [piece.place for piece in variable.ranges if piece.place.kind == "local"]
            frame = instance.places.get(places[0].name) if places else None
            if frame is not None and frame[0] == "local":
                yield variable, frame[1], places[0].offset

    def of_function(self, name: str) -> tuple:
        if name not in self.variables:
            program = self.kernel.program
            self.variables[name] = program.debug.variables(program, name)
        return self.variables[name]


def _array(variable, start: int) -> Array:
    item = np.dtype(variable.dtype).itemsize
    return Array(
        variable.name,
        start,
        item * prod(variable.shape),
        item,
        variable.shape,
        len(variable.shape) > variable.type.count("["),
        not variable.shape,
    )


def holding(arrays: list[Array], byte: int) -> Array | None:
    """The first of them that a byte is in."""
    return next((a for a in arrays if a.start <= byte < a.start + a.size), None)
