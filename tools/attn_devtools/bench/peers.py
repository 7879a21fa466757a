"""The peers: every way of PyTorch that a suite times beside the course's kernels.

All are timed as graphs that the course captures. A capture cannot hold another one, so compiled
peers leave out the CUDA graphs of inductor, PyTorch's compiler: hence AUTOTUNE's "no-cudagraphs".
"""

import gc
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from attn_course.measure import candidates
from attn_course.measure.candidates import (
    BACKENDS,
    BASELINES,
    EAGER,
    Baseline,
    TorchCall,
    eager,
    sdpa,
    torch_module,
)

KINDS = ("eager PyTorch", "SDPA's backends", "torch.compile", "compiled flex_attention")
_EAGER, _SDPA, _COMPILE, _FLEX = KINDS
MODE, AUTOTUNE = "default", "max-autotune-no-cudagraphs"  # of torch.compile()


class Peer(NamedTuple):
    """One way of PyTorch.

    kind: of KINDS.  mode: of torch.compile(); None: not compiled.  function: of attention, as
    Baseline takes it; of a layer its suite has the function.
    """

    kind: str
    mode: str | None = None
    function: Callable | None = None


def flex(q, k, v, causal: bool) -> Callable:
    """Return a call of flex_attention; compiled with fewer than 128 queries, its decoding kernel.

    q: (B, H, n, d).  k, v: (B, H_kv, m, d). Tensors.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def seen(batch, head, query, key):
        return query >= key

    how = {"scale": q.shape[3] ** -0.5, "enable_gqa": q.shape[1] != k.shape[1]}
    if causal:
        extents = None, None, q.shape[2], k.shape[2]
        how["block_mask"] = create_block_mask(seen, *extents, device=q.device)
    return lambda: flex_attention(q, k, v, **how)


ATTENTION = {
    **{name: Peer(_SDPA, function=BASELINES[name]) for name in BACKENDS},
    EAGER: Peer(_EAGER, function=eager),
    # Inductor may put SDPA in the formula's place.
    "torch_eager_compile": Peer(_COMPILE, MODE, eager),
    "torch_eager_autotune": Peer(_COMPILE, AUTOTUNE, eager),
    "torch_sdpa_compile": Peer(_COMPILE, MODE, sdpa),
    "torch_sdpa_autotune": Peer(_COMPILE, AUTOTUNE, sdpa),
    "torch_flex": Peer(_FLEX, MODE, flex),
    "torch_flex_autotune": Peer(_FLEX, AUTOTUNE, flex),
}
# The gradients of each, by autograd.
BACKWARD = {f"{name}_backward": peer for name, peer in ATTENTION.items()}
# Layer norm, bias and GELU, the MLP, the Swin stage.
LAYER = {
    "torch": Peer(_EAGER),
    "torch_compile": Peer(_COMPILE, MODE),
    "torch_autotune": Peer(_COMPILE, AUTOTUNE),
}
FUSED = "torch_encoder_layer"  # the path for inference of TransformerEncoderLayer
BLOCK = {
    FUSED: Peer(_EAGER),
    f"{FUSED}_slow_path": Peer(_EAGER),
    f"{FUSED}_compile": Peer(_COMPILE, MODE),
    f"{FUSED}_autotune": Peer(_COMPILE, AUTOTUNE),
}
PEERS = ATTENTION | BACKWARD | LAYER | BLOCK


def attention_peer(name: str, *inputs, causal: bool = False) -> Baseline:
    """Return a peer of ATTENTION on q, k, v. The errors are those of Baseline."""
    peer = ATTENTION[name]
    return Baseline(peer.function, *inputs, causal=causal, mode=peer.mode)


def layer_peers(
    call_of: Callable, relative: float, names: Iterable[str] = LAYER
) -> dict[str, Callable]:
    """Return name -> function of a layer's input that makes the peer.

    call_of: function of the input, a tensor, that returns a call.  relative: the relative error to
    float64 that is allowed.
    """

    def make(mode: str | None, x) -> TorchCall:
        return TorchCall(call_of(torch_module().from_dlpack(x)), relative, mode)

    return {name: partial(make, PEERS[name].mode) for name in names}


def forget_compiled() -> None:
    """Make room for other problems, in memory and in the compiler.

    PyTorch compiles one function for eight problems at most.
    """
    if candidates.available():
        torch = torch_module()
        torch.compiler.reset()
        gc.collect()  # graphs of the last problem
        torch.cuda.empty_cache()


def kinds_of(record: dict) -> str:
    """Return the kinds of peers that a suite's record has times of, and those that it lacks.

    "eager PyTorch and SDPA's backends (not timed: torch.compile)"; of a kind that is there, the
    peers that no row has a time of are named one by one. "" where none was timed.
    """
    timed = {name for row in record["rows"] for name in row["timings"]}
    there = {PEERS[name].kind for name in timed if name in PEERS}
    tables = [table for table in (ATTENTION, BACKWARD, LAYER, BLOCK) if timed & table.keys()]
    wanted = {name: peer.kind for table in tables for name, peer in table.items()}
    tried = {name for row in record["rows"] for name in row.get("refused", {})}
    lacking = [kind for kind in KINDS if kind in {*wanted.values()} - there]
    lacking += [
        name
        for name, kind in wanted.items()
        if kind in there and name not in timed and name not in tried
    ]
    return listed(kind for kind in KINDS if kind in there) + (
        f" (not timed: {listed(lacking)})" if lacking else ""
    )


def listed(words: Iterable[str]) -> str:
    """Return "a, b and c"."""
    *most, last = [*words] or [""]
    return f"{', '.join(most)} and {last}" if most else last
