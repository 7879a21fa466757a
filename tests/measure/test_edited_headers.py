"""An edited header makes another module and another record."""

import hashlib

import pytest

from attn_course.ladder.call import compiled
from attn_course.measure.records import is_current, kernel_hash

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


def test_an_edited_header_makes_another_module(folder):
    first = compiled(folder / "k.cu", entry="k", backend="simulator")
    assert compiled(folder / "k.cu", entry="k", backend="simulator") is first
    edit(folder)
    assert compiled(folder / "k.cu", entry="k", backend="simulator") is not first


def test_a_records_hash_covers_the_headers(folder):
    record = {"kernels": {"k.cu": kernel_hash("k", folder)}}
    assert is_current(record, "k", folder)
    edit(folder)
    assert not is_current(record, "k", folder)


def test_a_records_hash_is_that_of_the_code(tmp_path):
    def hash_of(text: str) -> str:
        (tmp_path / "k.cu").write_text(text)
        return kernel_hash("k", tmp_path)

    code = 'int x;\nconst char* s = "// kept /* too */";'
    assert hash_of(code) == hashlib.sha256(code.encode()).hexdigest()
    commented = "// Idea: a comment\n\nint x;  // another\n/* one\n more */\n" + code.split("\n")[1]
    assert hash_of(commented) == hash_of(code)
    assert hash_of(code.replace("kept", "lost")) != hash_of(code)
    assert hash_of(code.replace("int", "long")) != hash_of(code)
