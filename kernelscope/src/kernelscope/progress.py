"""How far a launch has got: one line, for a launch that takes long.

It goes to standard error, and in a notebook's front end to standard output: there all of standard
error is on a red ground, which stays when the line is gone.
"""

import math
import sys
import time
from collections.abc import Callable

from tqdm import tqdm

from .settings import setting

PROGRESS = "KERNELSCOPE_PROGRESS"  # environment: 1 shows the line everywhere, 0 nowhere
SILENT_SECONDS = 2.0  # at the beginning of a launch
PAUSE_SECONDS = 0.25  # between two updates
_WIDTH = 100  # of the line, where the terminal does not say its own


class Progress:
    """The line of one launch: its name, thread blocks done of all, an estimate, the place.

    name: of the kernel; blocks: of the launch; done: those that have ended. The line replaces
    itself and is gone after `close`. It is shown in a terminal and in a notebook's front end;
    the environment variable KERNELSCOPE_PROGRESS decides otherwise.
    """

    def __init__(self, name: str, blocks: int):
        self.name, self.blocks, self.done = name, blocks, 0
        self.start = time.monotonic()
        self.next_update = self.start + SILENT_SECONDS
        self.line: tqdm | None = None

    def update(self, where: Callable[[], str]) -> None:
        """Show the line when its time has come; where(): the place in the source that runs."""
        now = time.monotonic()
        if now < self.next_update:
            return
        self.next_update = now + PAUSE_SECONDS
        if self.line is None:
            if not is_shown():
                self.next_update = math.inf
                return
            where_to = sys.stdout if in_front_end() else sys.stderr
            self.line = tqdm(bar_format="{desc}", leave=False, file=where_to)
        text = self.text(now - self.start, where())
        self.line.set_description_str(text[: (self.line.ncols or _WIDTH) - 1])

    def text(self, seconds: float, place: str) -> str:
        """The line after so many seconds."""
        about = ""
        if 0 < self.done < self.blocks:
            about = f", about {seconds * (self.blocks - self.done) / self.done:.0f} s left"
        return (
            f"{self.name}: {self.done:,} of {self.blocks:,} thread blocks done after "
            f"{seconds:.0f} s{about}; now at {place}"
        )

    def close(self) -> None:
        """Remove the line."""
        if self.line is not None:
            self.line.close()


def is_shown() -> bool:
    """Whether somebody sees the line: a terminal, or the front end that runs a notebook's cell."""
    asked = setting(PROGRESS)
    if asked:
        return asked != "0"
    return sys.stderr.isatty() or in_front_end()


def in_front_end() -> bool:
    """Whether a front end, such as JupyterLab's, has sent the cell that runs.

    It names the cell in its request, which programs that execute notebooks do not.
    """
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython and ipython.get_ipython(), "kernel", None)
    return kernel is not None and "cellId" in kernel.get_parent("shell").get("metadata", {})
