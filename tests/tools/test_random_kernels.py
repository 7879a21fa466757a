"""Random kernels on the simulator against an oracle in plain Python, in both builds."""

from fractions import Fraction

import numpy as np
import pytest
from differential_machines import Machine
from differential_sections import run_random
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_kernels import random_kernel
from random_operations import OPERATIONS, rounded, wrap
from random_tree import Apply, Assign, Const, Together, Var

BUILDS = ("optimised", "debug")
NAMES = ("words", "numbers", "counters", "tallies", "out")


def launch(kernel, build, warp_order=None):
    """The kernel's arrays after a run on the simulator."""
    machine = Machine("simulator", debug=build == "debug", warp_order=warp_order)
    return run_random(machine, machine.load_kernels(kernel.source, kernel.options), kernel)


def assert_same(kernel, found, expected):
    for name, a, b in zip(NAMES, found, expected, strict=True):
        bad = np.argwhere(a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}"))
        assert not len(bad), (
            f"seed {kernel.seed}, grid {kernel.grid}, block {kernel.block}: "
            f"{name}{bad[0].tolist()} is {a[tuple(bad[0])]:#x}, expected {b[tuple(bad[0])]:#x}; "
            f"{len(bad)} differ"
        )


@pytest.mark.parametrize("seed", range(25))
def test_both_builds_give_the_oracle_s_bits(seed):
    kernel = random_kernel(seed)
    expected = kernel.expected()
    for build in BUILDS:
        assert_same(kernel, launch(kernel, build), expected)


@pytest.mark.parametrize("seed", range(100, 108))
def test_the_order_of_warps_does_not_matter(seed):
    kernel = random_kernel(seed, block=(70 + seed % 60,), grid=(2,))
    expected = kernel.expected()
    for order, build in enumerate(BUILDS):
        assert_same(kernel, launch(kernel, build, warp_order=seed + order), expected)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(200, 100_000),
    threads=st.integers(1, 100),
    blocks=st.integers(1, 3),
    rows=st.sampled_from((1, 1, 2, 3)),
)
def test_any_seed_in_any_shape(seed, threads, blocks, rows):
    block = (max(1, threads // rows), rows)
    kernel = random_kernel(seed, block=block, grid=(blocks,))
    assert_same(kernel, launch(kernel, BUILDS[seed % 2], seed % 3 or None), kernel.expected())


def test_a_seed_is_one_kernel():
    assert random_kernel(5).source == random_kernel(5).source != random_kernel(6).source


def operations_in(node, found):
    if isinstance(node, Apply):
        found.add(node.operation.name)
    if isinstance(node, tuple):
        for part in node:
            operations_in(part, found)
    elif hasattr(node, "__dataclass_fields__"):
        for field in node.__dataclass_fields__:
            operations_in(getattr(node, field), found)
    return found


def test_the_kernels_use_every_operation():
    found = set()
    for seed in range(96):
        operations_in(random_kernel(seed).body, found)
    missing = set(OPERATIONS) - found
    assert len(missing) < len(OPERATIONS) // 20, sorted(missing)


# --- a wrong result is noticed --------------------------------------------------------------------


def changed(name, fn):
    operation = OPERATIONS[name]
    return type(operation)(name, operation.sources, operation.result, operation.template, fn)


def kernel_of(operation, *constants):
    """A kernel whose one statement applies the operation."""
    kernel = random_kernel(0, block=(33,), grid=(1,))
    sources = operation.sources
    args = tuple(
        Const(k, c) if c is not None else Var(k, f"{k}_0")
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
        ("i32.rz.f32", (None,), lambda x: int(np.floor(x)) if abs(x) < 2**31 else 0),
    ],
)
def test_a_wrong_oracle_is_found(name, constants, wrong):
    right = kernel_of(OPERATIONS[name], *constants)
    found = launch(right, "optimised")
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
    assert_same(kernel, launch(kernel, "optimised"), empty.expected())


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
