"""The ladder's section of the comparison of simulator and GPU."""

import numpy as np
import pytest
from kernelscope.differential import __main__ as differential
from kernelscope.differential.machines import Machine

from attn_devtools.record.differential_ladder import hashes, ladder_section

pytestmark = pytest.mark.system
SECTIONS = {"ladder": ladder_section}


class Faulty(Machine):
    """A simulator whose every result has one wrong bit, in the last place of the last array."""

    def run(self, *arguments, **keywords):
        out = super().run(*arguments, **keywords)
        out[-1].view(np.uint8).reshape(-1)[-out[-1].itemsize] ^= 1
        return out


def record():
    """Of a self-test of a few cases in this process."""
    words = "--self-test --workers 0 --every 20 --sections ladder".split()
    return differential.compare_machines(differential.parse(words, SECTIONS), SECTIONS, hashes())


@pytest.mark.turns(41)
def test_the_simulator_agrees_with_itself():
    found = record()
    assert found["all_agree"] and found["sections"]["ladder"]["count"] > 2
    assert {name[:2] for name in found["kernels"]} == {"01", "02", "03", "04", "05", "06"}


@pytest.mark.turns(23)
def test_one_wrong_bit_is_a_difference(monkeypatch):
    monkeypatch.setattr(differential, "Machine", lambda *_, **__: Faulty("simulator"))
    found = record()
    assert not found["all_agree"] and found["sections"]["ladder"]["disagree"] > 0
