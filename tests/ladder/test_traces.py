"""What a trace of a method shows of the headers that its kernels include."""

import pytest

from attn_course import Tracer, attention, observe
from attn_course.reference.dtypes import DTYPES
from attn_course.reference.inputs import seeded_qkv


@pytest.mark.turns(41)
@pytest.mark.system
@pytest.mark.parametrize(
    "method, dtype, asks",
    [
        ("flash_fp32", "float32", set()),
        ("flash_wmma", "bfloat16", {"store_scores<", "add_values<"}),
        ("flash_mma", "bfloat16", {"mma16<BFLOAT16>("}),
        ("flash_tf32x3", "float32", {"split_scores<"}),
    ],
)
def test_code_of_headers_stands_at_the_line_that_asks_for_it(method, dtype, asks):
    q, k, v = (one.astype(DTYPES[dtype]) for one in seeded_qkv((1, 1, 5, 8)))
    with observe(Tracer(warp=0, limit=400)) as trace:
        attention(q, k, v, method=method, backend="simulator")
    assert len(trace.frames) > 50 and all(frame["line"] > 0 for frame in trace.frames)
    products = {trace.lines[f["line"] - 1].strip() for f in trace.frames if f["products"]}
    assert {ask for ask in asks if any(line.startswith(ask) for line in products)} == asks
    assert all(line.startswith(tuple(asks)) for line in products)
