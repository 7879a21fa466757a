"""Each kernel of the layers judged by every array that it writes."""

import numpy as np
import pytest

from attn_course.layers import verify
from attn_course.layers.steps import LAYERS
from attn_course.layers.verify import layer_case, layer_name, verify_layer

TOKENS = np.random.default_rng(5).normal(0.3, 1.4, (2, 5, 21)).astype(np.float32)
each_kernel = pytest.mark.parametrize("step", LAYERS, ids=layer_name)


@pytest.mark.turns(13)
@pytest.mark.system
@each_kernel
def test_a_kernel_agrees_on_ragged_tokens(step):
    verdict = verify_layer(step, TOKENS, 3)
    assert verdict.agrees and verdict.launches[0].file == step.file
    assert set(verdict.outputs) == set(step.writes)


@each_kernel
def test_one_wrong_element_of_any_array_is_seen(step, monkeypatch):
    for spoiled in step.writes:

        def wrong(*arguments, spoiled=spoiled):
            case = layer_case(*arguments)
            case.expected[spoiled].flat[-1] += 0.01
            return case

        monkeypatch.setattr(verify, "layer_case", wrong)
        verdict = verify_layer(step, TOKENS, 3)
        assert not verdict.agrees and f"{layer_name(step)}: {spoiled}" in verdict.comparison.message


def test_names_tell_the_kernels_apart():
    names = [layer_name(step) for step in LAYERS]
    assert len(set(names)) == len(LAYERS) and names[0] == "16_layernorm"
