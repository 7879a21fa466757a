"""Every kernel file's header says what the file does, and says it about this file."""

import re
from functools import cache

import pytest
from kernelscope import RawModule
from kernelscope.compile import with_headers

from attn_course.backward import BACKWARD
from attn_course.ladder import headers
from attn_course.ladder.steps import EXPERIMENTS, LADDER

LADDER_FILES = sorted(headers.KERNEL_FOLDER.glob("*.cu"))
ALL_FILES = sorted(headers.KERNEL_FOLDER.rglob("*.cu"))
GOOD = "".join(f"// {title}: {title} text\n" for title in headers.FIELDS)


def short_name(path):
    return str(path.relative_to(headers.KERNEL_FOLDER))


def header_text(path):
    """The first comment of a file, all its // lines together."""
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
    return "\n".join(lines[:end])


def names(text, word):
    return re.search(rf"\b{re.escape(word)}\b", text) is not None


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("path", ALL_FILES, ids=short_name)
def test_a_header_is_complete_and_names_a_file_the_constants_and_the_entries(path):
    header = headers.read_header(path)
    for attribute in headers.FIELDS.values():
        assert getattr(header, attribute).strip()
    source = header.changes_from
    if source != "nothing":
        name = source.split()[0].rstrip(",;")
        assert name.endswith(".cu") and name != path.name
        assert (path.parent / name).is_file() or (headers.KERNEL_FOLDER / name).is_file(), source
    text = header_text(path)
    entries = RawModule(path=path, backend="simulator").kernels
    assert entries
    unnamed = [word for word in (*headers.read_constants(path), *entries) if not names(text, word)]
    assert not unnamed, f"the header does not name {unnamed}"


@pytest.mark.parametrize("path", LADDER_FILES, ids=short_name)
def test_pointers_have_shapes_and_barriers_say_what_would_break(path):
    """A pointer parameter on a line of its own carries a (shape) comment."""
    parameter = re.compile(r"^    (?:const )?float\* (?:__restrict__ )?\w+,.*$", re.MULTILINE)
    pointers = parameter.findall(path.read_text())
    assert pointers
    for line in pointers:
        assert re.search(r"// \([\w, .*+/]+\)", line), line
    for line in path.read_text().splitlines():
        assert "__syncthreads()" not in line or "// barrier:" in line, line


def test_the_textbook_kernel_is_short():
    assert len(headers.kernel_path("10_flash_rows").read_text().splitlines()) <= 120


def test_an_order_of_reading_names_every_include():
    ordered = [path for path in ALL_FILES if headers.read_header(path).read]
    assert ordered
    for path in ordered:
        named = re.findall(r"\w+\.cuh", headers.read_header(path).read)
        includes = re.findall(r'^#include "include/(.+)"', path.read_text(), re.MULTILINE)
        assert sorted(named) == sorted(includes), path.name


@pytest.mark.parametrize("step", [*LADDER, *BACKWARD], ids=lambda step: step.file)
def test_ladder_file_has_its_number(step):
    assert step.file.startswith(f"{step.number:02d}_") and not step.header.outcome


@pytest.mark.parametrize("step", EXPERIMENTS, ids=lambda step: step.file)
def test_experiment_says_how_it_went(step):
    """And its number is the one of the step that it starts from, over another experiment or not."""
    assert step.header.outcome
    source = step.header.changes_from
    while not source[0].isdigit():
        source = headers.read_header(headers.kernel_path(f"experiments/{source}")).changes_from
    assert source.startswith(f"{step.number:02d}_")


def test_every_experiment_is_a_row():
    files = {
        f"experiments/{path.stem}" for path in (headers.KERNEL_FOLDER / "experiments").glob("*.cu")
    }
    assert files == {step.file for step in EXPERIMENTS} and len(files) == len(EXPERIMENTS)


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("step", [*LADDER, *BACKWARD, *EXPERIMENTS], ids=lambda step: step.entry)
def test_ladder_row_fits_its_file(step):
    kernel = RawModule(path=step.path, backend="simulator").get_function(step.entry)
    assert [parameter.name for parameter in kernel.entry.parameters] == list(step.arguments)
    assert step.idea == step.header.idea and step.needs == step.header.needs


@pytest.mark.parametrize("title", headers.FIELDS)
def test_missing_field_is_named(title):
    text = "".join(line for line in GOOD.splitlines(True) if not line.startswith(f"// {title}:"))
    with pytest.raises(headers.HeaderError, match=f"no field '{title}:'"):
        headers.read_header(text)


