"""A kernel's machine instructions, by NVIDIA's disassembler on the cubin that the compiler makes.

Needs no GPU. PTX is a promise to the compiler's last stage; what a GPU runs is the cubin, and only
the disassembly says whether a kernel uses tensor cores, or what an atomic operation has become.
"""

import re
from functools import lru_cache

from kernelscope.compile import compile_cubin
from kernelscope.errors import UnknownNameError
from kernelscope.timing import disassembled as disassembly_of

from attn_course.ladder.headers import kernel_path

_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)", re.MULTILINE)
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<text>[A-Z][A-Z0-9_.]*[^;]*);")


@lru_cache(maxsize=32)
def machine_code(
    file: str, entry: str, options: tuple[str, ...] = (), arch: str = "sm_90"
) -> tuple[str, ...]:
    """Return a kernel's machine instructions in order, such as "HMMA.16816.F32 R4, R8, R2, R4".

    file: as kernel_path() takes it.  arch: "sm_80" or later.

    Raises:
        CompileError: as compile_cubin.  KeyError: no such kernel in the file.
        BackendError: as disassembled().
    """
    return of_kernel(disassembled(cubin_of(file, options, arch)), file, entry)


def cubin_of(file: str, options: tuple[str, ...], arch: str) -> bytes:
    """Return what the compiler makes of a file as kernel_path() takes it."""
    path = kernel_path(file)
    source = path.read_text(encoding="utf-8")
    return compile_cubin(source, path.name, tuple(options), arch, folder=str(path.parent)).cubin


def of_kernel(found: dict, file: str, entry: str):
    """Return what a cubin says of a kernel. UnknownNameError lists the kernels of the file."""
    if entry not in found:
        raise UnknownNameError(f"no kernel {entry!r} in {file}; there are: {', '.join(found)}")
    return found[entry]


def disassembled(cubin: bytes) -> dict[str, tuple[str, ...]]:
    """Return kernel -> its machine instructions, without predicates.

    Raises:
        BackendError: nvdisasm is not here, or refuses the cubin.
    """
    _, *parts = _SECTION.split(disassembly_of(cubin))
    return {
        name: tuple(one["text"].strip() for one in _INSTRUCTION.finditer(text))
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def count_operations(instructions: tuple[str, ...], *names: str) -> dict[str, int]:
    """Return name -> how many instructions have an operation that starts with it: "HMMA", "FFMA".

    Every line counts once, whatever loop it stands in.
    """
    return {name: sum(one.startswith(name) for one in instructions) for name in names}
