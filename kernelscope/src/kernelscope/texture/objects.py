"""Texture objects of the simulator, with the signatures of `cupy.cuda.texture`."""

import itertools
import weakref

import numpy as np

from .. import texture as names
from ..errors import InputError
from .sampling import BORDER, CLAMP, MIRROR, WRAP, Texels

_DTYPES = {  # (kind, bits) of a channel
    **{(names.cudaChannelFormatKindSigned, bits): f"i{bits // 8}" for bits in (8, 16, 32)},
    **{(names.cudaChannelFormatKindUnsigned, bits): f"u{bits // 8}" for bits in (8, 16, 32)},
    **{(names.cudaChannelFormatKindFloat, bits): f"f{bits // 8}" for bits in (16, 32)},
}
_MODES = {
    names.cudaAddressModeWrap: WRAP,
    names.cudaAddressModeClamp: CLAMP,
    names.cudaAddressModeMirror: MIRROR,
    names.cudaAddressModeBorder: BORDER,
}
_ALIGNMENT = 32  # of the pitch of rows in bytes, as GPUs have it
_handles = itertools.count(1 << 40)
_alive: weakref.WeakValueDictionary = weakref.WeakValueDictionary()  # handle -> TextureObject


class ChannelFormatDescriptor:
    """The bits of the channels x, y, z, w (0 for none) and their kind, cudaChannelFormatKind...

    Raises ValueError for a format that textures do not have.
    """

    def __init__(self, x: int, y: int, z: int, w: int, f: int):
        self.bits, self.kind = (x, y, z, w), f
        used = [bits for bits in self.bits if bits]
        self.channels = len(used)
        if len(set(used)) != 1 or list(self.bits[: self.channels]) != used or self.channels == 3:
            raise InputError(f"channels of {self.bits} bits: a texel has 1, 2 or 4 of equal size")
        if (f, x) not in _DTYPES:
            raise InputError(f"a texture has no channels of {x} bits and kind {f}")
        self.dtype = np.dtype(_DTYPES[f, x])

    def get_channel_format(self) -> dict[str, int]:
        """CuPy's dictionary of the format."""
        return dict(zip("xyzwf", (*self.bits, self.kind), strict=True))


class CUDAarray:
    """An array of texels: `width`, and `height` for two dimensions.

    Raises ValueError for one of three dimensions, or with layers or faces (flags).
    """

    def __init__(self, desc, width: int, height: int = 0, depth: int = 0, flags: int = 0):
        if depth:
            raise InputError("textures of three dimensions are not simulated; use a GPU")
        if flags:
            raise InputError("layered textures, cube maps and surfaces are not simulated")
        if width < 1 or height < 0:
            raise InputError(f"a CUDAarray of {width} x {height} texels: it has at least one")
        self.desc, self.width, self.height, self.depth, self.flags = desc, width, height, 0, 0
        self.ndim = 2 if height else 1
        self.shape = (*((height,) if height else ()), width * desc.channels)
        self.texels = np.zeros(self.shape, desc.dtype)

    def copy_from(self, in_arr, stream=None) -> None:
        """Fill it from an array of shape (height, channels * width), or (channels * width,)."""
        self.texels[...] = self._checked(in_arr)

    def copy_to(self, out_arr, stream=None) -> None:
        """Copy the texels to an array of that shape."""
        self._checked(out_arr)[...] = self.texels

    def _checked(self, array) -> np.ndarray:
        array = np.asarray(array)
        if array.shape != self.shape:
            raise InputError(f"shape {array.shape}: this CUDAarray takes {self.shape}")
        if array.dtype != self.desc.dtype or not array.flags.c_contiguous:
            raise InputError(
                f"an array of {array.dtype}: this CUDAarray takes {self.desc.dtype}, C-contiguous"
            )
        return array


