"""Machine instructions cut into segments, with what follows what, and what is called."""

import heapq
import re
from dataclasses import replace

from .code import Code, Segment
from .flow import reached

_JUMPS = ("BRA", "BRX", "JMP", "JMX", "BREAK")
_ENDS = ("EXIT", "RET", *_JUMPS)
_COMPUTES = ("FADD", "FMUL", "FFMA", "MUFU")
_SLOW = ("f32_slowpath", "div_rn_f64", "dsqrt_rn_f64", "drcp_rn_f64", "dblrcp")  # in their names
_STORES = ("STG", "ST", "RED", "REDG", "ATOM", "ATOMG")
MOST_SEGMENTS = 500  # ... of functions in the place of their calls
_REGISTER = re.compile(r"[-|~!]*R(\d+)(\.reuse)?")
ONE_REGISTER_OPERANDS = frozenset(
    "FFMA FADD FMUL IMAD IADD3 LOP3 SHF LEA ISETP FSETP FMNMX SEL FSEL PRMT HFMA2 HADD2".split()
)


def segments_of(
    code: list[Code], labels: dict[str, int], functions: frozenset[str]
) -> list[Segment]:
    aims = (*_JUMPS, "CALL")
    aimed = {labels[c.target] for c in code if c.name in aims and c.target in labels}
    ends = (at for at, c in enumerate(code) if c.name in (*_ENDS, "BAR") or called(c, functions))
    cuts = aimed | {end + 1 for end in ends}
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
    ways = {
        c.target: _way(segments, number[labels[c.target]], "f32" in c.target)
        for c in code
        if _calls_slow_path(c, labels)
    }
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
    lasts = [(at, segment.code[-1]) for at, segment in enumerate(segments)]
    enters = {
        at: number[labels[c.target]]
        for at, c in lasts
        if c.target in labels and called(c, functions)
    }
    segments = _with_calls(segments, enters)
    _mark_fences(segments)
    return segments


def called(code: Code, functions: frozenset[str]) -> str:
    """The one of the functions that an instruction calls, if it does."""
    parts = code.target.split("$") if code.name == "CALL" else ()
    return next((name for name in parts if name in functions), "")


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


def _calls_slow_path(code: Code, labels: dict[str, int]) -> bool:
    """Does it call what divisions, roots or reciprocals of unusual floats need?"""
    return code.name == "CALL" and code.target in labels and any(map(code.target.count, _SLOW))


def _way(segments: list[Segment], start: int, of_floats: bool) -> list[Code]:
    """Return a zero's way through a slow path: the shortest; of floats, on which none is computed.
    Those of doubles compute first.
    """
    todo, seen = [(0, start, ())], set()
    while todo:
        length, at, before = heapq.heappop(todo)
        code, way = segments[at].code, (*before, at)
        computes = of_floats and any(one.name in _COMPUTES and not one.guarded for one in code)
        if at in seen or computes:
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


def _with_calls(segments: list[Segment], enters: dict[int, int]) -> list[Segment]:
    """The segments that a path from the first one reaches. Each call of a function is replaced by
    its segments, but for one that calls itself, and beyond MOST_SEGMENTS. enters: segment that ends
    in a call -> the function's first.
    """
    found: dict[tuple[int, ...], tuple[list[Code], list[tuple[int, ...]]]] = {}

    def copy(start: int, calls: tuple[int, ...], back: list[tuple[int, ...]]) -> None:
        """calls: segments of the calls under way; back: where the last of them goes on."""
        within = [enters[call] for call in calls]
        for at in sorted(reached(segments, start)):
            code = [replace(one) for one in segments[at].code]
            follows = [(*calls, after) for after in segments[at].follows]
            found[*calls, at] = code, follows
            if at in enters and enters[at] not in within and len(found) < MOST_SEGMENTS:
                copy(enters[at], (*calls, at), follows.copy())
                beside = follows if code[-1].guarded else ()
                code[-1].target, follows[:] = "", [(*calls, at, enters[at]), *beside]
            elif code[-1].name == "RET" and not code[-1].called:
                follows += back

    copy(0, (), [])
    number = {place: at for at, place in enumerate(found)}
    return [Segment(code, [number[place] for place in after]) for code, after in found.values()]
