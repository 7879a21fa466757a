"""Attention over ranks that are threads on the simulator, against float64 and against one GPU."""

import numpy as np
import pytest
from kernelscope import Counters, observe
from kernelscope.errors import InputError
from kernelscope.ranks import run_ranks

from attn_course import reference
from attn_course.ladder import methods
from attn_course.parallel import (
    HeadsPlan,
    RingPlan,
    Shards,
    form,
    heads_attention,
    ring_attention,
)
from attn_course.reference.comparison import compare
from attn_course.reference.dtypes import DTYPES, TOLERANCES
from attn_course.reference.inputs import seeded_qkv


def arrays(shape, kv_heads, dtype):
    return [one.astype(DTYPES[dtype]) for one in seeded_qkv(shape, kv_heads=kv_heads)]


def over_ranks(how, size, given, **options):
    """Run a function of attention on shards in threads; return out and lse of the sequence."""
    length = given[0].shape[2]
    shards = Shards(length, size)

    def work(rank):
        mine = [shards.take(one, rank.rank, np) for one in given]
        return how(rank, *mine, length, **options)

    parts = run_ranks(work, size, "simulator")
    return [shards.whole(one) for one in zip(*parts, strict=True)]


def agrees(found, given, causal, relative=None, scale=None):
    wide = [one.astype(float) for one in given]
    scale = given[0].shape[3] ** -0.5 if scale is None else scale
    out, lse = found
    exact = reference.attention(*wide, causal=causal, scale=scale)
    group = wide[0].shape[1] // wide[1].shape[1]
    scores = scale * wide[0] @ wide[1].repeat(group, axis=1).swapaxes(2, 3)
    if causal:
        scores[..., ~reference.causal_mask(*scores.shape[2:])] = -np.inf
    sums = np.log(np.exp(scores).sum(axis=-1))
    relative = relative or TOLERANCES[given[0].dtype.name]
    return compare(out, exact, relative=relative) and compare(lse, sums, relative=relative)


@pytest.mark.turns(29)
@pytest.mark.system
@pytest.mark.parametrize(
    ("how", "size", "shape", "kv_heads", "dtype", "causal"),
    [
        (ring_attention, 4, (1, 2, 19, 8), 1, "float32", True),
        (ring_attention, 3, (2, 2, 14, 8), 2, "bfloat16", True),
        (ring_attention, 2, (1, 4, 21, 16), 2, "float16", False),
        (ring_attention, 1, (1, 1, 5, 8), 1, "float32", True),
        (heads_attention, 2, (2, 4, 13, 8), 2, "bfloat16", True),
        (heads_attention, 3, (1, 3, 11, 8), 3, "float32", False),
    ],
)
def test_ranks_find_what_float64_finds(how, size, shape, kv_heads, dtype, causal):
    given = arrays(shape, kv_heads, dtype)
    assert agrees(over_ranks(how, size, given, causal=causal), given, causal)


def test_a_scale_of_the_callers():
    given = arrays((1, 1, 9, 8), 1, "float32")
    assert agrees(over_ranks(ring_attention, 2, given, scale=1.5), given, False, scale=1.5)


@pytest.mark.turns(23)
@pytest.mark.system
def test_ranks_in_sixteen_bits_are_no_less_exact_than_one():
    """Sums of more than two ranks are float32 until the last join rounds them."""
    given = arrays((1, 1, 40, 8), 1, "bfloat16")
    exact = reference.attention(*(one.astype(float) for one in given))
    errors = [
        np.linalg.norm(over_ranks(ring_attention, size, given)[0].astype(float) - exact)
        for size in (1, 5)
    ]
    assert errors[1] < 1.5 * errors[0]


@pytest.mark.parametrize("kind", [RingPlan, HeadsPlan])
def test_a_plan_reads_its_arrays_again(kind):
    given = arrays((1, 2, 10, 8), 2, "float32")
    other = [one[:, ::-1] + 1 for one in given]
    shards = Shards(10, 2)

    def work(rank):
        mine = [shards.take(one, rank.rank, np) for one in given]
        plan = kind(rank, *mine, 10, causal=True)
        plan()
        for array, one in zip(mine, other, strict=True):
            array[...] = shards.take(one, rank.rank, np)
        return plan().copy(), plan.lse.copy()

    parts = run_ranks(work, 2, "simulator")
    found = [shards.whole(one) for one in zip(*parts, strict=True)]
    assert agrees(found, other, True)


def test_the_two_sides_of_a_ring_alone():
    given = arrays((1, 1, 12, 8), 1, "float32")
    shards = Shards(12, 2)

    def work(rank):
        plan = RingPlan(rank, *(shards.take(one, rank.rank, np) for one in given), 12)
        plan.run(compute=False)
        arrived = plan._held(1)[0].copy()
        plan.run(exchange=False)
        return arrived, plan.out

    (of_1, first), (of_0, second) = run_ranks(work, 2, "simulator")
    for rank, arrived in enumerate((of_0, of_1)):
        assert (arrived == shards.take(given[1], rank, np)).all()
    assert compare(shards.whole([first, second]), reference.attention(*given))


