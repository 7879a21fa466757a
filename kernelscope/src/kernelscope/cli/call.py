"""One call of a kernel of a file: compiled, its arguments made, launched."""

import argparse
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..backend import array_module, asnumpy, resolve_backend
from ..errors import InputError
from ..module import Kernel, RawModule, allow_shared
from ..module.raw_module import instance_advice
from ..ptx.demangle import demangle
from .arguments import dimensions
from .options import BLOCK, source_file
from .python.call import python_call
from .python.module import python_target
from .values import takes, value_of


@dataclass(frozen=True)
class FileCall:
    """A launch that is ready to be made.

    texts: of --arg, by parameter; given: the values before the launch, NumPy arrays, numbers or
    None for a null pointer; passed: the same with arrays of the backend, which the kernel writes;
    quiet: what the kernel prints goes to standard error, as the screen is for JSON; launch: makes
    the launch of a kernel in Python; config, which: of Triton's autotuner, see PythonCall.
    """

    file: Path
    kernel: Kernel
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    texts: dict[str, str]
    given: dict[str, object]
    passed: dict[str, object] = field(repr=False)
    quiet: bool = False
    launch: Callable[[], object] | None = field(default=None, repr=False)
    config: dict[str, object] = field(default_factory=dict)
    which: str = ""

    @property
    def title(self) -> str:
        """The line that names the launch."""
        shared = f", {self.shared_bytes:,} bytes of shared memory" if self.shared_bytes else ""
        return (
            f"{self.name} of {self.file.name}, grid {dimensions(self.grid)}, block "
            f"{dimensions(self.block)}{shared}{self.which and ', '}{self.which}, "
            f"backend {self.kernel.backend}"
        )

    @property
    def outputs(self) -> tuple[str, ...]:
        """Parameters whose arrays hold nothing before the launch."""
        return tuple(name for name, text in self.texts.items() if text.startswith("output:"))

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays as they are now, on the host."""
        return {n: asnumpy(v) for n, v in self.passed.items() if hasattr(v, "shape") and v.shape}

    def run(self) -> None:
        """Launch the kernel once. Raises what the launch raises."""
        with redirect_stdout(sys.stderr) if self.quiet else nullcontext():
            if self.launch is not None:
                self.launch()
                return
            allow_shared(self.kernel, self.shared_bytes)
            values = tuple(self.passed.values())
            self.kernel(self.grid, self.block, values, shared_mem=self.shared_bytes)

    def record(self) -> dict:
        """The launch as plain data for JSON."""
        return {
            "file": str(self.file),
            "kernel": self.name,
            "backend": self.kernel.backend,
            "grid": self.grid,
            "block": self.block,
            "shared_bytes": self.shared_bytes,
            "options": self.kernel.options,
            "arguments": self.texts,
            **({"config": _plain(self.config)} if self.config else {}),
        }


def file_call(
    arguments: argparse.Namespace, backend: str | None = None, for_debug: bool = False
) -> FileCall:
    """Return the call that `arguments.file` and the options of `add_call` name.

    backend: where it runs; None: as --backend says; for_debug: whether the debug build will run,
    as for the sanitizer. Raises CompileError, ValueError,
    ArgumentError and FileNotFoundError for options that make no call.
    """
    quiet = getattr(arguments, "json", None) == Path("-")
    if (target := python_target(arguments.file)) is not None:
        with redirect_stdout(sys.stderr) if quiet else nullcontext():
            one = python_call(*target, arguments)
        parts = one.kernel, one.name, arguments.grid, one.block, one.shared_bytes
        values = one.texts, one.given, one.passed
        return FileCall(target[0], *parts, *values, quiet, one.launch, one.config, one.which)
    if getattr(arguments, "config", None):
        raise InputError("--config: chooses a configuration of @triton.autotune")
    file = source_file(arguments.file)
    backend = resolve_backend(backend or arguments.backend)
    kernel, name = _kernel(file, arguments, backend, for_debug)
    parameters, texts = kernel.entry.parameters, arguments.arg or []
    if len(texts) != len(parameters) or arguments.grid is None:
        raise InputError(_usage(name, parameters, texts, arguments.grid))
    seeds = range(1000 * arguments.seed, 1000 * arguments.seed + len(texts))
    values = [value_of(*each) for each in zip(parameters, texts, seeds, strict=True)]
    names = [parameter.name for parameter in parameters]
    xp = array_module(kernel.backend)
    passed = [xp.array(v) if isinstance(v, np.ndarray) else v for v in values]
    kernel.bind(tuple(passed))  # a wrong argument is told before anything runs
    return FileCall(
        file,
        kernel,
        name,
        arguments.grid,
        arguments.block or BLOCK,
        arguments.shared_mem or 0,
        dict(zip(names, texts, strict=True)),
        dict(zip(names, values, strict=True)),
        dict(zip(names, passed, strict=True)),
        quiet,
    )


def _plain(config: dict[str, object]) -> dict[str, object]:
    """The values of a configuration as JSON has them; others, such as types, by their names."""
    own = bool, int, float, str
    return {name: one if isinstance(one, own) else str(one) for name, one in config.items()}


def _kernel(
    file: Path, arguments: argparse.Namespace, backend: str, for_debug: bool
) -> tuple[Kernel, str]:
    """The kernel that --kernel names, or the only one of the file, and its name in the source."""
    wanted = arguments.kernel
    module = RawModule(
        path=file.resolve(),
        options=tuple(arguments.option or ()),
        backend=backend,
        name_expressions=(wanted,) if wanted and "<" in wanted else None,
        strict=True,
    )
    module.for_debug = for_debug
    if wanted and "<" in wanted:
        return module.get_function(wanted), wanted
    known = {name: demangle(name) for name in module.kernels}
    found = [name for name, shown in known.items() if wanted in (None, name, shown)]
    if len(found) == 1:
        return module.get_function(found[0]), known[found[0]]
    if wanted and not found:
        module.get_function(wanted)  # raises, with the kernels of the file
    if found:
        listed = ", ".join(known[name] for name in found)
        raise InputError(f"{file.name} has the kernels: {listed}. Name one with --kernel")
    if templates := module.template_kernels:
        example = instance_advice(next(iter(templates.values())))
        raise InputError(f"{file.name} has templates of kernels only: " + example)
    raise InputError(f"{file.name} has no kernel: it needs a function that is `__global__ void`")


def _usage(name: str, parameters, texts: list[str], grid) -> str:
    """What a call lacks, and the parameters with their types."""
    lacks = [] if grid else ["--grid (such as --grid 4 or --grid 4,2)"]
    if len(texts) != len(parameters):
        lacks.append(f"one --arg for each of its {len(parameters)} parameters, not {len(texts)}")
    width = max((len(parameter.text) for parameter in parameters), default=0)
    listed = [f"  {p.text:<{width}}  {takes(p)}" for p in parameters]
    return "\n".join([f"{name} needs {' and '.join(lacks)}", *listed])
