"""The operands that each instruction takes: how many, and of which kinds.

A form is a text such as "=T address b64?", one word for each operand in the order of PTX:

    =KIND    a result: a register of the kind, `_`, or {a, b}, registers that make it up
    =A|B     one or two results: `d` or `d|p`
    KIND     a source: a register of the kind, a literal, a symbol (the address of a variable) where
             it has 32 or 64 bits, {a, b}
    KIND^    a source, or a clock, which no other instruction reads
    =KIND*   a result, or as many in {a, b} as .v2 or .v4 says; KIND* the same as a source
    address, number, label, barrier ...      see WORDS

KIND is a PTX type; T stands for the instruction's last one. Registers are told apart as predicates
and others; their widths are not compared, as in ld, st and cvt, where they may differ. A word with
`?` may be missing; `...` stands for anything; `hint?` for the policy of an opcode that says
.L2::cache_hint, `mask?` for the blocks of one that says .multicast::cluster.

The operation table has the forms of its rows, FORMS those of all other instructions: their names
are the leading words of an opcode, the longest counts.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from kernelscope.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Immediate,
    Instruction,
    Inverted,
    Pair,
    Register,
    Selected,
    Symbol,
    Vector,
    format_operand,
)

from ..errors import UnknownInstruction, UnsupportedInstruction
from ..isa.matrix import group_multiplication, multiplication, transfer
from ..isa.narrow import VIDEO_ROWS
from ..isa.special_registers import CLOCKS, is_special
from ..isa.table import DTYPE, lookup
from ..tensor_map.fields import REPLACED


def _replacements() -> Iterator[tuple[str, str]]:
    """(field of tensormap.replace, form)."""
    for name, one in REPLACED.items():
        value = one.kind if one.values is None else "number"
        yield name, f"address number {value}" if one.places else f"address {value}"


FORMS = {
    # registers
    "mov": "=T T^",
    "mov.b128": "=halves halves",
    "cvta": "=T T",
    "isspacep": "=pred b64",
    "createpolicy": "=b64 ...",
    # control flow
    "bra": "label",
    "brx": "index label",
    "call": "...",  # see check_call
    **dict.fromkeys(("ret", "exit", "trap", "brkpt", "griddepcontrol", "membar"), ""),
    # local memory and time
    "alloca": "=T T number?",
    "stacksave": "=T",
    "stackrestore": "T",
    "nanosleep": "u32",
    # clusters and barriers
    "mapa": "=T T u32",
    "getctarank": "=u32 T",
    "barrier.cluster": "",
    "bar.warp.sync": "b32",
    "bar.sync": "barrier? count?",
    "bar.arrive": "barrier count",
    "bar.red.popc": "=u32 barrier pred / =u32 barrier count pred",
    **dict.fromkeys(("bar.red.and", "bar.red.or"), "=pred barrier pred / =pred barrier count pred"),
    # warps
    "shfl.sync": "=b32|pred b32 b32 b32 b32",
    "vote.sync": "=pred pred b32",
    "vote.sync.ballot": "=b32 pred b32",
    "shfl": "=b32|pred b32 b32 b32",  # without a mask, of GPUs before sm_70
    "vote": "=pred pred",
    "vote.ballot": "=b32 pred",
    "match": "=b32 T b32",
    "match.all": "=b32|pred T b32",
    "redux": "=T T b32",
    "elect": "=b32|pred b32",
    "activemask": "=b32",
    # memory
    **dict.fromkeys(("ld", "ldu"), "=T* address hint?"),
    "st": "address T* hint?",
    "st.bulk": "address u64 number",
    "atom": "=T* address T* hint?",
    "atom.cas": "=T* address T* T* hint?",
    "red": "address T* hint?",
    "st.async": "address T* address",
    "red.async": "address T address",
    "fence": "address? number?",
    **dict.fromkeys(("prefetch", "prefetchu"), "address"),
    **dict.fromkeys(("discard", "applypriority"), "address number"),
    **dict.fromkeys(("pmevent", "setmaxnreg"), "number"),
    "tex": "...",  # see texture_parts
    # asynchronous copies
    "cp.async": "address address number extent? hint?",
    **dict.fromkeys(("cp.async.commit_group", "cp.async.wait_all"), ""),
    "cp.async.wait_group": "number",
    "cp.async.mbarrier.arrive": "address",
    "cp.async.bulk.shared::cluster.global": "address address u32 address mask? hint?",
    "cp.async.bulk.shared::cta.global": "address address u32 address hint?",
    "cp.async.bulk.shared::cluster.shared::cta": "address address u32 address",
    "cp.async.bulk.global.shared::cta": "address address u32 hint?",
    "cp.async.bulk.commit_group": "",
    "cp.async.bulk.wait_group": "number",
    "cp.async.bulk.prefetch.L2": "address u32 hint?",
    "cp.reduce.async.bulk.shared::cluster.shared::cta": "address address u32 address",
    "cp.reduce.async.bulk.global.shared::cta": "address address u32 hint?",
    **{
        f"cp.{name.format(axes)}": form.format(axes)
        for name, form in (
            ("async.bulk.tensor.{}d.shared::cluster.global", "address box{} address mask? hint?"),
            ("async.bulk.tensor.{}d.shared::cta.global", "address box{} address hint?"),
            ("async.bulk.tensor.{}d.global.shared::cta", "box{} address hint?"),
            ("async.bulk.prefetch.tensor.{}d.L2.global", "box{} hint?"),
            ("reduce.async.bulk.tensor.{}d.global.shared::cta", "box{} address hint?"),
        )
        for axes in range(1, 6)
    },
    "cp": "...",  # no more
    # tensor maps
    **{f"tensormap.replace.tile.{name}": form for name, form in _replacements()},
    "tensormap.cp_fenceproxy.global.shared::cta": "address address number",
    # mbarrier objects
    "mbarrier.init": "address u32",
    "mbarrier.inval": "address",
    "mbarrier.pending_count": "=b32 b64",
    **dict.fromkeys(("mbarrier.expect_tx", "mbarrier.complete_tx"), "address u32"),
    **dict.fromkeys(("mbarrier.arrive", "mbarrier.arrive_drop"), "=b64 address u32?"),
    **dict.fromkeys(
        ("mbarrier.arrive.expect_tx", "mbarrier.arrive_drop.expect_tx"), "=b64 address u32"
    ),
    **dict.fromkeys(("mbarrier.test_wait", "mbarrier.try_wait"), "=pred address b64 u32?"),
    # matrices
    "mma": "=list list list list",
    "wmma.mma": "=list list list list",
    "wmma.load": "=list address u32?",
    "wmma.store": "address list u32?",
    "wgmma.mma_async": "=list tile b64 pred sign? sign? flag? flag?",
    **dict.fromkeys(("wgmma.fence", "wgmma.commit_group"), ""),
    "wgmma.wait_group": "number",
    "ldmatrix": "=list address",
    "stmatrix": "address list",
    "movmatrix": "=b32 b32",
}
# The words of FORMS that name no type -> what they ask for.
WORDS = {
    "address": "an address in brackets",
    "number": "a number written out",
    "label": "the name of a label",
    "index": "a register of 32 bits",
    "extent": "a number of bytes or a predicate",
    "part": "a register of 32 bits, or a part of one",
    **dict.fromkeys(("part1", "part2", "part4"), "a value of 32 bits, or a part of one"),
    "signed": "a value of 32 bits",
    "list": "registers in braces",
    "tile": "registers in braces or a matrix descriptor of 64 bits",
    "sign": "1 or -1",
    "flag": "0 or 1",
    "halves": "two values of 64 bits in braces",
    "barrier": "the number of a barrier, 0 to 15",
    "count": "a number of threads",
    **{f"box{axes}": f"a tensor map and {axes} coordinates in brackets" for axes in range(1, 6)},
}
# A form's word for a register, as a result or a source -> whether it is a predicate.
_IS_PREDICATE = {mark + kind: kind == "pred" for mark in ("", "=") for kind in DTYPE}
IM2COL = (
    "the im2col mode of tensor maps is not simulated; in tile mode, copy a box for each position "
    "of the filter"
)
VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_NO_MEANING = ("aligned", "cta")  # words of an opcode between those that FORMS names
_CHECKED = {"mma": multiplication, "wmma.mma": multiplication}
_CHECKED["wgmma.mma_async"] = group_multiplication
_CHECKED |= {"wmma.load": transfer, "wmma.store": transfer}
_SYMBOL_BYTES = (4, 8)  # widths of an address
_PART_BYTES = (1, 2, 4, 8)  # of an item of {a, b}
_LEAST, _END = -(1 << 63), 1 << 64  # of literals and offsets
_MOST = {"number": (1 << 31) - 1, "count": (1 << 31) - 1, "barrier": 15}  # of literals
# What a video instruction may select of a source, by the number of parts that it works on.
_PARTS = {
    "part1": re.compile("b[0-3]|h[01]"),
    "part2": re.compile("h[0-3]{2}"),
    "part4": re.compile("b[0-7]{4}"),
    "signed": re.compile("(?!)"),
}

Form = tuple[str, ...]
Registers = Mapping[str, str]  # name -> type, of those that a function declares


# -- forms ----------------------------------------------------------------------------------------
@lru_cache(maxsize=1 << 12)
def forms_of(opcode: str) -> tuple[Form, ...]:
    """The forms of an opcode. Raises UnsupportedInstruction for one that is not known."""
    if any(part.startswith("im2col") for part in opcode.split(".")):
        raise UnsupportedInstruction(IM2COL)
    name = _name(opcode)
    try:
        if not name:
            form = _form_of_row(opcode)
            three = opcode.startswith(("min.", "max.")) and opcode.endswith(".f32")
            return (form, (*form, "f32")) if three else (form,)
        if name in _CHECKED:
            _CHECKED[name](opcode)
    except UnknownInstruction as error:
        raise UnsupportedInstruction(str(error)) from None
    hint = "b64" if "L2::cache_hint" in opcode else ""
    mask = "u16" if "multicast::cluster" in opcode else ""
    text = FORMS[name].replace("hint?", hint).replace("mask?", mask)
    if "T" in text:
        text = text.replace("T*", f"T*{_count(opcode)}")
        text = text.replace("T", _last_type(opcode, name, "T*" in text))
    return tuple(tuple(form.split()) for form in text.split("/"))


def _name(opcode: str) -> str:
    """The name in FORMS of an opcode; "" for one of the operation table."""
    root, *parts = opcode.split(".")
    parts = [part for part in parts if part not in _NO_MEANING]
    if root == "barrier" and parts[:1] != ["cluster"]:
        root = "bar"
    if root == "atom" and "cas" in parts:
        parts = ["cas"]
    if root == "match" and "all" in parts:
        parts = ["all"]
    names = (".".join([root, *parts[:count]]) for count in range(len(parts), -1, -1))
    return next((name for name in names if name in FORMS), "")


def _count(opcode: str) -> int:
    """How many values a load, a store or an atomic moves: 128 bits go as two of 64."""
    parts = opcode.split(".")
    return next((n for word, n in VECTORS.items() if word in parts), 1) * (1 + ("b128" in parts))


def _last_type(opcode: str, name: str, in_memory: bool) -> str:
    """What T stands for."""
    kind = next((part for part in reversed(opcode.split(".")) if part in TYPE_BYTES), None)
    if kind == "b128" and in_memory:
        return "b64"
    if kind not in DTYPE or kind == "pred" and name != "mov":
        raise UnsupportedInstruction(f"{opcode}: {f'not of type .{kind}' if kind else 'no type'}")
    return kind


def _form_of_row(opcode: str) -> Form:
    """The form of an operation of the table, whose results and sources are PTX types."""
    root = opcode.split(".")[0]
    if root not in VIDEO_ROWS:
        operation = lookup(opcode)
        return ("=" + "|".join(operation.results), *operation.sources)
    # What is selected of the operands chooses among the rows, but for the number of sources.
    part = f"part{root[-1]}" if root[-1] in "24" else "part1"
    third = "signed" if root == "vmad" else "u32" if root[-1] in "24" else "u32?"
    return ("=part", part, part, third)


# -- an instruction -------------------------------------------------------------------------------
def check_operands(instruction: Instruction, registers: Registers) -> None:
    """Raise UnsupportedInstruction unless an instruction's guard and operands are those it takes.

    A name that is declared nowhere is left to those who look for what it names.
    """
    guard, opcode, operands = instruction.guard, instruction.opcode, instruction.operands
    if guard is not None and not _is_register(guard, "pred", registers):
        raise UnsupportedInstruction(f"the guard {guard.name} is no predicate")
    if opcode.startswith("call"):
        check_call(operands, registers)
        return
    for operand, word in zip(operands, _form_for(opcode, len(operands)), strict=False):
        if word == "...":
            return
        word = word.removesuffix("?")
        if not _is_plain(operand, word, registers) and not fits(operand, word, registers):
            given = f"operand {format_operand(operand)} is not what {opcode} takes there"
            raise UnsupportedInstruction(f"{given}: {describe(word)}")


def _form_for(opcode: str, count: int) -> Form:
    """The form of an opcode that has so many operands; UnsupportedInstruction for no such one."""
    forms = forms_of(opcode)
    for form in forms:
        if len(form) == count or _least(form) <= count <= _most(form):
            return form
    raise UnsupportedInstruction(f"{opcode} takes {_counts(forms)}, got {count}")


def _is_plain(operand, word: str, registers: Registers) -> bool:
    """Whether an operand is a register of a word's type, as most are: this saves time."""
    if not isinstance(operand, Register) or word not in _IS_PREDICATE:
        return False
    declared = registers.get(operand.name)
    return declared is not None and (declared == "pred") == _IS_PREDICATE[word]


