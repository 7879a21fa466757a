"""CUDA C to PTX: options, include folders, builds, and messages to act on."""

import os
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from kernelscope import RawModule
from kernelscope.compile import (
    CompileError,
    CompilerFailedError,
    CompilerMissingError,
    compile_cubin,
    compile_ptx,
    default_arch,
    include_folders,
    include_options,
    includes,
    requested_arch,
    required_arch,
)
from kernelscope.compile import compiler as compiler_process
from kernelscope.compile import nvrtc as compiler
from kernelscope.compile.messages import describe_failure
from kernelscope.errors import PortabilityWarning
from kernelscope.ptx.source_module import lines_of

SCALE = """extern "C" __global__ void scale(float* x, float factor) {
  x[threadIdx.x] *= factor;
}
"""


def test_the_optimised_build_has_lines_and_cupys_flush_to_zero():
    ptx = compile_ptx(SCALE).ptx
    assert ".target sm_80\n" in ptx
    assert re.search(r"\.loc\s+1 2 ", ptx)
    assert "mul.ftz.f32" in ptx


def test_the_debug_build_keeps_its_variables():
    source = SCALE.replace("*= factor;", "*= factor; float doubled = factor * 2; x[1] = doubled;")
    debug = compile_ptx(source, build="debug").ptx
    name = ",".join(str(byte) for byte in b"doubled")  # DWARF spells names as bytes
    assert ", debug" in debug and name in debug
    assert ".debug_info" not in compile_ptx(source).ptx


@pytest.mark.parametrize(
    "option", [("-arch=sm_90",), ("--gpu-architecture=compute_90",), ("-arch", "compute_90")]
)
def test_the_users_architecture_wins(option):
    compiled = compile_ptx(SCALE, options=option, arch="compute_80")
    assert ".target sm_90\n" in compiled.ptx and compiled.arch == "compute_90"


def test_cpp17_is_the_default_and_the_users_standard_wins():
    source = (
        "template <int N> struct S { static constexpr int v = N; };\n"
        'extern "C" __global__ void k(int* x) { if constexpr (S<1>::v) x[0] = __cplusplus; }'
    )
    assert "201703" in compile_ptx(source).ptx
    assert "202002" in compile_ptx(source, options=("-std=c++20",)).ptx


def test_name_expressions_are_mapped_to_mangled_names():
    source = "template <typename T> __global__ void fill(T* x, T v) { x[threadIdx.x] = v; }"
    names = compile_ptx(source, name_expressions=("fill<float>", "fill<int>")).lowered_names
    assert names == {"fill<float>": "_Z4fillIfEvPT_S0_", "fill<int>": "_Z4fillIiEvPT_S0_"}


def test_warnings_are_kept_in_the_log():
    source = 'extern "C" __global__ void k(float* x) { int never_used; x[0] = 1; }'
    compiled = compile_ptx(source)
    assert "never_used" in compiled.log
    assert compile_ptx(SCALE).log == ""


def test_a_cubin_is_machine_code():
    compiled = compile_cubin(SCALE, arch="sm_90")
    assert compiled.cubin.startswith(b"\x7fELF") and compiled.ptx == ""


def test_equal_input_is_compiled_once(monkeypatch):
    first = compile_ptx(SCALE, options=("-DONCE",))
    monkeypatch.setattr(compiler, "_load_nvrtc", lambda: pytest.fail("compiled twice"))
    assert compile_ptx(SCALE, options=("-DONCE",)) is first
    with pytest.raises(pytest.fail.Exception):
        compile_ptx(SCALE, options=("-DTWICE",))


def test_a_relative_folder_is_of_the_current_one(tmp_path, monkeypatch):
    source = '#include <size.h>\nextern "C" __global__ void k(int* x) { x[0] = SIZE; }'
    for size in ("1234", "4321"):
        (tmp_path / size / "include").mkdir(parents=True)
        (tmp_path / size / "include" / "size.h").write_text(f"#define SIZE {size}\n")
        monkeypatch.chdir(tmp_path / size)
        assert size in compile_ptx(source, options=("-Iinclude",)).ptx


