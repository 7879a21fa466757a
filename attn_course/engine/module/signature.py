"""A kernel's parameters: sizes from its PTX entry, names and C types from the source's text.

The source is read by a small tokenizer, not a C++ parser: a type it does not know (a typedef it
cannot follow, a macro, a template parameter it cannot place) simply has no dtype to check.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

# Element dtypes that a pointer to the type may be given; the first is the one to suggest.
POINTEE_DTYPES = {
    "float": ("float32",),
    "double": ("float64",),
    "bool": ("bool", "uint8"),
    "char": ("int8", "uint8", "bool"),
    "signed char": ("int8",),
    "unsigned char": ("uint8", "bool"),
    "short": ("int16",),
    "unsigned short": ("uint16",),
    "int": ("int32",),
    "unsigned int": ("uint32",),
    "long": ("int64",),
    "unsigned long": ("uint64",),
    "long long": ("int64",),
    "unsigned long long": ("uint64",),
    "size_t": ("uint64",),
    "int8_t": ("int8",),
    "uint8_t": ("uint8",),
    "int16_t": ("int16",),
    "uint16_t": ("uint16",),
    "int32_t": ("int32",),
    "uint32_t": ("uint32",),
    "int64_t": ("int64",),
    "uint64_t": ("uint64",),
    "ptrdiff_t": ("int64",),
    "half": ("float16",),
    "__half": ("float16",),
    "half2": ("float16",),
    "__half2": ("float16",),
    "__nv_bfloat16": ("bfloat16", "uint16"),
    "nv_bfloat16": ("bfloat16", "uint16"),
    "__nv_bfloat162": ("bfloat16", "uint16"),
    "cuComplex": ("complex64", "float32"),
    "cuDoubleComplex": ("complex128", "float64"),
}
_VECTORS = {
    "char": "int8",
    "uchar": "uint8",
    "short": "int16",
    "ushort": "uint16",
    "int": "int32",
    "uint": "uint32",
    "longlong": "int64",
    "ulonglong": "uint64",
    "float": "float32",
    "double": "float64",
}
POINTEE_DTYPES |= {f"{stem}{n}": (dtype,) for stem, dtype in _VECTORS.items() for n in (1, 2, 3, 4)}
POINTEE_DTYPES["float2"] += ("complex64",)
POINTEE_DTYPES["double2"] += ("complex128",)

_WORDS_OF_INTEGERS = {"signed", "unsigned", "char", "short", "int", "long"}
_QUALIFIERS = {
    "const",
    "volatile",
    "__restrict__",
    "__restrict",
    "restrict",
    "__grid_constant__",
    "struct",
    "class",
    "enum",
    "typename",
    "register",
}
_ATTRIBUTES = {
    "__launch_bounds__",
    "__cluster_dims__",
    "__block_size__",
    "__maxnreg__",
    "alignas",
    "__attribute__",
    "__align__",
    "__declspec",
}
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|::|->|\S")
_COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_TEMPLATE = re.compile(r"template\s*<((?:[^<>;{}]|<[^<>;{}]*>)*)>\s*(?:\w+\s+)*$")

_ENTRY = re.compile(
    r"\.entry\s+(?P<name>[\w$]+)\s*(?:\((?P<parameters>[^)]*)\))?\s*(?P<directives>[^{;]*)\{"
)
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.(?P<type>[a-z]+\d+)(?P<pointer>\s+\.ptr\b[^,\[]*?)?"
    r"\s+(?P<name>[\w$]+)(?:\[(?P<count>\d+)\])?\s*(?:,|$)"
)
_CLUSTER = re.compile(r"\.reqnctapercluster\s+(?P<sizes>[\d, ]+)")
_THREADS = re.compile(r"\.(?P<which>max|req)ntid\s+(?P<sizes>\d+(?:\s*,\s*\d+)*)")


@dataclass(frozen=True)
class CType:
    """A parameter's C type: base name ("float", "" when unknown), number of stars, constness."""

    base: str
    pointers: int = 0
    const: bool = False  # of what the pointer points to

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Names of the element dtypes a pointer of this type takes; () when that is not known."""
        return POINTEE_DTYPES.get(self.base, ()) if self.pointers == 1 else ()


@dataclass(frozen=True)
class Parameter:
    """One kernel parameter.

    `size` in bytes and `kind` ("f32", "u64", "b8", ...) are the PTX's; `name` and `text` are the
    source's ("q", "const float* q"), or the PTX's where the source has no readable signature.
    """

    name: str
    kind: str
    size: int
    text: str
    ctype: CType | None = None
    is_struct: bool = False  # passed as bytes: a struct, a vector, a half


@dataclass(frozen=True)
class Entry:
    """One kernel of a module: `name` as the PTX spells it, its parameters and block limits."""

    name: str
    parameters: tuple[Parameter, ...]
    max_threads: int | None = None  # from __launch_bounds__
    required_block: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] = (1, 1, 1)  # blocks, from __cluster_dims__


@dataclass(frozen=True)
class Declaration:
    """A `__global__` function as the source declares it; `line` counts from 1."""

    name: str
    line: int
    parameters: tuple[tuple[str, ...], ...]  # tokens of each parameter
    template: tuple[str, ...] = ()  # names of the template parameters
    parameter_texts: tuple[str, ...] = ()


def read_entries(ptx: str) -> dict[str, Entry]:
    """Every `.entry` of a PTX text, by its name in that text."""
    return {match["name"]: _entry(match) for match in _ENTRY.finditer(ptx)}


def _entry(match: re.Match) -> Entry:
    found = tuple(
        Parameter(
            p["name"],
            p["type"],
            int(p["count"] or 1) * int(p["type"][1:]) // 8,
            p["name"],
            is_struct=p["count"] is not None,
        )
        for p in _PARAMETER.finditer(match["parameters"] or "")
    )
    threads = {
        t["which"]: [int(n) for n in t["sizes"].split(",")]
        for t in _THREADS.finditer(match["directives"])
    }
    required = (*threads["req"], 1, 1)[:3] if "req" in threads else None
    limit = int(np.prod(threads["max"])) if "max" in threads else None
    cluster = _CLUSTER.search(match["directives"])
    sizes = (int(n) for n in cluster["sizes"].split(",")) if cluster else ()
    return Entry(match["name"], found, limit, required, (*sizes, 1, 1, 1)[:3])


def _blank(match: re.Match) -> str:
    return re.sub(r"[^\n]", " ", match.group(0))


def read_declarations(source: str) -> list[Declaration]:
    """Every `__global__` function of a CUDA C source, in the order of the text."""
    text = _DIRECTIVE.sub(_blank, _COMMENT_OR_STRING.sub(_blank, source))
    return [
        found
        for match in re.finditer(r"\b__global__\b", text)
        if (found := _declaration(text, match))
    ]


def _declaration(text: str, match: re.Match) -> Declaration | None:
    tokens = list(_TOKEN.finditer(text, match.end()))
    position = 0
    while position + 1 < len(tokens):
        word = tokens[position].group()
        if word in "{;":
            return None
        opens = tokens[position + 1].group() == "("
        if opens and word in _ATTRIBUTES:
            position = _closing(tokens, position + 1) + 1
            continue
        if opens and word.isidentifier():
            end = _closing(tokens, position + 1)
            groups = _split(tokens[position + 2 : end])
            line = text.count("\n", 0, match.start()) + 1
            template = _TEMPLATE.search(text, max(0, match.start() - 500), match.start())
            return Declaration(
                word,
                line,
                tuple(tuple(t.group() for t in group) for group in groups),
                _template_names(template.group(1)) if template else (),
                tuple(" ".join(text[g[0].start() : g[-1].end()].split()) for g in groups),
            )
        position += 1
    return None


def _closing(tokens: list[re.Match], start: int) -> int:
    """The position of the parenthesis that closes the one at `start`."""
    depth = 0
    for position in range(start, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[position].group(), 0)
        if depth == 0:
            return position
    return len(tokens) - 1


def _split(tokens: list) -> list[list]:
    """Split at the commas that stand inside no bracket of any kind."""
    groups, depth = [[]], 0
    for token in tokens:
        word = token.group()
        depth += {"(": 1, "<": 1, "[": 1, "{": 1, ")": -1, ">": -1, "]": -1, "}": -1}.get(word, 0)
        if word == "," and depth == 0:
            groups.append([])
        else:
            groups[-1].append(token)
    groups = [group for group in groups if group]
    return [] if [[t.group() for t in group] for group in groups] == [["void"]] else groups


def _template_names(text: str) -> tuple[str, ...]:
    """`typename T, int N = 4` -> ("T", "N")."""
    pieces = [piece.split("=")[0].split() for piece in text.split(",")]
    return tuple(words[-1] if words else "" for words in pieces)


def read_aliases(source: str, options: tuple[str, ...] = ()) -> dict[str, str]:
    """Names that stand for a type: typedef, using, #define NAME type, and -DNAME=type."""
    text = _COMMENT_OR_STRING.sub(_blank, source)
    found = dict(
        re.findall(
            r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([A-Za-z_][\w ]*?)[ \t]*$", text, re.MULTILINE
        )
    )
    found |= dict(re.findall(r"\busing\s+(\w+)\s*=\s*([A-Za-z_][\w ]*?)\s*;", text))
    found |= {
        name: base for base, name in re.findall(r"\btypedef\s+([A-Za-z_][\w ]*?)\s+(\w+)\s*;", text)
    }
    found |= dict(re.findall(r"-D\s*(\w+)=([A-Za-z_][\w ]*)", "\n".join(options)))
    return found


