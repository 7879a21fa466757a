"""Local memory: arrays of a thread's own that are read before they are written, or overrun."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from kernelscope.events import VERBS, Access, CallSite, InstructionEvent, MachineView
from kernelscope.ptx.debug_names import variables
from kernelscope.ptx.source_module import SourceModule
from kernelscope.ptx.syntax import Register, Vector

from .elements import NOWHERE, Array, Element, element
from .findings import Naming
from .pointers import origins_of
from .refusals import named, nearest, outside

_GIVE_A_VALUE = "give the local array or variable a value before it is used"


class LocalMemory:
    """The local frames of one chunk's threads: four bytes a unit, until an access is narrower; from
    then on one byte.

    PTX keeps all local arrays of a function in one frame. An access that leaves the frame is found
    here, one that leaves its array by `pointers`; elements are named as the source declares them.
    A read is uninitialised when none of its bytes was ever written, or not all those of an element
    of an array. Copying a struct also copies its padding; a read of nothing but padding is none.
    Reads by CUDA's own headers are not judged: cooperative groups copy structs that they fill in
    part.
    """

    def __init__(self, machine: MachineView, lanes: int, naming: Naming):
        self.machine, self.naming, self.lanes = machine, naming, lanes
        self.shift = 2  # a unit has 1 << shift bytes
        self.stride = -(-machine.local_bytes // 4)  # units of a lane
        self.written = np.zeros(lanes * self.stride, bool)
        self.first_lane = machine.first_lane
        self.sites: tuple[CallSite, ...] = ()  # whose frames are in `inside`
        self.arrays = LocalArrays(naming.launch.source)
        self.values = origins_of(naming.launch.source).values
        # Members that were read for a copy and never written: who read them and what they are,
        # by the function and the register.
        self.copied: dict[tuple, np.ndarray] = {}

    def access(self, access: Access, event: InstructionEvent, line: int) -> None:
        address, lanes = access.address.view(np.int64), access.lanes
        if access.valid is not None:
            address, lanes = address[access.valid], lanes[access.valid]
        if not lanes.size:
            return
        inside = self.check_frames(address, lanes, access, event, line)
        if inside is not None:
            address, lanes = address[inside], lanes[inside]
        if access.size < 1 << self.shift and event.line:  # not for what CUDA's headers do
            self.split()
        unit = lanes * self.stride + (address >> self.shift)
        units = [unit, *(unit + i for i in range(1, access.size >> self.shift))]
        if access.kind != "load":
            for one in units:
                self.written[one] = True
            if self.copied and access.kind == "store":
                self.copy(lanes, units, event)
            return
        if not event.line:
            return  # CUDA's headers
        known = [self.written[one] for one in units]
        if not self.copied and all(np.count_nonzero(one) == one.size for one in known):
            return
        missing = [~one for one in known]
        unknown = self.unknown(missing, address, access.size, event)
        places = self.judged(np.nonzero(unknown)[0], address, event)
        value = event.instruction.operands[0]
        if self.copied and isinstance(value, Register):
            self.copied.pop((self.values.function_of(event.instruction).name, value), None)
        if places.size and not self.is_part_of_copy(places, address, lanes, event):
            self.report(places, address, lanes, access, event, line)
        if isinstance(value, Vector) and len(units) > 1:
            parts = [one & ~unknown for one in missing]
            if self.copied or any(one.any() for one in parts):
                self.read_parts(parts, address, lanes, access, event, line)

    def unknown(self, missing: list, address: np.ndarray, size: int, event) -> np.ndarray:
        """(lanes,) bool: which reads have no value, from which of their units have none.

        Those of which no byte was written; and of an array of elements that wide, any.
        """
        unknown = np.logical_and.reduce(missing)
        partly = np.logical_or.reduce(missing) & ~unknown
        if self.shift == 0 and partly.any():
            arrays, structs = self.arrays.around(event), self.arrays.structs(event)
            for byte in np.unique(address[partly]).tolist():
                array = holding(arrays, byte)
                if array is not None and array.item >= size:
                    if not any(byte in one for one in structs):
                        unknown |= partly & (address == byte)
        return unknown

    def judged(self, places, address, event: InstructionEvent) -> np.ndarray:
        """The places that are in no parameter, which the caller has written, and in no padding."""
        places = places[~self.given[address[places]]]
        if places.size:
            read, which = np.unique(address[places], return_inverse=True)
            places = places[~np.array(self.arrays.gaps(event, read.tolist()))[which]]
        return places

    def is_part_of_copy(self, places, address, lanes, event: InstructionEvent) -> bool:
        """Does a load of a struct's byte only copy a member, or fetch what is around a bit-field?

        A member that is copied is missing in the copy as well. Sums of wgmma may be read for
        nothing.
        """
        byte, value = int(address[places[0]]), event.instruction.operands[0]
        if not isinstance(value, Register):
            return False
        if self.values.only_starts_sums(event.instruction, value.name):
            return True
        array = holding(self.arrays.around(event), byte)
        # What is in no variable is the compiler's own copy of a struct that is passed by value.
        if array is not None and not any(byte in one for one in self.arrays.structs(event)):
            return False
        if self.values.sets_bits(event.instruction):
            return True
        if not self.values.only_copied(event.instruction, value.name):
            return False
        where = element(array, byte) if array is not None else NOWHERE
        function = self.values.function_of(event.instruction).name
        self.copied[function, value] = lanes[places], where
        return True

    # -- members of vectors ---------------------------------------------------------------------
    def read_parts(self, missing, address, lanes, access: Access, event, line: int) -> None:
        """A vector load of which some members are missing, (lanes,) bool for each four bytes.

        Members that are only copied are missing in the copy as well.
        """
        items = event.instruction.operands[0].items
        each = len(missing) // len(items)
        function = self.values.function_of(event.instruction).name
        for number, item in enumerate(items if each else ()):
            first = number * each
            start = address + (first << self.shift)
            parts = missing[first : first + each]
            lacking = self.unknown(parts, start, each << self.shift, event)
            self.copied.pop((function, item), None)
            places = self.judged(np.nonzero(lacking)[0], start, event)
            if not places.size:
                continue
            if self.values.only_copied(event.instruction, item.name):
                array = holding(self.arrays.around(event), int(start[places[0]]))
                where = NOWHERE if array is None else element(array, int(start[places[0]]))
                self.copied[function, item] = lanes[places], where
            else:
                self.report(places, start, lanes, access, event, line)

    def stored_parts(self, event: InstructionEvent):
        """Yield (place in the store, lanes, Element) of members that are missing."""
        function = self.values.function_of(event.instruction).name
        value = event.instruction.operands[1]
        for number, item in enumerate(value.items if isinstance(value, Vector) else (value,)):
            if (function, item) in self.copied:
                yield number, *self.copied[function, item]

    def copy(self, lanes: np.ndarray, units: list, event: InstructionEvent) -> None:
        """A store of what read_parts() found missing."""
        value = event.instruction.operands[1]
        each = len(units) // (len(value.items) if isinstance(value, Vector) else 1)
        for number, missing, _ in self.stored_parts(event):
            mine = np.isin(lanes, missing)
            for unit in units[number * each : (number + 1) * each]:
                self.written[unit[mine]] = False

    def lose(self, access: Access, number: int, parts: int, unknown: np.ndarray) -> None:
        """A store of a value that is missing: part `number` of `parts`, unknown: (lanes,) bool."""
        width, bytes_ = access.size // parts, self.stride << self.shift
        if width < 1 << self.shift:
            return  # other bytes of the unit may be known
        first = access.address.view(np.int64) + number * width
        chosen = unknown & (first >= 0) & (first + width <= bytes_)
        if access.valid is not None:
            chosen &= access.valid
        unit = access.lanes[chosen] * self.stride + (first[chosen] >> self.shift)
        for following in range(width >> self.shift):
            self.written[unit + following] = False

    def leave(self, access: Access, event: InstructionEvent, line: int) -> None:
        """A store to memory that others read; of a vector's member it is a warning."""
        severity = "warning" if isinstance(event.instruction.operands[1], Vector) else "error"
        for _, missing, where in self.stored_parts(event):
            every = np.intersect1d(access.lanes, missing) + self.first_lane
            if every.size:
                who, what = self.naming.who(every[0]), where.text or "a member"
                said = f"{who} copies {what} to {access.space} memory, which it has not written"
                how = {"severity": severity, "remedy": _GIVE_A_VALUE}
                self.naming.report("uninitialised-read", line, said, every, where, **how)

    def report(self, places, address, lanes, access: Access, event, line: int) -> None:
        every = lanes[places] + self.first_lane
        byte = int(address[places[0]])
        arrays = self.arrays.around(event)
        frame = next((f for f in self.frames() if f[0] <= byte < f[1]), None)
        array = holding(arrays, byte)
        meant = array or named(arrays, line, self.naming)
        if meant is not None:
            where = element(meant, byte)
            text = where.text + ("" if array else f" (valid: {where.valid})")
        else:
            where = Element("local memory", byte - frame[0] if frame else byte, "", "")
            text = f"{access.size} bytes at byte {where.index} of its local memory"
        said = f"{self.naming.who(every[0])} reads {text}, which it has not written yet"
        self.naming.report("uninitialised-read", line, said, every, where, remedy=_GIVE_A_VALUE)

    def grow(self) -> None:
        """Follow the threads' local memory, which calls may make larger."""
        stride = -(-self.machine.local_bytes // 4) << 2 - self.shift
        if stride > self.stride:
            written = np.zeros((self.lanes, stride), bool)
            written[:, : self.stride] = self.written.reshape(self.lanes, self.stride)
            self.stride, self.written = stride, written.ravel()

    def split(self) -> None:
        """From now on a unit is one byte."""
        self.written = np.repeat(self.written, 1 << self.shift)
        self.stride, self.shift = self.stride << self.shift, 0

    # -- frames ---------------------------------------------------------------------------------
    def frames(self) -> list[tuple[int, int]]:
        """(first byte, end) of every function's local variables."""
        return [
            (site.frame[name], site.frame[name] + variable.size)
            for site in self.machine.call_sites
            for name, variable in site.function.variables.items()
            if variable.space == "local" and name in site.frame
        ]

    def passed(self) -> list[tuple[int, int]]:
        """The same of every function's parameters, which the caller gives their values."""
        return [
            (site.frame[parameter.name], site.frame[parameter.name] + parameter.size)
            for site in self.machine.call_sites
            for parameter in site.function.parameters
            if parameter.name in site.frame
        ]

    def check_frames(self, address, lanes, access: Access, event, line: int):
        """An access between two frames is out of bounds although the thread's memory holds it.

        Return (lanes,) bool, who stays in a frame; None: all of them.
        """
        sites, stride = self.machine.call_sites, self.stride
        self.grow()
        if sites is not self.sites or stride != self.stride:
            self.sites = self.machine.call_sites
            self.inside = np.zeros(self.stride << self.shift, bool)
            for start, end in self.frames():
                self.inside[start:end] = True
            self.given = np.zeros(self.stride << self.shift, bool)
            for start, end in self.passed():
                self.given[start:end] = True
            self.inside |= self.given
            self.has_frames = bool(self.inside.any())
        if not self.has_frames:
            return None
        right = self.inside[address] & self.inside[address + access.size - 1]
        if np.count_nonzero(right) == right.size:
            return None
        wrong = np.nonzero(~right)[0]
        byte, every = int(address[wrong[0]]), lanes[wrong] + self.first_lane
        where = self.meant(byte, access, event, line)
        said = f"{self.naming.who(every[0])} {VERBS[access.kind]} {where.text}"
        remedy = "make the local array long enough, or split the work so that it fits"
        self.naming.report("out-of-bounds", line, said, every, where, remedy=remedy)
        return right

    def meant(self, byte: int, access: Access, event, line: int) -> Element:
        """A byte between two frames, as an element of the array that it was meant for."""
        arrays = [array for array in self.arrays.around(event) if not array.scalar]
        array = nearest(arrays, byte, line, self.naming)
        if array is not None:
            where = element(array, byte)
            return replace(where, text=outside(where))
        start, end = min(self.frames(), key=lambda f: max(f[0] - byte, byte - f[1] + 1))
        count, index = (end - start) // access.size, (byte - start) // access.size
        text = f"element {index} of its local arrays, which have {count} elements of {access.size} "
        return Element("local memory", index, f"{text}bytes", f"elements 0 to {count - 1}")


class LocalArrays:
    """Where the arrays of a kernel and of the functions that it calls are, by the debug names."""

    def __init__(self, source: SourceModule):
        self.source = source
        self.variables: dict[str, tuple] = {}  # LocalVariables of each function met

    def around(self, event: InstructionEvent) -> list[Array]:
        """Those of the function that an instruction belongs to, then those of its callers.

        Variables that have ended, or do not exist yet, come last in their function.
        """
        found: list[Array] = []
        for site, index in self.calls(event):
            arrays = [
                (variable.place_at(index) is None, _array(variable, frame + offset))
                for variable, frame, offset in self.placed(site)
                if variable.dtype
            ]
            found += [array for _, array in sorted(arrays, key=lambda pair: pair[0])]
        return found

    def gaps(self, event: InstructionEvent, bytes_: list[int]) -> list[bool]:
        """Which bytes are padding: in a struct, but in none of its members."""
        arrays, structs = self.around(event), self.structs(event)
        return [
            holding(arrays, byte) is None and any(byte in one for one in structs) for byte in bytes_
        ]

    def structs(self, event: InstructionEvent) -> list[range]:
        """The bytes of each struct."""
        found = []
        for site, _ in self.calls(event):
            for variable, frame, _ in self.placed(site):
                start, size = variable.struct
                found.append(range(frame + start, frame + start + size))
        return found

    @staticmethod
    def calls(event: InstructionEvent) -> Iterator[tuple[CallSite, int]]:
        """The running call site with the index of its instruction, and then its callers'."""
        running = event.machine.running(event.instruction, event.lanes.size)
        site, instruction = (running[0] if running else None), event.instruction
        while site is not None:
            yield site, instruction.index
            site, instruction = site.caller, site.call

    def placed(self, site: CallSite) -> Iterator[tuple]:
        """(variable, first byte of its frame, offset in it) of what is in local memory."""
        for variable in self.of_function(site.function.name):
            places = [piece.place for piece in variable.ranges if piece.place.kind == "local"]
            if places and places[0].name in site.frame:
                yield variable, site.frame[places[0].name], places[0].offset

    def of_function(self, name: str) -> tuple:
        if name not in self.variables:
            self.variables[name] = variables(self.source, name)
        return self.variables[name]


def _array(variable, start: int) -> Array:
    item = np.dtype(variable.dtype).itemsize
    return Array(
        variable.name,
        start,
        variable.size,
        item,
        variable.shape,
        len(variable.shape) > variable.type.count("["),
        not variable.shape,
    )


def holding(arrays: list[Array], byte: int) -> Array | None:
    """The first of them that a byte is in."""
    return next((a for a in arrays if a.start <= byte < a.start + a.size), None)
