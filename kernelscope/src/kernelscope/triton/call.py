"""Calls of Triton kernels: compile one for its arguments, launch it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import Advice, ArgumentError, InputError, UnsupportedKernel, did_you_mean
from ..module import Kernel, PtxModule, allow_shared
from .compiler import (
    DEFAULTS,
    backend_of,
    compile_ptx,
    definition_line,
    file_of,
    import_triton,
    other_files,
    text_of,
)
from .values import as_passed, image
from .words import WORDS


@dataclass(frozen=True)
class TritonCall:
    """A Triton kernel that is compiled for its arguments; `call(grid)` launches it.

    kernel: of the engine, with CuPy's call and attributes; block: its threads; shared_bytes: of a
    block; meta: all parameters by name, constants included, as a grid function gets them; values:
    what a launch passes; config: what the autotuner's configuration chose, {} without one; target:
    such as "sm_80"; options: Triton's (num_warps, num_stages, ...).
    """

    kernel: Kernel
    block: tuple[int, int, int]
    shared_bytes: int
    meta: dict[str, object] = field(repr=False)
    values: tuple = field(repr=False)
    config: dict[str, object]
    target: str
    options: object = field(repr=False)
    ttgir: str = field(repr=False)  # Triton's own text, with the layout of each tensor
    scratch_bytes: int = field(default=0, repr=False)  # of global memory, for each program

    @property
    def ptx(self) -> str:
        """The PTX text that runs."""
        return self.kernel.module.ptx()

    def __call__(self, grid) -> "TritonCall":
        """Launch the kernel and return the call.

        grid: programs along one to three axes, a tuple, or a function of `meta` that returns it.
        Observers of `kernelscope.observe` see the launch. Raises LaunchError, SimulatorError.
        """
        sizes = grid(self.meta) if callable(grid) else grid
        if isinstance(sizes, tuple | list) and len(sizes):
            sizes = (sizes[0] * self.options.num_ctas, *sizes[1:])  # a program is a cluster
        allow_shared(self.kernel, self.shared_bytes)
        values = list(self.values)
        if self.scratch_bytes:
            values[-2] = np.zeros(self.scratch_bytes * int(np.prod(sizes)), np.uint8)
        try:
            self.kernel(sizes, self.block, tuple(values), shared_mem=self.shared_bytes)
        except UnsupportedKernel as error:
            if int(self.target[3:]) < 90:
                raise
            raise UnsupportedKernel(
                f"{error}. Triton made it for {self.target}: compile for target='sm_80'", error.line
            ) from error
        return self


def run(fn, grid, /, *args, target: str = "sm_80", config=None, **kwargs) -> TritonCall:
    """Run a Triton kernel on the simulator: `fn[grid](*args, **kwargs)` without a GPU.

    Args:
        fn: a function with `@triton.jit`, with `@triton.autotune` or `@triton.heuristics` around.
        grid: programs along one to three axes, a tuple or a function of the arguments by name.
        args, kwargs: the kernel's arguments, by position or name, and Triton's options: num_warps
            (4), num_stages (3), debug, ... Arrays are NumPy's or of another library on the CPU,
            such as PyTorch's; the kernel writes into them.
        target: whose PTX Triton makes.
        config: which configuration of the autotuner to take, its index or a dict of some of its
            values; None: the first. Nothing is timed.

    Returns the call; `config` tells the configuration. Observers see the launch as any other.
    Raises ArgumentError, InputError, CompileError, LaunchError, and CompilerMissingError where
    Triton is not installed.
    """
    return compile(fn, *args, target=target, config=config, **kwargs)(grid)


def compile(fn, /, *args, target: str = "sm_80", config=None, **kwargs) -> TritonCall:
    """Compile a Triton kernel for its arguments and return the call; see `run`."""
    import_triton()
    backend = backend_of(target)
    fn, kwargs, chosen = _unwrapped(fn, args, kwargs, config)
    name = fn.__name__
    accepted = [parameter.name for parameter in fn.params]
    known = {*accepted, *vars(backend.parse_options(DEFAULTS))}
    for unknown in kwargs.keys() - known:
        raise ArgumentError(
            f"{name} has no parameter {unknown!r}{did_you_mean(unknown, known)}; it has: "
            f"{', '.join(accepted)}"
        )
    parameters = {key: value for key, value in kwargs.items() if key in accepted}
    meta = _bound(fn, args, parameters)
    for hook in fn.pre_run_hooks:
        hook(*args, **kwargs)
    passed = {
        one.name: meta[one.name] if one.is_constexpr else as_passed(name, one.name, meta[one.name])
        for one in fn.params
    }
    extra = {key: value for key, value in kwargs.items() if key not in accepted}
    return _compiled(fn, backend, target, meta, passed, extra, chosen)


def _unwrapped(fn, args, kwargs, config) -> tuple:
    """The function below its decorators, the arguments that they add, and the configuration."""
    chosen = {}
    outer = fn
    while not hasattr(fn, "params"):
        if hasattr(fn, "configs"):
            picked = _pick(fn, args, kwargs, config)
            chosen = picked.all_kwargs()
            twice = sorted(chosen.keys() & kwargs.keys() & picked.kwargs.keys())
            if twice:
                raise ArgumentError(
                    f"{_name(fn)}: {twice[0]} is given in the call and by the autotuner's "
                    "configuration; leave it out of the call, or choose with "
                    + Advice("config=", "--config")
                )
            kwargs = {**kwargs, **chosen}
            if picked.pre_hook is not None:
                picked.pre_hook({**dict(zip(fn.arg_names, args, strict=False)), **kwargs})
        elif isinstance(getattr(fn, "values", None), Mapping):
            for name, rule in fn.values.items():
                named = {**dict(zip(fn.arg_names, args, strict=False)), **kwargs}
                kwargs = {**kwargs, name: rule(named)}
        else:
            raise InputError(
                f"{outer!r} is no Triton kernel: it needs a function with @triton.jit"
                + (" (TRITON_INTERPRET is set: unset it)" if "Interpreted" in str(type(fn)) else "")
            )
        fn = fn.fn
    if fn.is_gluon():
        raise InputError(f"{fn.__name__} is a Gluon kernel; only @triton.jit is known here")
    if config is not None and not chosen:
        raise InputError(
            f"{fn.__name__} has no autotuner; leave out " + Advice("config=", "--config")
        )
    return fn, kwargs, chosen


def _name(fn) -> str:
    while hasattr(fn, "fn"):
        fn = fn.fn
    return fn.__name__


def _pick(tuner, args, kwargs, config):
    """The autotuner's configuration that `config` names."""
    configs = tuner.configs
    if config is None:
        if tuner.early_config_prune:
            named = dict(zip(tuner.arg_names, args, strict=False))
            configs = tuner.early_config_prune(configs, named, **kwargs) or configs
        return configs[0]
    if isinstance(config, Mapping):
        found = [one for one in configs if config.items() <= one.all_kwargs().items()]
    else:
        found = configs[config : config + 1] if 0 <= config < len(configs) else []
    if not found:
        listed = "; ".join(f"{i}: {shown(one.all_kwargs())}" for i, one in enumerate(configs))
        raise InputError(f"{_name(tuner)} has no configuration {config!r}; it has: {listed}")
    return found[0]


