"""Calls into the device runtime: printf and assert."""

from __future__ import annotations

import numpy as np

from .blocks import LANE, LOCAL_BASE
from .errors import KernelAssertion
from .memory import LOCAL_WINDOW, spread
from .printf import format_message


class Intrinsics:
    """Mixed into Chunk: functions that PTX calls but does not contain."""

    def call_argument(self, block, number: int, dtype) -> np.ndarray:
        """The `number`-th argument of a call, (lanes,), read from its .param variable."""
        instance, call = block.terminator.action, block.terminator.instruction
        names = [o for o in call.operands if isinstance(o, tuple)][-1]
        if self.R[LOCAL_BASE] is None:
            self.fetch((LOCAL_BASE,))
        _, offset = instance.place_of(names[number].name)
        dtype = np.dtype(dtype)
        at = (self.R[LOCAL_BASE] + np.uint64(offset)) // np.uint64(dtype.itemsize)
        return self.local.view[dtype].take(at.astype(np.int64))

    def string_at(self, address: int) -> str:
        data = self.memory.bytes[int(address) :]
        end = int(np.argmin(data != 0))
        return data[:end].tobytes().decode("utf-8", "replace")

    def vprintf(self, block) -> None:
        """Print each active lane's message, in lane order."""
        formats = self.call_argument(block, 0, "u8")
        arguments = self.call_argument(block, 1, "u8")
        bases = spread(self.R[LOCAL_BASE], formats.size)
        for text, pointer, base in zip(formats, arguments, bases, strict=True):
            data = b""
            if pointer >= LOCAL_WINDOW:
                start = int(base) + int(pointer) - LOCAL_WINDOW
                data = self.local.bytes[start : int(base) + self.local_size].tobytes()
            message = format_message(self.string_at(text), data.ljust(256, b"\0"), self.string_at)
            print(message, end="")
        self.store_result(block, np.uint32(1))

    def store_result(self, block, value) -> None:
        call = block.terminator.instruction
        if not (call.operands and isinstance(call.operands[0], tuple) and call.operands[0]):
            return
        _, offset = block.terminator.action.place_of(call.operands[0][0].name)
        at = (self.R[LOCAL_BASE] + np.uint64(offset)) // np.uint64(4)
        self.local.view[np.dtype("u4")][at.astype(np.int64)] = value

    def assert_failed(self, block) -> None:
        message, file = (self.string_at(self.call_argument(block, i, "u8")[0]) for i in (0, 1))
        line = int(self.call_argument(block, 2, "u4")[0])
        name = file.rsplit("/", 1)[-1]
        raise KernelAssertion(
            f"assertion `{message}` failed at {name}:{line}, {self.thread_text(self.R[LANE][:1])}"
        )

    intrinsics = {"vprintf": vprintf, "__assertfail": assert_failed}
