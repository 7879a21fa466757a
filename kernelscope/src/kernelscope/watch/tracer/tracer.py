"""The tracer: every step of a thread block, with its variables by their names in the source."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from kernelscope.events import (
    AsyncOperation,
    BarrierEvent,
    FaultEvent,
    InstructionEvent,
    Launch,
    MachineView,
    Observer,
)

from ...errors import InputError
from .recorder import Recorder
from .recording import Recording


class Tracer(Observer):
    """Records blocks of a launch, step by step, in the debug build, where variables survive.

    block: (x, y, z) of the block, or a list of such; warp: record the lanes of this warp only;
    kernel: record launches of this kernel only; limit: steps kept for each block, after which
    recording stops and `truncated` says so; threads: numbers of the threads in the block whose
    variables are kept, None: all; names: name -> (byte address in shared memory, bytes
    of an element) of parts of one large array, by which mbarriers and tiles are then called: each
    part reaches to the next one, the last to the end of its array.

    `recordings` has one Recording for each launch and block; the attributes and methods of the
    first (`frames`, `lines`, `variables_at`, `shared_at`, `barriers`, `tiles`, ...) can be asked
    of the tracer itself. Raises ValueError at the launch for a block outside of the grid.
    """

    def __init__(
        self,
        block=(0, 0, 0),
        warp: int | None = None,
        kernel: str | None = None,
        limit: int = 5000,
        threads: Collection[int] | None = None,
        names: Mapping[str, tuple[int, int]] | None = None,
    ):
        super().__init__()
        self.build, self.shows_variables = "debug", True
        several = isinstance(block, Sequence) and block and isinstance(block[0], Sequence)
        self.blocks = [_extents(one) for one in (block if several else [block])]
        self.warp, self.kernel, self.limit = warp, kernel, limit
        self.threads, self.names = threads, names or {}
        self._recorders: list[Recorder] = []
        self._open: list[Recorder] = []

    # -- what was recorded ----------------------------------------------------------------------
    @property
    def recordings(self) -> list[Recording]:
        for recorder in self._open:
            recorder.close_frame()
        return [recorder.recording for recorder in self._recorders]

    @property
    def recording(self) -> Recording:
        """The first recording. Raises RuntimeError before any launch."""
        if not self._recorders:
            raise RuntimeError("nothing traced yet: call a kernel inside `with observe(tracer):`")
        return self.recordings[0]

    def __repr__(self) -> str:
        if not self._recorders:
            return "no kernel ran"
        return "\n".join(
            f"{one.kernel}, block {one.block}: {len(one.frames)} steps" for one in self.recordings
        )

    def mark(self, findings) -> int:
        """Put a sanitizer's findings on the steps where they happened; return how many fit."""
        return sum(recording.mark(findings) for recording in self.recordings)

    def __getattr__(self, name: str):
        known = hasattr(Recording, name) or name in Recording.__dataclass_fields__
        if name.startswith("_") or not known:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.recording, name)

    def show(self, **options):
        """Return the stepper, for a notebook; see widget.show."""
        from . import widget  # which stands above observers

        return widget.show(self, **options)

    def to_html(self, path=None, **options) -> str:
        """Return the stepper as one HTML page without dependencies; write it to `path` if given."""
        from . import stepper

        return stepper.to_html(self, path, **options)

    # -- events ---------------------------------------------------------------------------------
    def launch_started(self, launch: Launch) -> None:
        self.launch_finished(launch)  # an earlier launch may have ended in an error
        if self.kernel not in (None, launch.kernel):
            return
        for block in self.blocks:
            if any(at >= extent for at, extent in zip(block, launch.grid, strict=True)):
                last = tuple(extent - 1 for extent in launch.grid)
                raise InputError(
                    f"block {block} is not in the grid of {launch.kernel}: blocks go from "
                    f"(0, 0, 0) to {last}"
                )
        if self.warp is not None and not 0 <= self.warp < launch.warps:
            raise InputError(
                f"warp {self.warp} is not in a block of {launch.kernel}: warps go from 0 to "
                f"{launch.warps - 1}"
            )
        if any(not 0 <= one < launch.threads for one in self.threads or ()):
            raise InputError(
                f"threads {list(self.threads)}: a block of {launch.kernel} has threads 0 to "
                f"{launch.threads - 1}"
            )
        self._open = [
            Recorder(launch, block, self.warp, self.limit, self.threads, self.names)
            for block in self.blocks
        ]
        self._recorders += self._open

    def instruction(self, event: InstructionEvent) -> None:
        for recorder in self._open:
            recorder.instruction(event)

    def barrier(self, event: BarrierEvent) -> None:
        for recorder in self._open:
            if recorder.memory.number in event.blocks:
                recorder.barrier(event)

    def async_issued(self, operation: AsyncOperation, machine: MachineView) -> None:
        self._tell("issued", operation, machine)

    def async_read(self, operation: AsyncOperation, machine: MachineView) -> None:
        self._tell("read", operation, machine)

    def async_completed(self, operation: AsyncOperation, machine: MachineView) -> None:
        self._tell("completed", operation, machine)

    def _tell(self, what: str, operation: AsyncOperation, machine: MachineView) -> None:
        for recorder in self._open:
            recorder.engine(what, operation, machine)

    def fault(self, event: FaultEvent) -> None:
        for recorder in self._open:
            if not event.threads or any(b == recorder.recording.block for b, _ in event.threads):
                recorder.fault(event)

    def launch_finished(self, launch: Launch) -> None:
        for recorder in self._open:
            recorder.close_frame()
        self._open = []


def _extents(block) -> tuple[int, int, int]:
    """A block number such as 2 or (1, 0) as (x, y, z)."""
    parts = (block,) if isinstance(block, (int, np.integer)) else tuple(block)
    if not 1 <= len(parts) <= 3 or any(int(part) < 0 for part in parts):
        raise InputError(f"block {block!r}: give (x, y, z), each at least 0")
    return (*map(int, parts), *[0] * (3 - len(parts)))
