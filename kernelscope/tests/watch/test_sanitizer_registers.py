"""Local variables in registers that are read before they are set, beside kernels that set them."""

import random
from collections import defaultdict

import pytest
from kernelscope.module import RawModule
from kernelscope.watch import Sanitizer
from kernelscope.watch.sanitizer.unset.unassigned import plan_of
from watch_harness import kernels, launch, run

HEAD = """struct Pair { int x, y; };
__device__ void maybe_set(int& r, int t) { if (t < 16) r = t; }
__device__ void set(int& r, int t) { r = t; }
__device__ int partly(int t) { int r; if (t < 16) r = t; return r; }
__device__ int always(int t) { int r = 0; if (t < 16) r = t; return r; }
__device__ int twice(int v) { return v + v; }
__device__ int second(int u, int v) { return v; }
__device__ int swapped(Pair p) { return p.y; }
"""


def table(text):
    """Rows by name: a line "name | cells", the wrong lines and, behind "---", the clean ones."""
    rows = [row.split("\n", 1) for row in text.strip().split("\n\n")]
    return {
        first.split(" | ")[0]: (*first.split(" | ")[1:], *rest.split("\n---\n"))
        for first, rest in rows
    }


# name | variable | place of the line, from 0 | threads that have not set it
#   wrong lines --- clean lines
PAIRS = table("""
a scalar | s | 1 | 64
float s;
b[t] = s;
---
float s = 0;
b[t] = s;

arithmetic with a scalar | s | 1 | 64
float s;
b[t] = s * 2;
---
float s = 1;
b[t] = s * 2;

added to itself | s | 1 | 64
float s;
s += a[t];
b[t] = s;
---
float s = 0;
s += a[t];
b[t] = s;

an accumulator | sum | 1 | 64
float sum;
for (int i = 0; i < 5; ++i) sum += a[i];
b[t] = sum;
---
float sum = 0;
for (int i = 0; i < 5; ++i) sum += a[i];
b[t] = sum;

a maximum | best | 1 | 64
int best;
for (int i = 0; i < 5; ++i) best = max(best, a[i]);
b[t] = best;
---
int best = a[0];
for (int i = 0; i < 5; ++i) best = max(best, a[i]);
b[t] = best;

half of the threads | v | 2 | 32
int v;
if (t < 32) v = a[t];
b[t] = v + 1;
---
int v;
if (t < 32) v = a[t];
if (t < 32) b[t] = v + 1;

one branch of two | v | 2 | 32
int v;
if (t < 32) v = a[t]; else if (t < 0) v = 1;
b[t] = v;
---
int v;
if (t < 32) v = a[t]; else v = 1;
b[t] = v;

a switch without a default | v | 2 | 16
int v;
switch (t % 4) { case 0: v = 1; break; case 1: v = 7; break; case 3: v = 9; }
b[t] = v;
---
int v;
switch (t % 4) { case 0: v = 1; break; case 1: v = 7; break; default: v = 9; }
b[t] = v;

a double | d | 2 | 32
double d;
if (t < 32) d = a[t];
b[t] = d > 3;
---
double d;
if (t < 32) d = a[t]; else d = -1;
b[t] = d > 3;

a long long | d | 1 | 64
long long d;
for (int i = 0; i < 3; ++i) d += a[i];
b[t] = d;
---
long long d{};
for (int i = 0; i < 3; ++i) d += a[i];
b[t] = d;

a pointer | p | 2 | 32
int* p;
if (t < 32) p = a + t;
b[t] = *p;
---
int* p = a;
if (t < 32) p = a + t;
b[t] = *p;

an index | i | 1 | 64
int i;
b[i] = 1;
---
int i = t;
b[i] = 1;

a condition | found | 2 | 61
bool found;
for (int i = 0; i < 3; ++i) if (a[i] == t - 60) found = true;
if (found) b[t] = 1;
---
bool found = false;
for (int i = 0; i < 3; ++i) if (a[i] == t - 60) found = true;
if (found) b[t] = 1;

a condition that is nowhere set | ready | 1 | 64
bool ready;
if (ready) b[t] = 1;
---
bool ready = t < 3;
if (ready) b[t] = 1;

a loop's counter | i | 0 | 64
for (int i; i < 3; ++i) b[3 * t + i] = 1;
---
for (int i = 0; i < 3; ++i) b[3 * t + i] = 1;

a counter set by the loop | i | 1 | 64
int i;
while (i < 3) ++i;
b[t] = i;
---
int i;
for (i = 0; i < 3; ++i) {}
b[t] = i;

a member | p.y | 2 | 64
Pair p;
p.x = 1;
b[t] = p.x + p.y;
---
Pair p;
p.x = 1, p.y = 2;
b[t] = p.x + p.y;

by reference | v | 2 | 48
int v;
maybe_set(v, t);
b[t] = v + 1;
---
int v;
set(v, t);
b[t] = v + 1;

returned by value | - | 0 | 48
b[t] = partly(t) + 1;
---
b[t] = always(t) + 1;

an argument | v | - | 32
int v;
if (t < 32) v = t;
b[t] = twice(v);
---
int v;
if (t < 32) v = t;
b[t] = second(v, t);

an argument of CUDA's functions | v | 2 | 32
float v;
if (t < 32) v = t;
b[t] = fmaf(2.0f, 3.0f, v);
---
float v = 1;
if (t < 32) v = t;
b[t] = fmaf(2.0f, 3.0f, v);

added by an atomic | v | 2 | 32
int v;
if (t < 32) v = 1;
atomicAdd(b, v);
---
int v;
if (t < 32) v = 1;
if (t < 32) atomicAdd(b, v);

copied before it is set | last | 2 | 64
int now, last;
for (int i = 0; i < 1; ++i) { last = now; now = a[i]; }
b[t] = last + now;
---
int now, last;
for (int i = 0; i < 4; ++i) { last = now; now = a[i]; }
b[t] = last + now;

stored in an array | x | 4 | 64
int v, x[2];
if (t < 0) v = 1;
x[t & 1] = 2;
x[0] = v;
b[t] = x[a[t] & 0];
---
int v, x[2];
if (t < 0) v = 1;
x[0] = v;
x[t & 1] = x[~t & 1] = 2;
b[t] = x[a[t] & 0];

the last tile | v | 2 | 24
for (int c = t; c < 104; c += 64) {
int v; if (c < 80) v = a[c];
b[c] = v + 1; }
---
for (int c = t; c < 104; c += 64) {
int v = 0; if (c < 80) v = a[c];
b[c] = v + 1; }

a lane of a shuffle | v | 2 | 32
int v;
if (t % 32 < 16) v = t;
b[t] = v + __shfl_xor_sync(~0u, v, 1);
---
int v;
if (t % 32 < 16) v = t;
v = __shfl_sync(~0u, v, t % 16);
b[t] = v + 1;
""")


