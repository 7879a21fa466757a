"""The direction of imports inside attn_course, read from the source with `ast`."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "attn_course"

# Lowest first. A module imports from lower rows only, or from its own package (simulator.*,
# commands.*). Within a row modules may use each other as long as no cycle arises.
LAYERS = (
    ("reference", "compare", "source", "data", "events", "backend"),
    ("simulator", "observers"),
    ("compile", "module"),
    ("shapes", "tuning", "ladder"),
    ("choice", "attention"),
    (
        "verify",
        "clinic",
        "timing",
        "roofline",
        "profiler",
        "results",
        "peers",
        "suites",
        "timing_lesson",
        "memory_levels",
        "occupancy",
        "experiments",
        "tile_times",
        "pipeline_times",
        "ablation_edits",
        "ablations",
    ),
    (
        "plot_style",
        "plots",
        "stepper",
        "lesson",
        "lesson_plots",
        "timing_plots",
        "memory_plots",
        "profile_plots",
        "memory_lesson",
        "profile_lesson",
        "flash_lesson",
        "flash_plots",
        "clinic_lesson",
        "clinic_plots",
        "reduction_lesson",
        "reduction_plots",
        "pipeline_lesson",
        "pipeline_plots",
    ),
    ("commands", "cli"),
    ("__init__",),
)
# What may be imported beside the rule of rows: exactly these of our modules, and nothing else.
ONLY = {
    "reference": set(),  # the oracle: nothing of ours can bend it
    "compare": set(),
    "events": set(),
    "observers": {"events", "observers"},
    "simulator": {"events", "source", "simulator"},
    # Figures and the widget take arrays and records.
    "plot_style": set(),
    "plots": {"plot_style"},
    "stepper": {"events", "observers"},
    "lesson_plots": {"plot_style"},
    "memory_plots": {"plot_style"},
    "profile_plots": {"plot_style"},
    "flash_plots": {"plot_style"},
    "clinic_plots": {"plot_style"},
    "reduction_plots": {"plot_style"},
    "pipeline_plots": {"plot_style"},
    "timing_plots": {"plot_style"},
}
# A library and the only modules that may import it.
CONFINED = {
    "matplotlib": {
        "plot_style",
        "plots",
        "lesson_plots",
        "timing_plots",
        "memory_plots",
        "profile_plots",
        "flash_plots",
        "clinic_plots",
        "reduction_plots",
        "pipeline_plots",
        "data",
    },
    "anywidget": {"stepper"},
    "traitlets": {"stepper"},
    "ipywidgets": {"stepper"},
}
# data.py reads the sample image that matplotlib ships, and draws nothing.
ALLOWED_MATPLOTLIB_IN_DATA = {"matplotlib.cbook"}
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}


def module_name(path: Path) -> str:
    """'attn_course/simulator/isa.py' -> 'simulator.isa'; a package is named by its folder."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def imports_in(source: str, module: str, is_package: bool = False) -> set[str]:
    """Full names of all modules that the source imports, at its top or inside a function.

    `from package import name` gives 'package.name', which covers both submodules and attributes.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = ["attn_course", *([] if module == "__init__" else module.split("."))]
                climb = node.level - (1 if is_package or module == "__init__" else 0)
                parts = parts[: len(parts) - climb]
                base = ".".join([*parts, *([node.module] if node.module else [])])
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def top_of(name: str) -> str | None:
    """The first part below attn_course of an imported name, or None for another library."""
    parts = name.split(".")
    if parts[0] != "attn_course":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in RANK else "__init__"


def violations(module: str, imported: set[str]) -> list[str]:
    """Every import of one module that goes against the rules above, in words."""
    home = module.split(".")[0]
    found = []
    for name in sorted(imported):
        target, library = top_of(name), name.split(".")[0]
        if library in CONFINED and home not in CONFINED[library]:
            found.append(f"{module} imports {name}: only {sorted(CONFINED[library])} may")
        if (
            home == "data"
            and library == "matplotlib"
            and not any(
                name == allowed or name.startswith(allowed + ".")
                for allowed in ALLOWED_MATPLOTLIB_IN_DATA
            )
        ):
            found.append(f"data imports {name}: it may import matplotlib.cbook only")
        if target is None or target == home:
            continue
        if RANK[target] > RANK[home]:
            found.append(f"{module} imports {name}, which is above it")
        if home in ONLY and target not in ONLY[home]:
            found.append(f"{module} imports {name}; it may import {sorted(ONLY[home])} only")
    return found


def project_modules() -> dict[str, set[str]]:
    return {
        module_name(path): imports_in(
            path.read_text(), module_name(path), is_package=path.name == "__init__.py"
        )
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """One cycle of the graph as a list of its nodes, or an empty list."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return path[path.index(node) :]
        if node in done:
            return []
        for neighbour in sorted(graph.get(node, ())):
            if cycle := visit(neighbour, [*path, node]):
                return cycle
        done.add(node)
        return []

    return next((cycle for node in sorted(graph) if (cycle := visit(node, []))), [])