@pytest.mark.turns(23)
@pytest.mark.system
def test_cudas_headers_need_no_toolkit_and_do_what_they_are_for():
    source = r"""
#include <cuda_runtime.h>
#include <math_constants.h>
#include <cuda/pipeline>
#include <cuda/barrier>
#include <cuda/std/cstdint>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <mma.h>
#include <cooperative_groups.h>
#include <cuda_pipeline.h>
extern "C" __global__ void k(const __half* a, __nv_bfloat16* b, float* c) {
  __shared__ __align__(16) __half tile[256];
  __pipeline_memcpy_async(&tile[threadIdx.x * 8], &a[threadIdx.x * 8], 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  cooperative_groups::this_thread_block().sync();
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, __half, nvcuda::wmma::row_major> f;
  nvcuda::wmma::load_matrix_sync(f, tile, 16);
  c[threadIdx.x] = __half2float(f.x[0]);
  b[threadIdx.x] = __float2bfloat16(c[threadIdx.x]);
}
"""
    ptx = compile_ptx(source).ptx
    for instruction in ("cp.async", "wmma.load.a.sync", "cvt.rn.bf16.f32", "bar"):
        assert instruction in ptx


# -- the header comment's architecture ---------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "needed", "arch"),
    [
        ("// kernelscope:         sm_50; TILE <= 32", (50, ""), "compute_80"),
        ("// kernelscope: sm_80", (80, ""), "compute_80"),
        ("// kernelscope: sm_90; 64 KB", (90, ""), "compute_90"),
        ("// kernelscope: sm_90a (wgmma)", (90, "a"), "compute_90a"),
        ("// kernelscope: sm_80, better sm_89", (89, ""), "compute_89"),
        ("// Limits: no sm_90", (0, ""), "compute_80"),
        ("", (0, ""), "compute_80"),
    ],
)
def test_the_needs_line_sets_the_default_target(line, needed, arch):
    source = f"// Idea: x\n{line}\n{SCALE}"
    assert required_arch(source) == needed
    assert default_arch(source) == arch


@pytest.mark.parametrize(
    ("options", "arch"),
    [
        ((), None),
        (("-DARCH=3",), None),
        (("-arch=sm_90a",), "sm_90a"),
        (("-arch=sm_80", "-arch=sm_90"), "sm_90"),
        (("--gpu-architecture", "sm_75"), "sm_75"),
    ],
)
def test_the_architecture_in_the_options_is_found(options, arch):
    assert requested_arch(options) == arch


# -- include folders ----------------------------------------------------------------------------


def test_include_folders_exist_and_hold_the_runtime_headers():
    folders = include_folders()
    assert all(Path(folder).is_dir() for folder in folders)
    assert any(Path(folder, "cuda_fp16.h").is_file() for folder in folders)
    assert include_options("/kernels")[0] == "-I/kernels"
    assert include_options() == tuple(f"-I{folder}" for folder in folders)


def test_cuda_path_is_searched(tmp_path, monkeypatch):
    (tmp_path / "include").mkdir()
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    assert str(tmp_path / "include") in include_folders()


@pytest.mark.parametrize(
    ("major", "taken", "left"), [(12, "cuda_runtime", "cu13"), (13, "cu13", None)]
)
def test_wheels_of_both_layouts_are_found(tmp_path, monkeypatch, major, taken, left):
    for name in ("cu13", "cuda_runtime"):
        (tmp_path / "nvidia" / name / "include").mkdir(parents=True)
    real = includes.importlib.util.find_spec
    fake = types.SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia")])
    monkeypatch.setattr(
        includes.importlib.util, "find_spec", lambda name: fake if name == "nvidia" else real(name)
    )
    found = [path.parent.name for path in includes._wheel_folders(major)]
    assert found[0] == taken and left not in found


def test_a_header_beside_the_source_is_found_and_its_edits_are_seen(tmp_path):
    header, kernel = tmp_path / "shape.cuh", tmp_path / "k.cu"
    kernel.write_text('#include "shape.cuh"\nextern "C" __global__ void k(int* x) { x[0] = SIZE; }')
    header.write_text("#define SIZE 1234\n")
    assert "1234" in compile_ptx(kernel.read_text(), str(kernel)).ptx
    header.write_text("#define SIZE 4321\n")
    os.utime(header, ns=(1, 1))
    assert "4321" in compile_ptx(kernel.read_text(), str(kernel)).ptx


# -- errors -------------------------------------------------------------------------------------


def failure(source: str, name: str = "folder/k.cu", **keywords) -> CompileError:
    with pytest.raises(CompileError) as caught:
        compile_ptx(source, name, **keywords)
    return caught.value


def body(text: str) -> str:
    return f'extern "C" __global__ void k(float* x, int n) {{\n{text}\n}}\n'


def test_a_missing_semicolon_points_to_the_line_that_lacks_it():
    error = failure(body("  float y = 1\n\n  // then\n  x[0] = y;"))
    assert error.file == "folder/k.cu" and error.line == 5
    assert 'folder/k.cu:5: error: expected a ";"' in str(error)
    assert "     2 |   float y = 1\n" in str(error)
    assert "     5 |   x[0] = y;\n       |   ^\n" in str(error)
    assert "line 2 is not finished" in str(error)


