"""Textures on both machines: formats, addressing and filters, the four channels bit for bit."""

import itertools
import zlib
from dataclasses import dataclass
from importlib import import_module

import numpy as np
from kernelscope import texture as names

LANES = 4096
WIDTH, HEIGHT = 37, 19
KINDS = {"i": 0, "u": 1, "f": 2}  # cudaChannelFormatKind...
FORMATS = ("f4", "f2", "u1", "i1", "u2", "i2", "u4", "i4")
MODES = {"wrap": 0, "clamp": 1, "mirror": 2, "border": 3}

SOURCE = """
extern "C" __global__ void run(const float* places, uint4* out, cudaTextureObject_t from) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float x = places[2 * i], y = places[2 * i + 1];
  FETCH
  out[i] = make_uint4(bits(texel.x), bits(texel.y), bits(texel.z), bits(texel.w));
}
"""
BITS = """
__device__ unsigned bits(float x) { return __float_as_uint(x); }
__device__ unsigned bits(int x) { return x; }
__device__ unsigned bits(unsigned x) { return x; }
"""


@dataclass(frozen=True)
class TextureCase:
    """One texture: a dtype, channels, dimensions (0: linear memory), an address mode, the filter,
    whether coordinates are normalised and integers read as fractions.
    """

    dtype: str
    channels: int
    dimensions: int
    mode: str
    linear: bool
    normalized: bool
    as_fractions: bool

    @property
    def name(self) -> str:
        read = "fractions" if self.as_fractions else "elements"
        words = (f"{self.dimensions}d", f"{self.dtype}x{self.channels}", self.mode, read)
        places = "normalised" if self.normalized else "texels"
        return " ".join((*words, "linear" if self.linear else "point", places))

    @property
    def source(self) -> str:
        """The kernel: the texel's type is that of its channels, of 32 bits."""
        floats = self.dtype[0] == "f" or self.as_fractions
        texel = "float4" if floats else "int4" if self.dtype[0] == "i" else "uint4"
        call = {
            0: "tex1Dfetch<T>(from, __float2int_rd(x * 64))",
            1: "tex1D<T>(from, x)",
            2: "tex2D<T>(from, x, y)",
        }
        fetch = f"const {texel} texel = {call[self.dimensions].replace('T', texel)};"
        return BITS + SOURCE.replace("FETCH", fetch)

    def texels(self) -> np.ndarray:
        """(width * channels,) or (height, width * channels) numbers of the format."""
        rng = np.random.default_rng(zlib.crc32(self.dtype.encode()) + self.channels)
        shape = (*((HEIGHT,) if self.dimensions == 2 else ()), WIDTH * self.channels)
        if self.dtype[0] == "f":
            return rng.normal(size=shape).astype(self.dtype)
        limits = np.iinfo(self.dtype)
        return rng.integers(limits.min, limits.max, shape, self.dtype, endpoint=True)

    def places(self) -> np.ndarray:
        """(LANES, 2) float32 coordinates: anywhere, on texels and edges, at ties of the weights."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        size = np.array([WIDTH, HEIGHT])
        anywhere = rng.uniform(-1.5, 2.5, (LANES, 2)) * size
        halves = rng.integers(-2 * WIDTH, 4 * WIDTH, (LANES, 2)) / 2
        ties = rng.integers(-512 * 4, 512 * WIDTH, (LANES, 2)) / 512
        chosen = np.choose(rng.integers(0, 3, (LANES, 1)), [anywhere, halves, ties])
        return (chosen / size if self.normalized else chosen).astype(np.float32)

    def texture(self, on_gpu: bool):
        """The texture object of a machine, and what must live as long."""
        home = import_module("cupy.cuda.texture" if on_gpu else "kernelscope.texture.objects")
        data, bits = self.texels(), 8 * np.dtype(self.dtype).itemsize
        sizes = [bits] * self.channels + [0] * (4 - self.channels)
        form = home.ChannelFormatDescriptor(*sizes, KINDS[self.dtype[0]])
        if self.dimensions:
            array = home.CUDAarray(form, WIDTH, HEIGHT if self.dimensions == 2 else 0)
            array.copy_from(data)
            resource = home.ResourceDescriptor(names.cudaResourceTypeArray, cuArr=array)
        else:
            array = import_module("cupy").asarray(data) if on_gpu else data
            linear = names.cudaResourceTypeLinear
            resource = home.ResourceDescriptor(
                linear, arr=array, chDesc=form, sizeInBytes=data.nbytes
            )
        described = home.TextureDescriptor(
            (MODES[self.mode],) * max(self.dimensions, 1),
            int(self.linear),
            int(self.as_fractions),
            borderColors=(0.25, 0.5, 0.75, 1.0) if self.mode == "border" else None,
            normalizedCoords=int(self.normalized),
        )
        return home.TextureObject(resource, described), array


def cases() -> list[TextureCase]:
    """Every format, channel count, dimension, address mode and filter that CUDA allows."""
    found = []
    for dtype, channels in itertools.product(FORMATS, (1, 2, 4)):
        fractions = (False, True) if dtype in ("u1", "i1", "u2", "i2") else (False,)
        found.append(TextureCase(dtype, channels, 0, "clamp", False, False, False))
        for as_fractions, dimensions, normalized in itertools.product(fractions, (1, 2), (0, 1)):
            filters = (False, True) if dtype[0] == "f" or as_fractions else (False,)
            modes = MODES if normalized else ("clamp", "border")
            for linear, mode in itertools.product(filters, modes):
                if mode == "border" and dtype[0] != "f" and not as_fractions:
                    continue  # a border of floats has no meaning there
                case = TextureCase(
                    dtype, channels, dimensions, mode, linear, bool(normalized), as_fractions
                )
                found.append(case)
    return found


def run_case(machine, case: TextureCase) -> np.ndarray:
    """(LANES, 4) uint32: the four channels at each place."""
    module = machine.load(case.source)
    handle, alive = case.texture(machine.backend == "gpu")
    arguments = (case.places(), np.zeros((LANES, 4), np.uint32), handle)
    out = machine.run(module, "run", (LANES // 128,), (128,), arguments)[-1]
    del alive
    return out


def compare(case: TextureCase, first: np.ndarray, second: np.ndarray) -> dict:
    """`mismatches`: lanes where a channel has other bits; `channels`: in which; what is apart."""
    bad = first != second
    record = {"lanes": LANES, "mismatches": int(bad.any(axis=1).sum())}
    if record["mismatches"]:
        lane = int(np.argmax(bad.any(axis=1)))
        record["channels"] = np.flatnonzero(bad.any(axis=0)).tolist()
        record["example"] = [
            case.places()[lane].tolist(),
            *(x[lane].tolist() for x in (first, second)),
        ]
        if case.dtype[0] == "f" or case.as_fractions:
            apart = first.view(np.float32).astype(float) - second.view(np.float32)
            record["largest_difference"] = float(np.nanmax(np.abs(apart)))
    return record