def body(text):
    return f"const int t = threadIdx.x;\n{text}"


@pytest.fixture(scope="module")
def compiled():
    texts = [body(text) for *_, wrong, clean in PAIRS.values() for text in (wrong, clean)]
    return kernels(tuple(texts), head=HEAD)


@pytest.mark.parametrize("name", PAIRS)
def test_a_variable_without_a_value_is_found(compiled, name):
    variable, place, count, wrong, _ = PAIRS[name]
    found = launch(compiled[body(wrong)], Sanitizer()).findings
    first = next(f for f in found if f.kind == "uninitialised-read")
    name = variable.strip("-")
    assert (first.severity, first.array, first.count) == ("error", name, int(count))
    if place != "-":  # else in a function
        assert first.line_text == wrong.splitlines()[int(place)].strip()
    assert f" {name}" in first.message
    assert all(f.kind in ("uninitialised-read", "out-of-bounds", "race") for f in found)


@pytest.mark.parametrize("name", PAIRS)
def test_its_neighbour_is_clean(compiled, name):
    assert launch(compiled[body(PAIRS[name][-1])], Sanitizer()).findings == []


@pytest.mark.parametrize(
    "text, line",
    [
        ("int scale, s = 0;\nfor (int i = 0; i < 3; ++i)\ns += a[i] * scale;\nb[t] = s;", 3),
        ("double s = 0; float low;\nfor (int i = 0; i < 3; ++i)\ns += a[i] - low;\nb[t] = s;", 3),
        ("int first;\nfor (int i = 0; i < 3; ++i)\nb[t] += a[i + first];", 3),
        ("int v;\nb[t] = v + 1;\nv = 3;\nb[t] += v;", 2),
    ],
)
def test_a_use_that_the_compiler_has_folded_is_found(text, line):
    (found,) = findings(text)
    assert (found.kind, found.line_text) == ("uninitialised-read", text.splitlines()[line - 1])


