"""The replacements that take one idea at a time out of kernels 12 and 19."""

from dataclasses import dataclass

from .edits import Edit

Edits = tuple[Edit, ...]


@dataclass(frozen=True)
class Ablation:
    """A kernel without one idea.

    Attributes:
        kernel: its entry point.
        name: short name of the idea that is missing; empty for the whole kernel.
        idea: what is missing, in a few words.
        why: its purpose, and what replaces it.
        edits: (old, new) texts; each old one is in the source exactly once.
        options: compiler options, for an idea that a constant turns off.
    """

    kernel: str
    name: str
    idea: str
    why: str
    edits: Edits = ()
    options: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """ "flash_async" for the whole kernel, "flash_async without lanes" for an ablation."""
        return f"{self.kernel} without {self.name}" if self.name else self.kernel


def whole(kernel: str) -> Ablation:
    """A kernel with nothing taken away."""
    return Ablation(kernel, "", "the whole kernel", "what the others are compared with")


# Lanes t and t + 1 along the keys, t and t + 8 along the rows.
_LANES: Edits = (
    (
        """\
    // Lanes t and t^1 read the same of K and V, lanes t and t^2 the same of Q and P: then a warp's
    // 16-byte loads pass over the banks twice, not four times.
    const int tx = lane / 2 % 8;              // along the keys, and along the columns of the output
    const int ty = lane / 16 * 2 + lane % 2;  // along the rows
""",
        """\
    const int tx = lane % 8;  // along the keys, and along the columns of the output
    const int ty = lane / 8;  // along the rows
""",
    ),
    (
        """\
    const float rescale = weights<8, 2>(s, row_m, sum);
""",
        """\
    const float rescale = weights<4, 1>(s, row_m, sum);
""",
    ),
    (
        """\
        row_l[i] = warp_sum<8, 2>(row_l[i]);
""",
        """\
        row_l[i] = warp_sum<4, 1>(row_l[i]);
""",
    ),
)

# Four columns of a row, then four of the next.
_TURN: Edits = (
    (
        """\
                // Down the rows and up again: neighbours share v4's element, or at the turn the
                // weight, and so ask the register file for one value less.
#pragma unroll
                for (int i = 0; i < rows; ++i) o[i][c][0] += element(p4[i], y) * v4.x;
#pragma unroll
                for (int i = rows - 1; i >= 0; --i) o[i][c][1] += element(p4[i], y) * v4.y;
#pragma unroll
                for (int i = 0; i < rows; ++i) o[i][c][2] += element(p4[i], y) * v4.z;
#pragma unroll
                for (int i = rows - 1; i >= 0; --i) o[i][c][3] += element(p4[i], y) * v4.w;
""",
        """\
#pragma unroll
                for (int i = 0; i < rows; ++i) {
                    o[i][c][0] += element(p4[i], y) * v4.x;
                    o[i][c][1] += element(p4[i], y) * v4.y;
                    o[i][c][2] += element(p4[i], y) * v4.z;
                    o[i][c][3] += element(p4[i], y) * v4.w;
                }
""",
    ),
)

_LAST_ROWS = """\
    // Last rows first: under causal they work longest, and the short ones fill the end.
    const int row0 = (gridDim.y - 1 - blockIdx.y) * BR;
"""
_ROWS: Edits = ((_LAST_ROWS, "    const int row0 = blockIdx.y * BR;\n"),)

# Blocks start in the order of their linear number: a head's tiles, then the next head's.
_HEADS: Edits = (
    (
        "    const int bh = blockIdx.x;\n" + _LAST_ROWS,
        """\
    const int number = blockIdx.y * gridDim.x + blockIdx.x;
    const int bh = number / gridDim.y;
    // Last rows of each head first.
    const int row0 = (gridDim.y - 1 - number % gridDim.y) * BR;
""",
    ),
)

