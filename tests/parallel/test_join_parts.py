"""Kernel 31 in all its types, in place and not; tests/layers has it on float32 arrays."""

import numpy as np
import pytest

from attn_course.ladder.call import step_launch
from attn_course.layers.steps import JOIN_PARTS, Rows
from attn_course.parallel.ring import TYPES
from attn_course.reference.comparison import compare, poisoned
from attn_course.reference.dtypes import DTYPES, TOLERANCES


@pytest.mark.parametrize(
    ("a_type", "b_type", "out_type", "d", "in_place"),
    [
        ("bfloat16", "bfloat16", "bfloat16", 24, True),
        ("bfloat16", "bfloat16", "float32", 24, False),
        ("float32", "float16", "float16", 13, False),
        ("float32", "float32", "float32", 300, True),
        ("float32", "float32", "float32", 300, False),
    ],
)
def test_two_parts_become_one(a_type, b_type, out_type, d, in_place):
    heads, rows, first, part = 3, 7, 2, 4
    rng = np.random.default_rng(d)
    a = rng.normal(0.3, 1, (heads, rows, d)).astype(DTYPES[a_type])
    b = rng.normal(-0.2, 1, (heads, part, d)).astype(DTYPES[b_type])
    a_lse = rng.normal(0, 4, (heads, rows)).astype(np.float32)
    b_lse = rng.normal(90, 4, (heads, part)).astype(np.float32)
    b_lse[0] -= 180  # one part is far above the other
    a_lse[1, 3] = b_lse[1, 0] = b_lse[2, 1] = a_lse[2, 3] = -np.inf
    a[1, 3], b[1, 0], a[2, 3], b[2, 1] = 0, 0, 0, 0

    both = np.full((2, heads, rows), -np.inf)
    both[0], both[1, :, first : first + part] = a_lse, b_lse
    top = np.logaddexp(*both)
    shares = np.exp(both - np.where(np.isfinite(top), top, 0))[..., None]
    wide = np.zeros((heads, rows, d))
    wide[:, first : first + part] = b
    expected = shares[0] * a.astype(float) + shares[1] * wide

    out = a if in_place else poisoned(a.shape, DTYPES[out_type])
    out_lse = a_lse if in_place else poisoned(a_lse.shape)
    given = {"a": a, "a_lse": a_lse, "b": b, "b_lse": b_lse, "out": out, "out_lse": out_lse}
    options = [f"-DA_TYPE={TYPES[a_type]}", f"-DB_TYPE={TYPES[b_type]}"]
    options.append(f"-DOUT_TYPE={TYPES[out_type]}")
    numbers = {"heads": heads, "rows": rows, "first": first, "part": part, "d": d}
    written = heads * (part if in_place else rows)
    extents = Rows(heads * rows, d, written=written)
    step_launch(JOIN_PARTS, extents, given, numbers, options, "simulator").run(given)
    assert compare(out, expected, relative=TOLERANCES[out_type])
    assert compare(out_lse, top, relative=1e-6)
