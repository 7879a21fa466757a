"""C types by name: the NumPy dtype of an element, and the members of a vector type."""

import importlib

import numpy as np

_SCALARS = {
    "bool": "?",
    "char": "i1",
    "unsigned char": "u1",
    "short": "i2",
    "unsigned short": "u2",
    "int": "i4",
    "unsigned": "u4",
    "unsigned int": "u4",
    "long long": "i8",
    "unsigned long long": "u8",
    "int32_t": "i4",
    "uint32_t": "u4",
    "int64_t": "i8",
    "uint64_t": "u8",
    "half": "f2",
    "__half": "f2",
    "float": "f4",
    "double": "f8",
}
_STEMS = "char:i1 uchar:u1 short:i2 ushort:u2 int:i4 uint:u4 long:i8 ulong:u8 longlong:i8 \
ulonglong:u8 float:f4 double:f8"
_VECTORS = {
    f"{stem}{count}": (dtype, (count,))
    for stem, _, dtype in (pair.partition(":") for pair in _STEMS.split())
    for count in (1, 2, 3, 4)
}
# Name -> (dtype, extents): () for a scalar, (4,) for float4.
C_TYPES = {name: (dtype, ()) for name, dtype in _SCALARS.items()} | _VECTORS
C_TYPES |= {"half2": ("f2", (2,)), "__half2": ("f2", (2,))}
# Floats that NumPy does not have: ml_dtypes has them, which is imported when one is needed.
NARROW_FLOATS = {
    "__nv_bfloat16": "bfloat16",
    "nv_bfloat16": "bfloat16",
    "__nv_fp8_e4m3": "float8_e4m3fn",
    "__nv_fp8_e5m2": "float8_e5m2",
}
C_TYPES |= {name: (dtype, ()) for name, dtype in NARROW_FLOATS.items()}
C_TYPES |= {name: ("bfloat16", (2,)) for name in ("__nv_bfloat162", "nv_bfloat162")}


def dtype_of(name: str) -> np.dtype:
    """The dtype of a name such as "f4", "uint8" or "bfloat16"."""
    if name in NARROW_FLOATS.values():
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    return np.dtype(name)