class ResourceDescriptor:
    """The memory of a texture: a CUDAarray, or an array of linear or pitched memory.

    Raises ValueError for mipmapped arrays and for memory that does not hold the texels.
    """

    def __init__(
        self,
        restype,
        cuArr=None,
        arr=None,
        chDesc=None,
        sizeInBytes=0,
        width=0,
        height=0,
        pitchInBytes=0,
    ):
        self.restype, self.cuArr, self.arr, self.chDesc = restype, cuArr, arr, chDesc
        if restype == names.cudaResourceTypeArray and isinstance(cuArr, CUDAarray):
            self.desc, shape = cuArr.desc, cuArr.shape
            self.texels = cuArr.texels.reshape(*shape[:-1], cuArr.width, cuArr.desc.channels)
            return
        if restype == names.cudaResourceTypeMipmappedArray:
            raise InputError("mipmapped textures are not simulated; use a GPU")
        if not isinstance(arr, np.ndarray) or not isinstance(chDesc, ChannelFormatDescriptor):
            raise InputError("a texture's memory is cuArr=, or arr= and chDesc=")
        if not arr.flags.c_contiguous:
            raise InputError("the array of a texture must be C-contiguous")
        self.desc, texel = chDesc, chDesc.dtype.itemsize * chDesc.channels
        data = arr.reshape(-1).view(np.uint8)
        if restype == names.cudaResourceTypeLinear:
            size = sizeInBytes // texel * texel
            if not 0 < size <= data.size:
                raise InputError(f"sizeInBytes is {sizeInBytes}; the array has {data.size} bytes")
            self.texels = data[:size].view(chDesc.dtype).reshape(-1, chDesc.channels)
        elif restype == names.cudaResourceTypePitch2D:
            if pitchInBytes % _ALIGNMENT or pitchInBytes < width * texel or width < 1 or height < 1:
                raise InputError(
                    f"pitchInBytes is {pitchInBytes}: a multiple of {_ALIGNMENT} that holds a row"
                )
            if pitchInBytes * (height - 1) + width * texel > data.size:
                raise InputError(f"the array has {data.size} bytes and does not hold the texels")
            strides = (pitchInBytes, texel, chDesc.dtype.itemsize)
            shape = (height, width, chDesc.channels)
            self.texels = np.ndarray(shape, chDesc.dtype, data, strides=strides)
        else:
            raise InputError(f"restype is {restype}; see cudaResourceType...")


class TextureDescriptor:
    """How a texture is read: addressModes, one for each dimension; filterMode; readMode;
    borderColors; normalizedCoords. Numbers are the constants of this package.

    Raises ValueError for sRGB and maxAnisotropy, which are not simulated.
    """

    def __init__(
        self,
        addressModes=None,
        filterMode=0,
        readMode=0,
        sRGB=None,
        borderColors=None,
        normalizedCoords=None,
        maxAnisotropy=None,
    ):
        if sRGB or maxAnisotropy:
            raise InputError("sRGB and maxAnisotropy of textures are not simulated; use a GPU")
        modes = tuple(addressModes or ())
        if len(modes) > 3 or any(mode not in _MODES for mode in modes):
            raise InputError(f"addressModes is {addressModes!r}; see cudaAddressMode...")
        if filterMode not in (0, 1) or readMode not in (0, 1):
            raise InputError(f"filterMode is {filterMode!r}, readMode {readMode!r}: 0 or 1")
        wrap = names.cudaAddressModeWrap
        self.modes = (*(_MODES[mode] for mode in modes), *[_MODES[wrap]] * (3 - len(modes)))
        self.linear, self.normalized_read = bool(filterMode), bool(readMode)
        self.border = (*(borderColors or ()), 0.0, 0.0, 0.0, 0.0)[:4]
        self.normalized = bool(normalizedCoords)


class TextureObject:
    """A texture that a kernel reads through a parameter of type cudaTextureObject_t.

    `ptr` is the handle. Pass the object itself to the kernel, as in CuPy.
    Raises ValueError where CUDA refuses the combination.
    """

    def __init__(self, ResDesc: ResourceDescriptor, TexDesc: TextureDescriptor):
        self.ResDesc, self.TexDesc, dtype = ResDesc, TexDesc, ResDesc.desc.dtype
        if TexDesc.normalized_read and (dtype.kind == "f" or dtype.itemsize == 4):
            if dtype.kind != "f":
                raise InputError("cudaReadModeNormalizedFloat is for integers of 8 and 16 bits")
        if TexDesc.linear and dtype.kind != "f" and not TexDesc.normalized_read:
            raise InputError(
                "linear filtering gives floats: read integers with cudaReadModeNormalizedFloat"
            )
        self.texels = Texels(
            ResDesc.texels,
            TexDesc.modes,
            TexDesc.linear,
            TexDesc.normalized,
            TexDesc.normalized_read and dtype.kind != "f",
            TexDesc.border,
            ResDesc.restype == names.cudaResourceTypeLinear,
        )
        self.ptr = next(_handles)
        _alive[self.ptr] = self


def SurfaceObject(*arguments, **keywords):
    """Surfaces are not simulated: raises ValueError."""
    raise InputError("surfaces are not simulated; use a GPU, or write to an array")


def texels_of(handle: int) -> Texels | None:
    """The texels of a texture object that is alive, by its handle."""
    found = _alive.get(handle)
    return found and found.texels
