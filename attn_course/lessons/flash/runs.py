"""Runs of fused kernels on the simulator, and what they execute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from attn_course.engine.events import Observer, observe
from attn_course.engine.module import RawModule
from attn_course.engine.watch.counters.counters import Counters
from attn_course.ladder.call import run_steps
from attn_course.ladder.steps import Problem, step


def run(
    which: int | str,
    q,
    k,
    v,
    *observers: Observer,
    options: Sequence[str] = (),
    scale: float | None = None,
    causal: bool = False,
    heads: int = 1,
    bias: np.ndarray | None = None,
):
    """One fused kernel on the simulator. q (BH, n, d), k and v (BH_kv, m, d) float32.

    heads: query heads an element of the batch, needed where k has fewer; bias: (heads, n, m).
    Returns the output (BH, n, d).
    """
    (bh, n, d), m = q.shape, k.shape[1]
    strides = (0, n * m) if bias is not None else (0, 0)
    kv_heads = k.shape[0] * heads // bh
    problem = Problem(bh, n, m, d, heads, kv_heads, causal, strides)
    buffers = {"q": q, "k": k, "v": v}
    if bias is not None:
        buffers["bias"] = bias
    scale = d**-0.5 if scale is None else scale
    with observe(*observers):
        found = run_steps(
            [step(which)], buffers, scale, backend="simulator", options=options, problem=problem
        )
    return found["out"]


def counts(which: int | str, q, k, v, **options) -> dict[str, int]:
    """Totals of Counters for one run, see :func:`run`."""
    seen = Counters()
    run(which, q, k, v, seen, **options)
    return seen.totals


def ptx_counts(which: int | str, opcodes: Iterable[str], options: Sequence[str] = ()) -> dict:
    """How many instructions of a kernel's PTX begin with each of these names."""
    text = RawModule(path=str(step(which).path), options=options, backend="simulator").ptx()
    words = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    first = [
        parts[1] if parts[0].startswith("@") and len(parts) > 1 else parts[0] for parts in words
    ]
    return {name: sum(word.startswith(name) for word in first) for name in opcodes}


def keys_seen(totals: Mapping[str, int], d: int) -> int:
    """(query, key) pairs whose products a kernel computed, from its multiply-adds."""
    return totals["ffma_thread_instructions"] // (2 * d)
