"""The table of peers: PyTorch is a stub here, whose compiler returns the function."""

import sys
import types

import numpy as np
import pytest

from attn_course.measure import candidates
from attn_devtools.bench import LAYER_SUITES, PARALLEL_SUITES, SUITES, peers
from attn_devtools.bench.peers import AUTOTUNE, MODE


@pytest.fixture
def compiled(monkeypatch):
    """The modes that are asked of torch.compile(), with a stub of PyTorch on NumPy arrays."""
    modes = []

    def compile(call, mode, **_):
        modes.append(mode)
        return call

    torch = types.ModuleType("torch")
    torch.compile, torch.from_dlpack = compile, lambda array: array
    torch.compiler = types.SimpleNamespace(reset=lambda: modes.append("reset"))
    torch.cuda = types.SimpleNamespace(empty_cache=lambda: modes.append("empty cache"))
    for module in (candidates, peers):
        monkeypatch.setattr(module, "torch_module", lambda: torch)
    monkeypatch.setattr(candidates, "require_gpu", lambda: None)
    return modes


def kinds_and_modes(table):
    return {(peer.kind, peer.mode) for peer in table.values()}


def test_every_formula_is_eager_and_compiled_in_both_modes():
    both = {("torch.compile", MODE), ("torch.compile", AUTOTUNE)}
    assert kinds_and_modes(peers.LAYER) == kinds_and_modes(peers.BLOCK)
    assert kinds_and_modes(peers.LAYER) == both | {("eager PyTorch", None)}
    flex = {("compiled flex_attention", mode) for mode in (MODE, AUTOTUNE)}
    uncompiled = {("eager PyTorch", None), ("SDPA's backends", None)}
    assert kinds_and_modes(peers.ATTENTION) == both | flex | uncompiled
    for function in (candidates.eager, candidates.sdpa):
        modes = [peer.mode for peer in peers.ATTENTION.values() if peer.function is function]
        assert {MODE, AUTOTUNE} <= set(modes)
    assert "no-cudagraphs" in AUTOTUNE


def test_every_suite_lists_every_peer_of_its_kind(monkeypatch):
    monkeypatch.setattr(candidates, "available", lambda: True)
    kinds = (peers.ATTENTION, peers.BACKWARD, peers.LAYER, peers.BLOCK)
    listed = {next(iter(kind)): kind for kind in kinds}
    for suite in SUITES.values():
        for row in suite.rows:
            found = suite.peers(row, suite.candidates())
            if suite.name in PARALLEL_SUITES:  # a process of its own has its peer
                assert found == []
                continue
            assert found == list(listed[found[0]])
            if suite.name in LAYER_SUITES:
                makers, _ = suite.problem(row)
                assert [name for name in makers if name.startswith("torch")] == found


def test_a_layers_peers_are_compiled_in_their_modes(compiled):
    makers = peers.layer_peers(lambda x: lambda: x + 1, 1e-6)
    x = np.zeros(3, np.float32)
    made = {name: make(x) for name, make in makers.items()}
    assert list(made) == ["torch", "torch_compile", "torch_autotune"]
    assert compiled == [MODE, AUTOTUNE]
    assert all((one._call() == 1).all() and one.relative == 1e-6 for one in made.values())


@pytest.mark.turns(11)
@pytest.mark.system
def test_the_compiler_forgets_where_there_is_one(compiled, monkeypatch):
    monkeypatch.setattr(candidates, "available", lambda: False)
    peers.forget_compiled()
    assert compiled == []
    monkeypatch.setattr(candidates, "available", lambda: True)
    peers.forget_compiled()
    assert compiled == ["reset", "empty cache"]


def test_flex_attention_is_asked_for_groups_and_blocks_of_a_mask(monkeypatch):
    asked = {}

    def create_block_mask(seen, b, h, n, m, device):
        assert (b, h, device) == (None, None, "cuda")
        return np.array([[seen(0, 0, i, j) for j in range(m)] for i in range(n)])

    module = types.ModuleType("torch.nn.attention.flex_attention")
    module.create_block_mask = create_block_mask
    module.flex_attention = lambda q, k, v, **how: asked.update(how)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    q, k = (types.SimpleNamespace(shape=(1, heads, 3, 16), device="cuda") for heads in (4, 2))
    peers.flex(q, k, k, True)()
    assert (asked.pop("block_mask") == np.tri(3)).all()
    assert asked == {"scale": 0.25, "enable_gqa": True}
    peers.flex(k, k, k, False)()
    assert asked == {"scale": 0.25, "enable_gqa": False}


LAYER_KINDS = ("torch", "torch_compile")


def record(*names, refused=()):
    return {"rows": [{"timings": dict.fromkeys(names), "refused": dict.fromkeys(refused)}]}


def test_the_kinds_of_a_record_and_those_that_it_lacks():
    refused, *backends = candidates.BACKENDS
    assert peers.kinds_of(record("auto")) == ""
    assert peers.kinds_of(record("auto", "torch_eager", *backends, refused=[refused])) == (
        "eager PyTorch and SDPA's backends (not timed: torch.compile and compiled flex_attention)"
    )
    assert peers.kinds_of(record(*LAYER_KINDS)) == (
        "eager PyTorch and torch.compile (not timed: torch_autotune)"
    )
    assert peers.kinds_of(record(*peers.ATTENTION)) == (
        "eager PyTorch, SDPA's backends, torch.compile and compiled flex_attention"
    )
    assert peers.kinds_of(record("mlp_fp32", "torch")) == "eager PyTorch (not timed: torch.compile)"
    assert peers.kinds_of(record(*peers.LAYER, *peers.BLOCK)) == "eager PyTorch and torch.compile"


def test_a_peer_that_does_not_compile_is_a_row_with_its_reason(monkeypatch):
    """The makers that a row gets refuse it, and no other one."""
    suite = SUITES["seeds_fp32"]
    given = {}
    monkeypatch.setattr(candidates, "available", lambda: False)

    def run_benchmark(makers, **_):
        given.update(makers)
        raise KeyboardInterrupt

    monkeypatch.setattr("attn_devtools.bench.suite.run_benchmark", run_benchmark)
    row = suite.rows[0]
    refused = {(row.label, "torch_flex"): "too slow", ("another", "torch_math"): "no"}
    with pytest.raises(KeyboardInterrupt):
        suite.run_row(row, ["torch_flex", "torch_math"], refused)
    with pytest.raises(candidates.BaselineRefuses, match="too slow"):
        given["torch_flex"](1, 2, 3)
    assert given["torch_math"].func is peers.attention_peer