def module_graph() -> dict[str, set[str]]:
    """Which of our modules imports which, by the longest name that is a module of ours."""
    modules = project_modules()
    graph: dict[str, set[str]] = {}
    for module, imported in modules.items():
        graph[module] = set()
        for name in imported:
            parts = name.removeprefix("attn_course.").split(".")
            if not name.startswith("attn_course."):
                continue
            for length in (len(parts), len(parts) - 1):
                target = ".".join(parts[:length])
                if target in modules and target != module:
                    graph[module].add(target)
                    break
    return graph


def test_every_module_has_a_layer():
    unknown = {name.split(".")[0] for name in project_modules()} - set(RANK)
    assert not unknown, f"give {sorted(unknown)} a row in LAYERS"


def test_no_import_goes_against_the_layers():
    found = [
        v for module, imported in project_modules().items() for v in violations(module, imported)
    ]
    assert not found, "\n".join(found)


def test_no_import_cycles():
    cycle = find_cycle(module_graph())
    assert not cycle, " -> ".join(cycle)


# Import names of the base dependencies, where they differ from the name that is installed.
IMPORT_NAMES = {
    "cupy-cuda12x": {"cupy", "cupyx", "cupy_backends"},
    "pyelftools": {"elftools"},
    "jupyterlab": {"IPython", "ipywidgets"},
    "anywidget": {"anywidget", "traitlets"},
}
# Libraries that a module uses where they happen to be there, inside a function that says so.
OPTIONAL = {"torch"}


def test_every_library_is_a_base_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", line).group() for line in project["dependencies"]]
    installed = {library for name in names for library in IMPORT_NAMES.get(name, {name})}
    used = {name.split(".")[0] for imported in project_modules().values() for name in imported}
    strange = used - installed - OPTIONAL - set(sys.stdlib_module_names) - {"attn_course"}
    assert not strange, f"{sorted(strange)}: put them into pyproject's dependencies"


def test_kernels_know_nothing_of_python():
    files = [*ROOT.glob("kernels/**/*.cu"), *ROOT.glob("kernels/**/*.cuh")]
    assert files
    for path in files:
        assert not re.search(r"(?i)attn_course|python|numpy|cupy|\.py\b", path.read_text()), path


@pytest.mark.parametrize(
    ("module", "source", "word"),
    [
        ("reference", "from attn_course.compare import compare", "above|only"),
        ("reference", "from . import compare", "only"),
        ("simulator.machine", "from ..module import RawModule", "above"),
        ("simulator.machine", "import attn_course.cli", "above"),
        ("observers.counters", "from attn_course.simulator import Program", "only"),
        ("observers.counters", "def f():\n    from ..source import KernelSource", "only"),
        ("ladder", "import attn_course.attention", "above"),
        ("ladder", "import matplotlib.pyplot as plt", "matplotlib"),
        ("data", "from matplotlib import pyplot", "cbook only"),
        ("plots", "import anywidget", "anywidget"),
        ("plots", "from attn_course.attention import attention", "only"),
        ("module", "import attn_course", "above"),
    ],
)
def test_the_rules_catch_a_wrong_import(module, source, word):
    found = violations(module, imports_in(source, module))
    assert found and re.search(word, found[0])


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("simulator.machine", "from .isa import OPERATIONS\nfrom attn_course import events"),
        ("data", "from matplotlib.cbook import get_sample_data"),
        ("data", "from matplotlib import cbook"),
        ("plots", "import matplotlib.pyplot as plt"),
        ("cli", "from attn_course.commands import run"),
        ("commands.tour", "from ..attention import attention\nfrom . import common"),
    ],
)
def test_the_rules_allow_a_right_import(module, source):
    assert violations(module, imports_in(source, module)) == []


def test_a_cycle_is_found():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
