"""The machine code of a kernel: instructions with their lines and schedule, registers, blocks.

ptxas decides how a loop is unrolled, which loads go out together, and what waits for what. It
writes that into each instruction: clocks until the next one, a scoreboard that its result sets, and
those that it waits for. NVRTC makes the cubin without a GPU; NVIDIA's nvdisasm prints it.
"""

import hashlib
import heapq
import importlib.metadata
import os
import re
import shutil
import struct
import subprocess
import tempfile
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import lru_cache
from io import BytesIO

from ..compile import compile_cubin, keep, kept_path, read_kept
from ..errors import BackendError, CompileError, CompilerFailedError, CompilerMissingError
from ..events import Launch
from ..ptx.parser import parse as parsed
from ..ptx.source_module import SourceModule
from ..ptx.syntax import Instruction

PACKAGE, PROGRAM = "nvidia-cuda-nvdisasm", "nvdisasm"
_SECONDS = 60
_PTX_SECTION = ".nv_debug_ptx_txt"
_PLACE = re.compile(rf'//## File "{re.escape(_PTX_SECTION)}", line (\d+)')
_LABEL = re.compile(r"^([.$\w]+):$")
_CODE = re.compile(
    r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?"
    r"([A-Z][\w.]*)\s*([^;]*);\s*/\* 0x([0-9a-f]+) \*/"
)
_MORE = re.compile(r"^\s*/\* 0x([0-9a-f]{16}) \*/")
_TARGET = re.compile(r"`\(([^)]+)\)")
_REGISTER_COUNT = b"\x04\x2f\x08\x00"  # EIATTR_REGCOUNT: symbol and count follow
_JUMPS = ("BRA", "BRX", "JMP", "JMX", "BREAK")
_ENDS = ("EXIT", "RET", *_JUMPS)
_COMPUTES = ("FADD", "FMUL", "FFMA", "MUFU")
_STORES = ("STG", "ST", "RED", "REDG", "ATOM", "ATOMG")
NO_SCOREBOARD = 7
MOST_APART = 2000  # instructions between those that two PTX functions begin and end with
# Machine instruction -> roots of PTX opcodes, to tell several of one line apart.
_WAYS = {
    **dict.fromkeys(("LDG", "LD", "LDS", "LDL"), ("ld",)),
    **dict.fromkeys(("STG", "ST", "STS", "STL"), ("st",)),
    **dict.fromkeys(("ATOM", "ATOMG", "ATOMS", "RED", "REDG"), ("atom", "red")),
    **dict.fromkeys(("HMMA", "IMMA", "DMMA", "QGMMA", "HGMMA", "IGMMA"), ("mma", "wgmma", "wmma")),
    "LDSM": ("ldmatrix",), "STSM": ("stmatrix",), "LDGSTS": ("cp",), "SHFL": ("shfl",),
    "BAR": ("bar", "barrier"), "MUFU": ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh"),
    **dict.fromkeys(("FFMA", "DFMA", "HFMA2"), ("fma",)),
}  # fmt: skip
_REGISTER = re.compile(r"[-|~!]*R(\d+)(\.reuse)?")
ONE_REGISTER_OPERANDS = frozenset(
    "FFMA FADD FMUL IMAD IADD3 LOP3 SHF LEA ISETP FSETP FMNMX SEL FSEL PRMT HFMA2 HADD2".split()
)


@dataclass(slots=True)
class Code:
    """One machine instruction.

    name: the opcode's first part; parts: the others; guarded: by a predicate; line: of the source,
    0 where it is of none; stall: clocks until the warp's next instruction; sets, frees: scoreboard
    of its result, and of its operands, 7 for none; waits: bit mask of scoreboards; target: label.
    """

    name: str
    parts: tuple[str, ...]
    operands: str
    guarded: bool
    line: int
    stall: int
    sets: int
    frees: int
    waits: int
    target: str
    again: int = 0  # clocks more until its registers are read: three of one bank
    origin: int = -1  # number of the PTX instruction that it is made of, -1 for none
    called: bool = False  # belongs to a function that is called there
    alone: bool = False  # a fence behind which no store to global memory may be under way

    @property
    def issue(self) -> int:
        """Clocks that it keeps a scheduler from issuing."""
        return 1 + self.again

    @property
    def spent(self) -> int:
        """Clocks until the warp's next instruction."""
        return max(self.stall, self.issue)


