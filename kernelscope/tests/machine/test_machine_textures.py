"""Texture objects on the simulator, against the rules fitted to an H200, in exact arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from kernelscope import RawKernel, texture
from kernelscope.errors import (
    ArgumentError,
    CompileError,
    InputError,
    SimulatorError,
    UnsupportedKernel,
)

MODES = {
    "wrap": texture.cudaAddressModeWrap,
    "clamp": texture.cudaAddressModeClamp,
    "mirror": texture.cudaAddressModeMirror,
    "border": texture.cudaAddressModeBorder,
}
LOOK = """extern "C" __global__ void look(const float* at, {type}* out, cudaTextureObject_t from) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = {call};
}}"""
CALLS = {1: "tex1D<{type}>(from, at[i])", 2: "tex2D<{type}>(from, at[2 * i], at[2 * i + 1])"}


@pytest.fixture(autouse=True)
def on_the_simulator(monkeypatch):
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")


def made(data, channels=1, modes=("clamp", "clamp"), **how):
    """A texture object of a CUDAarray with these texels: (height, width * channels) or (width,)."""
    kind = {"i": 0, "u": 1, "f": 2}[data.dtype.kind]
    bits = [8 * data.itemsize] * channels + [0] * (4 - channels)
    sizes = (data.shape[-1] // channels, *data.shape[:-1])
    array = texture.CUDAarray(texture.ChannelFormatDescriptor(*bits, kind), *sizes)
    array.copy_from(data)
    resource = texture.ResourceDescriptor(texture.cudaResourceTypeArray, cuArr=array)
    chosen = [MODES[mode] for mode in modes]
    return texture.TextureObject(resource, texture.TextureDescriptor(chosen, **how))


def look(handle, places, kind="float", call="", channels=1):
    """What a kernel reads at (n, dimensions) places."""
    places = np.asarray(places, np.float32)
    code = LOOK.format(type=kind, call=(call or CALLS[places.shape[1]]).format(type=kind))
    dtype = {"f": np.float32, "i": np.int32, "u": np.uint32}[kind[0]]
    out = np.zeros((len(places), channels), dtype)
    RawKernel(code, "look", strict=True)((1,), (len(places),), (places, out, handle))
    return out[:, 0] if channels == 1 else out


def index(i, size, mode):
    """The texel that number i stands for; None outside a border."""
    if mode == "border" and not 0 <= i < size:
        return None
    if mode == "wrap":
        return i % size
    if mode == "mirror":
        return i % (2 * size) if i % (2 * size) < size else 2 * size - 1 - i % (2 * size)
    return min(max(i, 0), size - 1)


def shares(parts):
    """The 256ths of each corner, x first."""
    if len(parts) == 1:
        return [256 - parts[0], parts[0]]
    both = math.floor(Fraction(parts[0] * parts[1], 256) + Fraction(1, 2))
    return [256 - sum(parts) + both, parts[0] - both, parts[1] - both, both]


def weighed(texels, weights):
    """The weighed sum of float32 texels: 24 bits and 4 more of each, ties away from zero."""
    top = max(abs(float(t)) for t, weight in zip(texels, weights, strict=True) if weight)
    unit = Fraction(2) ** (math.frexp(top)[1] - 28)
    whole = [math.trunc(Fraction(float(t)) / unit) for t in texels]
    total = unit * sum(t * weight for t, weight in zip(whole, weights, strict=True)) / 256
    last = Fraction(2) ** (math.frexp(float(total))[1] - 24)
    nearest = last * math.floor(abs(total) / last + Fraction(1, 2))
    return math.copysign(float(nearest), total)


def by_the_rules(data, place, modes, linear, normalized):
    """The texel or the weighed texels at a place, exactly."""
    sizes, at = data.shape[::-1], [Fraction(float(x)) for x in place]
    if normalized:
        cut = [Fraction(math.floor(x * 2**21), 2**21) for x in at]
        at = [x * n for x, n in zip(cut, sizes, strict=True)]
    fixed = [math.floor(x) * 256 for x in at]
    if linear:
        fixed = [math.floor((x - Fraction(1, 2)) * 256 + Fraction(1, 2)) for x in at]
    texels = []
    for corner in np.ndindex(*[2] * len(at)):
        found = [
            index(f // 256 + step, n, mode)
            for f, step, n, mode in zip(fixed, corner[::-1], sizes, modes, strict=True)
        ]
        texels.append(0.0 if None in found else data[tuple(found[::-1])])
    return weighed(texels, shares([f % 256 for f in fixed])) if linear else texels[0]


@pytest.mark.turns(11)
@pytest.mark.system
@pytest.mark.parametrize("linear", [0, 1])
@pytest.mark.parametrize("normalized", [0, 1])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(7,), (5, 7)])
def test_a_texture_is_read_by_the_rules(rng, shape, mode, normalized, linear):
    data = (rng.normal(size=shape) * 2.0 ** rng.integers(-9, 9, shape)).astype(np.float32)
    places = rng.uniform(-1.6, 2.6, (96, len(shape))) * data.shape[::-1]
    places[::3] = np.round(2 * places[::3]) / 2  # on texels and between them
    places[1::3] = np.round(512 * places[1::3]) / 512  # ties of the weights
    places = (places / data.shape[::-1] if normalized else places).astype(np.float32)
    modes = [mode, "clamp"][: len(shape)]
    used = [m if normalized or m == "border" else "clamp" for m in modes]
    got = look(made(data, modes=modes, filterMode=linear, normalizedCoords=normalized), places)
    expected = [by_the_rules(data, place, used, linear, normalized) for place in places]
    assert np.array_equal(got, np.array(expected, np.float32))


MEASURED = [  # on an H200: dtype, texels, 256ths of the fractions, the number read
    ("f4", ["0x1.528adcp-5", "-0x1.299a9cp+1"], [5], "-0x1.40990ap-8"),
    ("f4", ["0x1.e4e7ccp-1", "-0x1.684ffcp-1"], [142], "0x1.012db2p-5"),
    ("f2", [1.1328125, -1.53125, -1.1611328125, -1.0859375], [52, 100], -0.09039306640625),
    ("u1", [203, 196], [214], 50667 / 65535),
    ("u1", [132, 69, 225, 146], [124, 99], 34553 / 65535),
    ("i1", [91, 72], [8], 23325 / 32767),
    ("i1", [-48, -11], [86], -9178 / 32767),
    ("i1", [-128, -99], [157], -28436 / 32767),
    ("u2", [61000, 8281], [49], 50909 / 65535),
    ("i2", [-25370, 19768], [139], -861 / 32767),
]


@pytest.mark.parametrize(("dtype", "texels", "parts", "read"), MEASURED)
def test_sums_measured_on_an_h200(dtype, texels, parts, read):
    *texels, read = [float.fromhex(x) if isinstance(x, str) else x for x in (*texels, read)]
    data = np.array(texels, dtype).reshape([2] * len(parts))
    handle = made(data, filterMode=1, readMode=int(dtype[0] != "f"))
    assert look(handle, [[0.5 + part / 256 for part in parts]]) == [np.float32(read)]


def test_edges_of_texels_measured_on_an_h200():
    """Normalised coordinates next to an edge; exactly, the first three are one texel further."""
    places = ["0x1.f22984p-2", "0x1.7914c2p+1", "-0x1.914c1ap-1", "-0x1.5798eep-67", "-0x1p-149"]
    handle = made(np.arange(37, dtype=np.float32), modes=["wrap"], normalizedCoords=1)
    got = look(handle, [[float.fromhex(place)] for place in places])
    assert got.tolist() == [17, 34, 7, 36, 0]


@pytest.mark.parametrize(
    ("dtype", "border", "read"),
    [("u1", 0.5, 127 / 255), ("i1", 0.25, 32 / 127), ("u2", 0.5, 32767 / 65535)]
    + [("f2", -0.1983119, -0.19824219), ("f2", 1e-6, 2.0**-20), ("f4", 0.1, 0.1)],
)
def test_borders_measured_on_an_h200(dtype, border, read):
    how = {"readMode": int(dtype[0] != "f"), "borderColors": (border,)}
    handle = made(np.zeros(4, dtype), modes=["border"], **how)
    assert look(handle, [[-9.0]]) == [np.float32(read)]


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_what_is_not_finite_and_signed_zeros_are_filtered_as_on_an_h200(dtype):
    data = np.array([-0.0, -0.0, np.inf, 2.0, np.nan, 2.0], dtype)
    got = look(made(data, filterMode=1), np.array([1.0, 1.5, 2.0, 3.5, 4.0, 5.0])[:, None])
    assert np.array_equal(got, np.float32([-0.0, -0.0, np.inf, 2.0, np.nan, np.nan]), True)
    assert np.signbit(got[:2]).all()
    assert got[4].view(np.uint32) == {"f4": 0x7FFFFFFF, "f2": 0x7FFFE000}[dtype]


def test_subnormal_texels_and_sums_are_zero():
    tiny = 2.0**-126
    data = np.float32([tiny / 2, 3 * tiny, -tiny, -tiny, tiny])
    got = look(made(data, filterMode=1), [[1.0], [2.0], [2.5], [4.0]])
    assert got.tolist() == [1.5 * tiny, tiny, -tiny, 0]


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "f2"])
def test_integers_and_halves_are_read_as_they_are(rng, dtype):
    data = (rng.normal(size=9) * 9).astype(dtype)
    kind = {"i": "int", "u": "unsigned", "f": "float"}[dtype[0]]
    got = look(made(data), np.arange(9)[:, None] + 0.5, kind)
    assert np.array_equal(got, data.astype(got.dtype))


@pytest.mark.parametrize("linear", [0, 1])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2"])
def test_integers_are_fractions_of_their_largest_value(dtype, linear):
    limits = np.iinfo(dtype)
    data = np.array([limits.min, limits.max, limits.max // 2, 0], dtype)
    how = {"readMode": texture.cudaReadModeNormalizedFloat, "filterMode": linear}
    expected = np.maximum(data / limits.max, -1).astype(np.float32)
    if linear and dtype == "i1":
        expected[2] = 0b011111101111110 / 32767  # 63 has its 7 bits twice and a 0
    assert np.array_equal(look(made(data, **how), np.arange(4)[:, None] + 0.5), expected)


def test_channels_come_together_and_missing_ones_are_zero(rng):
    data = rng.normal(size=(3, 8)).astype(np.float32)
    for channels in (2, 4):
        kind = f"float{channels}"
        places = [(x + 0.5, y + 0.5) for y in range(3) for x in range(8 // channels)]
        got = look(made(data, channels), places, kind, channels=channels)
        assert np.array_equal(got.reshape(3, 8), data)
    (got,) = look(made(data), [(1.5, 2.5)], "float4", channels=4)
    assert got.tolist() == [data[2, 1], 0, 0, 0]


@pytest.mark.parametrize("dtype", ["f4", "u1"])
def test_linear_memory_is_fetched_by_number_and_zero_outside(dtype):
    data = np.arange(1, 11).astype(dtype)
    form = texture.ChannelFormatDescriptor(8 * data.itemsize, 0, 0, 0, 2 if dtype == "f4" else 1)
    linear = texture.cudaResourceTypeLinear
    resource = texture.ResourceDescriptor(linear, arr=data, chDesc=form, sizeInBytes=data.nbytes)
    handle = texture.TextureObject(resource, texture.TextureDescriptor())
    kind = "float" if dtype == "f4" else "unsigned"
    call = "tex1Dfetch<{type}>(from, (int)at[i])"
    got = look(handle, np.arange(-2, 12)[:, None], kind, call)
    assert got.tolist() == [0, 0, *range(1, 11), 0, 0]
    data[3] = 77  # the texture is the array's memory
    assert look(handle, [[3.0]], kind, call)[0] == 77
    with pytest.raises(SimulatorError, match="is read with tex1Dfetch"):
        look(handle, [[3.0]], kind)


def test_rows_of_pitched_memory():
    data = np.arange(48, dtype=np.float32).reshape(3, 16)
    form = texture.ChannelFormatDescriptor(32, 0, 0, 0, texture.cudaChannelFormatKindFloat)
    pitched = texture.cudaResourceTypePitch2D
    how = {"chDesc": form, "width": 10, "height": 3, "pitchInBytes": 64}
    resource = texture.ResourceDescriptor(pitched, arr=data, **how)
    handle = texture.TextureObject(resource, texture.TextureDescriptor([1, 1]))
    assert look(handle, [(9.5, 2.5), (12.5, 1.5)]).tolist() == [data[2, 9], data[1, 9]]


def test_each_lane_may_read_a_texture_of_its_own():
    code = """extern "C" __global__ void k(const unsigned long long* from, float* out) {
        out[threadIdx.x] = tex1D<float>(from[threadIdx.x % 2], 1.5f);
    }"""
    both = [made(np.array(values, np.float32)) for values in ([1, 2, 3], [4, 5, 6])]
    out = np.zeros(4, np.float32)
    handles = np.array([one.ptr for one in both], np.uint64)
    RawKernel(code, "k")((1,), (4,), (handles, out))
    assert out.tolist() == [2, 5, 2, 5]


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("tex3D<float>(from, 0, 0, 0)", "textures of three dimensions"),
        ("tex1DLayered<float>(from, 0, 1)", "layered textures"),
        ("texCubemap<float>(from, 0, 0, 0)", "cube maps"),
        ("tex2DLod<float>(from, 0, 0, 1)", "levels of mipmapped textures"),
    ],
)
def test_other_textures_are_refused_by_their_name(call, what):
    with pytest.raises(UnsupportedKernel, match=what):
        look(made(np.zeros((2, 2), np.float32)), [(0.5, 0.5)], call=call)


def test_what_is_no_texture_is_named():
    plane = made(np.zeros((2, 2), np.float32))
    with pytest.raises(SimulatorError, match="has 2 dimensions, and is read with 1"):
        look(plane, [[0.5]])
    with pytest.raises(SimulatorError, match="is no texture object"):
        look(np.uint64(5), [[0.5]])
    with pytest.raises(ArgumentError, match="cudaTextureObject_t"):
        RawKernel('extern "C" __global__ void k(int x) {}', "k")((1,), (1,), (plane,))
    with pytest.raises(CompileError, match="CUDA 12 has no texture references"):
        RawKernel('texture<float, 1> t; extern "C" __global__ void k() {}', "k").compile()


def test_textures_that_are_not_simulated_or_make_no_sense_are_refused():
    form = texture.ChannelFormatDescriptor(8, 0, 0, 0, texture.cudaChannelFormatKindUnsigned)
    data = np.zeros(4, np.uint8)
    refused = {
        "three dimensions": lambda: texture.CUDAarray(form, 4, 4, 4),
        "layered": lambda: texture.CUDAarray(form, 4, 4, 0, 1),
        "equal size": lambda: texture.ChannelFormatDescriptor(8, 16, 0, 0, 1),
        "kind 2": lambda: texture.ChannelFormatDescriptor(8, 0, 0, 0, 2),
        "mipmapped": lambda: texture.ResourceDescriptor(1, arr=data, chDesc=form),
        "sizeInBytes is 9": lambda: texture.ResourceDescriptor(
            2, arr=data, chDesc=form, sizeInBytes=9
        ),
        "pitchInBytes": lambda: texture.ResourceDescriptor(3, arr=data, chDesc=form, width=4),
        "sRGB": lambda: texture.TextureDescriptor(sRGB=1),
        "addressModes": lambda: texture.TextureDescriptor([7]),
        "shape": lambda: texture.CUDAarray(form, 4).copy_from(np.zeros(5, np.uint8)),
        "takes uint8": lambda: texture.CUDAarray(form, 4).copy_from(np.zeros(4, np.int8)),
        "cudaReadModeNormalizedFloat": lambda: made(data, filterMode=1),
        "surfaces": lambda: texture.SurfaceObject(None),
    }
    for words, action in refused.items():
        with pytest.raises(InputError, match=words):
            action()