def test_launches_while_an_exchange_is_under_way_leave_room(monkeypatch):
    """On a Hopper GPU: a block for each tile, so an SM comes free whenever a tile is done."""
    asked = []

    class Asked(methods.Request, frozen=True, eq=False):
        def call(self):
            asked.append(self.options)
            raise InputError("asked")

    monkeypatch.setattr(form, "Request", Asked)
    monkeypatch.setattr(form, "pick", lambda *_: "flash_wgmma")
    given = arrays((1, 1, 8, 8), 1, "bfloat16")
    for size, options in ((1, ()), (2, (form.UNDER_WAY,))):
        with pytest.raises(InputError, match="asked"):
            over_ranks(ring_attention, size, given)
        assert set(asked) == {options}
        asked.clear()


@pytest.mark.turns(23)
@pytest.mark.system
def test_causal_work_is_even():
    """A tile that a causal mask hides is not computed: count the products of each rank."""
    given, counts = arrays((1, 1, 256, 16), 1, "bfloat16"), []
    shards = Shards(256, 4)

    def work(rank):
        mine = [shards.take(one, rank.rank, np) for one in given]
        with observe(Counters()) as seen:
            ring_attention(rank, *mine, 256, causal=True)
        counts.append(seen.totals["tensor_instructions"])

    run_ranks(work, 4, "simulator")
    assert max(counts) < 1.3 * min(counts)


# -- refusals --------------------------------------------------------------------------------------
def refusal(how, size, change):
    """Run on shards that `change` has changed; return the message, and what has travelled."""
    given = arrays((1, 2, 12, 8), 2, "float32")
    shards, sent = Shards(12, size), []

    def work(rank):
        rank.exchange = lambda *_: sent.append(1)
        call = {"length": 12, "causal": False}
        mine = [shards.take(one, rank.rank, np) for one in given]
        mine = change(rank.rank, mine, call) or mine
        return how(rank, *mine, **call)

    with pytest.raises(InputError) as raised:
        run_ranks(work, size, "simulator")
    return str(raised.value), sent


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r, mine, call: [one[:, :1].copy() for one in mine] if r else None, "has heads 1"),
        (lambda r, mine, call: call.update(causal=True) if r else None, "has causal True"),
        (lambda r, mine, call: call.update(causal="yes") if r else None, "causal is 'yes': pass"),
        (lambda r, mine, call: [one[:, :, 1:].copy() for one in mine] if r else None, "q has 5"),
        (lambda r, mine, call: call.update(length=13) if r else None, "has length 13, rank 0 12"),
        (lambda r, mine, call: [one[..., :4].copy() for one in mine] if r else None, "has d 4"),
        (lambda r, mine, call: call.update(length=3), "3 rows for 2 ranks"),
        (lambda r, mine, call: [mine[0].T, *mine[1:]] if r else None, "rank 1"),
        (lambda r, mine, call: [one[0] for one in mine] if r else None, "rank 1: q has shape (2,"),
    ],
)
def test_ranks_that_differ_are_refused_before_anything_travels(change, words):
    said, sent = refusal(ring_attention, 2, change)
    assert words in said and not sent


def test_heads_must_be_a_multiple_of_the_ranks():
    said, sent = refusal(heads_attention, 3, lambda *_: None)
    assert (
        "q has 2 heads, k 2, not both a multiple of the 3 ranks: use ring_attention()" in said
        and not sent
    )


# -- shards ----------------------------------------------------------------------------------------
def test_shards_refuse_ranks_and_rows_that_are_not_there():
    shards, x = Shards(8, 2), np.zeros((1, 1, 8, 2), np.float32)
    for call, words in (
        (lambda: Shards(8, 0), "0 ranks: at least 1"),
        (lambda: shards.take(x, 2, np), "no rank 2: 2 share the rows, and the first is 0"),
        (lambda: shards.take(x, -1, np), "no rank -1"),
        (lambda: shards.take(x[:, :, :7], 0, np), r"has shape \(1, 1, 7, 2\), not \(B, H, 8, "),
        (lambda: shards.whole([x[:, :, :4]]), r"1 parts make up \(1, 1, 4, 2\), not \(B, H, 8, "),
    ):
        with pytest.raises(InputError, match=words):
            call()


@pytest.mark.parametrize(("length", "ranks"), [(8, 4), (19, 3), (131072, 2), (100_001, 2)])
def test_shards_are_all_rows_once(length, ranks):
    shards = Shards(length, ranks)
    rows = [shards.order(rank) for rank in range(ranks)]
    assert [len(one) for one in rows] == [shards.rows(rank) for rank in range(ranks)]
    assert all((np.diff(one) > 0).all() for one in rows)  # so a causal mask holds inside a shard
    assert (np.sort(np.concatenate(rows)) == np.arange(length)).all()
    if length > 100_000:
        assert all(bound % 128 == 0 for bound in shards.bounds[:-1])
    parts = [np.arange(length)[None, None, one] for one in rows]
    assert (shards.whole(parts) == np.arange(length)).all()