def _least(form: Form) -> int:
    return sum(word[-1] not in "?." for word in form)


def _most(form: Form) -> float:
    return math.inf if "..." in form else len(form)


def _counts(forms: tuple[Form, ...]) -> str:
    """The numbers of operands that some forms allow, in words."""
    least, most = min(map(_least, forms)), max(map(_most, forms))
    if most == 0:
        return "no operands"
    between = "or" if most == least + 1 else "to"
    span = f"{least} {between} {most}" if least < most < math.inf else f"{least}"
    at_least = "at least " if most == math.inf else ""
    return f"{at_least}{span} operand{'s' * (most != 1)}"


def describe(word: str) -> str:
    """What a word of a form asks for."""
    kind, _, count = word.removeprefix("=").removesuffix("^").partition("*")
    if kind in WORDS:
        return WORDS[kind]
    first, _, second = kind.partition("|")
    what = "a predicate" if first == "pred" else f"a value of type .{first}"
    if word[0] == "=":
        what = what.replace("value", "register for a value")
    if count > "1":
        what = f"{count} in braces, each {what}"
    return what + (f", and perhaps |, and one of type .{second}" if second else "")


# -- an operand -----------------------------------------------------------------------------------
def fits(operand, word: str, registers: Registers) -> bool:
    """Whether an operand is of the kind that a word of a form names."""
    if word[0] == "=":
        return _is_result(operand, word[1:], registers)
    match word:
        case "address":
            return _is_address(operand, registers)
        case "number":
            return _is_small(operand, word)
        case "barrier" | "count":
            return _is_small(operand, word) or _is_register(operand, "u32", registers)
        case "index":
            return _is_register(operand, "u32", registers)
        case "label":
            return isinstance(operand, Symbol) and not operand.offset
        case "extent":
            return any(_is_source(operand, kind, registers) for kind in ("u32", "pred"))
        case "halves":
            return isinstance(operand, Vector) and _is_source(operand, "b128", registers)
        case "sign":
            return operand in (Immediate(1), Immediate(-1))
        case "flag":
            return operand in (Immediate(0), Immediate(1))
        case "tile" if not isinstance(operand, Vector):
            return _is_source(operand, "b64", registers)
        case "list" | "tile":
            return all(_is_item(one, "b64", registers) for one in _items(operand))
        case "part1" | "part2" | "part4" | "signed":
            return _is_part(operand, word, registers)
        case "box1" | "box2" | "box3" | "box4" | "box5":
            return _is_box(operand, int(word[3:]), registers)
    if word[-1] == "^":
        is_clock = isinstance(operand, Register) and operand.name in CLOCKS
        return is_clock or _is_source(operand, word[:-1], registers)
    kind, _, count = word.partition("*")
    if count:
        return _has(operand, count) and all(_is_item(i, kind, registers) for i in _items(operand))
    return _is_source(operand, word, registers)