def test_a_missing_semicolon_inside_a_line():
    error = failure(body("  float y = 1 x[0] = y;"))
    assert error.line == 2 and "before the caret" in str(error)


def test_a_misspelt_name_gets_a_suggestion():
    error = failure(body("  x[treadIdx.x] = 1;\n  float scale = 1;\n  x[1] = scal;"))
    assert [d.line for d in error.diagnostics] == [2, 4]
    assert 'identifier "treadIdx" is undefined' in str(error)
    assert "did you mean threadIdx?" in str(error) and "did you mean scale?" in str(error)
    lines = str(error).splitlines()
    caret = next(i for i, line in enumerate(lines) if line.endswith("^"))
    assert lines[caret - 1][lines[caret].index("^") :].startswith("treadIdx")


NVCC = """{}
extern "C" __global__ void k(float* x) {{
    {}
}}"""


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize(
    ("lacked", "includes", "lines", "expected"),
    [
        (
            "INFINITY",
            "",
            "x[0] = -INFINITY; x[1] = NAN; x[2] = HUGE_VALF;",
            (-np.inf, np.nan, np.inf),
        ),
        ("M_PI", "", "x[0] = M_PI; x[1] = M_E; x[2] = M_SQRT2;", (np.pi, np.e, 2**0.5)),
        (
            "FLT_MAX",
            "",
            "x[0] = FLT_MAX; x[1] = FLT_MIN; x[2] = FLT_EPSILON; x[3] = DBL_MAX > 1e300;",
            (3.4028235e38, 1.17549435e-38, 2.0**-23, 1),
        ),
        (
            "INT_MAX",
            "",
            "x[0] = INT_MAX; x[1] = UINT_MAX; x[2] = CHAR_BIT; x[3] = SIZE_MAX;",
            (2.0**31, 2.0**32, 8, 2.0**64),
        ),
        ("uint32_t", "", "uint32_t u = 3; int64_t l = 5; x[0] = u + l;", (8,)),
        ("std::max", "", "x[0] = std::max(2.f, 3.f) + std::sqrt(4.f);", (5,)),
        ("INFINITY", "", "constexpr float low = -INFINITY; x[0] = low;", (-np.inf,)),
        ("<math.h>", "math.h", "x[0] = M_PI_2; x[1] = sqrtf(4);", (np.pi / 2, 2)),
        (
            "<cmath>",
            "cmath",
            "x[0] = std::abs(-1.5f) + std::pow(2.f, 3.f); x[1] = std::isnan(NAN);",
            (9.5, 1),
        ),
        (
            "<algorithm>",
            "algorithm",
            "float a = 1, b = 2; std::swap(a, b); x[0] = a; "
            "x[1] = std::clamp(5, 1, 3); x[2] = std::min(4, 3);",
            (2, 3, 3),
        ),
        (
            "<climits>",
            "climits cfloat float.h limits.h",
            "x[0] = SHRT_MAX; x[1] = FLT_DIG;",
            (32767, 6),
        ),
        (
            "<cstdint>",
            "cstdint stdint.h cstddef stddef.h",
            "std::uint8_t u = 300; x[0] = u;",
            (44,),
        ),
        (
            "<stdio.h>",
            "stdio.h cstdio assert.h cassert stdlib.h cstdlib string.h cstring",
            "assert(x); std::memset(x, 0, 4); x[0] += std::abs(-3);",
            (3,),
        ),
        ("<iostream>", "iostream vector string fstream iomanip chrono random", "x[0] = 2;", (2,)),
    ],
)
def test_a_source_for_nvcc_compiles_and_says_what_cupy_lacks(lacked, includes, lines, expected):
    text = "\n".join(f"#include <{header}>" for header in includes.split())
    module = RawModule(NVCC.format(text, lines), backend="simulator")
    with pytest.warns(PortabilityWarning, match=f"{re.escape(lacked)} is of nvcc") as warned:
        kernel = module.get_function("k")
    x = np.zeros(4, np.float32)
    kernel((1,), (1,), (x,))
    expected = np.array(expected, np.float32)
    np.testing.assert_allclose(x[: expected.size], expected, rtol=1e-7)
    assert len(warned) == 1 and warned[0].filename == __file__


