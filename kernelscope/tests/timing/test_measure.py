"""measure-gpu with a simulated GPU: every probe is launched as on a GPU, and gives a number."""

from types import SimpleNamespace

import numpy as np
import pytest
from kernelscope import RawModule, device_address
from kernelscope.compile import compile_cubin
from kernelscope.errors import BackendError
from kernelscope.timing import gpus, measure
from kernelscope.timing.machine_code import disassembled, parse


class Array(np.ndarray):
    """A NumPy array with what the probes ask of CuPy's: an address."""

    @property
    def data(self):
        return SimpleNamespace(ptr=device_address(np.asarray(self)))

    def fill(self, value):
        np.asarray(self)[...] = value


def _zeros(count, dtype):
    return np.zeros(count, dtype).view(Array)


@pytest.fixture
def probes(monkeypatch):
    """The probes on the simulator, all sizes small."""
    names = ("int32", "int64", "uint32", "uint64", "float32", "roll")
    cupy = SimpleNamespace(**{name: getattr(np, name) for name in names})
    cupy.zeros, cupy.random = _zeros, SimpleNamespace(RandomState=np.random.RandomState)
    monkeypatch.setattr(measure, "LARGE_BYTES", 1 << 20)
    monkeypatch.setattr(measure, "WINDOW_BYTES", 1 << 16)
    monkeypatch.setattr(measure, "CHAIN_BYTES", {"l2_clocks": 1 << 15, "dram_clocks": 1 << 18})
    monkeypatch.setattr(measure, "STEPS", 2)
    monkeypatch.setattr(measure, "REPEATS", 2)
    launched = []

    def replay_times(call, calls, samples):
        launched.append(call())
        return [10.0]

    monkeypatch.setattr(measure, "replay_times", replay_times)
    module = RawModule(path=str(measure.PROBES), backend="simulator")
    return measure._Probes(cupy, module, sms=2)


@pytest.mark.turns(23)
@pytest.mark.system
def test_every_probe_runs(probes):
    """Each kernel of probes.cu is launched, and each constant is a positive number."""
    found = probes.bandwidths() | probes.latencies() | probes.rates()
    found |= {"launch_us": probes.launch_us()} | probes.atomics()
    assert set(gpus.CONSTANTS) - set(gpus.NOT_PROBED) | set(measure.CHECKS) == set(found)
    assert all(np.isfinite(value) and value > 0 for value in found.values())


@pytest.mark.turns(13)
@pytest.mark.system
def test_bandwidth_counts_read_and_written_bytes(probes):
    """2 MiB in 10 microseconds are 210 GB/s."""
    assert probes.bandwidths()["dram_gbps"] == pytest.approx(2 * (1 << 20) / 10e-6 / 1e9)


@pytest.mark.turns(11)
@pytest.mark.system
def test_a_load_of_the_bandwidth_probe_is_one_request():
    """ptxas keeps 16 bytes a load: two loads of parts would ask twice for each sector."""
    cubin = compile_cubin(measure.PROBES.read_text(), "probes.cu", (), "sm_90a").cubin
    codes = [one for s in parse(disassembled(cubin, "-gi", "-hex"), "read", "") for one in s.code]
    loads = [one for one in codes if one.name == "LDG"]
    assert len(loads) >= 4 and all("128" in one.parts for one in loads)


def test_without_a_gpu_it_says_so(monkeypatch):
    import cupy

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 0)
    with pytest.raises(BackendError, match="needs a GPU"):
        measure.measure_gpu()


@pytest.mark.parametrize("name", gpus.names())
def test_constants_have_a_source(name):
    """Every constant of a shipped GPU is positive and says where it is from; there are 12."""
    import json

    record = json.loads((gpus.FOLDER / f"{name}.json").read_text())
    assert set(record["constants"]) == set(gpus.CONSTANTS) and len(gpus.CONSTANTS) <= 12
    assert all(one["value"] > 0 and one["source"] for one in record["constants"].values())
    assert gpus.gpu(name).sms > 0