@pytest.mark.parametrize(
    "text",
    [
        "constexpr int K = 5; for (int i = 0; i < K; ++i) b[t] += a[i + K];",
        "constexpr int K{5};\nb[t] = a[t] * K;",
        "const int k = 3, j = k; b[t] = k; b[t] = k * j;",
        "int v; // v * 3 is not computed\nb[t] = t;",
        "int v;\nif (sizeof(v) == 4) b[t] = sizeof(v) + 1;",
        "int v; auto set = [&] { v = 3; }; set();\nb[t] = v + 1;",
    ],
)
def test_a_constant_is_a_value(text):
    assert findings(text) == []


def test_a_variable_that_is_only_passed_on_is_not_folded():
    assert findings("int tag;\nb[t] = second(tag, t);") == []
    assert findings("int v, w = v;\nw = 3;\nb[t] = w;") == []


def findings(text, **options):
    return run(body(text), Sanitizer(), head=HEAD, **options).findings


def test_the_message_names_the_thread_the_others_and_a_declaration():
    (found,) = findings("float v;\nif (t != 5) v = a[t];\nb[t] = v + 1;")
    assert found.threads == (((0, 0, 0), (5, 0, 0)),)
    assert found.message.endswith("(5, 0, 0) reads v, which it has not set; 63 other threads have")
    assert "`float v = 0.0f;`" in found.remedy


@pytest.mark.parametrize(
    "declared, text",
    [
        ("unsigned n", "unsigned int n = 0;"),
        ("bool n", "bool n = false;"),
        ("double n", "double n = 0.0;"),
        ("const int* n", "const int* n = nullptr;"),
    ],
)
def test_the_remedy_shows_the_declaration(declared, text):
    used = "*n" if "*" in declared else "n + 1"
    value = "a" if "*" in declared else "1"
    found = findings(f"{declared};\nif (t < 9) n = {value};\nb[t] = {used};")[0]
    assert f"such as `{text}`" in found.remedy


def test_a_variable_is_reported_once_for_a_thread():
    found = findings("int v;\nif (t < 32) v = 1;\nb[t] = v + 1;\nb[t] += v * 2;\nb[t] += v;")
    assert [(f.line_text, f.count) for f in found] == [("b[t] = v + 1;", 32)]


def test_a_use_inside_a_function_names_the_call():
    (found,) = findings("int v;\nif (t < 32) v = t;\nb[t] = twice(v);")
    assert found.line_text.startswith("__device__ int twice(int v)")
    assert "`b[t] = twice(v);`" in found.called


def test_a_function_s_result_is_named():
    (found,) = findings("b[t] = partly(t) + 1;")
    assert "the result of partly()" in found.message


def test_a_function_behind_a_pointer_gets_the_values_that_it_is_given():
    text = """int (*f)(int) = a[9] ? twice : (int (*)(int))0;
    int v;
    if (a[0]) v = twice(v);
    v = 3;
    b[t] = f(v) + twice(v);"""
    assert findings(text) == []
    (found,) = findings(text.replace("if (a[0]) v", "v"))
    assert found.count == 64


def test_a_store_to_shared_memory_is_a_use():
    shared = "__shared__ int s[64];\nint v;\nif (t < 9) v = t;\ns[t] = v;"
    (found,) = findings(shared)
    assert (found.line_text, found.count) == ("s[t] = v;", 55)


def test_a_function_that_is_called_again_has_new_variables():
    (found,) = findings("for (int i = 0; i < 2; ++i) b[t] += partly(t / (4 >> i)) + 1;", block=64)
    assert found.count == 32, "threads 32 to 63 in the second round, although they set it before"


