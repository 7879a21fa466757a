"""The inputs of a launch: the problem, the device, and the tile sizes chosen for the two."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from kernelscope.errors import InputError

from attn_course.reference.dtypes import DTYPES

MAX_GRID_X = 2**31 - 1
MAX_GRID_YZ = 65535
ROW_KEYS = 12000  # keys whose scores fit into 48 KB of shared memory beside a few floats
COUNTERS = ("arrivals", "turns")  # buffers in which blocks count
LARGEST_D = 256  # head dim of the flash kernels: a thread holds ROWS * D / 8 outputs in registers


@dataclass(frozen=True)
class Problem:
    """Extents of one attention call: bh heads over the batch, n queries, m keys, head dim d.

    heads and kv_heads: of q and of k and v in one element of the batch; bh is a multiple of heads,
    heads of kv_heads. bias_strides: floats from one element of the batch, and from one head, to
    the next in the bias; 0 where they share it. dtype: of q, k, v and out, a name in DTYPES.
    biased: whether there is a bias.

    Of a cache: page: keys of a page of k and v, 0 where each sequence has one of m keys.
    heads_last: a page is (page, kv_heads, d), not (kv_heads, page, d).  ragged: sequences have
    lengths of their own, at most m.
    """

    bh: int
    n: int
    m: int
    d: int
    heads: int = 1
    kv_heads: int = 1
    causal: bool = False
    bias_strides: tuple[int, int] = (0, 0)
    dtype: str = "float32"
    biased: bool = False
    page: int = 0
    heads_last: bool = False
    ragged: bool = False

    @property
    def rows_a_head(self) -> int:
        """Rows of q that share a head of k and v."""
        return self.heads // self.kv_heads * self.n

    @property
    def kv_matrices(self) -> int:
        """Heads of k and v of all sequences, (m, d) each."""
        return self.bh // self.heads * self.kv_heads

    def shape(self, buffer: str) -> tuple[int, ...]:
        """Shape of a buffer by its name in the kernels: q, k, v, s, p, out or lse."""
        if buffer == "lse":
            return (self.bh, self.n)
        if buffer in "kv":
            return (self.bh // self.heads * self.kv_heads, self.m, self.d)
        columns = {"q": self.d, "out": self.d, "s": self.m, "p": self.m}
        return (self.bh, self.n, columns[buffer])

    def dtype_of(self, buffer: str) -> np.dtype:
        """Dtype of a buffer by its name in the kernels: scores, weights and lse are float32."""
        if buffer in COUNTERS:
            return np.dtype(np.uint32)
        if buffer == "halves":
            return DTYPES["float16"]
        return DTYPES[self.dtype if buffer in ("q", "k", "v", "out") else "float32"]

    def scalars(self) -> dict[str, int]:
        """The kernels' integer parameters by name."""
        names, page = ("heads", "kv_heads", "n", "m", "d"), self.page or self.m
        return {name: getattr(self, name) for name in names} | {
            "bh": self.bh,
            "rows": self.bh * self.n,
            "batch": self.bh // self.heads,
            "page": page,
            "head_stride": self.d if self.heads_last else page * self.d,
            "key_stride": self.kv_heads * self.d if self.heads_last else self.d,
            "causal": int(self.causal),
            "bias_batch": self.bias_strides[0],
            "bias_head": self.bias_strides[1],
        }


@dataclass(frozen=True)
class Device:
    """Properties of a GPU that choices depend on.

    The defaults are the simulator's: an A100's limits, and clusters besides.

    Attributes:
        name: as messages show it.
        capability: compute capability, (8, 0) for sm_80.
        sm_count: streaming multiprocessors.
        shared_bytes: the most shared memory a block may have.
    """

    name: str = "the simulator"
    capability: tuple[int, int] = (9, 0)
    sm_count: int = 108
    shared_bytes: int = 163 * 1024

    @property
    def has_clusters(self) -> bool:
        """Whether blocks can form clusters."""
        return self.capability >= (9, 0)


@dataclass(frozen=True)
class Geometry:
    """Geometry of one launch, and the constants for which it was worked out.

    Attributes:
        entry: name of the kernel in its file.
        grid: blocks in x, y, z.  block: threads in x, y, z.
        shared_bytes: dynamic shared memory of a block.
        constants: values of the file's ``#ifndef`` constants that were tuned or given; the file's
            own defaults are left out. Read-only.

    Raises:
        ValueError: a grid that no GPU takes.
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    constants: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self):
        limits = (MAX_GRID_X, MAX_GRID_YZ, MAX_GRID_YZ)
        for axis, extent, limit in zip("xyz", self.grid, limits, strict=True):
            if not 1 <= extent <= limit:
                raise InputError(
                    f"{self.entry}: grid {axis} would be {extent}, a GPU takes 1 to {limit}; "
                    "use a larger TILE or split the batch"
                )

    def options(self, others: Iterable[str] = ()) -> tuple[str, ...]:
        """Return the compiler options of the launch: its constants, and `others` beside them.

        Options among `others` that define one of the constants are left out: `Step.launch` has
        read them, and the constants hold their values.
        """
        defined = {f"-D{name}": value for name, value in self.constants.items()}
        kept = (option for option in others if option.partition("=")[0] not in defined)
        return (*(f"{name}={value}" for name, value in defined.items()), *kept)


def ceil_div(a: int, b: int) -> int:
    """Return a / b rounded up."""
    return -(-a // b)


def refuse(entry: str, found: str, limit: str, remedy: str) -> NoReturn:
    """Raises the ValueError of an extent that a step can not hold."""
    raise InputError(f"{entry}: {found}, but it takes at most {limit}; use method {remedy}")
