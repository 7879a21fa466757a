"""The rules of the house: which room may import which, how large a room is, what a name means."""

import ast
import json
import re
import sys
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "attn_course"

# Rooms, lowest first: a room imports from rooms below it.
ROOMS = (
    "engine",
    "reference",
    "ladder",
    "layers",
    "clinic",
    "measure",
    "figures",
    "lessons",
    "exercises",
    "classroom",
    "site",
    "cli",
)
# The same inside the engine; modules of its own folder (errors, backend) are the ground.
ENGINE = ("", "ptx", "events", "isa", "translate", "machine", "compile", "module", "watch")
# What may be imported beside the rule of rooms: exactly these, and nothing else of the course.
ONLY = {"engine": {"engine"}, "reference": {"reference"}, "figures": {"figures"}}
VERSION = "__version__"  # of the whole package, for the command
FACES = "engine.lazy"  # imports the names of a package when they are first used: for every face
# Watchers see typed events: of the engine they may import these.
WATCHERS = {"engine.events", "engine.addresses", "engine.errors", "engine.ptx", "engine.watch"}
# A library and the only places that may import it.
CONFINED = {
    "matplotlib": ("figures", "reference.inputs"),
    "anywidget": ("engine.watch.tracer",),
    "traitlets": ("engine.watch.tracer",),
    "ipywidgets": ("engine.watch.tracer",),
    **dict.fromkeys(("sphinx", "docutils", "pygments", "ipython_pygments_lexers"), ("site",)),
    "jinja2": ("site",),
}
MOST_FILES = 12  # of a room, its face aside
MOST_BASES = 2  # classes of ours that one class inherits from
MOST_KERNEL_LINES = 200
MORE_KERNEL_LINES = {
    "14_flash_mma.cu": 220,
    "15_flash_tf32x3.cu": 235,
    "20_rows_split.cu": 215,
}


def module_name(path: Path) -> str:
    """'attn_course/engine/isa/row.py' -> 'engine.isa.row'; a package is named by its folder."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_in(source: str, module: str, is_package: bool = False) -> set[str]:
    """Full names of all modules that the source imports, at its top or inside a function.

    `from package import name` gives 'package.name', which covers submodules and attributes.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = ["attn_course", *([module] if module else [])]
                parts = ".".join(parts).split(".")
                climb = node.level - (1 if is_package else 0)
                parts = parts[: len(parts) - climb]
                base = ".".join([*parts, *([node.module] if node.module else [])])
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def part_of_engine(name: str) -> str:
    """'engine.ptx.parser' -> 'ptx'; 'engine.events' -> ''."""
    part = name.split(".")[1] if name.count(".") else ""
    return part if part in ENGINE else ""


def violations(module: str, imported: set[str]) -> list[str]:
    """Every import of one module that goes against the rules above, in words."""
    home = module.split(".")[0]
    found = []
    for name in sorted(imported):
        library = name.split(".")[0]
        places = CONFINED.get(library)
        if places and not module.startswith(places):
            found.append(f"{module} imports {name}: only {places} may")
        if library != "attn_course":
            continue
        target = name.removeprefix("attn_course").removeprefix(".")
        room = target.split(".")[0]
        if target.startswith(FACES) or target == VERSION:
            continue
        if room not in ROOMS:
            if home:
                found.append(f"{module} imports {name}: take it from its room")
            continue
        if home and ROOMS.index(room) > ROOMS.index(home):
            found.append(f"{module} imports {name}, which is above it")
        elif home in ONLY and room not in ONLY[home]:
            found.append(f"{module} imports {name}; it may import {sorted(ONLY[home])} only")
        elif home == room == "engine" and module != "engine":
            found += engine_violations(module, target)
    return found


def engine_violations(module: str, target: str) -> list[str]:
    mine, other = part_of_engine(module), part_of_engine(target)
    if mine == "watch" and not any(target.startswith(allowed) for allowed in WATCHERS):
        return [f"{module} imports {target}: watchers may import {sorted(WATCHERS)} only"]
    if mine != other and ENGINE.index(other) > ENGINE.index(mine):
        return [f"{module} imports {target}, which is above it in the engine"]
    return []


