"""The rules of the house: which room may import which, how large a room is, what a name means."""

import ast
import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path

import kernelscope
import pytest

from attn_course.ladder.headers import FIELDS, read_header

from .modules import AUTHORS, COURSE, ENGINE, PACKAGES, ROOT, module_name, modules

OURS = tuple(path.name for path in PACKAGES)

# Rooms of the course, lowest first: a room imports from rooms below it, and from the engine.
ROOMS = (
    "folders",
    "reference",
    "ladder",
    "backward",
    "layers",
    "parallel",
    "torch",
    "clinic",
    "measure",
    "figures",
    "lessons",
    "exercises",
    "classroom",
    "cli",
)
# The same inside the engine; modules of its own folder (errors, backend) are the ground.
ENGINE_ROOMS = (
    *(
        "",
        "ptx",
        "events",
        "isa",
        "texture",
        "translate",
        "machine",
        "compile",
        "module",
        "contest",
        "numba",
        "triton",
        "ranks",
        "watch",
        "timing",
        "differential",
        "cli",
    ),
)
# What may be imported beside the rule of rooms: exactly these, and nothing else of ours.
ONLY = {"folders": {"folders"}, "reference": {"reference"}, "figures": {"figures"}}
VERSION = "attn_course.__version__"  # of the whole package, for the command
FACES = (
    "kernelscope.lazy"  # imports the names of a package when they are first used: for every face
)
# Watchers see typed events: of the engine they may import these.
WATCHERS = tuple(
    f"kernelscope.{name}" for name in ("events", "addresses", "errors", "ptx", "watch")
)
# What the engine gives beside its first face. A stranger's first use needs no more than that one.
ENGINE_FACES = (
    "errors",
    "watch",
    "module",
    "compile",
    "ptx",
    "project",
    "numba",
    "triton",
    "timing",
    "contest",
    "ranks",
)
MOST_FIRST_NAMES = 30
# A library and the only places that may import it.
CONFINED = {
    "matplotlib": ("attn_course.figures", "attn_course.reference.inputs"),
    "anywidget": ("kernelscope.watch.tracer",),
    "traitlets": ("kernelscope.watch.tracer",),
    "ipywidgets": ("kernelscope.watch.tracer",),
    "numba": ("kernelscope.numba",),
    "numba_cuda": ("kernelscope.numba",),
    "triton": ("kernelscope.triton",),
    "jinja2": ("attn_devtools.site", "attn_course.classroom.templates"),
    **dict.fromkeys(("sphinx", "docutils", "pygments"), ("attn_devtools.site",)),
    "ipython_pygments_lexers": ("attn_devtools.site",),
}
MOST_LINES = 20_000  # of Python in attn_course
MOST_FILES = 12  # of a room, its face aside
MOST_BASES = 2  # classes of ours that one class inherits from
MOST_KERNEL_LINES = 200  # more where the header's field `Long` gives the reason
SENTENCE = re.compile(r"[A-Z]\S*(?: \S+){6,}\.")  # of a reason: seven words or more


def imports_in(nodes: Iterable[ast.AST], module: str, is_package: bool = False) -> set[str]:
    """Full names of all modules that a source imports, at its top or inside a function.

    `from package import name` gives 'package.name', which covers submodules and attributes.
    """
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                climb = node.level - (1 if is_package else 0)
                parts = parts[: len(parts) - climb]
                base = ".".join([*parts, *([node.module] if node.module else [])])
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def violations(module: str, imported: set[str]) -> list[str]:
    """Every import of one module that goes against the rules above, in words."""
    found = []
    for name in sorted(imported):
        library = name.split(".")[0]
        places = CONFINED.get(library)
        if places and not module.startswith(places):
            found.append(f"{module} imports {name}: only {places} may")
        if library in OURS and not name.startswith((FACES, VERSION)):
            judge = engine_violations if module.startswith("kernelscope") else course_violations
            found += judge(module, name)
    return found