@dataclass(slots=True)
class Segment:
    """Instructions that run one after another: a basic block, cut behind barriers of the block.

    follows: numbers of the segments that may come next, the one that falls through first.
    """

    code: list[Code]
    follows: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class MachineCode:
    """A kernel as ptxas made it. registers: of a thread; calls: functions that it calls, whose code
    is not among the segments.
    """

    registers: int
    segments: tuple[Segment, ...]
    calls: tuple[str, ...] = ()


def machine_code(launch: Launch, arch: str) -> MachineCode | None:
    """Return the machine code of a launched kernel for an architecture such as "sm_90a".

    None where it cannot be made: without CUDA C source, such as PTX, or without nvdisasm.
    """
    source = launch.source
    try:
        compiled = compile_cubin(source.source, source.source_name, source.options, arch)
        text = disassembled(compiled.cubin, "-gp", "-hex")  # with lines of PTX, and encodings
    except (CompileError, CompilerFailedError, CompilerMissingError, BackendError):
        return None
    return _read(compiled.cubin, text, launch.kernel, source)


@lru_cache(maxsize=64)  # a kernel is often launched again
def _read(cubin: bytes, text: str, kernel: str, source: SourceModule) -> MachineCode | None:
    ptx = _elf(cubin).get_section_by_name(_PTX_SECTION)
    if ptx is None:
        return None
    origins = _origins(ptx.data().decode().replace("\0", "\n"), source)
    code = parse(text, kernel, origins)
    if not code:
        return None
    aims = [one.target.split("$") for _, one in codes(code) if one.name == "CALL"]
    others = source.module.functions.keys() - {kernel}
    calls = tuple(dict.fromkeys(name for aim in aims for name in aim if name in others))
    return MachineCode(cubin_registers(cubin).get(kernel, 0), tuple(code), calls)


def _elf(cubin: bytes):
    """The sections of a cubin."""
    from elftools.elf.elffile import ELFFile  # only here: importing it takes time

    return ELFFile(BytesIO(cubin))


@lru_cache(maxsize=64)
def numbers_of(source: SourceModule) -> dict[int, int]:
    """Return the numbers of the PTX instructions of a module, by their ids."""
    every = (one for function in source.module.functions.values() for one in function.body)
    return {id(one): number for number, one in enumerate(every)}


Origins = dict[int, list[tuple[int, int, str]]]


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


def parse(text: str, kernel: str, origins: Origins) -> list[Segment]:
    """Return the segments of a kernel in nvdisasm's text; origins: line of its PTX -> instructions
    of the PTX there, of which a machine instruction is one of its own kind, by turns.
    """
    begin = text.find(f"\n.text.{kernel}:\n")
    if begin < 0:
        return []
    end = text.find("//-----", begin)
    labels: dict[str, int] = {}
    code: list[Code] = []
    here: list[tuple[int, int, str]] = []
    turns: Counter[tuple[int, str]] = Counter()
    for row in text[begin : end if end > 0 else None].splitlines():
        if place := _PLACE.search(row):
            here = origins.get(int(place[1]), [])
        elif found := _CODE.match(row):
            code.append(_instruction(found, *_one_of(here, found[3].split(".")[0], turns)))
        elif high := _MORE.match(row):
            _schedule(code[-1], int(high[1], 16))
        elif label := _LABEL.match(row):
            labels[label[1]] = len(code)
    return _segments(code, labels)


def _one_of(here: list[tuple[int, int, str]], name: str, turns: Counter) -> tuple[int, int]:
    """(Number, line) of the PTX instruction that a machine instruction is made of."""
    if len(here) <= 1:
        return here[0][:2] if here else (-1, 0)
    way = _WAYS.get(name)
    fits = [one for one in here if way and one[2].split(".")[0] in way]
    if not fits:
        return -1, here[0][1]
    turns[fits[0][0], name] += 1
    return fits[(turns[fits[0][0], name] - 1) % len(fits)][:2]


