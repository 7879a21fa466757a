"""The rules for a Triton kernel: they work on Python's syntax tree, inside of functions."""

import ast
from collections.abc import Iterator
from itertools import accumulate

Change = tuple[int, int, str]  # start, end, what stands there instead
_COMPARISONS = {ast.Lt: ("<=", ">"), ast.LtE: ("<", ">"), ast.Gt: (">=", "<"), ast.GtE: (">", "<")}
_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.BitAnd: "&"}
_SIGNS |= {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_OPERATORS = {
    ast.Add: ("-",),
    ast.Sub: ("+",),
    ast.Mult: ("+",),
    ast.Div: ("*",),
    ast.BitAnd: ("|",),
}
_FUNCTIONS = {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum"}
_GUARDS = {"mask", "other"}


def changes(text: str) -> Iterator[Change]:
    """Yield the changes of all statements in a text's functions."""
    first = [0, *accumulate(map(len, text.splitlines(keepends=True)))]

    def span(node: ast.AST) -> tuple[int, int]:
        start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        return tuple(first[line - 1] + column for line, column in (start, end))

    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body:
                for node in ast.walk(statement):
                    yield from _of(node, text, span)


def _of(node: ast.AST, text: str, span) -> Iterator[Change]:
    match node:
        case ast.Compare(left, [sign], [right]):
            yield from _between(left, right, type(sign), _COMPARISONS, text, span)
        case ast.BinOp(left, sign, right):
            yield from _between(left, right, type(sign), _OPERATORS, text, span)
        case ast.Constant(int() as value):
            yield from ((*span(node), str(other)) for other in {value + 1, abs(value - 1)})
        case ast.Constant(float() as value):
            yield (*span(node), "0.0" if value else "1.0")
        case ast.UnaryOp(ast.USub(), ast.Call()):  # -float("inf")
            yield from ((*span(node), other) for other in ("0.0", "-1e30"))
        case ast.Attribute(attr=name) if name in _FUNCTIONS:
            end = span(node)[1]
            yield end - len(name), end, _FUNCTIONS[name]
        case ast.Call(keywords=[*_, ast.keyword(arg=name)]) if name in _GUARDS:
            plain = [one for one in node.keywords if one.arg not in _GUARDS]
            kept = [*node.args, *plain]
            yield span(kept[-1])[1], span(node)[1] - 1, ""
        case ast.Assign([ast.Name()]) | ast.Expr(ast.Call()):
            yield (*span(node), "pass")


def _between(left, right, sign: type, others: dict, text: str, span) -> Iterator[Change]:
    """The operator between two operands, replaced."""
    at = text.index(_SIGNS[sign], span(left)[1]) if sign in others else 0
    for other in others.get(sign, ()):
        yield at, at + len(_SIGNS[sign]), other