def course_violations(module: str, name: str) -> list[str]:
    """What is wrong with a module of the course that imports a name of ours."""
    if name.startswith("attn_devtools"):
        own = module.startswith("attn_devtools")
        return [] if own else [f"{module} imports {name}: the course does without its authors"]
    home = room_of(module) if module.startswith("attn_course") else ""
    if name.startswith("kernelscope"):
        if home in ("reference", "figures"):
            return [f"{module} imports {name}; it may import {sorted(ONLY[home])} only"]
        return [] if is_engine_face(name) else [f"{module} imports {name}, past the engine's face"]
    room = room_of(name)
    if room not in ROOMS:
        return [f"{module} imports {name}: take it from its room"] if home else []
    if home and ROOMS.index(room) > ROOMS.index(home):
        return [f"{module} imports {name}, which is above it"]
    if home in ONLY and room not in ONLY[home]:
        return [f"{module} imports {name}; it may import {sorted(ONLY[home])} only"]
    return []


def is_engine_face(name: str) -> bool:
    """The engine, a public name of one of its faces, its commands, tools beside a GPU."""
    _, *parts = name.split(".")
    if not parts or parts[0] in ("cli", "differential", "landlock"):
        return True
    return name in engine_names() or parts in [[face] for face in ENGINE_FACES]


@cache
def engine_names() -> set[str]:
    """Full names of what the faces of the engine give: their __all__, or all without a "_"."""
    found = set()
    for face in ("kernelscope", *(f"kernelscope.{name}" for name in ENGINE_FACES)):
        names = vars(import_module(face))
        given = names.get("__all__") or [name for name in names if name[0] != "_"]
        found |= {f"{face}.{name}" for name in given}
    return found


def room_of(name: str) -> str:
    """'attn_course.cli.run' -> 'cli'; 'attn_course' -> ''."""
    return name.split(".")[1] if "." in name else ""


def room_of_engine(name: str) -> str:
    """'kernelscope.ptx.parser' -> 'ptx'; 'kernelscope.backend' -> ''."""
    return room_of(name) if room_of(name) in ENGINE_ROOMS else ""


def engine_violations(module: str, name: str) -> list[str]:
    """What is wrong with a module of the engine that imports a name of ours."""
    if not name.startswith("kernelscope"):
        return [f"{module} imports {name}: the engine knows nothing of the course"]
    if module == "kernelscope":
        return []
    mine, other = room_of_engine(module), room_of_engine(name)
    if mine == "watch" and not name.startswith(WATCHERS):
        return [f"{module} imports {name}: watchers may import {sorted(WATCHERS)} only"]
    if mine != other and ENGINE_ROOMS.index(other) > ENGINE_ROOMS.index(mine):
        return [f"{module} imports {name}, which is above it in the engine"]
    return []


def sources(*, faces: bool = False) -> list[Path]:
    """The modules of both packages; faces: their __init__.py alone."""
    name = "__init__.py" if faces else "*.py"
    return [path for package in PACKAGES for path in sorted(package.rglob(name))]


@cache
def project_modules() -> dict[str, set[str]]:
    """Module -> what it imports."""
    return {
        name: imports_in((one.node for one in kept), name, is_package)
        for name, is_package, kept in modules()
    }


@pytest.mark.system
def test_every_room_has_a_place():
    rooms = {room_of(name) for name in project_modules() if name.startswith("attn_course.")}
    assert rooms == set(ROOMS)


def test_no_import_goes_against_the_rooms():
    found = [v for module, names in project_modules().items() for v in violations(module, names)]
    assert not found, "\n".join(found)


def test_no_lazy_name_of_a_room_is_a_module_of_it():
    """Importing the module would set the room's name to it, in place of what the room offers."""
    for path in sources(faces=True):
        inside = {one.stem for one in path.parent.glob("*.py")} | {
            one.parent.name for one in path.parent.glob("*/__init__.py")
        }
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NAMES":
                names = set(" ".join(ast.literal_eval(node.value).values()).split())
                assert not names & inside, path


# Lazy look-ups that stand inside functions: import_module("..x").
def test_no_import_is_hidden_in_a_string():
    for path in sources():
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
            parts = name.split(".")
            for length in (len(parts), len(parts) - 1):
                target = ".".join(parts[:length])
                if target in modules and target != module and not module.startswith(target + "."):
                    graph[module].add(target)
                    break
    return graph


