"""The signature of a kernel alone, for sources whose headers take the compiler seconds.

The debug build tells a kernel's parameters with their C types. For a source that includes
Cooperative Groups, CUB or libcu++ it takes as long as the optimised build, of which the front end
is most. There the compiler reads the kernel's signature by itself, where that is certain to mean
the same; else the debug build is made.
"""

import re

from ..compile import CompileError, compile_ptx, headers_of
from ..compile.allowed import without_comments
from ..ptx.dwarf import Reader
from ..ptx.parser import parse
from ..ptx.syntax import Function
from .signature import Entry, read_entry

_LARGE_HEADER = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*<(?:cooperative_groups|cub/|cuda/|thrust/|curand|type_traits"
    r"|utility|tuple|array|functional|numeric|complex)",
    re.MULTILINE,
)
_DEFINED = re.compile(r"^[ \t]*#[ \t]*(?:define|undef)[ \t]+(\w+)", re.MULTILINE)
_ATTRIBUTES = r"(?:__(?:launch_bounds|cluster_dims)__\s*\([^()]*\)\s*)*"
_KERNEL = re.compile(rf"\b__global__\s+{_ATTRIBUTES}void\s+{_ATTRIBUTES}(\w+)\s*(\([\w\s*&,]*\))")


def has_large_headers(code: str) -> bool:
    """Whether a source includes a header that the compiler reads for a second or more."""
    return _LARGE_HEADER.search(code) is not None


def declared_entry(module, name: str, function: Function) -> Entry | None:
    """Return the Entry of a kernel of a RawModule; None where its signature is not certain.

    function: the kernel in the optimised PTX, whose name and parameters the result must have.
    """
    code = without_comments(module.code)
    found = [match for match in _KERNEL.finditer(code) if match[1] == name]
    if len(found) != 1 or len(re.findall(rf"\b{name}\s*\(", code)) != 1:
        return None
    (signature,) = found
    headers = headers_of(module.code, module.folder, module.options)
    defined = {
        word for text in (code, *(text for _, text in headers)) for word in _DEFINED.findall(text)
    }
    if defined & set(re.findall(r"\w+", signature[0])):
        return None
    language = 'extern "C" ' if function.name == name else ""
    line = code.count("\n", 0, signature.start(1)) + 1
    text = f'#line {line} "{module.name}"\n{language}__global__ void {name}{signature[2]} {{}}\n'
    try:
        compiled = compile_ptx(text, module.name, module.options, module.arch, "debug")
    except CompileError:  # a type that the source or a header declares
        return None
    ptx = parse(compiled.ptx, bodies=False)
    alone = ptx.functions.get(function.name)
    if alone is None or _kinds(alone) != _kinds(function):
        return None
    limited = read_entry(function, None, module.name)
    entry = read_entry(alone, Reader(ptx), module.name)
    return Entry(
        function.name,
        entry.parameters,
        limited.max_threads,
        limited.required_block,
        limited.cluster,
        entry.line,
    )


def _kinds(function: Function) -> list[tuple[str, int]]:
    return [(one.type, one.size) for one in function.parameters]
