"""Machine instructions are found by kernel, and the disassembler by its package or the PATH."""

import importlib.metadata
import shutil

import pytest
from kernelscope.errors import BackendError

from attn_course.measure.hardware import disassembly
from attn_course.measure.hardware.disassembly import count_operations, machine_code

PROBES = "probes/reductions"


def test_a_float_sum_by_atomics_is_a_loop_and_a_maximum_is_one_operation_a_warp():
    """The compiler reduces a warp first where the operation is on integers."""
    added, greatest = (machine_code(PROBES, name) for name in ("sum_atomic", "max_atomic"))
    names = ("ATOMS.CAS", "ATOMS.MAX", "REDUX.MAX", "SHFL")
    assert count_operations(added, *names)["ATOMS.CAS"] > 0
    found = count_operations(greatest, *names)
    assert found["ATOMS.MAX"] == found["REDUX.MAX"] > 0 and found["SHFL"] == 0
    shuffled = count_operations(machine_code(PROBES, "sum_shuffle"), *names)
    assert shuffled["SHFL"] >= 10 and shuffled["ATOMS.CAS"] == 0
    assert added[-1].startswith(("BRA", "NOP", "EXIT"))


def test_what_is_not_there_is_named(monkeypatch):
    with pytest.raises(KeyError, match="there are: max_shuffle"):
        machine_code(PROBES, "sum_of_all")

    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", absent)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BackendError, match="pip install nvidia-cuda-nvdisasm"):
        disassembly.disassembled(b"no cubin")
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/false")
    with pytest.raises(RuntimeError, match="nvdisasm"):
        disassembly.disassembled(b"no cubin")
