"""Facts that the machine and its observers share."""

import numpy as np
from kernelscope import RawModule, observe
from kernelscope.events import Observer, place_in

LOOP = """extern "C" __global__ void k(const float* a, float* out, int n) {
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += 32) sum = sum * 3 + a[i] - 1;
    out[threadIdx.x] = sum;
}"""


def test_linear_numbers_count_x_first():
    shape = (5, 3, 2)
    for number in range(30):
        z, y, x = np.unravel_index(number, shape[::-1])
        assert place_in(number, shape) == (x, y, z)


class Keeps(Observer):
    def __init__(self, all_of_them: bool):
        super().__init__()
        self.all_of_them, self.events = all_of_them, []

    def concerns(self, instruction):
        return self.all_of_them

    def instruction(self, event):
        self.events.append(event)


def told(*observers):
    kernel = RawModule(code=LOOP, backend="simulator").get_function("k")
    with observe(*observers):
        kernel((1,), (32,), (np.ones(70, np.float32), np.zeros(32, np.float32), np.int32(70)))
    return [[event.instruction for event in one.events] for one in observers]


def test_observers_of_memory_are_told_of_every_access_and_branch():
    everything, memory = Keeps(True), Keeps(False)
    ((every,), (few,)) = told(everything), told(memory)
    assert len(few) < len(every) and [i.opcode for i in every if i.opcode.startswith("add")]
    for one in (everything, memory):
        accesses = [event for event in one.events if event.accesses]
        assert [e.instruction.opcode[:2] for e in accesses] == ["ld"] * 3 + ["st"]
    branches = [i.opcode for i in every if i.opcode.startswith("bra")]
    assert [i.opcode for i in few if i.opcode.startswith("bra")] == branches


def test_where_one_observer_wants_all_each_is_told_of_all():
    first, second = told(Keeps(True), Keeps(False))
    assert first == second