def shown(config: Mapping[str, object]) -> str:
    """Return "BLOCK=64, num_warps=4" of a configuration's values."""
    return ", ".join(f"{name}={value}" for name, value in config.items())


def _bound(fn, args, kwargs) -> dict[str, object]:
    """Parameter -> value, with defaults, in the kernel's order."""
    try:
        bound = fn.signature.bind(*args, **kwargs)
    except TypeError as error:
        listed = ", ".join(parameter.name for parameter in fn.params)
        raise ArgumentError(f"{fn.__name__}: {error}; its parameters: {listed}") from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _specialised(fn, backend, passed: dict, given: dict) -> tuple:
    """Options, signature, constants and attributes, made by Triton's own launcher."""
    from triton.runtime.jit import create_function_from_signature

    binder = create_function_from_signature(fn.signature, fn.params, backend)
    bound = fn.signature.bind_partial()
    bound.arguments.update(passed)
    try:
        params, specialization, options = binder(*bound.args, **bound.kwargs, **given)
        return fn._pack_args(backend, given, params, specialization, options)
    except (TypeError, ValueError, OverflowError, AssertionError) as error:
        raise ArgumentError(f"{fn.__name__}: {error}") from None


def _flat(name: str, kind, value) -> list[tuple[str, str, object]]:
    """(name, Triton's type, value) of what is passed for a parameter; nothing for a constant."""
    if isinstance(kind, tuple):
        parts = zip(kind, value, strict=True)
        return [one for i, part in enumerate(parts) for one in _flat(f"{name}[{i}]", *part)]
    return [] if kind == "constexpr" else [(name, kind, value)]


_BUILT: dict[tuple, tuple[Kernel, dict]] = {}  # by all that a specialisation depends on


def _build(fn, signature, constants, attributes, backend, options, flat) -> tuple[Kernel, dict]:
    """The compiled kernel and Triton's metadata, made once for a specialisation.

    Raises InputError where a global that the kernel has read has another value now, as Triton does.
    """
    key = (fn, file_of(fn), backend.target, repr((signature, constants, attributes, options)))
    if key not in _BUILT:
        ptx, metadata = compile_ptx(fn, signature, constants, attributes, backend, options)
        file, names = file_of(fn), tuple((name, f"{name}: {kind}") for name, kind, _ in flat)
        module = PtxModule(
            ptx,
            text_of(file),
            Path(file).name,
            headers=other_files(ptx, file),
            names={metadata["name"]: names},
            line=definition_line(fn),
            managed_shared=True,
            words=WORDS,
        )
        _BUILT[key] = module.get_function(metadata["name"]), metadata
    for (name, _), (value, space) in fn.used_global_vals.items():
        if space.get(name, fn) != value:
            raise InputError(
                f"{fn.__name__} was compiled with the global {name} = {value}, which has changed; "
                "pass it as a tl.constexpr parameter"
            )
    return _BUILT[key]


def _compiled(fn, backend, target, meta, passed, extra, chosen) -> TritonCall:
    given = DEFAULTS | {"debug": bool(fn.debug)} | extra
    options, signature, constants, attributes = _specialised(fn, backend, passed, given)
    flat = [one for key, kind in signature.items() for one in _flat(key, kind, passed[key])]
    kernel, data = _build(fn, signature, constants, attributes, backend, options, flat)
    parameters = kernel.entry.parameters
    values = [
        image(fn.__name__, *one, parameter.size, parameter.kind in ("f32", "f64"))
        for one, parameter in zip(flat, parameters, strict=False)
    ]
    values += [None] * (len(parameters) - len(flat))  # the scratch memory of Triton's own
    return TritonCall(
        kernel,
        (32 * data["num_warps"], 1, 1),
        data["shared"],
        meta,
        tuple(values),
        chosen,
        target,
        options,
        data["ttgir"],
        data["global_scratch_size"],
    )