def describe_type(tokens: tuple[str, ...], aliases: dict[str, str]) -> tuple[str, CType]:
    """The name and the type of one parameter: ("q", CType("float", 1, const=True))."""
    words = list(tokens[: tokens.index("=")] if "=" in tokens else tokens)
    stars = words.count("*")
    if "[" in words:  # an array parameter is a pointer
        words, stars = words[: words.index("[")], stars + 1
    last_star = max((i for i, word in enumerate(words) if word == "*"), default=0)
    const = "const" in words[:last_star] if "*" in words else stars > 0 and "const" in words
    plain = [word for word in words if word not in _QUALIFIERS and word != "*"]
    name = plain.pop() if len(plain) > 1 and plain[-1].isidentifier() else ""
    if name in POINTEE_DTYPES or name in _WORDS_OF_INTEGERS:  # an unnamed parameter: `long long`
        plain, name = [*plain, name], ""
    return name, CType(_base_name(plain, aliases), stars, const)


def _base_name(words: list[str], aliases: dict[str, str]) -> str:
    for _ in range(8):  # an alias may stand for an alias; a loop of them ends here
        if len(words) == 1 and words[0] in aliases:
            words = [w for w in aliases[words[0]].split() if w not in _QUALIFIERS]
    if set(words) <= _WORDS_OF_INTEGERS and words:
        return _integer_name(words)
    name = "".join(words).removeprefix("std::").removeprefix("::").removeprefix("cuda::std::")
    return name if name in POINTEE_DTYPES or name == "void" else ""


