"""The CuPy side of a RawModule: the `cupy.RawModule` behind it, and its options."""

import os
import re
import tempfile
import threading
import zlib
from functools import cached_property, lru_cache
from pathlib import Path

from kernelscope.backend import BackendError
from kernelscope.compile import (
    closure_hash,
    compile_cubin,
    headers_of,
    include_options,
    requested_arch,
    required_arch,
    standard_options,
)
from kernelscope.compile.messages import describe_failure


@lru_cache(maxsize=1)
def _cubin_folder() -> tempfile.TemporaryDirectory:
    """A folder that lives as long as the process: CuPy loads a cubin from its path when needed."""
    return tempfile.TemporaryDirectory(prefix="kernelscope-")


def newer_arch(arch: str) -> str:
    """The current GPU's architecture where it is newer than `arch` ("compute_80"), else `arch`."""
    import cupy

    capability = int(cupy.cuda.Device().compute_capability)
    own = int("".join(filter(str.isdigit, arch)))
    return f"compute_{capability}" if capability > own else arch


_CUCOMPLEX = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]cuComplex\.h[>\"].*$", re.MULTILINE)


def translated_cucomplex(code: str, name: str) -> str:
    """Return the source as CuPy compiles it with translate_cucomplex.

    The names of <cuComplex.h> become macros for Thrust's complex numbers. The lines keep their
    numbers in the file `name`.
    """
    headers = "#include <cupy/complex.cuh>\n#include <cupy/cuComplex_bridge.h>\n"
    return f'{headers}#line 1 "{name}"\n{_CUCOMPLEX.sub("", code)}'


class CupyModules:
    """The `cupy.RawModule` objects behind one of ours.

    CuPy adds `-arch` and `-ftz` itself and the last `-arch` wins, so a module with an
    architecture of its own (sm_90a) is compiled here and handed over as a cubin.
    """

    def __init__(self, module):
        self.module = module
        self._lowered: dict[str, dict[str, str]] = {}  # architecture -> names in its machine code

    def function(self, name: str):
        """The `cupy.RawKernel` of a name or name expression, compiled for the current device."""
        import cupy

        holder, known_as = self._holder(name)
        try:
            kernel = holder.get_function(known_as)
            kernel.compile()
        except cupy.cuda.compiler.CompileException as error:
            raise describe_failure(
                self.module.code or "", self.module.name, str(error), self.module.options
            ) from None
        return kernel

    def variable(self, name: str):
        """The `cupy.cuda.MemoryPointer` of a variable."""
        holder, known_as = self._holder(name)
        return holder.get_global(known_as)

    def _holder(self, name: str):
        """The CuPy module that has a name, and the name under which it has it."""
        if self.module.kind != ".cu":
            return self._from_file(self.module.path), name
        arch = self._own_arch()
        if arch:
            cubin = self._cubin(arch)
            return self._from_file(cubin), self._lowered[arch].get(name, name)
        if name in self.module.name_expressions:
            return self._templates, name
        return self.plain, name

    def _own_arch(self) -> str | None:
        """An architecture that the options or the header insist on, as "sm_90a", else None."""
        import cupy

        requested = requested_arch(self.module.options)
        if requested:
            return requested.replace("compute_", "sm_")
        number, suffix = required_arch(self.module.code)
        capability = int(cupy.cuda.Device().compute_capability)
        if number > capability or (suffix == "a" and number != capability):
            raise BackendError(
                f"{self.module.name} needs sm_{number}{suffix}; this GPU is sm_{capability}. "
                'Use backend="simulator", or another kernel'
            )
        return f"sm_{number}{suffix}" if suffix else None

    def _cubin(self, arch: str) -> Path:
        module = self.module
        compiled = compile_cubin(
            module.compiled_code,
            module.name,
            module.options,
            arch,
            module.name_expressions,
            module.folder,
        )
        self._lowered[arch] = compiled.lowered_names
        path = Path(_cubin_folder().name, f"{zlib.crc32(compiled.cubin):08x}_{len(compiled.cubin)}")
        path = path.with_suffix(".cubin")
        if not path.exists():
            part = path.with_suffix(f".{threading.get_ident()}")
            part.write_bytes(compiled.cubin)
            os.replace(part, path)  # another thread loads all of it or nothing
        return path

    def _from_file(self, path: Path):
        import cupy

        return cupy.RawModule(path=str(path))

    def _from_code(self, name_expressions):
        import cupy

        return cupy.RawModule(
            code=self.module.code,
            options=self._options(),
            name_expressions=name_expressions,
            **self.module._cupy_options,
        )

    @cached_property
    def plain(self):
        return self._from_code(None)

    @cached_property
    def _templates(self):
        return self._from_code(self.module.name_expressions)

    def _options(self) -> tuple[str, ...]:
        """The user's options, the C++ standard and the include folders.

        CuPy's disk cache knows a kernel by its source and options, not by its headers; a macro
        with the hash of their texts makes an edited header a new kernel.
        """
        options = self.module.options
        headers = headers_of(self.module.code, self.module.folder, options)
        mark = (f"-DKERNELSCOPE_HEADERS=0x{closure_hash('', headers)[:15]}",) if headers else ()
        return (
            *options,
            *standard_options(options),
            *self.module._described.added,
            *include_options(self.module.folder),
            *mark,
        )
