"""The record of one traced block: frames of plain data, and NumPy views of any moment."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from kernelscope.ptx.c_types import NARROW_FLOATS, dtype_of

from ...errors import UnknownNameError

GONE = None  # in a frame's values: the thread does not have the variable any more


def linear(place, shape) -> int:
    """Return the number of a thread or block at (x, y, z); x runs fastest."""
    return place[0] + shape[0] * (place[1] + shape[1] * place[2])


def finding_record(finding, stops: bool = False) -> dict:
    """Return a Finding or FaultEvent as a frame has it."""
    index = finding.index
    return {
        "kind": finding.kind,
        "message": finding.message,
        "array": finding.array,
        "index": index if isinstance(index, (int, type(None))) else str(index),
        "stops": stops,
    }


@dataclass
class Recording:
    """One block of one launch, step by step.

    frames: one dict a step, in the order in which they ran,
        step, line, function: where; line numbers count from 1 in the kernel's own file
        callers: lines of the calls that lead there, the kernel's own first
        threads: the active ones, linear in the block (x fastest)
        variables: name -> {"threads", "values"} of the threads whose value changed; None: gone
        shared, global: accesses {"array", "kind", "size", "threads", "index", "values"}; index
            and values have size / itemsize elements a thread, in the threads' order
        products: matrix products {"opcode", "warp", "values"}; values are those of A, B, C and D,
            a list for each lane, in the order of `fragments`
        engines: what has changed of mbarriers, bulk copies and products of warp groups, {} in
            kernels without them; see below
        barrier: number of the barrier that the block passed after this step, or None
        finding: {"kind", "message", "array", "index", "stops"} or None; stops: the run ended there
    arrays: name -> {"space", "dtype", "shape", "start", "size"}; start is its first byte's
        address, a multiple of 4, as banks and sectors count it
    variables: name -> {"type", "dtype", "shape", "line"}
    fragments: opcode of a matrix product -> "A", "B", "C", "D" -> {"kind", "shape", "row",
        "column", "register"}: the type, the extents, the place in the matrix of each element of
        each lane, and the number of the register that holds it
    kept: the threads whose variables are recorded, None: all
    mbarriers: {"name", "start"}; destinations of bulk copies: {"name", "start", "size"}, bytes of
        shared memory; groups: {"name", "first"}, warps, or warp groups in a kernel with wgmma

    A frame's "engines" has lists of what is not as in the frame before, each by its number:
        mbarriers: [number, pending arrivals, expected arrivals, pending bytes, parity]
        tiles: [number of a destination, "in flight", "landed", "read" or "free"]; it is free when
            the mbarrier has completed a phase that its copy waited for before it was ordered
        work: [group, one of engines.WORK, which barrier it waits at]
        open: [group, products that it has ordered and not waited for]
        products: {"group", "shape", "kinds", "A", "B", "bytes"} of each wgmma of the step, with
            the tiles of its operands, and [first, end) of those in shared memory
    """

    kernel: str
    grid: tuple[int, int, int]
    block_shape: tuple[int, int, int]
    block: tuple[int, int, int]
    warp: int | None
    source_name: str
    lines: tuple[str, ...]
    arrays: dict[str, dict] = field(default_factory=dict)
    variables: dict[str, dict] = field(default_factory=dict)
    fragments: dict[str, dict] = field(default_factory=dict)
    kept: list[int] | None = None
    groups: list[dict] = field(default_factory=list)
    mbarriers: list[dict] = field(default_factory=list)
    destinations: list[dict] = field(default_factory=list)
    frames: list[dict] = field(default_factory=list)
    truncated: str = ""

    @property
    def threads(self) -> int:
        """Threads of the block."""
        return int(np.prod(self.block_shape))

    def plain(self) -> dict:
        """Everything as JSON-able data, for the stepper."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    # -- moments --------------------------------------------------------------------------------
    @property
    def barriers(self) -> list[int]:
        """Steps after which the block passed a barrier."""
        return [frame["step"] for frame in self.frames if frame["barrier"] is not None]

    @property
    def findings(self) -> list[dict]:
        """The findings, each with its step and line."""
        return [
            {"step": frame["step"], "line": frame["line"], **frame["finding"]}
            for frame in self.frames
            if frame["finding"]
        ]

    def mark(self, findings) -> int:
        """Put a sanitizer's findings on the steps where they happened; return how many fit.

        A finding goes to a step of its line that one of its threads of this block takes: the first
        that uses its element, of a race after the access of the other line; else the first at all.
        """
        found = [(finding, self._frame_of(finding)) for finding in findings]
        marked = [(finding, frame) for finding, frame in found if frame is not None]
        for finding, frame in marked:
            frame["finding"] = frame["finding"] or finding_record(finding)
        return len(marked)

    def _frame_of(self, finding) -> dict | None:
        threads = self.threads_of(finding)
        on_line = [
            frame
            for frame in self.frames
            if frame["line"] == finding.line and threads & set(frame["threads"])
        ]
        told = [frame for frame in on_line if _is(frame["finding"], finding)]  # by the run itself
        using = [frame for frame in on_line if self._uses(frame, finding, threads)]
        before = (
            frame["step"]
            for frame in self.frames
            if frame["line"] == finding.other_line and self._uses(frame, finding)
        )
        earlier = next(before, 0)
        after = [frame for frame in using if frame["step"] >= earlier]
        return next(iter(told or after or using or on_line), None)

    def _uses(self, frame: dict, finding, threads: set[int] | None = None) -> bool:
        """Does one of these threads, or any, use the element of a finding in this step?"""
        for access in (*frame["shared"], *frame["global"]):
            if access["array"] != finding.array:
                continue
            index = self._flat(finding)
            if not access["threads"]:  # a copy brought it
                continue
            each = max(1, len(access["index"]) // len(access["threads"]))
            for place, element in enumerate(access["index"]):
                mine = threads is None or access["threads"][place // each] in threads
                if mine and index in (None, element):
                    return True
        return False

    def _flat(self, finding) -> int | None:
        """The number of a finding's element in its array; None where it is not known."""
        index, shape = finding.index, self.arrays[finding.array]["shape"]
        if isinstance(index, tuple) and len(index) == len(shape):
            return int(np.dot(index, [np.prod(shape[at + 1 :]) for at in range(len(shape))]))
        return index if isinstance(index, int) and len(shape) == 1 else None

    def threads_of(self, finding) -> set[int]:
        """Return the numbers of a finding's threads in this block."""
        return {
            linear(thread, self.block_shape) for b, thread in finding.threads if b == self.block
        }

    def check_step(self, step: int) -> int:
        count = len(self.frames)
        if not -count <= step < count:
            raise IndexError(f"step {step} of a trace with {count} steps (0 to {count - 1})")
        return step % count

    def variables_at(self, step: int) -> dict[str, np.ndarray]:
        """Return each variable after a step: name -> (threads, *shape) of its dtype.

        Threads that do not have the variable there are masked (a NumPy masked array); pointers
        are strings such as "q + 12".
        """
        values: dict[str, list] = {}
        for frame in self.frames[: self.check_step(step) + 1]:
            for name, change in frame["variables"].items():
                row = values.setdefault(name, [GONE] * self.threads)
                for thread, value in zip(change["threads"], change["values"], strict=True):
                    row[thread] = value
        return {
            name: self._array(row, self.variables[name])
            for name, row in values.items()
            if any(value is not GONE for value in row)
        }

    @staticmethod
    def _array(row: list, kind: dict) -> np.ndarray:
        missing = [value is GONE for value in row]
        dtype = np.dtype(kind["dtype"]) if kind["dtype"] else np.dtype(object)
        array = np.zeros((len(row), *kind["shape"]), dtype)
        for thread, value in enumerate(row):
            if value is not GONE:
                array[thread] = value
        if not any(missing):
            return array
        mask = np.broadcast_to(np.reshape(missing, (-1, *[1] * (array.ndim - 1))), array.shape)
        return np.ma.array(array, mask=mask)

    def shared_at(self, step: int) -> dict[str, np.ndarray]:
        """Return each shared array after a step, in the shape of its declaration.

        Elements that no thread has written yet are masked.
        """
        found = {}
        for name, array in self.arrays.items():
            if array["space"] == "shared":
                dtype = dtype_of(array["dtype"])
                found[name] = np.ma.masked_all(array["size"] // dtype.itemsize, dtype)
        for frame in self.frames[: self.check_step(step) + 1]:
            for access in frame["shared"]:
                if access["kind"] != "read" and access["array"] in found:
                    found[access["array"]][access["index"]] = access["values"]
        for name, array in found.items():
            found[name] = array.reshape(self.arrays[name]["shape"])
            if not np.ma.is_masked(array):
                found[name] = found[name].filled()
        return found

    def engines_at(self, step: int) -> dict[str, dict]:
        """Return the state of the asynchronous engines after a step.

        "mbarriers": name -> {"arrivals", "expected", "bytes", "parity"}, with the pending arrivals
        and bytes; "tiles": name -> state; "work": group's name -> (work, which barrier); "open":
        group's name -> products under way.
        """
        found = {"mbarriers": {}, "tiles": {}, "work": {}, "open": {}}
        lists = {"mbarriers": self.mbarriers, "tiles": self.destinations}
        for frame in self.frames[: self.check_step(step) + 1]:
            for what, state in found.items():
                for number, *values in frame["engines"].get(what, ()):
                    name = lists.get(what, self.groups)[number]["name"]
                    state[name] = values[0] if len(values) == 1 else tuple(values)
        fields = ("arrivals", "expected", "bytes", "parity")
        found["mbarriers"] = {
            name: dict(zip(fields, values, strict=True))
            for name, values in found["mbarriers"].items()
        }
        return found

    def timeline(self) -> dict[str, dict[str, list[tuple[int, int]]]]:
        """Return row -> kind -> (first step, last step) of each stretch, in order.

        Rows are groups, with their work and "products open", and destinations of copies, with their
        states.
        """
        places = sorted(self.destinations, key=lambda one: one["start"])
        rows: dict[str, dict[str, list]] = {one["name"]: {} for one in (*self.groups, *places)}
        begun: dict[tuple, tuple[int, str]] = {}

        def turn(key: tuple, row: str, kind: str, step: int) -> None:
            first, before = begun.get(key, (step, ""))
            if before and first < step:
                rows[row].setdefault(before, []).append((first, step - 1))
            begun[key] = step, kind

        for frame in self.frames:
            step, now = frame["step"], frame["engines"]
            for number, work, _ in now.get("work", ()):
                turn(("work", number), self.groups[number]["name"], work, step)
            for number, count in now.get("open", ()):
                if bool(count) != bool(begun.get(("open", number), (0, ""))[1]):
                    kind = "products open" if count else ""
                    turn(("open", number), self.groups[number]["name"], kind, step)
            for number, state in now.get("tiles", ()):
                turn(("tiles", number), self.destinations[number]["name"], state, step)
        lists = {"tiles": self.destinations}
        for what, number in list(begun):
            name = lists.get(what, self.groups)[number]["name"]
            turn((what, number), name, "", len(self.frames))
        return rows

    def products_at(self, step: int) -> list[dict[str, np.ndarray]]:
        """Return a dict for each matrix product of a step: "A", "B", "C", "D" as matrices."""
        return [
            {
                name: self._matrix(values, self.fragments[product["opcode"]][name])
                for name, values in product["values"].items()
            }
            for product in self.frames[self.check_step(step)]["products"]
        ]

    @staticmethod
    def _matrix(values: list, fragment: dict) -> np.ndarray:
        matrix = np.zeros(fragment["shape"])
        matrix[fragment["row"], fragment["column"]] = np.array(values, float)
        return matrix

    def tiles(self) -> list[dict]:
        """Return a dict for each barrier: step, line, shared arrays and variables there."""
        return [
            {
                "step": step,
                "line": self.frames[step]["line"],
                "shared": self.shared_at(step),
                "variables": self.variables_at(step),
            }
            for step in self.barriers
        ]

    def history(self, name: str, thread: int = 0) -> list[tuple[int, object]]:
        """Return (step, value) for each change of one thread's variable.

        Raises KeyError for a name that the trace does not have.
        """
        if name not in self.variables:
            known = ", ".join(self.variables) or "none"
            raise UnknownNameError(f"no variable {name!r} in this trace; it has: {known}")
        found = []
        for frame in self.frames:
            change = frame["variables"].get(name)
            if change and thread in change["threads"]:
                value = change["values"][change["threads"].index(thread)]
                if value is not GONE:
                    found.append((frame["step"], value))
        return found

    # -- text -----------------------------------------------------------------------------------
    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return (step, line, source text, changes) of every frame, for tables."""
        found = []
        for frame in self.frames:
            line = frame["line"]
            text = self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""
            found.append((str(frame["step"]), str(line), text, self.summary(frame)))
        return found

    def summary(self, frame: dict) -> str:
        """Return a frame in a few words, by its first active thread."""
        parts = []
        if len(frame["threads"]) < self.threads:
            parts.append(f"{len(frame['threads'])} of {self.threads} threads")
        for name, change in frame["variables"].items():
            thread, value = change["threads"][0], change["values"][0]
            if value is not GONE:
                whose = "" if thread == frame["threads"][0] else f" (thread {thread})"
                parts.append(f"{name} = {shown(value)}{whose}")
        for space in ("shared", "global"):
            for access in frame[space]:
                if access["index"] and access["threads"]:
                    name = access["array"]
                    place = place_text(access["index"][0], self.arrays[name]["shape"])
                    parts.append(f"{access['kind']}s {name}{place}")
        parts += [f"warp {one['warp']}: {one['opcode']}" for one in frame["products"]]
        parts += self._engines_text(frame["engines"])
        if frame["barrier"] is not None:
            parts.append("barrier passed")
        if frame["finding"]:
            parts.append(frame["finding"]["kind"])
        return ", ".join(parts)

    def _engines_text(self, engines: dict) -> list[str]:
        """What mbarriers, copies and products do in a step."""
        parts = [
            f"{self.mbarriers[number]['name']}: parity {parity}, {pending} of {expected} arrivals "
            f"and {size} bytes pending"
            for number, pending, expected, size, parity in engines.get("mbarriers", ())
        ]
        for number, state in engines.get("tiles", ()):
            parts.append(f"tile {self.destinations[number]['name']} {state}")
        for number, work, where in engines.get("work", ()):
            if work.startswith("waits"):
                place = f"barrier {where}" if work == "waits at a barrier" else where
                parts.append(f"{self.groups[number]['name']} waits at {place}")
        by_form: dict[str, list[dict]] = {}
        for product in engines.get("products", ()):
            by_form.setdefault(_product_text(product, 0), []).append(product)
        for same in by_form.values():
            group = self.groups[same[0]["group"]]["name"]
            parts.append(f"{group} orders {_product_text(same[0], len(same))}")
        return parts


def _product_text(product: dict, count: int) -> str:
    """Return `4 products m64n64k16, A from Q[0], B from K[1]`."""
    m, n, k = product["shape"]
    what = f"{count} products" if count > 1 else "a product"
    return f"{what} m{m}n{n}k{k}, A from {product['A']}, B from {product['B']}"


def _is(known: dict | None, finding) -> bool:
    return bool(known) and (known["kind"], known["array"]) == (finding.kind, finding.array)


def place_text(index: int, shape: Sequence[int]) -> str:
    """Return an element's number as C writes its place: 5 of shape (4, 4) is "[1][1]"."""
    places = np.unravel_index(index, shape) if index < np.prod(shape) else [index]
    return "".join(f"[{place}]" for place in places)


def shown(value) -> str:
    """Return a value as a table shows it."""
    if isinstance(value, list):
        return "{" + ", ".join(map(shown, value)) + "}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def plain_values(array: np.ndarray) -> list:
    """Return NumPy values for JSON: float32 at its shortest, nan and inf by their names."""
    if array.dtype.name in NARROW_FLOATS.values():
        array = array.astype(np.float32)
    if array.dtype.kind != "f":
        return array.tolist()
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}").ravel()
    found, places = np.unique(bits, return_inverse=True)  # most threads have the same few
    plain = [
        float(str(value)) if np.isfinite(value) else str(value) for value in found.view(array.dtype)
    ]
    return np.array(plain, dtype=object)[places].reshape(array.shape).tolist()