def _instruction(found: re.Match, origin: int, line: int) -> Code:
    name, *parts = found[3].split(".")
    target = _TARGET.search(found[4])
    guard, aim = found[2] is not None, target[1] if target else ""
    return Code(name, tuple(parts), found[4], guard, line, 1, 7, 7, 0, aim, origin=origin)


def _schedule(code: Code, high: int) -> None:
    """Read the upper half of an encoding: what ptxas says of the instruction's time."""
    control = high >> 41
    code.stall = max(control & 15, 1)
    code.sets, code.frees, code.waits = control >> 5 & 7, control >> 8 & 7, control >> 11 & 63


def _segments(code: list[Code], labels: dict[str, int]) -> list[Segment]:
    aims = (*_JUMPS, "CALL")
    aimed = {labels[c.target] for c in code if c.name in aims and c.target in labels}
    cuts = aimed | {at + 1 for at, c in enumerate(code) if c.name in (*_ENDS, "BAR")}
    starts = sorted(cut for cut in cuts | {0} if cut < len(code))
    number = {start: at for at, start in enumerate(starts)}
    _count_bank_conflicts(code)
    segments = []
    for start, end in zip(starts, [*starts[1:], len(code)], strict=True):
        last = code[end - 1]
        jumps = [number[labels[last.target]]] if labels.get(last.target) in number else []
        goes_on = [number[end]] if end in number else []
        if last.name in _JUMPS:
            certain = not last.guarded and "P" not in last.operands.split("`")[0]
            if "DIV" in last.parts:  # for warps whose lanes have parted: a shuffle a lane at a time
                follows = goes_on
            else:
                follows = jumps if certain else goes_on + jumps
        elif last.name in _ENDS:
            follows = goes_on if last.guarded else []
        else:
            follows = goes_on
        segments.append(Segment(code[start:end], follows))
    ways = {c.target: _way(segments, number[labels[c.target]]) for c in code if _calls(c, labels)}
    for segment in segments:
        segment.code = [
            one
            for c in segment.code
            for one in (
                c,
                *(
                    replace(w, line=c.line, origin=c.origin, called=True)
                    for w in ways.get(c.target, ())
                ),
            )
        ]
    segments = _reachable(segments)
    _mark_fences(segments)
    return segments


def _mark_fences(segments: list[Segment]) -> None:
    """Set `alone` of the fences that no store or atomic reaches without a fence between."""
    before = [False] * len(segments)  # may a store be under way where the segment begins?
    todo = set(range(len(segments)))
    while todo:
        at = todo.pop()
        under_way = before[at]
        for one in segments[at].code:
            if one.name == "MEMBAR":
                one.alone, under_way = not under_way, False
            under_way |= one.name in _STORES
        for after in segments[at].follows:
            if under_way and not before[after]:
                before[after] = True
                todo.add(after)


def _calls(code: Code, labels: dict[str, int]) -> bool:
    """Does it call what divisions, roots or reciprocals of unusual floats need?"""
    return code.name == "CALL" and "f32_slowpath" in code.target and code.target in labels


def _way(segments: list[Segment], start: int) -> list[Code]:
    """Return a zero's way through a slow path: the shortest on which no float is computed."""
    todo, seen = [(0, start, ())], set()
    while todo:
        length, at, before = heapq.heappop(todo)
        code, way = segments[at].code, (*before, at)
        if at in seen or any(one.name in _COMPUTES and not one.guarded for one in code):
            continue
        if code[-1].name == "RET":
            return [one for number in way for one in segments[number].code]
        seen.add(at)
        for after in segments[at].follows:
            heapq.heappush(todo, (length + len(code), after, way))
    return []


def _count_bank_conflicts(code: list[Code]) -> None:
    """Set `again`: three operands of one bank take a clock more. Even and odd registers are two
    banks that give two registers a clock (Jia, Maggioni, Staiger and Scarpazza, "Dissecting the
    NVIDIA Volta GPU architecture via microbenchmarking", 2018).

    `.reuse` keeps an operand for the next instruction that has the register in the same place.
    """
    kept: dict[int, str] = {}
    for one in code:
        if one.name not in ONE_REGISTER_OPERANDS:
            continue
        read, found = [0, 0], {}
        for place, operand in enumerate(one.operands.split(",")[1:]):
            register = _REGISTER.match(operand.strip())
            if not register:
                continue
            if kept.get(place) != register[1]:
                read[int(register[1]) % 2] += 1
            if register[2]:
                found[place] = register[1]
        kept, one.again = found, max(0, max(read) - 2)