def _items(operand) -> tuple:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _has(operand, count: str) -> bool:
    """Whether an operand has so many items: one is not in braces."""
    return len(operand.items) == int(count) > 1 if isinstance(operand, Vector) else count == "1"


def _is_item(operand, kind: str, registers: Registers) -> bool:
    """Whether an operand is one source: not {a, b}."""
    return not isinstance(operand, Vector) and _is_source(operand, kind, registers)


def _is_small(operand, word: str) -> bool:
    whole = isinstance(operand, Immediate) and not operand.float_bits
    return whole and 0 <= operand.value <= _MOST[word]


def _is_register(operand, kind: str, registers: Registers) -> bool:
    """Whether an operand is a register: a predicate or none, as the kind says."""
    if not isinstance(operand, Register) or operand.name == "_":
        return False
    declared = registers.get(operand.name)
    if declared is None:  # special registers are no predicates
        name = operand.name
        return name not in CLOCKS and (kind != "pred" or not is_special(name))
    return (declared == "pred") == (kind == "pred")


def _is_result(operand, kinds: str, registers: Registers) -> bool:
    first, _, second = kinds.partition("|")
    if isinstance(operand, Pair):
        both = zip((operand.first, operand.second), (first, second), strict=True)
        return bool(second) and all(_is_target(one, kind, registers) for one, kind in both)
    if first == "part":
        operand = operand.operand if isinstance(operand, Selected) else operand
        return _is_target(operand, "u32", registers)
    first, _, count = first.partition("*")
    if not isinstance(operand, Vector):
        nowhere = isinstance(operand, Register) and operand.name == "_"
        alone = count in ("", "1") and first != "halves"
        return nowhere or alone and _is_target(operand, first, registers)
    several = _has(operand, count) if count else first == "list" or _makes_up(operand, first)
    return several and all(_is_target(one, "b64", registers) for one in operand.items)


