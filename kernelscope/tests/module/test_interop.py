"""Kernels on arrays of other libraries: the same memory, no copy."""

import numpy as np
import pytest
from kernelscope import RawKernel
from kernelscope.errors import ArgumentError
from kernelscope.module import interop, tensor_library

SOURCE = """extern "C" __global__ void twice(const float* x, float* y, int n)
{
    if (threadIdx.x < n) y[threadIdx.x] = 2 * x[threadIdx.x];
}"""


class Foreign:
    """An array that has DLPack and no more."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.device


@pytest.fixture
def twice():
    return RawKernel(SOURCE, "twice", backend="simulator")


def test_a_kernel_writes_into_the_callers_memory(twice):
    x, y = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    twice((1,), (32,), (Foreign(x), Foreign(y), np.int32(5)))
    assert (y == 2 * x).all()


def test_memory_of_a_gpu_is_refused_on_the_simulator(twice):
    x = np.zeros(5, np.float32)
    with pytest.raises(ArgumentError, match=r"argument 2 \(float\* y\): got an array in GPU mem"):
        twice((1,), (32,), (x, Foreign(x, device=(2, 0)), np.int32(5)))


def test_the_library_of_a_tensor_is_not_that_of_a_mixin(monkeypatch):
    class Tensor:
        def detach(self):
            return self

    class Mixin:
        pass

    class Subclass(Tensor, Mixin):
        pass

    monkeypatch.setattr(Tensor, "__module__", "numpy.of_a_part")
    assert tensor_library(Tensor) is tensor_library(Subclass) is np
    assert tensor_library(Mixin) is None


def test_tensors_of_pytorch(twice):
    torch = pytest.importorskip("torch")
    x, y = torch.arange(5.0), torch.zeros(5)
    twice((1,), (32,), (x, y, np.int32(5)))
    assert (y == 2 * x).all()
    with pytest.raises(ArgumentError, match=r"x requires grad.*pass x\.detach\(\)"):
        twice((1,), (32,), (x.requires_grad_(), y, np.int32(5)))
    with pytest.raises(ArgumentError, match=r"float64, the kernel reads float32"):
        RawKernel(SOURCE, "twice", backend="simulator", strict=True)(
            (1,), (32,), (x.detach().double(), y, np.int32(5))
        )


def test_a_stream_of_another_library_is_cupys_too():
    stream = interop.stream_at(77)  # no warning: ExternalStream is deprecated in CuPy 14.2
    assert stream.ptr == 77 and interop.stream_at(77) is stream