@pytest.mark.parametrize(
    "loop",
    [
        "{ int v; int r = 0; do { if (r == 0) v = t; b[t] = v + 1; } while (++r < 3); }",
        "{ int v; for (int r = 0; r < 3; ++r) { if (r == 0) v = t; b[t] = v + 1; } }",
        "int r = 0; if (a[9]) { int v; while (r < 3) { if (r == 0) v = t; b[t] = v + 1; ++r; } }",
        "if (a[9]) { int v, r = 0; for (;;) { if (!r) v = t; b[t] = v + 1; if (++r > 2) break; } }",
    ],
)
def test_a_variable_around_a_loop_keeps_its_value(loop):
    assert findings(loop) == []


def test_inline_assembly_sets_what_it_names():
    predicated = (
        "int u, v;\n"
        'asm("{ .reg .pred p; setp.lt.s32 p, %1, 9; @p mov.u32 %0, 5; }" : "=r"(u) : "r"(t));\n'
        "if (t < 9) b[t] = u + 1;\n"
        'asm("mov.b32 %0, %1;" : "=r"(v) : "r"(t));\nb[t] += v;'
    )
    assert findings(predicated) == []
    (found,) = findings(predicated.replace("if (t < 9) b", "b"))
    assert found.count == 55


def test_halves_of_a_wider_register_are_parts_of_a_copy():
    text = """int u, v;
    if (t < 9) u = t;
    v = 3;
    long long w;
    asm("mov.b64 %0, {%1, %2};" : "=l"(w) : "r"(u), "r"(v));
    int x, y;
    asm("mov.b64 {%0, %1}, %2;" : "=r"(x), "=r"(y) : "l"(w));
    b[t] = y + 1;"""
    assert findings(text) == []


@pytest.mark.turns(47)
@pytest.mark.system
def test_lanes_without_data_may_stay_out_of_a_reduction_of_cub():
    head = "#include <cub/warp/warp_reduce.cuh>\n"
    text = body("""using Sum = cub::WarpReduce<int>;
    __shared__ Sum::TempStorage s[2];
    int v;
    if (t % 32 < 20) v = t;
    const int sum = Sum(s[t / 32]).Sum(v, 20);
    if (t % 32 == 0) b[t] = sum;""")
    assert run(text, Sanitizer(), head=head).findings == []


def test_clean_kernels_are_not_watched():
    code = 'extern "C" __global__ void k(float* x, int n) { float s = 0; int i; bool b;\n'
    code += "for (i = 0; i < n; ++i) { s += x[i]; b = s > 3; if (b) s = 1; } x[0] = s; }"
    module = RawModule(code=code, backend="simulator")
    assert not plan_of(module.program("debug"), "k")
    unset = RawModule(code=code.replace("s = 0", "s"), backend="simulator")
    assert plan_of(unset.program("debug"), "k")
    assert not plan_of(unset.program("optimised"), "k")


