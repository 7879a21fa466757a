"""Random kernels on the simulator against an oracle in plain Python, in both builds."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernelscope.differential.machines import Machine
from kernelscope.differential.random_code.kernels import OPTIONS, random_kernel
from kernelscope.differential.random_code.operations import OPERATIONS, rounded, wrap
from kernelscope.differential.random_code.printer import print_kernels
from kernelscope.differential.random_code.tree import (
    Apply,
    Assign,
    Atomic,
    Const,
    GroupFor,
    Load,
    Partition,
    Reduce,
    Shuffle,
    Together,
    Var,
    WarpVote,
)
from kernelscope.differential.sections import differing, run_random
from kernelscope.machine import warps

pytestmark = pytest.mark.system

ALL_LANES = np.uint32(0xFFFFFFFF)
BUILDS = ("optimised", "debug")
NAMES = ("words", "numbers", "counters", "tallies", "out")


def launch(kernels, build, warp_order=None):
    """The arrays of each kernel after a run on the simulator; one module holds all kernels."""
    machine = Machine("simulator", debug=build == "debug", warp_order=warp_order)
    module = machine.load_kernels(print_kernels(kernels), OPTIONS)
    return [run_random(machine, module, kernel) for kernel in kernels]


def assert_same(kernel, found, expected):
    for name, a, b in zip(NAMES, found, expected, strict=True):
        bad = np.argwhere(a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}"))
        assert not len(bad), (
            f"seed {kernel.seed}, grid {kernel.grid}, block {kernel.block}: "
            f"{name}{bad[0].tolist()} is {a[tuple(bad[0])]:#x}, expected {b[tuple(bad[0])]:#x}; "
            f"{len(bad)} differ"
        )


@pytest.mark.turns(41)
@pytest.mark.parametrize("first", range(0, 8, 4))
def test_both_builds_give_the_oracle_s_bits(first):
    kernels = [random_kernel(seed) for seed in range(first, first + 4)]
    expected = [kernel.expected() for kernel in kernels]
    for build in BUILDS:
        for kernel, found, right in zip(kernels, launch(kernels, build), expected, strict=True):
            assert_same(kernel, found, right)


@pytest.mark.turns(41)
def test_the_order_of_warps_does_not_matter():
    kernels = [random_kernel(s, block=(50 + s % 40,), grid=(2,)) for s in range(102, 106)]
    expected = [kernel.expected() for kernel in kernels]
    for order, build in enumerate(BUILDS):
        results = launch(kernels, build, warp_order=order)
        for kernel, found, right in zip(kernels, results, expected, strict=True):
            assert_same(kernel, found, right)


@pytest.mark.turns(41)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(200, 100_000),
    threads=st.integers(1, 100),
    blocks=st.integers(1, 3),
    rows=st.sampled_from((1, 1, 2, 3)),
)
def test_any_seed_in_any_shape(seed, threads, blocks, rows):
    block = (max(1, threads // rows), rows)
    kernel = random_kernel(seed, block=block, grid=(blocks,))
    (found,) = launch([kernel], BUILDS[seed % 2], seed % 3 or None)
    assert_same(kernel, found, kernel.expected())


def test_a_seed_is_one_kernel():
    assert random_kernel(5).source == random_kernel(5).source != random_kernel(6).source


def nodes_in(node):
    """All nodes of a tree."""
    if isinstance(node, tuple):
        yield node
        for part in node:
            yield from nodes_in(part)


@pytest.fixture(scope="module")
def trees():
    """The nodes of the first 96 kernels."""
    return [node for seed in range(96) for node in nodes_in(random_kernel(seed).body)]


def test_the_kernels_use_every_operation(trees):
    missing = set(OPERATIONS) - {node.operation.name for node in trees if isinstance(node, Apply)}
    assert len(missing) < len(OPERATIONS) // 20, sorted(missing)


def test_the_kernels_hold_what_has_been_wrong_before(trees):
    """Groups of a warp with masks of their own, scopes of atomics, structures by value."""
    partitions = [node for node in trees if isinstance(node, Partition)]
    inside = [part for partition in partitions for part in nodes_in(partition.body)]
    assert {p.kind for p in partitions} == {"tile", "label", "side"}
    assert {p.width for p in partitions if p.kind == "tile"} == {2, 4, 8, 16}
    assert {type(part) for part in inside} >= {Reduce, Shuffle, WarpVote, GroupFor, Partition}
    modes = {node.mode for node in inside if isinstance(node, WarpVote)}
    assert modes == {"all", "any", "ballot", "match_any", "match_all", "guarded"}
    scopes = {(node.space, node.scope) for node in trees if isinstance(node, Atomic)}
    counters = {("counters", scope) for scope in ("", "_system")}
    assert scopes == counters | {("tally", scope) for scope in ("", "_block", "_system")}
    structures = [helper[2] for seed in range(96) for helper in random_kernel(seed).helpers]
    assert {True, False} == set(structures)
    assert {node.array for node in trees if isinstance(node, Load)} >= {"packet", "words"}


# --- a wrong result is noticed --------------------------------------------------------------------


def changed(name, fn):
    operation = OPERATIONS[name]
    return type(operation)(name, operation.sources, operation.result, operation.template, fn)


def kernel_of(operation, *constants):
    """A kernel whose one statement applies the operation."""
    kernel = random_kernel(0, block=(33,), grid=(1,))
    sources = operation.sources
    odd = Apply(OPERATIONS["odd.u32"], (Var("u32", "lane"),))
    args = tuple(
        Const(k, c) if c is not None else odd if k == "b1" else Var(k, f"{k}_0")
        for k, c in zip(sources, constants, strict=True)
    )
    target = Var(operation.result, f"{operation.result}_0")
    return type(kernel)(1, (1,), (33,), (Assign(target, Apply(operation, args)),), (), False)


@pytest.mark.parametrize(
    ("name", "constants", "wrong"),
    [
        ("add.u32", (None, 7), lambda a, b: wrap("u32", a + b + 1)),
        ("shr.i32", (None, 3), lambda a, b: wrap("i32", (a & 0xFFFFFFFF) >> 3)),
        (
            "fma.f32",
            (None, np.float32(0.1), np.float32(1)),
            lambda a, b, c: np.float32(a * b) + c,
        ),  # rounded twice
        ("add.rp.f32", (None, np.float32(1e-6)), lambda a, b: a + b),  # rounded to nearest
        ("div.f64", (None, 3.0), lambda a, b: a * (1 / b)),
        ("guarded_select", (None, None, 3), lambda p, a, b: a),
        ("i32.rz.f32", (None,), lambda x: int(np.floor(x)) if abs(x) < 2**31 else 0),
    ],
)
def test_a_wrong_oracle_is_found(name, constants, wrong):
    right = kernel_of(OPERATIONS[name], *constants)
    (found,) = launch([right], "optimised")
    assert_same(right, found, right.expected())
    with pytest.raises(AssertionError):
        assert_same(right, found, kernel_of(changed(name, wrong), *constants).expected())


def test_lanes_outside_a_gathering_keep_their_values():
    """A condition that holds in no lane leaves every variable as it was."""
    never = Apply(OPERATIONS["lt.u32"], (Const("u32", 1), Const("u32", 1)))
    base = random_kernel(0)
    body = (Together(never, (Assign(Var("u32", "u32_0"), Const("u32", 5)),)),)
    kernel = type(base)(3, (2,), (40,), body, (), False)
    empty = type(base)(3, (2,), (40,), (), (), False)
    (found,) = launch([kernel], "optimised")
    assert_same(kernel, found, empty.expected())


@pytest.mark.parametrize(
    "right",
    [
        Reduce("add", Var("u32", "u32_0"), Var("u32", "lane")),
        WarpVote("ballot", Var("u32", "u32_0"), Const("b1", True)),
    ],
)
def test_a_result_counts_though_its_variable_is_set_again(right):
    """A dead reduction in a group of lanes is what ptxas gets wrong."""
    base, over = random_kernel(0), Assign(right.target, Const("u32", 0))
    other = right._replace(mode="any" if isinstance(right, WarpVote) else "max")
    bodies = [(Partition("tile", None, 8, (one, over)),) for one in (right, other)]
    results = [type(base)(3, (1,), (40,), body, (), False).expected() for body in bodies]
    assert differing(*results) == 40


@pytest.mark.turns(23)
def test_a_reduction_over_the_wrong_lanes_is_found(monkeypatch):
    """The reduction takes all lanes of the warp, as if they had one mask."""

    def whole_warp(operation, value, lanes, members):
        return reduce(operation, value, lanes, warps.ballot(np.bool_(True), lanes, ALL_LANES))

    kernels = [random_kernel(seed) for seed in (0, 6)]  # both reduce in part of a warp
    expected = [kernel.expected() for kernel in kernels]
    reduce = warps.reduce
    monkeypatch.setattr(warps, "reduce", whole_warp)
    found = launch(kernels, "optimised")
    assert all(differing(*pair) > 0 for pair in zip(found, expected, strict=True))


# --- the oracle's own arithmetic ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_rounding_to_nearest_is_numpy_s(kind):
    rng = np.random.default_rng(2)
    dtype = np.float32 if kind == "f32" else np.float64
    for a, b in rng.standard_normal((200, 2)).astype(dtype):
        a, b = a * dtype(2.0 ** rng.integers(-20, 20)), b + dtype(2.0**-30)
        exact = Fraction(float(a)) * Fraction(float(b))
        assert dtype(rounded(exact, "rn", kind)) == a * b
        down, up = (dtype(rounded(exact, mode, kind)) for mode in ("rm", "rp"))
        assert Fraction(float(down)) <= exact <= Fraction(float(up))
        assert up == down or np.nextafter(down, dtype(np.inf)) == up


@pytest.mark.parametrize("mode", ["", ".rn", ".rz", ".rm", ".rp"])
def test_a_fused_product_of_finite_numbers_never_overflows(mode):
    fma, infinity = OPERATIONS[f"fma{mode}.f64"].fn, float("inf")
    with np.errstate(all="ignore"):
        assert fma(1e200, 1e200, -infinity) == -infinity
        assert fma(-1e200, 1e200, infinity) == infinity
        assert np.isnan(fma(infinity, 1e200, -infinity))
        assert np.isnan(fma(infinity, 0.0, 1.0))


@pytest.mark.parametrize("kind", ["i32", "i64"])
def test_every_quotient_of_the_least_integer_can_be_held(kind):
    """C leaves the least integer divided by -1 open."""
    least = -(1 << int(kind[1:]) - 1)
    names = [name for name in OPERATIONS if name.startswith("div") and name.endswith(kind)]
    assert len(names) == 3
    for name in names:
        divide = OPERATIONS[name].fn
        for divisor in (0, -1, -2, -3, 1, 2, 0x10001, least, least + 1, -least - 1, 0x7F):
            assert least <= divide(least, divisor) < -least