def _is_target(operand, kind: str, registers: Registers) -> bool:
    """Whether an operand is a register that can be written, or `_`."""
    if not isinstance(operand, Register) or is_special(operand.name):
        return False
    return operand.name == "_" or _is_register(operand, kind, registers)


def _is_source(operand, kind: str, registers: Registers) -> bool:
    match operand:
        case Register():
            return _is_register(operand, kind, registers)
        case Immediate(value):
            return _LEAST <= value < _END
        case Inverted(inner):
            return kind == "pred" and _is_register(inner, kind, registers)
        case Symbol(_, offset):
            dtype = DTYPE[kind]
            wide = dtype.kind in "iu" and dtype.itemsize in _SYMBOL_BYTES
            return wide and _LEAST <= offset < _END
        case Vector(items):
            return _makes_up(operand, kind) and all(
                isinstance(one, Register | Immediate) and _is_source(one, "b64", registers)
                for one in items
            )
    return False


def _makes_up(vector: Vector, kind: str) -> bool:
    """Whether the items of {a, b} have a width each with which they make up a value of a kind."""
    if kind in ("halves", "b128"):
        return len(vector.items) == 2
    count, size = len(vector.items), TYPE_BYTES.get(kind, 0)
    return kind != "pred" and count > 0 and not size % count and size // count in _PART_BYTES


