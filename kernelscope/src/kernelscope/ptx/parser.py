"""PTX text -> plain data.

The grammar follows NVIDIA's PTX ISA manual as far as NVRTC writes it: module directives, variables,
functions, instructions, and the source positions that `.loc` gives. Nothing is interpreted here.
"""

import re
from dataclasses import replace

from ..budget import no_garbage_collection
from ..errors import ParseError
from .function_body import FunctionBody, read_file
from .syntax import Function, Module
from .tokens import Tokens
from .variables import read_parameters, read_variables

__all__ = ["ParseError", "parse"]

_LINKAGE = (".visible", ".extern", ".weak", ".common")
_VERSION = re.compile(r"[1-9]\.\d")
_TARGET = re.compile(
    r"sm_(?:1[0-3]|2[01]|3[0257]|5[023]|6[012]|7[025]|8[06-9]|90a?|1(?:0[0-3]|10|2[01])[af]?)"
)
_ADDRESS_SIZE = re.compile("64")
# Whole lines of instructions and positions, behind the end of a statement, a block or a label.
_LINES = re.compile(
    r"(?<=[;{}:]\n)"
    r"(?>[ \t]*+(?:[@A-Za-z][^{}\"/;\n]*+;|\.loc\b[^{}\"/;\n]*+)?+[ \t]*+\n)++"
)
_SPACES = (".global", ".const", ".shared", ".tex")


@no_garbage_collection()
def parse(text: str, bodies: bool = True) -> Module:
    """Parse a PTX module; raises ParseError naming the line of the text.

    bodies: whether to read the functions' instructions; without them every `body` stays empty, and
    of the variables only parameters and those of shared memory are read.
    """
    if not bodies:  # a debug build has many
        text = _LINES.sub(lambda lines: "\n" * lines[0].count("\n"), text)
    tokens, module = Tokens(text), Module()
    try:
        linkage = ""
        while tokens.next:
            word = tokens.take()
            if word not in _LINKAGE:
                _directive(tokens, module, word, bodies, linkage)
            linkage = word
    except RecursionError:
        tokens.fail("operands are nested too deeply")
    except IndexError:
        tokens.fail("the text ends in the middle of a statement")
    return module


def _directive(tokens: Tokens, module: Module, word: str, bodies: bool, linkage: str) -> None:
    """One statement at the top of a module; `word` is its first, `linkage` the word before."""
    if word == ".version":
        module.version = _known(tokens, _VERSION, "a version of PTX, 1.0 to 9.9")
    elif word == ".target":
        module.target = _known(tokens, _TARGET, "an architecture, such as sm_80")
        while tokens.accept(","):
            module.debug |= tokens.take() == "debug"
    elif word == ".address_size":
        _known(tokens, _ADDRESS_SIZE, "64: addresses of 32 bits are of GPUs before sm_30")
    elif word == ".file":
        read_file(tokens, module)
    elif word == ".section":
        _section(tokens, module)
    elif word in (".pragma", ".alias"):
        tokens.skip_statement()
    elif word in (".entry", ".func"):
        _function(tokens, module, word == ".entry", bodies)
    elif word in _SPACES:
        for variable in read_variables(tokens, word[1:]):
            if linkage == ".extern" and word != ".shared":
                module.variables.setdefault(variable.name, replace(variable, defined=False))
            else:
                module.variables[variable.name] = variable
    elif word != ";":
        tokens.fail(f"unknown directive {word!r}")


def _known(tokens: Tokens, pattern: re.Pattern, what: str) -> str:
    """Take a word of a directive that says what the module is for."""
    if not pattern.fullmatch(tokens.next):
        tokens.fail(f"{tokens.next!r} is not {what}")
    return tokens.take()


def _section(tokens: Tokens, module: Module) -> None:
    """`.section .debug_info { ... }`, kept as text."""
    name = tokens.take()
    tokens.expect("{")
    module.sections[name] = tokens.block_text()
    tokens.expect("}")


def _function(tokens: Tokens, module: Module, is_entry: bool, bodies: bool) -> None:
    returns = read_parameters(tokens) if not is_entry and tokens.next == "(" else []
    name = tokens.take()
    parameters = read_parameters(tokens) if tokens.next == "(" else []
    function = Function(name, is_entry, parameters, returns)
    for variable in parameters + returns:
        function.variables[variable.name] = variable
    while tokens.next.startswith("."):
        _limit(tokens, function)
    if tokens.accept(";"):  # declared here, defined elsewhere
        module.functions.setdefault(name, function)
        return
    if name in module.functions and module.functions[name].defined:
        tokens.fail(f"function {name} is defined twice")
    tokens.expect("{")
    function.defined = True
    if bodies:
        FunctionBody(tokens, module, function).read()
    else:
        for _ in tokens.block_until(".shared"):
            for variable in read_variables(tokens, "shared"):
                function.variables[variable.name] = variable
    module.functions[name] = function


def _limit(tokens: Tokens, function: Function) -> None:
    """`.maxntid 256, 1, 1` and its like: a word and perhaps numbers."""
    word, values = tokens.take()[1:], []
    while re.match(r"\d", tokens.next):
        values.append(tokens.integer())
        if not tokens.accept(","):
            break
    function.limits[word] = tuple(values)