def test_the_first_face_of_the_engine_is_short_and_all_of_them_keep_their_word():
    assert len(kernelscope.__all__) <= MOST_FIRST_NAMES
    for full in sorted(engine_names()):
        face, _, name = full.rpartition(".")
        assert hasattr(import_module(face), name), full


def test_no_import_cycles():
    cycle = find_cycle(module_graph())
    assert not cycle, " -> ".join(cycle)


def test_the_course_stays_small():
    """More lines need a line in the changelog that says what for."""
    lines = sum(len(path.read_text().splitlines()) for path in COURSE.rglob("*.py"))
    assert lines <= MOST_LINES, f"attn_course has {lines:,} lines; {MOST_LINES:,} are allowed"


def test_a_room_has_at_most_twelve_files():
    for folder in {path.parent for path in sources()}:
        files = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= MOST_FILES, f"{folder.name} has {len(files)} files: {sorted(files)}"


@cache
def classes() -> dict[str, list[tuple[str, ast.ClassDef]]]:
    found = defaultdict(list)
    for module, _, kept in modules():
        for _, node in kept:
            if isinstance(node, ast.ClassDef):
                found[node.name].append((module, node))
    return found


@pytest.mark.system
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
    "machine": ("kernelscope.events", "MachineView"),
    "_machine": ("kernelscope.events", "MachineView"),
    "site": ("kernelscope.events", "CallSite"),
    "launch": ("kernelscope.events", "Launch"),
    "source": ("kernelscope.ptx.source_module", "SourceModule"),
}
# Insides of the engine that no watcher may hold.
INSIDES = {"chunk", "program", "executable", "instance", "instances"}


@cache
def names_of_class(module: str, name: str) -> set[str]:
    """Methods, properties and fields of a class; private ones left out."""
    path = ENGINE.parent / f"{module.replace('.', '/')}.py"
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


@pytest.mark.system
def test_watchers_read_nothing_of_the_machine_beyond_its_view():
    for path in sorted((ENGINE / "watch").rglob("*.py")):
        found = insides_read(path.read_text())
        assert not found, f"{module_name(path)} reads {', '.join(found)}"


def length_fault(text: str) -> str:
    """What is wrong with the length of a kernel file or with its reason for it; else ""."""
    lines, reason = len(text.splitlines()), read_header(text).long
    if lines <= MOST_KERNEL_LINES:
        return f"{lines} lines need no field Long" if reason else ""
    if SENTENCE.fullmatch(reason):
        return ""
    most = MOST_KERNEL_LINES
    return f"{lines} lines, and no field Long that says in a sentence why more than {most}"


def test_kernels_are_read_in_one_sitting():
    for path in sorted((ROOT / "kernels").glob("*.cu")):
        fault = length_fault(path.read_text())
        assert not fault, f"{path.name}: {fault}"


@pytest.mark.parametrize(
    ("lines", "reason", "fault"),
    [
        (200, "", ""),
        (201, "", "no field Long"),
        (201, "// Long: 201 lines\n", "in a sentence"),
        (201, "// Long: Needed.\n", "in a sentence"),
        (201, "// Long: A reason goes over\n//  two lines of the header.\n", ""),
        (200, "// Long: The reason of a file that has become short.\n", "need no field"),
    ],
)
def test_a_long_kernel_gives_its_reason(lines, reason, fault):
    text = "".join(f"// {title}: text\n" for title in FIELDS) + reason
    found = length_fault(text + "\n" * (lines - text.count("\n")))
    assert fault in found if fault else not found


# -- notebooks -------------------------------------------------------------------------------------


def is_face(module: str) -> bool:
    """A package, a room of the course, the engine's watchers or timing, the module of a lesson."""
    parts = module.split(".")[1:]
    if len(parts) <= 1:
        return not module.startswith("kernelscope.") or parts in (["watch"], ["timing"])
    return parts[0] == "lessons"


