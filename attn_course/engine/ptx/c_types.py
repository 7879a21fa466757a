"""C types by name: the NumPy dtype of an element, and the members of a vector type."""

from __future__ import annotations

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