# -- random kernels --------------------------------------------------------------------------------
class RandomKernel:
    """A random kernel whose variables may be unset, and an interpreter of one of its threads.

    It reads variables by arithmetic and by copies, in branches and loops.
    """

    THREADS = 40

    def __init__(self, seed):
        self.random, self.lines, self.count = random.Random(seed), [], 0
        self.body = self.block((), (), 3)
        self.write(self.body)

    def block(self, names, loops, depth):
        names, found, pick = list(names), [], self.random
        for _ in range(pick.randint(2, 5)):
            kind = pick.choices(
                "declare set copy use if loop leave".split(), (4, 4, 4, 3, 3, 2, 1)
            )[0]
            self.count += 1
            if kind == "declare" or not names:
                found.append(["declare", f"v{self.count}", pick.choice((None, None, 7))])
                names.append(f"v{self.count}")
            elif kind == "set":
                found.append(["set", pick.choice(names)])
            elif kind == "copy":
                form = pick.choice(("{}", "same({}, t)", "__shfl_sync(__activemask(), {}, t)"))
                found.append(["copy", pick.choice(names), pick.choice(names), form])
            elif kind == "use":
                found.append(["use", pick.choice(names), 0])
            elif kind == "if" and depth:
                sides = [self.block(names, loops, depth - 1) for _ in range(pick.randint(1, 2))]
                found.append(["if", self.condition(loops), *sides])
            elif kind == "loop" and depth:
                name, form = f"i{self.count}", pick.choice(("for", "while", "do"))
                inner = self.block(names, (*loops, name), depth - 1)
                found.append(["loop", name, pick.randint(1, 4), form, inner])
            elif kind == "leave" and loops:
                found.append([pick.choice(("break", "continue")), self.condition(loops)])
        return found

    def condition(self, loops):
        pick = self.random
        a, b, c, d = pick.randint(1, 7), pick.randint(0, 9), pick.randint(2, 5), pick.randint(1, 3)
        return f"({pick.choice(('t', *loops))} * {a} + {b}) % {c} < {d}"

    def write(self, block):
        for one in block:
            match one:
                case "declare", name, value:
                    self.lines.append(f"int {name}{f' = {value}' if value else ''};")
                case "set", name:
                    self.lines.append(f"{name} = a[t];")
                case "copy", to, source, form:
                    self.lines.append(f"{to} = {form.format(source)};")
                case "use", name, _:
                    self.lines.append(f"b[t] += {name} * 3;")
                    one[2] = len(self.lines)
                case "if", condition, *sides:
                    for before, side in zip(
                        (f"if ({condition}) {{", "} else {"), sides, strict=False
                    ):
                        self.lines.append(before)
                        self.write(side)
                    self.lines.append("}")
                case "loop", name, count, form, inner:
                    heads = {
                        "for": f"for (int {name} = 0; {name} < {count}; ++{name}) {{",
                        "while": f"int {name} = -1; while (++{name} < {count}) {{",
                        "do": f"int {name} = 0; do {{",
                    }
                    self.lines.append(heads[form])
                    self.write(inner)
                    self.lines.append(f"}} while (++{name} < {count});" if form == "do" else "}")
                case leave, condition:
                    self.lines.append(f"if ({condition}) {leave};")

    def unset_uses(self):
        """{line of the body: the threads that read there what they have not set}."""
        found = defaultdict(set)
        for thread in range(self.THREADS):
            self.run(self.body, {"t": thread}, found)
        return found

    def run(self, block, known, found):
        """known: whether each variable is set, and the values of t and of the counters."""
        for one in block:
            match one:
                case "declare", name, value:
                    known[name] = value is not None
                case "set", name:
                    known[name] = True
                case "copy", to, source, _:
                    known[to] = known[source]
                case "use", name, line:
                    if not known[name]:
                        found[line].add(known["t"])
                case "if", condition, *sides:
                    side = sides[:1] if eval(condition, {}, known) else sides[1:]
                    if side and (left := self.run(side[0], known, found)):
                        return left
                case "loop", name, count, _, inner:
                    for known[name] in range(count):
                        if self.run(inner, known, found) == "break":
                            break
                case leave, condition:
                    if eval(condition, {}, known):
                        return leave
        return None


@pytest.mark.turns(59)
@pytest.mark.system
def test_random_kernels_are_blamed_for_what_they_do():
    """No thread is blamed that has set the variable; in nearly every wrong kernel somebody is."""
    made = [RandomKernel(seed) for seed in range(60)]
    head = "__device__ int same(int v, int t) { return v; }"
    texts = [body("\n".join(one.lines)) for one in made]
    compiled = kernels(tuple(texts), head=head)
    wrong = missed = 0
    for kernel, text in zip(made, texts, strict=True):
        right = kernel.unset_uses()
        found = launch(compiled[text], Sanitizer(), block=kernel.THREADS).findings
        wrong, missed = wrong + bool(right), missed + (bool(right) and not found)
        for finding in found:
            same = [at for at in right if kernel.lines[at - 1] == finding.line_text]
            threads = {thread[0] for _, thread in finding.threads}
            assert same, (kernel.lines, finding)
            assert threads <= set().union(*(right[at] for at in same)), (kernel.lines, finding)
    assert 10 < wrong < 50, "kernels of both kinds"
    assert missed <= 1
