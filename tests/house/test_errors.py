"""What a user can correct is a UserError; a built-in exception is a fault of the program."""

import ast
import importlib
from collections.abc import Iterable

import pytest
from kernelscope.errors import UserError

from .modules import Statement, modules, statements

BUILT_IN = """ValueError TypeError KeyError LookupError OSError FileNotFoundError NotADirectoryError
    FileExistsError PermissionError Exception""".split()
# Where a built-in exception is raised all the same, and why no user of a command meets it.
RAISES = {
    "attn_course.reference": "imports nothing of ours; commands check their input before",
    "attn_course.figures": "imports nothing of ours; commands check their input before",
    "attn_course.classroom.points.Points.of": "a mapping's KeyError: the name is a row of its own",
    "attn_course.classroom.grading.handout.source_of": "caught by the readers of notebooks",
    "attn_course.classroom.grading.confined.supervise": "a process of its own; its caller tells",
    "attn_course.measure.records.read_record": "becomes a RecordError there",
    "kernelscope.ptx.shared_shapes": "caught there: the expression is no constant",
    "kernelscope.differential.random_code.printer.expression": "a node that ours does not make",
}
# Exceptions that no user sees, and warnings.
CLASSES = {
    "kernelscope.errors.ArgumentWarning": "a warning",
    "kernelscope.errors.PortabilityWarning": "a warning",
    "kernelscope.errors.ShuffleWarning": "a warning",
    "kernelscope.errors.Interrupted": "a KeyboardInterrupt; commands end with 130",
    "kernelscope.errors.UnknownInstruction": "becomes an UnsupportedInstruction",
    "kernelscope.errors.UnsupportedInstruction": "becomes an UnsupportedKernel",
    "kernelscope.translate.scalar.forms.Aside": "is caught where a single lane runs; NumPy goes on",
    "kernelscope.differential.machines.NotRun": "becomes an item that says so",
    "attn_course.classroom.grading.verdict.NoAnswer": "becomes NotJudged, or a remark",
}


def raises(statements: Iterable[Statement]) -> list[tuple[str, int]]:
    """(place, line) of each built-in exception that is raised; a place names its function."""
    found = []
    for place, node in statements:
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(raised, ast.Name) and raised.id in BUILT_IN:
                found.append((place, node.lineno))
    return found


@pytest.mark.system
def test_input_is_judged_by_errors_for_the_user():
    found = [one for module in modules() for one in raises(module.kept)]
    wrong = [
        f"{place}, line {line}"
        for place, line in found
        if not any(f"{place}.".startswith(f"{one}.") for one in RAISES)
    ]
    assert not wrong, f"raise an InputError or another UserError: {wrong}"
    unused = [one for one in RAISES if not any(f"{p}.".startswith(f"{one}.") for p, _ in found)]
    assert not unused, f"these raise none: {unused}"


@pytest.mark.parametrize("statement", ["raise ValueError", "raise TypeError('x') from None"])
def test_a_built_in_exception_is_found(statement):
    tree = ast.parse(f"class A:\n    def b(self):\n        if 1:\n            {statement}")
    assert raises(statements(tree, "m")) == [("m.A.b", 4)]


def classes(module: str, kept: list[Statement]):
    """Yield (name, bases) of each class at the top of a module."""
    for place, node in kept:
        if isinstance(node, ast.ClassDef) and place == module:
            yield node.name, list(map(ast.unparse, node.bases))


def exceptions():
    """Yield (full name, class) of each exception class of our packages."""
    for name, _, kept in modules():
        for called, bases in classes(name, kept):
            # PyTorch, which may not be installed, has no exceptions that ours derive from.
            if any(not base.startswith("torch.") for base in bases):
                made = getattr(importlib.import_module(name), called)
                if issubclass(made, BaseException):
                    yield f"{name}.{called}", made


@pytest.mark.system
def test_each_exception_of_ours_is_for_the_user_or_caught():
    found = dict(exceptions())
    others = {name for name, made in found.items() if not issubclass(made, UserError)}
    assert others == set(CLASSES) and len(found) > 30