def notebook_imports(path: Path) -> set[str]:
    found = set()
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] != "code" or "".join(cell["source"]).startswith("%%cuda"):
            continue
        text = "".join(line for line in cell["source"] if not line.lstrip().startswith(("%", "!")))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in (
                "attn_course",
                "kernelscope",
            ):
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
    "nvidia-cuda-nvcc-cu12": {"nvidia"},
    "jupyterlab": {"IPython", "ipywidgets"},
    "anywidget": {"anywidget", "traitlets"},
    "ml-dtypes": {"ml_dtypes"},
}
# Libraries that a module uses where they happen to be there, inside a function that says so.
OPTIONAL = {
    "torch",
    "triton",
    "numba",
    "numba_cuda",
    "nbgrader",
    "distributed",
    "filelock",
    "mpi4py",
}
# Those of the extra `site`.
OF_THE_SITE = {name for name, places in CONFINED.items() if places == ("attn_devtools.site",)}


@pytest.mark.parametrize(
    ("package", "folder"), [(COURSE, ROOT), (AUTHORS, ROOT), (ENGINE, ROOT / "kernelscope")]
)
def test_every_library_is_a_base_dependency(package, folder):
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", line).group() for line in project["dependencies"]]
    installed = {library for name in names for library in IMPORT_NAMES.get(name, {name})}
    modules = project_modules().items()
    mine = [imported for module, imported in modules if module.startswith(package.name)]
    used = {name.split(".")[0] for imported in mine for name in imported}
    known = installed | OPTIONAL | set(sys.stdlib_module_names) | {package.name}
    if package == AUTHORS:
        known |= OF_THE_SITE | {COURSE.name, "time_model"}  # a tool of the engine's, in no package
    strange = used - known
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
        ("attn_course.reference.float64", "from attn_course.ladder import step", "above"),
        (
            "kernelscope.machine.chunk",
            "from attn_course.reference import compare",
            "nothing of the",
        ),
        ("attn_course.figures.matrices", "from kernelscope import RawModule", "only"),
        ("kernelscope.machine.chunk", "from ..module import RawModule", "above it in the engine"),
        (
            "kernelscope.ptx.parser",
            "from ..translate.program import Program",
            "above it in the engine",
        ),
        ("kernelscope.watch.counters.counters", "from ...machine.chunk import Chunk", "watchers"),
        ("kernelscope.watch.reads", "def f():\n    from ..translate import program", "watchers"),
        ("attn_course.ladder.steps", "import attn_course.cli.main", "above"),
        ("attn_course.ladder.steps", "import matplotlib.pyplot as plt", "matplotlib"),
        ("attn_course.figures.matrices", "from attn_course.ladder import step", "only"),
        ("attn_course.figures.matrices", "import anywidget", "anywidget"),
        ("attn_course.ladder.call", "from kernelscope.module.kernel import Kernel", "past the"),
        ("attn_course.cli.count", "from kernelscope.watch.counters import counters", "past the"),
        ("attn_course.ladder.call", "from attn_course import observe", "take it from its room"),
        ("attn_course.cli.run", "from attn_devtools.record import schema", "its authors"),
        ("kernelscope.cli.run", "from attn_devtools.record import schema", "nothing of the"),
        ("attn_devtools.claims.counted", "import matplotlib", "matplotlib"),
    ],
)
def test_the_rules_catch_a_wrong_import(module, source, word):
    found = violations(module, imports_in(ast.walk(ast.parse(source)), module))
    assert found and re.search(word, found[0])


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "kernelscope.machine.chunk",
            "from ..isa.table import OPERATIONS\nfrom ..events import A",
        ),
        ("kernelscope.watch.reads", "from ..events import Observer"),
        ("kernelscope.events", "from .ptx.syntax import Instruction"),
        ("attn_course.reference.inputs", "from matplotlib.cbook import get_sample_data"),
        ("attn_course.figures.matrices", "import matplotlib.pyplot as plt"),
        ("attn_course.ladder.call", "from kernelscope import RawModule"),
        ("attn_course.cli.count", "from kernelscope.watch import Counters, Finding"),
        ("attn_course.cli.count", "from kernelscope.errors import Hang"),
        (
            "attn_course.cli.tour",
            "from attn_course.ladder import attention\nfrom . import a",
        ),
    ],
)
def test_the_rules_allow_a_right_import(module, source):
    assert violations(module, imports_in(ast.walk(ast.parse(source)), module)) == []


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
