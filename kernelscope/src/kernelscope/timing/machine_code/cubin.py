"""A kernel's machine code from its source: NVRTC makes the cubin, NVIDIA's nvdisasm prints it."""

import hashlib
import importlib.metadata
import os
import re
import shutil
import struct
import subprocess
import tempfile
from bisect import bisect_left
from collections import defaultdict
from difflib import SequenceMatcher
from functools import lru_cache
from io import BytesIO

from ...compile import compile_cubin, keep, kept_path, read_kept
from ...errors import BackendError, CompileError, CompilerFailedError, CompilerMissingError
from ...events import Launch
from ...ptx.parser import parse as parsed
from ...ptx.source_module import SourceModule
from ...ptx.syntax import Instruction
from .code import MachineCode, codes
from .listing import PTX_SECTION, Origins, parse
from .segments import called

PACKAGE, PROGRAM = "nvidia-cuda-nvdisasm", "nvdisasm"
_SECONDS = 60
_REGISTER_COUNT = b"\x04\x2f\x08\x00"  # EIATTR_REGCOUNT: symbol and count follow
MOST_APART = 2000  # instructions between those that two PTX functions begin and end with


def machine_code(launch: Launch, arch: str) -> MachineCode | None:
    """Return the machine code of a launched kernel for an architecture such as "sm_90a".

    None where it cannot be made: without CUDA C source, such as PTX, or without nvdisasm.
    """
    try:
        return _made(launch.source, launch.kernel, arch)
    except (CompileError, CompilerFailedError, CompilerMissingError, BackendError):
        return None


@lru_cache(maxsize=64)  # a kernel is often launched again
def _made(source: SourceModule, kernel: str, arch: str) -> MachineCode | None:
    cubin = compile_cubin(source.source, source.source_name, source.options, arch).cubin
    text = disassembled(cubin, "-gp", "-hex")  # with lines of PTX, and encodings
    ptx = _elf(cubin).get_section_by_name(PTX_SECTION)
    if ptx is None:
        return None
    origins = _origins(ptx.data().decode().replace("\0", "\n"), source)
    others = frozenset(source.module.functions.keys() - {kernel})
    segments = tuple(parse(text, kernel, origins, others))
    if not segments:
        return None
    left = (called(one, others) for _, one in codes(segments))
    calls = tuple(dict.fromkeys(name for name in left if name))
    return MachineCode(cubin_registers(cubin).get(kernel, 0), segments, calls)


def _elf(cubin: bytes):
    """The sections of a cubin."""
    from elftools.elf.elffile import ELFFile  # only here: importing it takes time

    return ELFFile(BytesIO(cubin))


@lru_cache(maxsize=64)
def numbers_of(source: SourceModule) -> dict[int, int]:
    """Return the numbers of the PTX instructions of a module, by their ids."""
    every = (one for function in source.module.functions.values() for one in function.body)
    return {id(one): number for number, one in enumerate(every)}


def _origins(text: str, source: SourceModule) -> Origins:
    """Line of a cubin's own PTX -> [(number of the instruction of the source's PTX, its line, its
    opcode), ...]: inline assembly may have several instructions on a line.

    Both are made of one source. Where the architectures for which they were made change a
    function, its instructions are those that both have in one order.
    """
    ends = [place.start() for place in re.finditer("\n", text)]
    numbers, found = numbers_of(source), defaultdict(list)
    for name, function in parsed(text).functions.items():
        own = source.module.functions.get(name)
        for theirs, one in _alike(function.body, own.body) if own else ():
            line = bisect_left(ends, theirs.start) + 1
            found[line].append((numbers[id(one)], source.own_line(one), one.opcode))
    return found


def _alike(some: list[Instruction], others: list[Instruction]) -> list[tuple]:
    """Pairs of two lists, by their opcodes, in the order of both."""
    begin = _begin_alike(some, others)
    end = _begin_alike(some[begin:][::-1], others[begin:][::-1])
    found = list(zip(some[:begin], others, strict=False))
    between = some[begin : len(some) - end], others[begin : len(others) - end]
    if max(map(len, between)) <= MOST_APART:
        matcher = SequenceMatcher(
            None, *([one.opcode for one in body] for body in between), autojunk=False
        )
        for first, second, count in matcher.get_matching_blocks():
            found += [(between[0][first + at], between[1][second + at]) for at in range(count)]
    return found + list(zip(some[len(some) - end :], others[len(others) - end :], strict=True))


def _begin_alike(some: list[Instruction], others: list[Instruction]) -> int:
    """How many instructions from the first on have the same opcodes."""
    pairs = enumerate(zip(some, others, strict=False))
    least = min(len(some), len(others))
    return next((at for at, (one, other) in pairs if one.opcode != other.opcode), least)


def nvdisasm() -> str:
    """Return the path of nvdisasm: of its Python package, else of a CUDA toolkit on the PATH.

    Raises:
        BackendError: neither is there.
    """
    try:
        files = importlib.metadata.files(PACKAGE) or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == PROGRAM:
            return str(file.locate())
    if found := shutil.which(PROGRAM):
        return found
    raise BackendError(f"no {PROGRAM} here: pip install {PACKAGE}, or put CUDA's on the PATH")


@lru_cache(maxsize=64)
def disassembled(cubin: bytes, *options: str) -> str:
    """Return nvdisasm's text of a cubin; options: such as "-hex", for encodings.

    Kept in the folder of KERNELSCOPE_COMPILED: nvdisasm needs most of a second to start.

    Raises:
        BackendError: nvdisasm is not here, or refuses the cubin.
    """
    program = nvdisasm()
    state = os.stat(program)
    key = cubin, options, program, state.st_mtime_ns, state.st_size
    path = kept_path(hashlib.sha256(repr(key).encode()).hexdigest())
    kept = read_kept(path)
    if kept is None:
        kept = {}, _disassemble(program, cubin, options).encode()
        keep(path, *kept)
    return kept[1].decode()


def _disassemble(program: str, cubin: bytes, options: tuple[str, ...]) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [program, *options, "-c", file.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode:
        raise BackendError(f"{PROGRAM}: {done.stderr.strip()[-400:]}")
    return done.stdout


def cubin_registers(cubin: bytes) -> dict[str, int]:
    """Return kernel -> registers of a thread, of those of which the cubin says it."""
    elf = _elf(cubin)
    symbols, info = elf.get_section_by_name(".symtab"), elf.get_section_by_name(".nv.info")
    if symbols is None or info is None:
        return {}
    data, at, found = info.data(), -1, {}
    while (at := data.find(_REGISTER_COUNT, at + 1)) >= 0:
        symbol, count = struct.unpack_from("<II", data, at + len(_REGISTER_COUNT))
        if symbol < symbols.num_symbols():
            found.setdefault(symbols.get_symbol(symbol).name, count)
    return found
