"""What a chunk reports to its observers."""

from types import SimpleNamespace

import pytest
from kernelscope.machine.reports import Reports
from kernelscope.ptx.syntax import Instruction
from kernelscope.translate.control_flow import Block, Terminator


def test_steps_are_those_of_the_block_whatever_its_place_in_memory():
    """A block that is gone leaves its address to the next one, but not its instructions."""
    observer = SimpleNamespace(concerns=lambda instruction: True)
    program = SimpleNamespace(own_line=lambda instruction: 1)
    lanes = SimpleNamespace(kernel=SimpleNamespace(program=program))
    reports = Reports((observer,), lanes)
    instructions = [Instruction("mov.u32", (), index=index) for index in range(50)]
    addresses = set()
    for index, instruction in enumerate(instructions):
        block = Block((index,), [instruction], Terminator("exit"), operations=[print])
        addresses.add(id(block))
        ((found, _, _),) = reports.steps(block)
        assert found is instruction
        del block
    if len(addresses) == 50:
        pytest.skip("no address was used again")
