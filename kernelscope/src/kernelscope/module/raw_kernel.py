"""`RawKernel` with CuPy's own signature: one kernel of one source text."""

from functools import cached_property

from ..errors import InputTypeError
from .kernel import Kernel, ModuleFacts
from .raw_module import RawModule

_SETTABLE = ("max_dynamic_shared_size_bytes", "preferred_shared_memory_carveout")


class RawKernel(ModuleFacts):
    """A kernel from CUDA C source, as with `cupy.RawKernel`.

    Args:
        code: CUDA C source text.
        name: the kernel's name; the source declares it extern "C".
        options: NVRTC options such as ("-DTILE=32",).
        backend: "gpu", "simulator" or None, as for RawModule.
        translate_cucomplex, enable_cooperative_groups, jitify: CuPy's own, as for RawModule.
        strict: whether a call refuses arguments that are not of the parameters' own types, as for
            RawModule; by default they follow CuPy's rules.

    It has the attributes of CuPy's RawKernel (`attributes`, `num_regs`, `shared_size_bytes`, ...);
    `module` is the RawModule behind it, `backend` "gpu" or "simulator". Compilation happens at the
    first use.
    Raises TypeError, ValueError or BackendError here; KernelNotFoundError and CompileError at the
    first use.
    """

    def __init__(
        self,
        code: str,
        name: str,
        options: tuple[str, ...] = (),
        backend: str | None = None,
        translate_cucomplex: bool = False,
        *,
        enable_cooperative_groups: bool = False,
        jitify=None,
        strict: bool | None = None,
    ):
        for what, value in (("code", code), ("name", name)):
            if not isinstance(value, str):
                raise InputTypeError(f"{what} is {value!r}; it must be a string")
        self.name = self.__name__ = name
        self.module = RawModule(
            code,
            options=options,
            backend=backend,
            translate_cucomplex=translate_cucomplex,
            enable_cooperative_groups=enable_cooperative_groups,
            jitify=jitify,
            strict=strict,
        )

    def __repr__(self) -> str:
        return f"<RawKernel {self.name} on the {self.backend}>"

    @property
    def backend(self) -> str:
        """ "gpu" or "simulator"."""
        return self.module.backend

    @cached_property
    def kernel(self) -> Kernel:
        """The compiled kernel that a call runs."""
        return self.module.get_function(self.name)

    def __call__(self, grid, block, args, shared_mem: int = 0, stream=None) -> None:
        """Run the kernel; see Kernel."""
        self.kernel(grid, block, args, shared_mem, stream)

    def compile(self, log_stream=None) -> None:
        """Compile now instead of at the first use; warnings go to `log_stream`."""
        super().compile(log_stream)
        self.module.get_function(self.name)

    def __getattr__(self, name: str):
        if name.startswith("_") or name == "module":
            raise AttributeError(name)
        return getattr(self.kernel, name)

    def __setattr__(self, name: str, value) -> None:
        if name in _SETTABLE:
            setattr(self.kernel, name, value)
        else:
            super().__setattr__(name, value)
