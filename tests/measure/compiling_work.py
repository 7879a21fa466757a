"""Work for the processes of attn_devtools.bench.compile_first, without PyTorch."""

import os
import time

LOCKS: list[str] = []


def fails(suite: str, number: int, name: str) -> str:
    """In the first row one peer ends its process and one hangs; in the others one fails."""
    if number == 0 and name == "torch_compile":
        os._exit(3)
    if number == 0:
        time.sleep(60)
    return f"{suite}: no kernel" if name == "torch_autotune" else ""


def remember(lock: str) -> None:
    """Keep the name of the lock."""
    LOCKS.append(os.path.basename(lock))


def locks(suite: str, number: int, name: str) -> str:
    """Return the locks that were remembered, as a reason."""
    return str(LOCKS)


def group(suite: str, number: int, name: str) -> str:
    """Return the group of processes that a signal of the terminal would reach, as a reason."""
    time.sleep(0.3)
    return str(os.getpgrp())
