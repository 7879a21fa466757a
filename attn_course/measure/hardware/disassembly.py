"""A kernel's machine instructions, by NVIDIA's disassembler on the cubin that the compiler makes.

Needs no GPU. PTX is a promise to the compiler's last stage; what a GPU runs is the cubin, and only
the disassembly says whether a kernel uses tensor cores, or what an atomic operation has become.
"""

import importlib.metadata
import re
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from kernelscope.compile import compile_cubin
from kernelscope.errors import UnknownNameError, UserError

from attn_course.ladder.headers import kernel_path

PACKAGE, PROGRAM = "nvidia-cuda-nvdisasm", "nvdisasm"
_SECONDS = 60
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)", re.MULTILINE)
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<text>[A-Z][A-Z0-9_.]*[^;]*);")


class DisassemblerMissing(UserError, RuntimeError):
    """No nvdisasm here; the message says how to get it."""


def nvdisasm() -> Path:
    """Return the path of nvdisasm: of its Python package, else of a CUDA toolkit on the PATH.

    Raises:
        DisassemblerMissing: neither is there.
    """
    try:
        files = importlib.metadata.files(PACKAGE) or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == PROGRAM:
            return Path(str(file.locate()))
    if found := shutil.which(PROGRAM):
        return Path(found)
    raise DisassemblerMissing(
        f"no {PROGRAM} here: pip install {PACKAGE}, or put CUDA's on the PATH"
    )


@lru_cache(maxsize=32)
def machine_code(
    file: str, entry: str, options: tuple[str, ...] = (), arch: str = "sm_90"
) -> tuple[str, ...]:
    """Return a kernel's machine instructions in order, such as "HMMA.16816.F32 R4, R8, R2, R4".

    file: as kernel_path() takes it.  arch: "sm_80" or later.

    Raises:
        CompileError: as compile_cubin.  KeyError: no such kernel in the file.
        DisassemblerMissing: as nvdisasm().
    """
    path = kernel_path(file)
    source = path.read_text(encoding="utf-8")
    cubin = compile_cubin(source, path.name, options, arch, folder=str(path.parent)).cubin
    found = disassembled(cubin)
    if entry not in found:
        raise UnknownNameError(f"no kernel {entry!r} in {path.name}; there are: {', '.join(found)}")
    return found[entry]


def disassembled(cubin: bytes) -> dict[str, tuple[str, ...]]:
    """Return kernel -> its machine instructions, without predicates.

    Raises:
        DisassemblerMissing: as nvdisasm().  RuntimeError: nvdisasm refuses the cubin.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(nvdisasm()), "-c", file.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{PROGRAM}: {done.stderr.strip()[-400:]}")
    _, *parts = _SECTION.split(done.stdout)
    return {
        name: tuple(one["text"].strip() for one in _INSTRUCTION.finditer(text))
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def count_operations(instructions: tuple[str, ...], *names: str) -> dict[str, int]:
    """Return name -> how many instructions have an operation that starts with it: "HMMA", "FFMA".

    Every line counts once, whatever loop it stands in.
    """
    return {name: sum(one.startswith(name) for one in instructions) for name in names}