def test_names_of_a_source_of_its_own_are_left_to_it(recwarn):
    """What compiles as for CuPy is compiled as for CuPy."""
    lines = "x[0] = INFINITY; x[1] = std::max(1);"
    own = "#define INFINITY 5\nnamespace std { __device__ int max(int a) { return a + 1; } }"
    x = np.zeros(2, np.float32)
    RawModule(NVCC.format(own, lines), backend="simulator").get_function("k")((1,), (1,), (x,))
    assert x.tolist() == [5, 2] and not recwarn.list
    assert compile_ptx(body("  x[0] = 1;")).added == ()


def test_an_error_that_nvccs_declarations_do_not_help_is_told_as_it_is():
    for line, message in (
        ("x[0] = INFINITI;", 'identifier "INFINITI" is undefined'),
        ("x[0] = std::nothing(1);", 'namespace "std" has no member "nothing"'),
        ("std::cout << x[0];", "Keep the host's part in another file"),
    ):
        assert message in str(failure(body(f"  {line}")))


@pytest.mark.parametrize(
    ("line", "header"),
    [
        ("half h = 1;", "cuda_fp16.h"),
        ("__nv_bfloat16 b;", "cuda_bf16.h"),
        ("nvcuda::wmma::mem_row_major;", "mma.h"),
        ("__pipeline_commit();", "cuda_pipeline.h"),
        ("x[0] = CUDART_INF_F;", "math_constants.h"),
    ],
)
def test_an_undeclared_name_of_a_header_names_the_header(line, header):
    assert f"#include <{header}>" in str(failure(body(f"  {line}")))
    compile_ptx(f"#include <{header}>\n" + body(f"  {line}"))  # and the advice is right


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ("curand_kernel.h", "pip install nvidia-curand-cu12"),
        ("mine.cuh", "beside the .cu file"),
    ],
)
def test_a_missing_header_gets_a_way_out(header, hint):
    error = failure(f"#include <{header}>\n{SCALE}")
    assert error.line == 1 and f'cannot open source file "{header}"' in str(error)
    assert hint in str(error)


HOST = """{}
int main() {{
    std::cout << "one launch";
    float* x;
    cudaMalloc(&x, 4);
    k<<<1, 1>>>(x, 1);
}}
{}"""


def test_host_code_is_named_as_such_and_the_advice_is_right():
    kernel = body("  x[0] = n;")
    text = str(failure(kernel + HOST.format("", "")))
    assert text.count("hint: this is host code") == 1 and "device code only" in text
    assert "not declared" not in text and "cudaMalloc" in text
    guarded = HOST.format("#ifndef __CUDACC_RTC__", "#endif")
    assert compile_ptx(kernel + guarded).ptx.count(".entry") == 1
    assert "host code" in str(failure(body("  cudaMalloc(&x, 4);")))


def test_a_name_that_is_not_declared_gets_a_way_out():
    text = str(failure(body("  if (i < n) x[0] = 1.0f;")))
    assert "give it a type at its first use, as in `int i = ...;`" in text
    text = str(failure(body("  x[0] = qzwv(n);")))
    assert "qzwv is not declared before this line" in text and "a type" not in text


@pytest.mark.parametrize("line", ["for i in range(n):", "if n > 1:", "while n > 1:  # go on"])
def test_a_line_of_python_is_one_message(line):
    error = failure(body(f"  {line}\n    x[i] = 1.0f;"))
    assert str(error).count("error: ") == 1 and "hint: this is Python: C++ has" in str(error)
    assert "as in if (i < n) { ... } or for" in str(error)
    assert "not declared" not in str(error) and len(error.diagnostics) > 1


def test_a_colon_of_c_plus_plus_is_not_python():
    source = body("  switch (n) {\n    default:\n      x[0] = y;\n  }\n  x[0] = n ? z :\n 1;")
    assert "Python" not in str(failure(source)) and str(failure(source)).count("error: ") == 2


def test_an_unclosed_brace():
    error = failure('extern "C" __global__ void k(float* x) {\n  x[0] = 1;\n')
    assert error.line == 2 and "never closed" in str(error)


def test_other_errors_show_message_and_line():
    error = failure(body('  x[0] = "text";'))
    assert "folder/k.cu:2: error: a value of type" in str(error)
    assert '     2 |   x[0] = "text";' in str(error)
    assert "the tile is too large" in str(failure("#error the tile is too large\n"))


def test_many_errors_are_cut_short():
    error = failure(body("\n".join(f"  x[0] = unknown_name_{i};" for i in range(9))))
    assert len(error.diagnostics) == 9
    assert str(error).count("is undefined") == 5 and "and 4 more errors" in str(error)


def test_warnings_are_not_reported_as_errors():
    error = failure(body("  int unused;\n  x[0] = nowhere;"))
    assert len(error.diagnostics) == 1 and "unused" not in str(error)


