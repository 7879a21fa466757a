"""Settings from environment variables."""

import os
import warnings
from functools import cache

NAMES = (
    *("BACKEND", "TIMEOUT", "MEMORY", "OUTPUT", "COMPILED", "PROGRESS", "WARP_ORDER"),
    *("TRACEBACK", "COMMIT", "WORKERS"),
)
# variable -> its name of before, which still counts where the variable is not set
ALIASES = {f"KERNELSCOPE_{name}": f"ATTN_COURSE_{name}" for name in NAMES}


def setting(variable: str) -> str:
    """Return the text of an environment variable of ALIASES, or of its old name; "" for neither."""
    if _is_set(variable):
        return os.environ.get(variable, "")
    if not _is_set(ALIASES[variable]):
        return ""
    value = os.environ.get(ALIASES[variable], "")
    if value:
        _warn(variable)
    return value


def _is_set(variable: str) -> bool:
    """Whether a variable is in the environment: every call of a kernel asks.

    os.environ raises and catches an error for one that is not, which takes a microsecond; the
    mapping that it wraps takes a tenth.
    """
    inner = getattr(os.environ, "_data", None)
    return variable in os.environ if inner is None else os.environ.encodekey(variable) in inner


@cache
def _warn(variable: str) -> None:
    """Say once in a process that a variable has another name now."""
    message = f"the environment variable {ALIASES[variable]} is now {variable}"
    warnings.warn(message, FutureWarning, stacklevel=3)
