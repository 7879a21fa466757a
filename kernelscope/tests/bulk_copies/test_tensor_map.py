"""kernelscope.TensorMap: what it takes, what it refuses, what it packs."""

import ctypes

import numpy as np
import pytest
from kernelscope import TensorMap
from kernelscope.errors import BackendError, InputError, InputTypeError
from kernelscope.tensor_map import encoding as encodings
from kernelscope.tensor_map.encoding import Encoding
from kernelscope.tensor_map.fields import MAP_FIELDS

X = np.zeros((6, 40, 64), np.float32)
LONG = np.broadcast_to(X, (2, 2, 2, 6, 40, 64))


class Tensor:
    """An array in GPU memory that is not CuPy's."""

    __cuda_array_interface__ = {"version": 3}
    data = None


REFUSED = {
    "a tensor of PyTorch": (lambda: TensorMap(Tensor(), (2,)), "'Tensor': pass cupy.asarray"),
    "6 axes": (lambda: TensorMap(LONG, (1,) * 6), "the array has 6 axes; .* takes 1 to 5"),
    "no axis": (lambda: TensorMap(X[0, 0, 0:1].reshape(()), ()), "has 0 axes"),
    "no array": (lambda: TensorMap([1, 2], (2,)), "not of 'list'"),
    "few numbers": (lambda: TensorMap(X, (8, 32)), r"box is \(8, 32\); the array has 3 axes"),
    "a number": (lambda: TensorMap(X, 8), "box is 8; it must be a tuple"),
    "a wide box": (lambda: TensorMap(X, (1, 300, 4)), "each number must be 1 to 256"),
    "an odd row": (lambda: TensorMap(X, (1, 1, 5)), r"has 20 bytes; it must be a multiple of 16"),
    "a long row": (
        lambda: TensorMap(X, (1, 8, 64), swizzle=128),
        "has 256 bytes; with a swizzle of 128 bytes it has at most 32 elements: copy the tile as s",
    ),
    "a swizzle": (lambda: TensorMap(X, (1, 8, 4), swizzle=16), "must be one of 0, 32, 64, 128"),
    "a promotion": (lambda: TensorMap(X, (1, 8, 4), promotion=512), "must be one of 0, 64, 128, 2"),
    "a fill": (lambda: TensorMap(X, (1, 8, 4), fill="one"), "must be one of 'zero', 'nan'"),
    "an integer NaN": (
        lambda: TensorMap(X.view(np.int32), (1, 8, 4), fill="nan"),
        "only floats have NaN",
    ),
    "a step": (lambda: TensorMap(X, (1, 8, 8), element_strides=(1, 9, 1)), "must be 1 to 8"),
    "an inner step": (
        lambda: TensorMap(X, (1, 8, 8), element_strides=(1, 1, 2)),
        "that of the last axis, which is contiguous, is 1",
    ),
    "a transposed array": (lambda: TensorMap(X.T, (4, 4, 1)), "the last axis .* is not contiguous"),
    "uneven rows": (lambda: TensorMap(X[:, :, :3].copy(), (1, 8, 4)), "pad the rows to a multiple"),
    "reversed rows": (lambda: TensorMap(X[:, ::-1], (1, 8, 4)), "must be positive multiples of 16"),
    "an odd start": (lambda: TensorMap(X[:, :, 1:], (1, 8, 4)), "a multiple of 16 bytes: start at"),
    "nothing": (lambda: TensorMap(X[:0], (1, 8, 4)), "the array has no elements"),
    "complex": (lambda: TensorMap(X.view(np.complex64), (1, 8, 4)), "no elements of complex64; it"),
    "another size": (
        lambda: TensorMap(X, (1, 8, 4), dtype="bfloat16"),
        "dtype is 'bfloat16', of 2 bytes; the array holds float32",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_copy_engine_cannot_take_is_refused(what):
    make, message = REFUSED[what]
    with pytest.raises(InputError, match=message):
        make()


def test_types_of_elements():
    assert issubclass(InputTypeError, TypeError) and issubclass(InputError, ValueError)
    for dtype, kind in (("i1", "uint8"), ("?", "uint8"), ("i2", "uint16"), ("f8", "float64")):
        described = TensorMap(np.zeros((4, 16), dtype), (2, 16))
        assert described.encoding.kind == kind
    bits = TensorMap(np.zeros((4, 16), np.uint16), (2, 16), dtype="bfloat16")
    assert bits.encoding.kind == "bfloat16" and bits.box_bytes == 64


def test_the_image_holds_axes_from_the_innermost_on():
    view = X[1:5, :30, :48]
    described = TensorMap(
        view, (2, 6, 16), swizzle=64, element_strides=(1, 4, 1), fill="nan", promotion=128
    )
    assert described.image.dtype == "V128" and described.image is described.image
    (found,) = described.image.view(MAP_FIELDS)
    assert found["rank"] == 2 and found["swizzle"] == 64 and found["fill"] == 1
    assert found["sizes"][:3].tolist() == [48, 30, 4]
    assert found["strides"][:2].tolist() == [256, 256 * 40]
    assert found["box"][:3].tolist() == [16, 6, 2] and found["step"][:3].tolist() == [1, 4, 1]
    assert described.box_bytes == 2 * 2 * 16 * 4
    assert repr(described) == "<TensorMap of (4, 30, 48) float32, box (2, 6, 16)>"


def test_an_axis_of_one_element_may_have_any_stride():
    one = np.lib.stride_tricks.as_strided(X, (1, 40, 64), (4, 256, 4))
    assert TensorMap(one, (1, 8, 4)).encoding.strides == (256, 10240)


class Driver:
    """Stands for libcuda: keeps the arguments, fills the map, or refuses."""

    def __init__(self, status=0):
        self.status, self.arguments = status, None

    def cuTensorMapEncodeTiled(self, image, *arguments):
        assert image.value % 64 == 0
        ctypes.memset(image.value, 7, 128)
        self.arguments = arguments
        return self.status


def test_a_gpu_gets_the_arguments_in_the_drivers_order(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(encodings, "_driver", lambda: driver)
    encoding = Encoding(
        4096, "bfloat16", (64, 30, 4), (256, 10240), (16, 6, 2), (1, 4, 1), 32, "nan", 256
    )
    image = encoding.encoded()
    assert image.tolist() == [7] * 128 and image.ctypes.data % 64 == 0
    kind, axes, address, extents, strides, box, steps, *rest = driver.arguments
    assert (kind, axes, address.value) == (9, 3, 4096)
    assert [list(one) for one in (extents, strides, box, steps)] == [
        [64, 30, 4],
        [256, 10240],
        [16, 6, 2],
        [1, 4, 1],
    ]
    assert rest == [0, 1, 3, 1]  # interleave, swizzle, promotion, fill
    driver.status = 1
    with pytest.raises(BackendError, match=r"refuses this tensor map \(CUresult 1\)"):
        encoding.encoded()


def test_a_machine_without_a_driver_is_named(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: no such file")

    monkeypatch.setattr(encodings.ctypes, "CDLL", missing)
    with pytest.raises(BackendError, match="driver has no tensor maps: libcuda.so.1: no such file"):
        encodings._driver()