def _is_address(operand, registers: Registers) -> bool:
    if not isinstance(operand, Address) or operand.extra or not _LEAST <= operand.offset < _END:
        return False
    kind = registers.get(operand.base.name) if isinstance(operand.base, Register) else None
    return kind is None or kind[0] in "bus" and TYPE_BYTES[kind] in _SYMBOL_BYTES


def _is_box(operand, axes: int, registers: Registers) -> bool:
    """A tensor map's address with coordinates: `[map, {x, y}]`."""
    if not isinstance(operand, Address) or len(operand.extra) != axes:
        return False
    coordinates = (one for one in operand.extra if isinstance(one, Register | Immediate))
    good = sum(_is_source(one, "s32", registers) for one in coordinates)
    return good == axes and _is_address(replace(operand, extra=()), registers)


def _is_part(operand, word: str, registers: Registers) -> bool:
    """A source of a video instruction: a value of 32 bits, a part of one, or a negated one."""
    if not isinstance(operand, Selected):
        return _is_item(operand, "u32", registers)
    chosen = not operand.part or bool(_PARTS[word].fullmatch(operand.part))
    return chosen and _is_item(operand.operand, "u32", registers)


# -- calls ----------------------------------------------------------------------------------------
def check_call(operands: tuple, registers: Registers) -> None:
    """Raise UnsupportedInstruction unless a call has a function, and names where it passes values.

    `call (result), function, (arguments), prototype`, of which only the function is always there.
    """
    rest = list(operands)
    passed = [*rest.pop(0)] if rest and isinstance(rest[0], tuple) else []
    target = rest.pop(0) if rest else None
    passed += rest.pop(0) if rest and isinstance(rest[0], tuple) else ()
    if not isinstance(target, Symbol) and not _is_pointer(target, registers):
        raise UnsupportedInstruction("call takes the name of a function, or a register of 64 bits")
    if len(rest) > 1 or not all(isinstance(one, Symbol) for one in rest):
        raise UnsupportedInstruction("call takes at most a prototype behind its arguments")
    for one in passed:
        if not isinstance(one, Symbol | Register):
            why = f"{format_operand(one)} is no .param variable, which alone may be passed here"
            raise UnsupportedInstruction(why)


def _is_pointer(operand, registers: Registers) -> bool:
    return isinstance(operand, Register) and registers.get(operand.name) in ("b64", "u64", "s64")