# One counter for row and column, both recomputed for each copy.
_POINTERS: Edits = (
    (
        """\
        constexpr int LANES = width / 4;       // threads a row
        constexpr int STEP = threads / LANES;  // rows the block copies at once
        const int col = threadIdx.x % LANES * 4;
        int row = threadIdx.x / LANES;
        src += (long long)row * d + col;
        to += (row * stride + col) * 4;
        if (threads % LANES && row == STEP) row = count;  // threads that fill no row are left
        for (; row < count; row += STEP, src += STEP * d, to += STEP * stride * 4) {
            const int bytes = row < rows && col < cols ? 16 : 0;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                         :: "r"(to), "l"(src), "r"(bytes) : "memory");
        }
""",
        """\
        for (int i = threadIdx.x; i < count * (width / 4); i += threads) {
            const int row = i / (width / 4);
            const int col = i % (width / 4) * 4;
            const int bytes = row < rows && col < cols ? 16 : 0;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                         :: "r"(to + (row * stride + col) * 4), "l"(src + (long long)row * d + col),
                            "r"(bytes) : "memory");
        }
""",
    ),
)

# V's copy starts together with K's, so a barrier must end P V before the next one overwrites V.
_LATE_V: Edits = (
    (
        """\
    start_copy<D, STRIDE, THREADS>(k_tile, k, TILE, last_key, d, d, vector);
    for (int key0 = 0; key0 < last_key; key0 += TILE) {
        copies_arrived<0>();  // Q and K are here
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write,
                          // and the next V tile overwrite the one that others still read
        start_copy<D, STRIDE, THREADS>(v_tile, v + (long long)key0 * d, TILE, last_key - key0, d, d,
                                       vector);
""",
        """\
    start_copy<D, STRIDE, THREADS>(k_tile, k, TILE, last_key, d, d, vector);
    start_copy<D, STRIDE, THREADS>(v_tile, v, TILE, last_key, d, d, vector);
    for (int key0 = 0; key0 < last_key; key0 += TILE) {
        copies_arrived<1>();  // Q and K are here, V may still be on its way
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write
""",
    ),
    (
        """\
    }
    copies_arrived<0>();  // where there is no key to see, Q is still on its way
""",
        """\
        __syncthreads();  // barrier: the next V tile would overwrite the one that others still read
        start_copy<D, STRIDE, THREADS>(v_tile, v + (long long)next * d, TILE, last_key - next, d, d,
                                       vector);
    }
    copies_arrived<0>();  // where there is no key to see, Q is still on its way
""",
    ),
)

_RELAXED: Edits = (
    ("barrier.cluster.arrive.relaxed.aligned", "barrier.cluster.arrive.release.aligned"),
)

ABLATIONS: tuple[Ablation, ...] = (
    Ablation(
        "flash_async",
        "lanes",
        "lanes in pairs share K and V",
        "with tx = lane % 8 a quarter of a warp asks for 8 different addresses of K or V, and "
        "a 16-byte load passes over the banks four times, not twice",
        _LANES,
    ),
    Ablation(
        "flash_async",
        "turn",
        "down the rows and up again",
        "row by row no two neighbouring multiply-adds share two of their registers with the "
        "one before, and more of them ask the same register bank",
        _TURN,
    ),
    Ablation(
        "flash_async",
        "last rows",
        "last rows first",
        "first rows first: under causal the longest blocks start last, and the others wait "
        "for them",
        _ROWS,
    ),
    Ablation(
        "flash_async",
        "heads",
        "all heads at once",
        "a head's tiles one after the other, last rows first in each: under causal the last "
        "head's long blocks start late; the start divides twice",
        _HEADS,
    ),
    Ablation(
        "flash_async",
        "pointers",
        "pointers that move",
        "row and column of each copy are computed again from one index",
        _POINTERS,
    ),
    Ablation(
        "flash_async",
        "late V",
        "V's copy starts when K is there",
        "V's copy starts with K's: it travels longer, and a tile has a barrier more",
        _LATE_V,
    ),
    Ablation(
        "flash_split",
        "cluster",
        "blocks share the keys of a row tile",
        "the same tile with a cluster of one block: fewer blocks, each with all keys",
        options=("-DCLUSTER=1",),
    ),
    Ablation(
        "flash_split",
        "relaxed",
        "a relaxed arrival at the start",
        "an arrival with release waits until everything stored before it is visible, and "
        "nothing has been",
        _RELAXED,
    ),
)
