"""A function of a Python file: the file is imported, which runs its code in this process."""

import importlib.util
import sys
from contextlib import nullcontext
from pathlib import Path

from ...errors import InputError, MissingFileError, UserError, did_you_mean

_FUNCTIONS = {"numba": "targetoptions", "triton": "fn"}  # an attribute that only kernels have


def python_target(text: str) -> tuple[Path, str] | None:
    """('kernels.py', 'add') of 'kernels.py:add', the name "" without one; None for other files."""
    file, _, name = text.rpartition(":") if ".py:" in text else (text, "", "")
    return (Path(file), name) if file.endswith(".py") else None


def front_of(value: object) -> str:
    """ "numba" or "triton", whose kernel a value is; "" for anything else."""
    root = type(value).__module__.partition(".")[0]
    return root if hasattr(value, _FUNCTIONS.get(root, "")) else ""


def load_kernel(file: Path, name: str) -> object:
    """Import a Python file and return its kernel of this name, or its only one.

    Raises InputError for a file that cannot be imported, and for a name that is no kernel.
    """
    found = vars(_imported(file))
    kernels = {key: value for key, value in found.items() if front_of(value)}
    if not name:
        if len(kernels) == 1:
            return next(iter(kernels.values()))
        listed = f"has the kernels {', '.join(kernels)}: name one" if kernels else "has no kernel"
        raise InputError(f"{file.name} {listed}; FILE is MODULE.py:FUNCTION")
    if name in kernels:
        return kernels[name]
    listed = f"its kernels: {', '.join(kernels) or 'none'}"
    if name in found:
        kind = type(found[name]).__name__
        raise InputError(
            f"{name} of {file.name} is no kernel of Numba or Triton but of type {kind}; {listed}"
        )
    near = did_you_mean(name, kernels)
    raise InputError(f"{file.name} has no function {name!r}{near}; {listed}")


def _imported(file: Path):
    """The module of a file, made as `python FILE` finds its neighbours."""
    if not file.is_file():
        raise MissingFileError(f"no Python file {str(file)!r}")
    specification = importlib.util.spec_from_file_location(file.stem, file.resolve())
    module = importlib.util.module_from_spec(specification)
    sys.path.insert(0, str(file.resolve().parent))
    sys.modules.setdefault(file.stem, module)  # where what a class of it says of its module is
    try:
        with _deferring(file):
            specification.loader.exec_module(module)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # the code of others: any of them
        raise InputError(
            f"{file.name} cannot be imported: {_place(file, error)}{type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error
    finally:
        sys.path.pop(0)
    return module


def _deferring(file: Path):
    """Numba's decorators with signatures compile at once: let them without a GPU."""
    if b"numba" not in file.read_bytes() or importlib.util.find_spec("numba_cuda") is None:
        return nullcontext()
    from ...numba import without_gpu

    return without_gpu()


def _place(file: Path, error: BaseException) -> str:
    """ "line 3: ", the last line of the file that an exception went through; "" without one."""
    trace, line = error.__traceback__, getattr(error, "lineno", 0) or 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file.resolve()):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"line {line}: " if line else ""