@cache
def project_modules() -> dict[str, set[str]]:
    return {
        module_name(path): imports_in(
            path.read_text(), module_name(path), is_package=path.name == "__init__.py"
        )
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def test_every_room_has_a_place():
    rooms = {name.split(".")[0] for name in project_modules()} - {""}
    assert rooms == set(ROOMS)


def test_no_import_goes_against_the_rooms():
    found = [v for module, names in project_modules().items() for v in violations(module, names)]
    assert not found, "\n".join(found)


def test_no_lazy_name_of_a_room_is_a_module_of_it():
    """Importing the module would set the room's name to it, in place of what the room offers."""
    for path in PACKAGE.rglob("__init__.py"):
        inside = {one.stem for one in path.parent.glob("*.py")} | {
            one.parent.name for one in path.parent.glob("*/__init__.py")
        }
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NAMES":
                names = set(" ".join(ast.literal_eval(node.value).values()).split())
                assert not names & inside, path


# Lazy look-ups that stand inside functions: import_module("..x").
def test_no_import_is_hidden_in_a_string():
    for path in PACKAGE.rglob("*.py"):
        if path.name != "__init__.py":
            assert not re.search(r"import_module\(\s*f?[\"']\.\.", path.read_text()), path


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
            if not name.startswith("attn_course."):
                continue
            parts = name.removeprefix("attn_course.").split(".")
            for length in (len(parts), len(parts) - 1):
                target = ".".join(parts[:length])
                if target in modules and target != module and not module.startswith(target + "."):
                    graph[module].add(target)
                    break
    return graph


def test_no_import_cycles():
    cycle = find_cycle(module_graph())
    assert not cycle, " -> ".join(cycle)


def test_a_room_has_at_most_twelve_files():
    for folder in {path.parent for path in PACKAGE.rglob("*.py")}:
        files = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= MOST_FILES, f"{folder.name} has {len(files)} files: {sorted(files)}"


@cache
def classes() -> dict[str, list[tuple[str, ast.ClassDef]]]:
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append((module_name(path), node))
    return found


def test_a_class_inherits_from_at_most_two_of_ours():
    ours = classes()
    for name, places in ours.items():
        for module, node in places:
            bases = [ast.unparse(base).split(".")[-1] for base in node.bases]
            mine = [base for base in bases if base in ours]
            assert len(mine) <= MOST_BASES, f"{module}.{name} inherits from {mine}"


def test_a_class_name_has_one_meaning():
    twice = {
        name: [module for module, _ in places]
        for name, places in classes().items()
        if len(places) > 1 and not name.startswith("_")
    }
    assert not twice, "\n".join(f"{name}: {', '.join(where)}" for name, where in twice.items())


# -- what watchers read of the machine -------------------------------------------------------------
# How watchers name the things that they are given -> the classes whose names they may use.
GIVEN = {
    "machine": ("engine.events", "MachineView"),
    "_machine": ("engine.events", "MachineView"),
    "site": ("engine.events", "CallSite"),
    "launch": ("engine.events", "Launch"),
    "source": ("engine.ptx.source_module", "SourceModule"),
}
# Insides of the engine that no watcher may hold.
INSIDES = {"chunk", "program", "executable", "instance", "instances"}


def names_of_class(module: str, name: str) -> set[str]:
    """Methods, properties and fields of a class; private ones left out."""
    path = PACKAGE / f"{module.replace('.', '/')}.py"
    tree = ast.parse(path.read_text())
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    found = set()
    for node in ast.walk(body):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return {name for name in found if not name.startswith("_")}


def last_name(node: ast.expr) -> str:
    """'a.b.machine' -> 'machine'."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def insides_read(source: str) -> list[str]:
    """What a watcher reads of the machine beyond the typed view, as its source writes it."""
    allowed = {given: names_of_class(*where) for given, where in GIVEN.items()}
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and last_name(node.func) in ("hasattr", "getattr", "vars"):
            if node.args and last_name(node.args[0]) in GIVEN:
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Attribute):
            of = last_name(node.value)
            hidden = node.attr.startswith("_") and not node.attr.endswith("_")
            if (
                node.attr in INSIDES
                or of in INSIDES
                or of in allowed
                and node.attr not in allowed[of]
                or hidden
                and of not in ("self", "cls")
            ):
                found.append(ast.unparse(node))
    return found


def test_watchers_read_nothing_of_the_machine_beyond_its_view():
    for path in sorted((PACKAGE / "engine" / "watch").rglob("*.py")):
        found = insides_read(path.read_text())
        assert not found, f"{module_name(path)} reads {', '.join(found)}"


def test_kernels_are_read_in_one_sitting():
    for path in sorted((ROOT / "kernels").glob("*.cu")):
        most = MORE_KERNEL_LINES.get(path.name, MOST_KERNEL_LINES)
        lines = len(path.read_text().splitlines())
        assert lines <= most, f"{path.name} has {lines} lines; {most} are allowed"


# -- notebooks -------------------------------------------------------------------------------------


def is_face(module: str) -> bool:
    """A room, the engine's watchers, or the module of one lesson."""
    parts = module.split(".")[1:]
    if len(parts) <= 1:
        return True
    return parts == ["engine", "watch"] or parts[0] == "lessons"


def notebook_imports(path: Path) -> set[str]:
    found = set()
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] != "code" or "".join(cell["source"]).startswith("%%cuda"):
            continue
        text = "".join(line for line in cell["source"] if not line.lstrip().startswith(("%", "!")))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "attn_course":
                found.add(node.module)
    return found