def _reachable(segments: list[Segment]) -> list[Segment]:
    """Leave out what no path from the first segment reaches: slow paths that calls enter."""
    seen, todo = {0}, [0]
    while todo:
        for after in segments[todo.pop()].follows:
            if after not in seen:
                seen.add(after)
                todo.append(after)
    number = {old: new for new, old in enumerate(sorted(seen))}
    kept = [segments[old] for old in sorted(seen)]
    for segment in kept:
        segment.follows = [number[one] for one in segment.follows]
    return kept


def codes(segments: tuple[Segment, ...]) -> Iterable[tuple[int, Code]]:
    """Every instruction with the number of its segment."""
    for at, segment in enumerate(segments):
        for code in segment.code:
            yield at, code


# -- loops: segments that go back to one that dominates them --------------------------------------
@dataclass(frozen=True)
class NaturalLoop:
    """header: the segment by which it is entered; body: all of its segments; above: those that
    every path to the header passes, the nearest first.
    """

    header: int
    body: frozenset[int]
    above: tuple[int, ...]


def loops_of(segments: tuple[Segment, ...]) -> list[NaturalLoop]:
    """Return the natural loops, those of one header as one."""
    before = predecessors(segments)
    nearest = _dominators(segments, before)
    bodies: defaultdict[int, set[int]] = defaultdict(set)
    for header in range(len(segments)):
        for tail in before[header]:
            if header == tail or header in _above(tail, nearest):
                bodies[header] |= _body(header, tail, before)
    return [
        NaturalLoop(h, frozenset(body), tuple(_above(h, nearest))) for h, body in bodies.items()
    ]


def predecessors(segments: tuple[Segment, ...]) -> list[list[int]]:
    """Return for each segment those that it may follow, ascending."""
    before: list[list[int]] = [[] for _ in segments]
    for at, segment in enumerate(segments):
        for after in dict.fromkeys(segment.follows):
            before[after].append(at)
    return before


def dominators(segments: tuple[Segment, ...]) -> list[list[int]]:
    """Return for each segment those that every path to it passes, the nearest first."""
    nearest = _dominators(segments, predecessors(segments))
    return [_above(at, nearest) for at in range(len(segments))]


def _above(at: int, nearest: dict[int, int]) -> list[int]:
    """The dominators of a segment, the nearest first."""
    found = []
    while at in nearest and nearest[at] != at:
        at = nearest[at]
        found.append(at)
    return found


def _body(header: int, tail: int, before) -> set[int]:
    """Segments from which the tail is reached without passing the header."""
    body, todo = {header, tail}, [tail] if tail != header else []
    while todo:
        for earlier in before[todo.pop()]:
            if earlier not in body:
                body.add(earlier)
                todo.append(earlier)
    return body


def _dominators(segments, before) -> dict[int, int]:
    """Segment -> its nearest dominator (Cooper, Harvey and Kennedy's iteration)."""
    order, seen, todo = [], {0}, [(0, iter(segments[0].follows))]
    while todo:
        at, rest = todo[-1]
        after = next((one for one in rest if one not in seen), None)
        if after is None:
            order.append(at)
            todo.pop()
        else:
            seen.add(after)
            todo.append((after, iter(segments[after].follows)))
    rank = {at: place for place, at in enumerate(order)}
    nearest, changed = {0: 0}, True
    while changed:
        changed = False
        for at in reversed(order[:-1]):
            known = [one for one in before[at] if one in nearest]
            found = known[0]
            for other in known[1:]:
                found = _common(found, other, nearest, rank)
            if nearest.get(at) != found:
                nearest[at], changed = found, True
    return nearest


def _common(first: int, second: int, nearest: dict[int, int], rank: dict[int, int]) -> int:
    while first != second:
        while rank[first] < rank[second]:
            first = nearest[first]
        while rank[second] < rank[first]:
            second = nearest[second]
    return first
