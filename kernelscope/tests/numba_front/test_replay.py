"""Launches that a tool keeps: run again from the file, they leave the same bytes."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba_cuda")

from kernelscope import RawModule, Sanitizer, device_address, observe  # noqa: E402
from kernelscope.module import SimulatorKernel  # noqa: E402
from kernelscope.numba import run  # noqa: E402
from numba import cuda  # noqa: E402

TOOL = Path(__file__).parents[2] / "tools" / "replay_launches.py"


@pytest.fixture(scope="module")
def tool():
    specification = importlib.util.spec_from_file_location("replay_launches", TOOL)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@cuda.jit
def scaled(x, y, factor, pair, z):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] * factor + pair[0] - pair[1]
        z[i] = x[i] * 1j


class Simulated:
    """Runs kept launches from their bytes alone, in memory of other addresses."""

    def __init__(self, texts, folder):
        self.texts, self.folder = texts, folder

    def run(self, one):
        file = Path(self.folder, "kept.ptx")
        file.write_text(self.texts[one.text])
        kernel = RawModule(path=file, backend="simulator").get_function(one.kernel)
        places = [np.zeros(len(m.before) + 512, np.uint8) for m in one.memory]
        views = []
        for place, memory in zip(places, one.memory, strict=True):
            start = (memory.shift - device_address(place)) % 256
            views.append(place[start:][: len(memory.before)])
            views[-1][:] = np.frombuffer(memory.before, np.uint8)
        values = [
            np.frombuffer(v, f"u{len(v)}")[0]
            if isinstance(v, bytes)
            else np.uint64(device_address(views[v[0]]) + v[1])
            for v in one.values
        ]
        kernel(*one.shape[:2], tuple(values), shared_mem=one.shape[2])
        return [view.tobytes() for view in views]


@pytest.mark.filterwarnings("ignore::kernelscope.errors.ArgumentWarning")  # floats as bits
def test_kept_launches_of_numba_run_again_from_the_file(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(SimulatorKernel, "_launch", SimulatorKernel._launch)  # put back at the end
    keeper = tool.Keeper()
    keeper.pytest_configure()
    memory = np.arange(100, dtype=np.float32)
    z = np.zeros(33, np.complex64)
    run(scaled, 2, 32, memory[:66:2], memory[99:33:-2], 0.5, (3, 1.25), z)
    assert memory[99] == 1.75 and memory[97] == 2.75 and z[1] == 2j
    with observe(Sanitizer()):  # under which a kernel may do what faults on a GPU
        run(scaled, 1, 32, memory[:9], memory[9:18], 0.5, (3, 1.25), z)
    file = tmp_path / "launches.pkl"
    keeper.write(str(file))
    texts, (one,) = tool.read(str(file))
    assert sorted(len(m.before) for m in one.memory) == [8 * 33, 4 * 100]  # two views of one
    machine = Simulated(texts, tmp_path)
    assert tool.differences(one, machine) is None
    at = [len(m.before) for m in one.memory].index(4 * 100)
    other = np.frombuffer(one.memory[at].after, np.float32).copy()
    other[99] = 3.5
    wrong = [replace(m, after=other.tobytes()) if m is one.memory[at] else m for m in one.memory]
    told = tool.differences(replace(one, memory=tuple(wrong)), machine)["arrays"]
    assert told == {f"array {at}, float32": "1 of 100 numbers, relative difference 5.0e-01"}
    texts[one.text] = "no PTX"
    assert "error" in tool.differences(one, machine)
