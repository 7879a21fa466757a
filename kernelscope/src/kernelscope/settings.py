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
    value = _value(variable)
    if value is None:
        value = _value(ALIASES[variable])
        if value:
            _warn(variable)
    return value or ""


def _value(variable: str) -> str | None:
    """os.environ.get(variable), for every call of a kernel asks.

    os.environ raises and catches an error for a variable that is not set, which takes a
    microsecond; the mapping that it wraps takes a tenth.
    """
    inner = getattr(os.environ, "_data", None)
    if inner is None:
        return os.environ.get(variable)
    value = inner.get(os.environ.encodekey(variable))
    return None if value is None else os.environ.decodevalue(value)


@cache
def _warn(variable: str) -> None:
    """Say once in a process that a variable has another name now."""
    message = f"the environment variable {ALIASES[variable]} is now {variable}"
    warnings.warn(message, FutureWarning, stacklevel=3)