def test_the_outcome_is_optional_and_comes_last():
    assert headers.read_header(GOOD).outcome == ""
    assert headers.read_header(GOOD + "// Outcome: slower\n").outcome == "slower"
    with pytest.raises(headers.HeaderError, match="in this order"):
        headers.read_header("// Outcome: slower\n" + GOOD)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "// Idea: again\n", "stands twice"),
        ("// stray\n" + GOOD, "line 1"),
        (GOOD + "//unindented\n", "neither a field"),
        ("\n".join(reversed(GOOD.splitlines())), "in this order"),
        ("int x;\n", "no field 'Idea:'"),
    ],
)
def test_malformed_headers_are_refused(text, message):
    with pytest.raises(headers.HeaderError, match=message):
        headers.read_header(text)


def test_constants():
    text = "#ifndef TILE\n#define TILE 16  // side\n#endif\n#ifndef PAD\n#define PAD 1\n#endif\n"
    assert headers.read_constants(text) == {"TILE": 16, "PAD": 1}
    with pytest.raises(headers.HeaderError, match="#ifndef TILE"):
        headers.read_constants("#ifndef TILE\n#define SIZE 3\n#endif\n")


def test_kernel_path():
    assert headers.kernel_path("02_scores_tiled") == headers.kernel_path("02_scores_tiled.cu")
    assert headers.kernel_path("02_scores_tiled").is_file()
    with pytest.raises(FileNotFoundError, match="01_scores_naive"):
        headers.kernel_path("99_missing")


# -- headers that kernels include ------------------------------------------------------------------
INCLUDES = sorted((headers.KERNEL_FOLDER / "include").glob("*.cuh"))
INCLUDE_FIELDS = ("Idea", "Used by", "Explained in")


def include_fields(text):
    """The leading // lines of an include file as field -> text; continuation lines are joined."""
    found, current = {}, None
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        field = re.match(r"// ([A-Z][a-z ]+):\s+(.*)", line)
        if field:
            current = field[1]
            found[current] = field[2]
        else:
            found[current] += " " + line.removeprefix("//").strip()
    return found


@cache
def includers():
    """Header -> names, below the kernels' folder, of the files that include it directly."""
    found = {path: set() for path in INCLUDES}
    for file in (*headers.KERNEL_FOLDER.rglob("*.cu"), *INCLUDES):
        for name in re.findall(r'^#include "([^"]+)"', file.read_text(), re.MULTILINE):
            header = (file.parent / name).resolve()
            found[header].add(file.relative_to(headers.KERNEL_FOLDER).as_posix())
    return found


@pytest.mark.parametrize("path", INCLUDES, ids=short_name)
def test_an_include_file_says_what_it_is(path):
    text = path.read_text()
    fields = include_fields(text)
    assert tuple(fields) == INCLUDE_FIELDS
    assert set(fields["Used by"].split(", ")) == includers()[path]
    notebooks = headers.KERNEL_FOLDER.parent / "notebooks"
    for lesson in fields["Explained in"].split(", "):
        assert (notebooks / f"{lesson}.ipynb").is_file(), lesson
    assert text.count("#pragma once\n") == 1


@pytest.mark.parametrize("path", INCLUDES, ids=short_name)
def test_an_include_file_has_no_constants_and_no_kernels(path):
    """Constants that a launch sets are in the .cu file alone, where its header names them."""
    assert not headers.read_constants(path) and "__global__" not in path.read_text()
    for line in path.read_text().splitlines():
        assert "__syncthreads()" not in line or "// barrier:" in line, line


STATIC = re.compile(r"^\s*__shared__", re.MULTILINE)
DYNAMIC = re.compile(r"extern __shared__ __align__\((\d+)\)")


def static_beside_aligned(path) -> bool:
    """Whether a kernel aligns dynamic shared memory to more than 16 bytes and has static arrays.

    In a debug build (-G) dynamic memory begins behind static arrays at any 16 bytes, whatever its
    declaration says: swizzled tiles are wrong there. Measured on an H200.
    """
    text = path.read_text(encoding="utf-8")
    aligned = max((int(one) for one in DYNAMIC.findall(text)), default=0)
    return aligned > 16 and bool(STATIC.search(with_headers(text, path.parent)))


@pytest.mark.parametrize("path", LADDER_FILES, ids=lambda path: path.stem)
def test_no_static_memory_moves_aligned_tiles(path):
    assert not static_beside_aligned(path)


def test_static_memory_beside_aligned_tiles_is_found(tmp_path):
    kernel = tmp_path / "kernel.cu"
    (tmp_path / "a.cuh").write_text("__device__ int f() {\n    __shared__ int x;\n}\n")
    for align, include, found in ((128, "a", True), (16, "a", False), (1024, "", False)):
        head = f'#include "{include}.cuh"\n' if include else ""
        kernel.write_text(f"{head}extern __shared__ __align__({align}) char m[];\n")
        assert static_beside_aligned(kernel) == found


def test_every_include_file_is_used():
    assert INCLUDES and all(includers().values())
