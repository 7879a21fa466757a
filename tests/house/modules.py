"""Each module of our packages, parsed once for all rules of the house."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COURSE = ROOT / "attn_course"
ENGINE = ROOT / "kernelscope" / "src" / "kernelscope"
AUTHORS = ROOT / "tools" / "attn_devtools"
PACKAGES = (ENGINE, COURSE, AUTHORS)
KEPT = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.Raise)
_PARTS = ("body", "orelse", "finalbody", "handlers", "cases")


class Statement(NamedTuple):
    """A statement; place: the full name of the class, function or module that it stands in."""

    place: str
    node: ast.stmt


class Module(NamedTuple):
    """What the rules read of a module; kept: its statements of the kinds of KEPT."""

    name: str
    is_package: bool
    kept: list[Statement]


def module_name(path: Path) -> str:
    """'attn_course/cli/run.py' -> 'attn_course.cli.run'; a package is named by its folder."""
    package = next(one for one in PACKAGES if path.is_relative_to(one))
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(tree: ast.AST, place: str) -> Iterator[Statement]:
    """All statements of a module, those inside of others too."""
    for part in _PARTS:
        for node in getattr(tree, part, ()):
            yield Statement(place, node)
            named = isinstance(node, ast.FunctionDef | ast.ClassDef)
            yield from statements(node, f"{place}.{node.name}" if named else place)


@cache
def modules() -> list[Module]:
    """Every module of ours."""
    found = []
    for path in (path for package in PACKAGES for path in sorted(package.rglob("*.py"))):
        name, tree = module_name(path), ast.parse(path.read_text("utf-8"))
        kept = [one for one in statements(tree, name) if isinstance(one.node, KEPT)]
        found.append(Module(name, path.name == "__init__.py", kept))
    return found
