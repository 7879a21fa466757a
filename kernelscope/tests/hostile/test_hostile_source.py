"""Source that means harm: it reads no foreign file, and its time, memory and output have ends."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from kernelscope import RawModule, Sanitizer, budget, observe
from kernelscope.compile import CompileError, allowed, compile_ptx, default_arch
from kernelscope.compile import nvrtc as compiler
from kernelscope.errors import CompilerFailedError, Hang, SimulatorError, TooLarge
from kernelscope.ptx.parser import ParseError, parse
from kernelscope.translate.program import Program

pytestmark = pytest.mark.system

SECONDS = 0.5
K = 'extern "C" __global__ void k(float* x) '
LATE = "ran longer than 0.5 s.*KERNELSCOPE_TIMEOUT"
BIG = "KERNELSCOPE_MEMORY"


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """Small limits; without them most of these sources take minutes, or all memory."""
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")
    monkeypatch.delenv("KERNELSCOPE_COMPILED", raising=False)
    monkeypatch.setenv(budget.TIMEOUT, "60")
    monkeypatch.setenv(budget.MEMORY, "300M")
    monkeypatch.setenv(budget.OUTPUT, "100K")


def call(source: str, grid=1, block=32, seconds: float | None = None, observers=()) -> np.ndarray:
    """Compile and run kernel k; return its array. seconds: the limit on the run alone."""
    x = np.zeros(4096, np.float32)
    grid = grid if isinstance(grid, tuple) else (grid,)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(budget.TIMEOUT, "60")
        module = RawModule(code=source)
        kernel = module.get_function("k")
        module.program()
        patch.setenv(budget.TIMEOUT, str(seconds or 60))
        with observe(*observers):
            kernel(grid, (block,), (x,))
    return x


# -- the compiler ----------------------------------------------------------------------------------

TEMPLATES = """template<int N, int M> struct S {
  static const int v = S<N-1, 2*M>::v + S<N-1, 2*M+1>::v;
};
template<int M> struct S<0, M> { static const int v = 1; };
"""
MACROS = "#define A0 1+\n" + "".join(f"#define A{i + 1} {f'A{i} ' * 8}\n" for i in range(9))
COMPILER_BOMBS = {
    "templates": TEMPLATES + K + "{ x[0] = S<40, 0>::v; }",
    "macros": MACROS + K + "{ x[0] = A9 1; }",
    "parentheses": f"{K}{{ x[0] = {'(' * 100000}1{')' * 100000}; }}",
    "zeros": f"__device__ int a[1 << 28] = {{1}};{K}{{ x[0] = a[1]; }}",
    "constant expression": "constexpr int f() { for (long i = 0;; ++i) if (i < 0) return 1; }"
    f"{K}{{ constexpr int a = f(); x[0] = a; }}",
    "itself": '#include "k.cuh"\n' + K + "{ x[0] = 1; }",
}


@pytest.mark.turns(47)
@pytest.mark.parametrize("name", COMPILER_BOMBS)
def test_compiling_ends(name, tmp_path, monkeypatch):
    (tmp_path / "k.cuh").write_text('#include "k.cuh"\n#include "k.cuh"\n')
    (tmp_path / "k.cu").write_text(COMPILER_BOMBS[name])
    monkeypatch.setenv(budget.TIMEOUT, "5")
    start = time.monotonic()
    with pytest.raises(CompileError, match=r"^(.*/k\.cuh?)(:\d+: error)?: ") as caught:
        RawModule(path=tmp_path / "k.cu").get_function("k")
    assert time.monotonic() - start < 20
    broken = ("ran longer", "broke down")
    failed = isinstance(caught.value, CompilerFailedError)
    assert failed == any(word in str(caught.value) for word in broken)
    assert call(K + "{ x[0] = 3; }")[0] == 3  # the compiler works on


def test_a_slow_compiler_is_ended_in_time_and_says_so(monkeypatch):
    monkeypatch.setenv(budget.MEMORY, "4G")
    monkeypatch.setenv(budget.TIMEOUT, str(SECONDS))
    start = time.monotonic()
    with pytest.raises(CompileError, match="compiler ran longer than 0.5 s.*KERNELSCOPE_TIMEOUT"):
        compile_ptx(COMPILER_BOMBS["templates"])
    assert time.monotonic() - start < 20 * SECONDS


@pytest.mark.parametrize("use", ["kernels", "get_function"])
def test_both_builds_of_a_bomb_share_one_limit(use, monkeypatch):
    """The optimised build stands in for a debug build that fails, not for one without an end."""
    monkeypatch.setenv(budget.MEMORY, "4G")
    monkeypatch.setenv(budget.TIMEOUT, "1")
    module = RawModule(code=COMPILER_BOMBS["templates"])
    start = time.monotonic()
    with pytest.raises(CompilerFailedError, match="ran longer than 1 s"):
        module.kernels if use == "kernels" else module.get_function("k")
    assert time.monotonic() - start < 1.8


INTERRUPTED = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
os.environ["KERNELSCOPE_BACKEND"] = "simulator"
from kernelscope.compile import compile_ptx
from kernelscope.compile.compiler import _idle
compile_ptx("__global__ void k() {}")
print(_idle[0].process.pid, flush=True)
try:
    compile_ptx(sys.argv[1])
except KeyboardInterrupt:
    print("interrupted", len(_idle), flush=True)
"""


