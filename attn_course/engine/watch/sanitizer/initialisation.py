"""Local memory: arrays of a thread's own that are read before they are written, or overrun."""

from __future__ import annotations

import numpy as np

from attn_course.engine.events import Access, InstructionEvent

from .elements import element
from .findings import Finding, Findings, Naming, describe_thread
from .local_arrays import LocalArrays, holding
from .refusals import named, nearest, outside


class LocalMemory:
    """The local frames of one chunk's threads, four bytes a unit.

    PTX keeps all local arrays of a function in one frame, so an index past one array is found
    where it leaves the frame; elements are named as the source declares them. A read is
    uninitialised when none of its bytes was ever written: copying a struct also copies its padding,
    and a read of nothing but padding is none.
    Reads by CUDA's own headers are not judged: cooperative groups copy structs that they fill in
    part.
    """

    def __init__(self, chunk, lanes: int, naming: Naming, findings: Findings):
        self.naming, self.findings = naming, findings
        self.stride = -(-chunk.memory.local_size // 4)
        self.written = np.zeros(lanes * self.stride, bool)
        self.first_lane = chunk.first_block * naming.per_block
        self.kernel = chunk.kernel
        self.known = 0
        self.arrays = LocalArrays(chunk.kernel)

    def access(self, access: Access, event: InstructionEvent, line: int) -> None:
        address, lanes = access.address.view(np.int64), access.lanes
        if access.valid is not None:
            address, lanes = address[access.valid], lanes[access.valid]
        if not lanes.size:
            return
        self.check_frames(address, lanes, access, event, line)
        unit = lanes * self.stride + (address >> 2)
        units = [unit + i for i in range(max(access.size >> 2, 1))]
        if access.kind != "load":
            for one in units:
                self.written[one] = True
            return
        if not event.line:
            return  # CUDA's headers
        unknown = np.logical_and.reduce([~self.written[one] for one in units])
        places = np.nonzero(unknown)[0]
        if places.size:
            read, which = np.unique(address[places], return_inverse=True)
            places = places[~np.array(self.arrays.gaps(event, read.tolist()))[which]]
        if places.size:
            self.report(places, address, lanes, access, event, line)

    def report(self, places, address, lanes, access: Access, event, line: int) -> None:
        every = lanes[places] + self.first_lane
        byte = int(address[places[0]])
        arrays, frame = self.arrays.around(event), self.frame_at(byte)
        array = holding(arrays, byte)
        meant = array or named(arrays, line, self.naming)
        if meant is not None:
            where = element(meant, byte)
            name, index, text, valid = where.array, where.index, where.text, where.valid
            text += "" if array else f" (valid: {valid})"
        else:
            name, index, valid = "local memory", byte - frame[0] if frame else byte, ""
            text = f"{access.size} bytes at byte {index} of its local memory"
        self.findings.add(
            Finding(
                "uninitialised-read",
                line,
                f"{describe_thread(self.naming.thread(every[0]))} reads {text}, which it has not "
                "written yet",
                self.naming.threads(every),
                name,
                index,
                valid_range=valid,
                count=int(places.size),
                remedy="give the local array or variable a value before it is used",
            )
        )

    # -- frames ---------------------------------------------------------------------------------
    def frames(self) -> list[tuple[int, int]]:
        """(first byte, end) of every function's local variables, parameters of calls left out."""
        found = []
        for instance in self.kernel.instances.values():
            for name, variable in instance.function.variables.items():
                place = instance.places.get(name)
                if variable.space == "local" and place is not None and place[0] == "local":
                    found.append((place[1], place[1] + variable.size))
        return found

    def frame_at(self, byte: int) -> tuple[int, int] | None:
        return next((f for f in self.frames() if f[0] <= byte < f[1]), None)

    def check_frames(self, address, lanes, access: Access, event, line: int) -> None:
        """An access between two frames is out of bounds although the thread's memory holds it."""
        if len(self.kernel.instances) != self.known:
            self.known = len(self.kernel.instances)
            self.inside = np.zeros(self.stride * 4, bool)
            for start, end in self.frames():
                self.inside[start:end] = True
        if not self.inside.any():
            return
        wrong = np.nonzero(~(self.inside[address] & self.inside[address + access.size - 1]))[0]
        if not wrong.size:
            return
        byte, every = int(address[wrong[0]]), lanes[wrong] + self.first_lane
        verb = {"load": "reads", "store": "writes", "atomic": "updates"}[access.kind]
        name, index, text, valid = self.meant(byte, access, event, line)
        self.findings.add(
            Finding(
                "out-of-bounds",
                line,
                f"{describe_thread(self.naming.thread(every[0]))} {verb} {text}",
                self.naming.threads(every),
                name,
                index,
                count=int(wrong.size),
                valid_range=valid,
                remedy="make the local array long enough, or split the work so that it fits",
            )
        )

    def meant(self, byte: int, access: Access, event, line: int) -> tuple:
        """(array, index, what it is in words, valid range) of a byte between two frames."""
        arrays = [array for array in self.arrays.around(event) if not array.scalar]
        array = nearest(arrays, byte, line, self.naming)
        if array is not None:
            where = element(array, byte)
            return where.array, where.index, outside(where), where.valid
        frame = min(self.frames(), key=lambda f: max(f[0] - byte, byte - f[1] + 1))
        count, index = (frame[1] - frame[0]) // access.size, (byte - frame[0]) // access.size
        text = f"element {index} of its local arrays, which have {count} elements of {access.size} "
        return "local memory", index, f"{text}bytes", f"elements 0 to {count - 1}"