def test_notebooks_import_public_faces_only():
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        inner = [module for module in notebook_imports(path) if not is_face(module)]
        assert not inner, f"{path.name} imports {inner}"


# -- libraries -------------------------------------------------------------------------------------

# Import names of the base dependencies, where they differ from the name that is installed.
IMPORT_NAMES = {
    "cupy-cuda12x": {"cupy", "cupyx", "cupy_backends"},
    "pyelftools": {"elftools"},
    "jupyterlab": {"IPython", "ipywidgets"},
    "anywidget": {"anywidget", "traitlets"},
    "ml-dtypes": {"ml_dtypes"},
}
# Libraries that a module uses where they happen to be there, inside a function that says so.
OPTIONAL = {"torch", "nbgrader", "distributed"}
OF_THE_SITE = {name for name, places in CONFINED.items() if places == ("site",)}  # an extra


def test_every_library_is_a_base_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", line).group() for line in project["dependencies"]]
    installed = {library for name in names for library in IMPORT_NAMES.get(name, {name})}
    used = {name.split(".")[0] for imported in project_modules().values() for name in imported}
    strange = (
        used - installed - OPTIONAL - OF_THE_SITE - set(sys.stdlib_module_names) - {"attn_course"}
    )
    assert not strange, f"{sorted(strange)}: put them into pyproject's dependencies"


def test_kernels_know_nothing_of_python():
    files = [*ROOT.glob("kernels/**/*.cu"), *ROOT.glob("kernels/**/*.cuh")]
    assert files
    for path in files:
        assert not re.search(r"(?i)attn_course|python|numpy|cupy|\.py\b", path.read_text()), path


# -- the rules themselves --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "source", "word"),
    [
        ("reference.float64", "from attn_course.ladder import step", "above"),
        ("engine.machine.chunk", "from attn_course.reference import compare", "above"),
        ("engine.machine.chunk", "from ..module import RawModule", "above it in the engine"),
        ("engine.ptx.parser", "from ..translate.program import Program", "above it in the engine"),
        ("engine.watch.counters.counters", "from ...machine.chunk import Chunk", "watchers"),
        ("engine.watch.reads", "def f():\n    from ..translate import program", "watchers"),
        ("ladder.steps", "import attn_course.cli.main", "above"),
        ("ladder.steps", "import matplotlib.pyplot as plt", "matplotlib"),
        ("figures.matrices", "from attn_course.ladder import step", "only"),
        ("figures.matrices", "import anywidget", "anywidget"),
        ("engine.module.kernel", "from attn_course import observe", "take it from its room"),
    ],
)
def test_the_rules_catch_a_wrong_import(module, source, word):
    found = violations(module, imports_in(source, module))
    assert found and re.search(word, found[0])


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("engine.machine.chunk", "from ..isa.table import OPERATIONS\nfrom ..events import Buffer"),
        ("engine.watch.reads", "from ..events import Observer"),
        ("engine.events", "from .ptx.syntax import Instruction"),
        ("reference.inputs", "from matplotlib.cbook import get_sample_data"),
        ("figures.matrices", "import matplotlib.pyplot as plt"),
        ("cli.tour", "from attn_course.ladder import attention\nfrom . import arguments"),
    ],
)
def test_the_rules_allow_a_right_import(module, source):
    assert violations(module, imports_in(source, module)) == []


@pytest.mark.parametrize(
    "source",
    [
        "event.chunk.alive",
        "event.machine.kernel",
        "self._machine._chunk.R",
        "machine.alive._kernel",
        "launch.program.debug",
        "site.slots",
        "getattr(event.machine, name)",
        "launch.source.ptx",
    ],
)
def test_the_view_is_all_that_a_watcher_may_read(source):
    assert insides_read(source)


def test_the_view_may_be_read():
    source = "event.machine.alive[self._lanes], launch.source.own_line(i), site.caller.frame"
    assert insides_read(source) == []


def test_a_cycle_is_found():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