def test_an_unknown_option_is_named():
    error = failure(SCALE, options=("--no-such-option",))
    assert "--no-such-option" in str(error)


def test_the_assemblers_refusal_of_static_shared_memory():
    source = body("  __shared__ float t[20000]; t[n] = x[0]; __syncthreads(); x[1] = t[0];")
    with pytest.raises(CompileError, match="uses too much shared data") as caught:
        compile_cubin(source, arch="sm_80")
    assert "max_dynamic_shared_size_bytes" in str(caught.value)


def test_an_error_in_a_header_names_the_header(tmp_path):
    (tmp_path / "bad.cuh").write_text("\n__device__ int broken() { return nothing_here; }\n")
    error = failure(f'#include "bad.cuh"\n{SCALE}', str(tmp_path / "k.cu"))
    assert Path(error.file) == tmp_path / "bad.cuh" and error.line == 2
    assert "     2 | __device__ int broken()" in str(error)


def test_a_compiler_that_does_not_start_says_nothing_of_the_source(monkeypatch, tmp_path):
    monkeypatch.setattr(compiler_process, "_SERVER", tmp_path / "none.py")
    monkeypatch.setattr(compiler_process, "_idle", [])
    monkeypatch.delenv("KERNELSCOPE_COMPILED", raising=False)
    with pytest.raises(CompilerFailedError, match="the compiler's process has ended"):
        compile_ptx(SCALE, options=("-DWITHOUT_SERVER",))


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("<cuda_fp16.h>", CompilerFailedError),  # comes with the package
        ("<broken.h>", CompilerFailedError),  # a header of CUDA's, which includes a missing one
        ("<cublas_v2.h>", CompileError),  # comes with a package of the user's choice
        ('"mine.cuh"', CompileError),
    ],
)
def test_a_header_of_the_compilers_own_is_not_the_sources_fault(
    header, kind, tmp_path, monkeypatch
):
    (tmp_path / "broken.h").write_text("#include <nowhere.h>\n")
    monkeypatch.setattr(compiler, "include_folders", lambda: (str(tmp_path),))
    monkeypatch.setattr(compiler, "include_options", lambda folder: (f"-I{tmp_path}",))
    error = failure(f"#include {header}\n{SCALE}", "k.cu")
    assert type(error) is kind and "cannot open source file" in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("NVRTC_ERROR_BUILTIN_OPERATION_FAILURE", CompilerFailedError),
        ("NVRTC_ERROR_INVALID_OPTION", CompileError),
    ],
)
def test_a_failure_inside_the_compiler_is_none_of_the_source(code, kind):
    log = "nvrtc: error: failed to open libnvrtc-builtins.so.12.9."
    assert type(describe_failure(SCALE, "k.cu", log, (), code)) is kind


def test_only_a_line_feed_ends_a_line():
    """NVRTC counts so: a form feed or U+2028 in a comment moves no line that is quoted."""
    for mark in ("\f", "\v", "\x1c", "\x85", "\u2028", "\r"):
        error = failure(f"// a{mark}b\n__global__ void k(int* x) {{\n  x[0] = 1\n}}\n", "k.cu")
        assert "     3 |   x[0] = 1\n" in str(error), repr(mark)
    assert lines_of("a\r\n\n b \f\n") == ["a", "", " b \f"]


def test_without_nvrtc_the_package_is_named(monkeypatch):
    from cupy.cuda import nvrtc

    def broken():
        raise RuntimeError("CuPy failed to load libnvrtc.so.12")

    monkeypatch.setattr(nvrtc, "getVersion", broken)
    with pytest.raises(CompilerMissingError, match=r"pip install nvidia-cuda-nvrtc(-cu12)?$"):
        compile_ptx(SCALE, options=("-DWITHOUT_NVRTC",))


def test_without_cupy_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with pytest.raises(CompilerMissingError, match="pip install cupy-cuda12x"):
        compile_ptx(SCALE, options=("-DWITHOUT_CUPY",))


def test_an_error_inside_a_header_of_cudas_does_not_ask_to_edit_it(tmp_path):
    header = tmp_path / "inner.h"
    header.write_text("")
    log = f'{header}(3): error: namespace "std" has no member "thing"\n  std::thing x;\n       ^\n'
    source, failed = f"#include <inner.h>\n{SCALE}", "NVRTC_ERROR_COMPILATION"
    mine = describe_failure(source, "k.cu", log, (), failed)
    cudas = describe_failure(source, "k.cu", log, (), failed, (str(tmp_path),))
    assert "not yours to edit" in str(cudas) and "not yours to edit" not in str(mine)
    assert "host code" not in str(cudas) + str(mine)
