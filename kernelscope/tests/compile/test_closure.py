"""Headers that a source includes: found, hashed, and their edits seen by every cache."""

import numpy as np
import pytest
from kernelscope import Counters, RawModule, Sanitizer, observe
from kernelscope.compile import (
    closure_hash,
    compile_ptx,
    file_stamp,
    include_closure,
    with_headers,
)
from kernelscope.errors import MemoryFault

KERNEL = '#include "include/outer.cuh"\nextern "C" __global__ void k(int* x) { x[0] = SIZE; }\n'


@pytest.fixture
def folder(tmp_path):
    """A kernel, a header in a folder of its own, and a header that this one includes."""
    (tmp_path / "include").mkdir()
    (tmp_path / "k.cu").write_text(KERNEL)
    (tmp_path / "include" / "outer.cuh").write_text('#pragma once\n#include "inner.cuh"\n')
    (tmp_path / "include" / "inner.cuh").write_text("#pragma once\n#define SIZE 1234\n")
    return tmp_path


def edit(folder):
    """Give the innermost header another text of the same length."""
    (folder / "include" / "inner.cuh").write_text("#pragma once\n#define SIZE 4321 \n")


def test_headers_of_headers_are_found_once_and_in_order(folder):
    inner = (folder / "include" / "inner.cuh").read_text()
    source = f'{KERNEL}#include "include/inner.cuh"\n#include "missing.cuh"\n#include <mma.h>\n'
    found = include_closure(source, folder)
    assert [name for name, _ in found] == ["include/outer.cuh", "include/inner.cuh"]
    assert found[1][1] == inner
    assert include_closure(source, None) == ()


def test_headers_that_include_each_other_end(tmp_path):
    for name, other in (("a.cuh", "b.cuh"), ("b.cuh", "a.cuh")):
        (tmp_path / name).write_text(f'#pragma once\n#include "{other}"\n')
    found = include_closure('#include "a.cuh"\n', tmp_path)
    assert [name for name, _ in found] == ["a.cuh", "b.cuh"]


def test_an_edited_header_is_compiled_again(folder):
    kernel = folder / "k.cu"
    assert "1234" in compile_ptx(kernel.read_text(), str(kernel)).ptx
    edit(folder)
    assert "4321" in compile_ptx(kernel.read_text(), str(kernel)).ptx


def test_an_edited_header_in_a_folder_of_the_options_is_compiled_again(folder, tmp_path):
    source = KERNEL.replace("include/outer.cuh", "outer.cuh")
    for option in ((f"-I{folder}/include",), ("-I", f"{folder}/include")):
        (folder / "include" / "inner.cuh").write_text("#define SIZE 1234\n")
        assert "1234" in compile_ptx(source, str(folder / "k.cu"), option).ptx
        edit(folder)
        assert "4321" in compile_ptx(source, str(folder / "k.cu"), option).ptx


def test_a_stamp_changes_with_the_file_and_with_its_headers(folder):
    stamps = [file_stamp(folder / "k.cu")]
    assert file_stamp(folder / "k.cu") == stamps[0] and len(stamps[0]) == 3
    edit(folder)
    stamps.append(file_stamp(folder / "k.cu"))
    (folder / "k.cu").write_text(KERNEL.replace("include/outer.cuh", "include/inner.cuh"))
    stamps.append(file_stamp(folder / "k.cu"))
    assert len(set(stamps)) == 3 and len(stamps[2]) == 2


def test_the_closures_hash_covers_the_headers_names():
    assert closure_hash("a", (("h", "x"),)) != closure_hash("a", (("g", "x"),))


def test_one_text_holds_the_headers_once(folder):
    source = f'#include <mma.h>\n{KERNEL}#include "include/inner.cuh"\n#include "missing.cuh"\n'
    text = with_headers(source, folder)
    assert text.count("#define SIZE 1234") == 1 and "#pragma once" not in text
    assert text.startswith("#include <mma.h>\n") and '#include "missing.cuh"' in text
    assert with_headers("int x;\n", folder) == "int x;\n"
    assert "1234" in compile_ptx(with_headers(KERNEL, folder)).ptx


# -- lines ---------------------------------------------------------------------------------------
CALLS = """#include "store.cuh"
extern "C" __global__ void k(float* x, int n)
{
    store(x, n);
}
"""
STORES = """#pragma once
__device__ __forceinline__ void store(float* x, int n)
{
    x[threadIdx.x + n] = 1.0f;
}
"""


@pytest.fixture
def kernel(tmp_path):
    (tmp_path / "k.cu").write_text(CALLS)
    (tmp_path / "store.cuh").write_text(STORES)
    return RawModule(path=tmp_path / "k.cu", backend="simulator").get_function("k")


def test_a_finding_in_a_header_names_the_call_and_the_headers_line(kernel):
    with observe(Sanitizer()) as report:
        kernel((1,), (32,), (np.zeros(40, np.float32), np.int32(20)))
    (found,) = report.findings
    assert (found.kind, found.line, found.line_text) == ("out-of-bounds", 4, "store(x, n);")
    assert found.header == "store.cuh:4 `x[threadIdx.x + n] = 1.0f;`" and found.header in str(found)


def test_a_fault_in_a_header_names_both_lines(kernel):
    with pytest.raises(MemoryFault, match=r"k\.cu:4 `store\(x, n\);` \(in store\.cuh:4 `x\[thr"):
        kernel((1,), (32,), (np.zeros(40, np.float32), np.int32(20)))


def test_counts_of_a_header_stand_on_the_line_of_the_call(kernel):
    with observe(Counters()) as seen:
        kernel((1,), (32,), (np.zeros(40, np.float32), np.int32(0)))
    assert seen.by_line[4]["global_store_requests"] == 1
