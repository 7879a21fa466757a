"""Compiled code in a folder: read again, and never where anything is not the same."""

import pytest
from kernelscope.compile import CompileError, compile_cubin, compile_ptx, kept, nvrtc
from kernelscope.timing.machine_code import cubin as machine_code

SOURCE = 'extern "C" __global__ void k(float* x) { x[0] = VALUE; }'
OPTIONS = ("-DVALUE=3.0f",)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(kept.FOLDER, str(tmp_path / "compiled"))
    monkeypatch.setattr(nvrtc, "_run_nvrtc", nvrtc._run_nvrtc.__wrapped__)
    return tmp_path / "compiled"


@pytest.fixture
def no_compiler(folder, monkeypatch):
    """Call it to forbid any further compilation."""
    return lambda: monkeypatch.setattr(nvrtc, "ask_compiler", lambda *_: pytest.fail("compiled"))


def test_the_same_is_compiled_once(folder, no_compiler):
    first = compile_ptx(SOURCE, options=OPTIONS)
    no_compiler()
    assert compile_ptx(SOURCE, options=OPTIONS) == first and len(list(folder.iterdir())) == 1
    for other in ({"options": ("-DVALUE=4.0f",)}, {"build": "debug"}, {"name": "other.cu"}):
        with pytest.raises(pytest.fail.Exception):
            compile_ptx(SOURCE, **{"options": OPTIONS} | other)


def test_an_edited_header_is_another_compilation(folder, no_compiler, tmp_path):
    (tmp_path / "value.cuh").write_text("#define VALUE 1.0f\n")
    text, name = f'#include "value.cuh"\n{SOURCE}', str(tmp_path / "k.cu")
    compile_ptx(text, name)
    no_compiler()
    compile_ptx(text, name)
    (tmp_path / "value.cuh").write_text("#define VALUE 1.25f\n")
    with pytest.raises(pytest.fail.Exception):
        compile_ptx(text, name)


def test_errors_and_headers_of_named_folders_are_not_kept(folder, tmp_path):
    with pytest.raises(CompileError):
        compile_ptx(SOURCE)
    compile_ptx(SOURCE, options=(*OPTIONS, f"-I{tmp_path}"))
    assert not folder.exists()


def test_a_damaged_file_is_compiled_again(folder):
    first = compile_ptx(SOURCE, options=OPTIONS)
    (file,) = folder.iterdir()
    for damage in (b"", b"no zlib", file.read_bytes()[:-9]):
        file.write_bytes(damage)
        assert compile_ptx(SOURCE, options=OPTIONS) == first


def test_the_same_cubin_is_disassembled_once(folder, monkeypatch):
    cubin = compile_cubin(SOURCE, options=OPTIONS).cubin
    disassembled = machine_code.disassembled.__wrapped__
    first = disassembled(cubin)
    assert ".text.k" in first and len(list(folder.iterdir())) == 2
    monkeypatch.setattr(machine_code, "_disassemble", lambda *_: pytest.fail("disassembled"))
    assert disassembled(cubin) == first
    other = compile_cubin(SOURCE, options=("-DVALUE=4.0f",)).cubin
    for call in ((cubin, "-hex"), (other,)):
        with pytest.raises(pytest.fail.Exception):
            disassembled(*call)