def test_ctrl_c_ends_the_compiler_at_once(monkeypatch):
    monkeypatch.setenv(budget.MEMORY, "4G")
    command = [sys.executable, "-c", INTERRUPTED, COMPILER_BOMBS["templates"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        server = int(process.stdout.readline())
        time.sleep(0.3)  # it compiles now
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted 0\n"
        assert time.monotonic() - start < 1
        process.wait(10)
    assert has_ended(server)


def has_ended(group: int) -> bool:
    """Whether all processes of a group end within some seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        states = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, number = stat.read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue  # it has just ended
            if number == str(group) and state != "Z":
                states.append(state)
        if not states:
            return True
        time.sleep(0.05)
    return False


def test_the_compiler_ends_with_the_process_that_started_it(monkeypatch):
    monkeypatch.setenv(budget.MEMORY, "4G")
    command = [sys.executable, "-c", INTERRUPTED, COMPILER_BOMBS["templates"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        server = int(process.stdout.readline())
        time.sleep(0.3)
        process.kill()
        process.wait(10)
    assert has_ended(server)


FORKED = """
import os
from kernelscope.compile import compile_ptx
compile_ptx("__global__ void before() {}")
child = os.fork()
assert "either" in compile_ptx("__global__ void either() {}").ptx
if child:
    assert os.waitpid(child, 0)[1] == 0
    assert "after" in compile_ptx("__global__ void after() {}").ptx
"""


@pytest.mark.turns(17)
def test_both_processes_of_a_fork_compile(monkeypatch):
    monkeypatch.setenv(budget.TIMEOUT, "inf")
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED]).returncode == 0


# -- files -----------------------------------------------------------------------------------------

FOREIGN = [
    '#include "{0}"',
    "#include <{0}>",
    '# /* a\ncomment */ include "{0}"',
    '%:include "{0}"',
    '#in\\\nclude "{0}"',
    '#include "../secret.h"',
    '#include "link.h"',
    "#define FILE_NAME <{0}>\n#include FILE_NAME",
    "#include __FILE__",
    "#if __has_include(<{0}>)\n#endif",
    '#if 0\ndon\'t\n#endif\n#include "{0}"',
    'const char c = \'"\'; /* \' */\n#include "{0}"\n// "',
    "int n = 1'0; char c = '/*';\n#include \"{0}\"\nchar d = '*/';",
    'const char* s = R"x(/*)x";\n#include "{0}"\n/* */',
    '#include "beside.h"',
    '#include "/dev/zero"',
    '#include "pipe"',
]


@pytest.mark.parametrize("text", FOREIGN)
def test_no_file_outside_the_folders_is_read(text, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    secret = tmp_path / "secret.h"
    secret.write_text("the_secret is here;\n")
    (home / "link.h").symlink_to(secret)
    (home / "beside.h").write_text(f'\n#include "{secret}"\n')
    os.mkfifo(home / "pipe")
    file = home / "k.cu"
    file.write_text(text.format(secret) + "\n" + K + "{ x[0] = 1; }")
    with pytest.raises(CompileError, match=r"(k\.cu|beside\.h):\d+: error: ") as caught:
        RawModule(path=file).get_function("k")
    assert "hint: " in str(caught.value) and "the_secret" not in str(caught.value)
    number = caught.value.line
    text = (home / os.path.basename(caught.value.file)).read_text().split("\n")[number - 1]
    assert re.search("in|#", text)


# Where the check of the text is passed by, the kernel of the system keeps the files closed.
@pytest.mark.parametrize("text", FOREIGN[:7])
def test_the_compilers_process_can_not_read_them(text, tmp_path, monkeypatch):
    if not landlock():
        pytest.skip("this kernel has no Landlock")
    secret = tmp_path / "secret.h"
    secret.write_text("the_secret is here;\n")
    monkeypatch.setattr(compiler, "check_includes", lambda *arguments: None)
    with pytest.raises(CompileError, match="cannot open source file") as caught:
        compile_ptx(text.format(secret) + "\n", folder=str(tmp_path / "home"))
    assert "the_secret" not in str(caught.value)


def landlock() -> bool:
    """Whether the system keeps a process from files."""
    code = """
        import sys
        from kernelscope.landlock import allow_reading
        sys.exit(not allow_reading([]))
    """
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)]).returncode == 0


def test_files_of_allowed_folders_are_read(tmp_path):
    home, other = tmp_path / "home", tmp_path / "other"
    for folder in (home / "inner", other):
        folder.mkdir(parents=True)
    (home / "inner" / "a.h").write_text('#include "../b.h"\n')
    (home / "b.h").write_text('#include "c.h"\n#define ONE C\n')
    (other / "c.h").write_text("#define C 1\n")
    file = home / "k.cu"
    odd = '// #include "/etc/passwd"\n/*\n#include "/etc/passwd"\n*/\n'
    raw = 'const char* s = R"(\n#include "/etc/passwd"\n)";\n#ifdef __has_include\n#endif\n'
    source = f'{odd}{raw}#include "inner/a.h"\n#include <cuda_fp16.h>\n{K}{{ x[0] = ONE; }}'
    file.write_text(source)
    with pytest.raises(CompileError, match='cannot open source file "c.h"'):
        RawModule(path=file).get_function("k")
    options = ("-std=c++17", "-I", os.path.relpath(other))
    x = np.zeros(1, np.float32)
    RawModule(path=file, options=options).get_function("k")((1,), (1,), (x,))
    assert x[0] == 1


def test_the_line_of_an_include_is_found():
    text = '/* a\n b */ int x;\\\n\n#in\\\nclude /* c\n */ "d.h"\n\n#include M\n'
    assert [(line, found.strip()) for line, found in allowed.includes_of(text)] == [
        (4, '"d.h"'),
        (8, "M"),
    ]


def test_the_compiler_writes_no_file(tmp_path):
    file = tmp_path / "times.csv"
    try:
        compile_ptx("__global__ void k() {}", options=(f"--time={file}",))
    except CompileError:
        pass
    assert not file.exists()


# -- text ------------------------------------------------------------------------------------------


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    source = K + "{ x[0] = 1; }"
    assert call("\ufeff" + source)[0] == 1
    file = tmp_path / "k.cu"
    file.write_text(source, encoding="utf-8-sig")
    assert RawModule(path=file).get_function("k").name == "k"


@pytest.mark.parametrize("name", ["k.cu", "h.h"])
def test_text_of_another_encoding_is_refused_with_its_line(name, tmp_path):
    (tmp_path / "h.h").write_text("#define H\n")
    (tmp_path / "k.cu").write_text(f'#include "h.h"\n{K}{{ }}')
    with open(tmp_path / name, "ab") as file:
        file.write(b"\n// caf\xe9\n")
    with pytest.raises(ValueError, match=rf"{name}:[34]: byte 0xe9 is not UTF-8"):
        RawModule(path=tmp_path / "k.cu").get_function("k")


@pytest.mark.parametrize(("end", "what"), [("\0", "a NUL"), ("\ud800", "half a pair")])
def test_what_the_compiler_would_not_see_is_refused(end, what):
    with pytest.raises(CompileError, match=f"kernel.cu:2: error: {what}"):
        call(f"{K}{{ }}\n{end} int hidden;")


def test_blank_lines_take_no_time():
    start = time.monotonic()
    assert default_arch("\n" * 100_000 + "// kernelscope: sm_90\n") == "compute_90"
    assert time.monotonic() - start < 2  # 0.01 s; it was more than 30 s


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: RawModule(code=b""), "code is of type bytes"),
        (lambda: RawModule(code=K, options=None), "options is None; it must be a tuple"),
        (lambda: RawModule(code=K, options="-DA"), "options is '-DA'"),
        (lambda: RawModule(code=K + "{ }").get_function(None), "name is None"),
    ],
)
def test_wrong_types_are_named(wrong, words):
    with pytest.raises(TypeError, match=words):
        wrong()


def test_an_option_with_a_nul_is_refused():
    with pytest.raises(ValueError, match=r"options has '-DA\\x00'"):
        RawModule(code=K, options=("-DA\0",))


# -- running ---------------------------------------------------------------------------------------

CALLS = "".join(
    f"__device__ __noinline__ int f{i}(int n) {{ volatile int v = n; return "
    + (f"f{i - 1}(v) + f{i - 1}(v + 1); }}\n" if i else "v; }\n")
    for i in range(40)
)
RUNS = {
    "grid": ("{ if (threadIdx.x == 0) x[0] += 1; }", (2**31 - 1, 65535, 65535), 32, Hang, LATE),
    "loop": ("{ for (long i = 0; i < 1l << 60; ++i) x[0] += i; }", 1, 1, Hang, LATE),
    "calls": ("{ x[0] = f39(x[0]); }", 1, 32, Hang, LATE),
    "atomics": ("{ for (;;) atomicAdd((unsigned*)x, 1u); }", 32, 1024, Hang, LATE),
    "variable": (
        "{ g[0] = 1; x[0] = g[1]; }",
        1,
        32,
        TooLarge,
        f"g needs 7.45 GiB for a __dev.*{BIG}",
    ),
    "stack": (
        "{ char a[400000]; for (int i = 0; i < 400000; ++i) a[i] = x[0]; x[0] = a[int(x[1])]; }",
        *(1, 1024, TooLarge, f"390 MiB for the shared and local memory of 1 block;.*{BIG}"),
    ),
    "endless printing": (
        '{ for (long i = 0;; ++i) printf("%ld\\n", i); }',
        1,
        1024,
        TooLarge,
        "100 KiB.*OUT",
    ),
    "wide printing": ('{ printf("%999999999d", 1); }', 1, 1, TooLarge, "printf of k writes"),
    "long digits": ('{ printf("%.2147483647f", 1.0); }', 1, 1, TooLarge, "printf of k writes"),
    "width argument": ('{ printf("%*d", 2147483647, 1); }', 1, 1, TooLarge, "printf of k writes"),
    "registers": ('{ asm("{.reg .b32 r<1000000000>;}"); }', 1, 1, ParseError, "1000000000 reg"),
    "scopes": (f'{{ asm("{"{" * 9999}{"}" * 9999}"); }}', 1, 1, ParseError, "more than 256 scopes"),
    "operands": (f'{{ asm("mov.u32 {"(" * 99999};"); }}', 1, 1, ParseError, "nested too deeply"),
    "local": ('{ asm("{.local .b8 b[99999999999];}"); }', 1, 1, TooLarge, "93.1 GiB"),
    "negative": ('{ asm("{.local .b8 b[-9];}"); }', 1, 1, ParseError, "negative size"),
}
BEFORE = {"calls": CALLS, "variable": "__device__ char g[8000000000ll];\n"}


@pytest.mark.turns(17)
@pytest.mark.parametrize("name", RUNS)
def test_running_ends(name, capsys):
    body, grid, block, error, words = RUNS[name]
    start = time.monotonic()
    with pytest.raises(error, match=words):
        call(BEFORE.get(name, "") + K + body, grid, block, SECONDS if words == LATE else 60)
    assert time.monotonic() - start < 20 * SECONDS
    assert len(capsys.readouterr().out) <= 100 << 10


def test_straight_code_is_looked_at_between_its_parts(monkeypatch):
    adds = "add.f32 %0, %0, %0; " * 6000
    source = f'{K}{{ float s = x[0]; asm volatile("{adds}" : "+f"(s)); x[0] = s; }}'
    kernel, places = RawModule(code=source).get_function("k"), []
    kernel.module.program().executable("k")
    monkeypatch.setattr(budget, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(budget.Budget, "check", lambda _, name, where, *_2: places.append(where()))
    kernel((1,), (1,), (np.zeros(1, np.float32),))
    assert len([place for place in places if "kernel.cu:1" in place]) > 6000 // 2048


def test_the_memory_of_an_observer_counts(monkeypatch):
    monkeypatch.setenv(budget.MEMORY, "1M")
    monkeypatch.setattr(budget, "LOOK_SECONDS", 0.0)
    kept = []

    class Keeping(Sanitizer):
        build = "optimised"

        def instruction(self, event):
            kept.append(np.ones(1 << 18))

    source = K + "{ for (int i = 0; i < 1000; ++i) x[0] += i * x[1]; }"
    with pytest.raises(SimulatorError, match=f"more than 1 MiB of memory.*at kernel.cu:1.*{BIG}"):
        call(source, observers=[Keeping()])
    assert 0 < len(kept) < 200


def test_the_limits_are_those_of_the_whole_call(monkeypatch):
    """Compiling, translating and running share one deadline, and so do calls in one `with`."""
    deadlines = []
    monkeypatch.setattr(
        budget.Budget, "remaining", lambda self: deadlines.append(self.deadline) or 60.0
    )
    with budget.call_budget() as whole:
        call(K + "{ x[0] = 11; }")
        call(K + "{ x[0] = 12; }")
    assert len(deadlines) == 4 and set(deadlines) == {whole.deadline}
    with budget.call_budget() as later:
        assert later is not whole


@pytest.mark.parametrize(("text", "size"), [("100", 100), ("1.5K", 1536), ("2G", 2 << 30)])
def test_sizes_have_units(text, size, monkeypatch):
    monkeypatch.setenv(budget.MEMORY, text)
    assert budget.Budget().memory_bytes == size


@pytest.mark.parametrize("text", ["lots", "-1", "1T", "1e9"])
def test_a_wrong_size_is_named(text, monkeypatch):
    monkeypatch.setenv(budget.OUTPUT, text)
    with pytest.raises(ValueError, match=f"KERNELSCOPE_OUTPUT is '{text}'.*500M"):
        call(K + "{ }")


@pytest.mark.parametrize(
    "text",
    [".global .b8 x[4000000000] = {1};", ".visible .entry k(.param .b8 p[99999999999]) {ret;}"],
)
def test_a_size_alone_takes_no_memory(text):
    head = ".version 8.0\n.target sm_80\n.address_size 64\n"
    module = parse(head + text)
    assert module.variables or module.functions
    if module.variables:
        with pytest.raises(TooLarge, match="3.73 GiB"):
            Program(head + text)
