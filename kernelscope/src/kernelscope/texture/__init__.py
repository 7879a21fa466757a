"""Texture objects under CuPy's names: `cupy.cuda.texture` on a GPU, their like for the simulator.

    from kernelscope import texture

    array = texture.CUDAarray(
        texture.ChannelFormatDescriptor(32, 0, 0, 0, texture.cudaChannelFormatKindFloat), 64, 32
    )

The constants are those of `cupy.cuda.runtime`.
"""

from importlib import import_module

from ..backend import resolve_backend

cudaChannelFormatKindSigned, cudaChannelFormatKindUnsigned, cudaChannelFormatKindFloat = 0, 1, 2
cudaResourceTypeArray, cudaResourceTypeMipmappedArray = 0, 1
cudaResourceTypeLinear, cudaResourceTypePitch2D = 2, 3
cudaAddressModeWrap, cudaAddressModeClamp = 0, 1
cudaAddressModeMirror, cudaAddressModeBorder = 2, 3
cudaFilterModePoint, cudaFilterModeLinear = 0, 1
cudaReadModeElementType, cudaReadModeNormalizedFloat = 0, 1

_CLASSES = (
    "ChannelFormatDescriptor",
    "ResourceDescriptor",
    "TextureDescriptor",
    "CUDAarray",
    "TextureObject",
    "SurfaceObject",
)


def __getattr__(name: str):
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    on_gpu = resolve_backend() == "gpu"
    return getattr(import_module("cupy.cuda.texture" if on_gpu else f"{__name__}.objects"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_CLASSES})