def _integer_name(words: list[str]) -> str:
    """One spelling for all orders of the words: `long unsigned int` -> "unsigned long"."""
    unsigned = "unsigned " if "unsigned" in words else ""
    if "char" in words:
        return ("signed " if "signed" in words else unsigned) + "char"
    if "short" in words:
        return unsigned + "short"
    return unsigned + (" ".join(["long"] * words.count("long")) or "int")


def join(
    entry: Entry, source_name: str, declarations: list[Declaration], aliases: dict[str, str]
) -> Entry:
    """The entry with names and types from the source.

    `source_name` is the kernel's name or name expression ("scale<float, 4>"). Where the source
    declares the kernel more than once (preprocessor branches), what they disagree on is unknown.
    """
    bare, _, rest = source_name.partition("<")
    bare = bare.strip().split("::")[-1]
    arguments = [a.strip() for a in rest.rstrip("> ").split(",")] if rest else []
    fitting = [
        d for d in declarations if d.name == bare and len(d.parameters) == len(entry.parameters)
    ]
    if not fitting:
        return entry
    parameters = []
    for position, parameter in enumerate(entry.parameters):
        readings = [
            describe_type(
                d.parameters[position], aliases | dict(zip(d.template, arguments, strict=False))
            )
            for d in fitting
        ]
        agreed = len({ctype for _, ctype in readings}) == 1
        parameters.append(
            replace(
                parameter,
                name=readings[0][0] or f"parameter {position + 1}",
                ctype=readings[0][1] if agreed else None,
                text=fitting[0].parameter_texts[position],
            )
        )
    return replace(entry, parameters=tuple(parameters))
