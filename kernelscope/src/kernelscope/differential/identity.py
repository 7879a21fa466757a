"""What a record says of the machine and of the code that it was taken with."""

import re
import subprocess
from pathlib import Path

from ..settings import setting


def gpu_identity() -> dict[str, str]:
    """gpu, driver and cuda (runtime) of the current device, as CuPy and the driver name them."""
    import cupy

    runtime = cupy.cuda.runtime
    name = runtime.getDeviceProperties(runtime.getDevice())["name"]
    version = runtime.runtimeGetVersion()
    return {
        "gpu": name.decode() if isinstance(name, bytes) else str(name),
        "driver": driver_version(),
        "cuda": f"{version // 1000}.{version % 1000 // 10}",
    }


def driver_version() -> str:
    try:
        return _said(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _said(command: list[str]) -> str:
    """The first line that a command prints. SubprocessError: it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip().partition("\n")[0]


def checkout_commit(root: Path | None) -> str:
    """Return the short hash of a checkout's commit; "" without git.

    A "+" at its end says that files differ from it.

    KERNELSCOPE_COMMIT names it where the files were copied without their history.
    """
    if named := setting("KERNELSCOPE_COMMIT"):
        return named
    if root is None:  # installed: a repository around it is another project's
        return ""
    try:
        git = ["git", "-C", str(root)]
        changed = _said(
            [*git, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results"]
        )
        return _said([*git, "rev-parse", "--short=10", "HEAD"]) + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def gpu_folder(gpu: str) -> str:
    """'NVIDIA H200' -> 'h200', the folder of a GPU's records."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower().replace("nvidia", "")).strip("-")
