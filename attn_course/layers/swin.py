"""A stage of a Swin transformer: attention in windows, shifted in every second block.

Liu et al., arXiv:2103.14030. A window of s x s tokens is a small sequence; a shifted block moves
the windows by s // 2 tokens along both axes, cyclically, and hides from a token what is in its
window only because of the cycle. A learned bias for each distance of two tokens is added to the
scores.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from kernelscope import array_module, resolve_backend
from kernelscope.errors import InputError, InputTypeError
from kernelscope.module import takes_foreign

from attn_course.ladder.checks import check_floats

from .launches import Launches, LayerPlan
from .operations import check_integer
from .transformer import Grouping, TransformerBlock, check_mapping, host_weight

BIAS_TABLE = "bias_table"  # among a block's weights: ((2s - 1)^2, heads)


def window_tokens(height: int, width: int, side: int, shift: int = 0) -> np.ndarray:
    """Return the tokens of each window: (windows, side * side) int32, row * width + column.

    Windows and their tokens are in the order of rows. shift: the first window begins at token
    (shift, shift); what leaves at the top or the left comes back at the other end.

    Raises:
        ValueError: extents that are no multiples of the window's side; a side below 1.
    """
    if side < 1 or height % side or width % side:
        raise InputError(
            f"x has {height} x {width} tokens, no multiple of windows of {side} x {side}: crop it, "
            "pad it, or choose another side of 1 or more"
        )
    tokens = np.arange(height * width, dtype=np.int32).reshape(height, width)
    tokens = np.roll(tokens, (-shift, -shift), axis=(0, 1))
    tokens = tokens.reshape(height // side, side, width // side, side).swapaxes(1, 2)
    return np.ascontiguousarray(tokens.reshape(-1, side * side))


def shift_mask(height: int, width: int, side: int, shift: int) -> np.ndarray:
    """Return 0 where two tokens of a window may see each other, else -inf: (windows, n, n) float32.

    They may not where only the cyclic shift has brought them together from two ends of the image:
    one of the first `shift` rows or columns, and one further down or right.
    """
    rows, columns = np.divmod(window_tokens(height, width, side, shift), width)
    zone = 2 * (rows < shift) + (columns < shift)  # (windows, n)
    apart = zone[:, :, None] != zone[:, None, :]
    return np.where(apart, np.float32(-np.inf), np.float32(0.0))


def relative_bias(table: np.ndarray, side: int) -> np.ndarray:
    """Return the bias of each pair of a window's tokens, (heads, n, n), from a table of distances.

    table: ((2 side - 1)^2, heads); the row of (dy, dx) is (dy + side - 1) (2 side - 1) + dx + side
    - 1, with the distance from key to query, as in the paper's code.

    Raises:
        ValueError: a table of another shape.
    """
    _check_table(table, side, "heads")
    row, column = np.divmod(np.arange(side * side), side)
    dy = row[:, None] - row[None, :] + side - 1
    dx = column[:, None] - column[None, :] + side - 1
    return np.ascontiguousarray(np.moveaxis(table[dy * (2 * side - 1) + dx], 2, 0))


@takes_foreign
def table_gradient(dscores, side: int, *, backend: str):
    """Return the gradient of relative_bias()'s table from that of scores, (.., heads, n, n)."""
    xp = array_module(backend)
    distances = np.indices((2 * side - 1,) * 2).reshape(2, -1, 1) + 1 - side
    row, column = np.indices((side, side)).reshape(2, 1, -1) - distances  # key of each query
    inside = (np.minimum(row, column) >= 0) & (np.maximum(row, column) < side)
    keys = xp.asarray(np.where(inside, row * side + column, 0))  # (distances, n)
    sums = dscores.sum(axis=0)[:, xp.arange(side * side), keys]
    return (sums * xp.asarray(inside)).sum(axis=2).T


def _check_table(table: np.ndarray, side: int, heads: int | str) -> None:
    """Refuse a table of biases of a wrong shape; a word for `heads` stands for any number."""
    distances = (2 * side - 1) ** 2
    fits = table.ndim == 2 and len(table) == distances and heads in ("heads", table.shape[1])
    if not fits:
        raise InputError(
            f"{BIAS_TABLE} has shape {table.shape}, not ({distances}, {heads}): a row for each "
            f"distance of two tokens in windows of {side} x {side}"
        )


class SwinStage:
    """Transformer blocks in windows of side x side tokens, every second one shifted by side // 2.

    Args:
        weights: one mapping a block: as for TransformerBlock, and ``bias_table`` of shape
            ((2 side - 1)^2, heads), optional.
        heads, options: as for TransformerBlock, without ``causal``.
        side: of a window, in tokens. An image of one window along an axis is not shifted.

    Raises:
        ValueError, TypeError: no block, blocks of several widths, a side below 1, or an argument
            as for TransformerBlock.
    """

    def __init__(
        self,
        weights: Sequence[Mapping[str, object]],
        heads: int,
        side: int,
        *,
        backend: str | None = None,
        **options,
    ):
        if "causal" in options:
            raise InputError("windows of an image have no causal order: leave causal out")
        if isinstance(weights, Mapping) or not isinstance(weights, Sequence):
            raise InputTypeError(
                f"weights is {type(weights).__name__}, not a sequence of mappings, one a block: "
                "pass a list such as [weights_1, weights_2]"
            )
        heads, side = check_integer("heads", heads), check_integer("side", side)
        if not weights or side < 1:
            raise InputError(f"a stage of {len(weights)} blocks, side {side}: both are at least 1")
        self.backend, self.heads, self.side = resolve_backend(backend), heads, side
        self.blocks, self.tables = [], []
        for number, given in enumerate(weights):
            check_mapping(f"weights[{number}]", given, "pass a mapping for each block")
            others = {name: array for name, array in given.items() if name != BIAS_TABLE}
            try:
                table = given.get(BIAS_TABLE)
                if table is not None:
                    table = host_weight(BIAS_TABLE, table)
                    _check_table(table, side, heads)
                block = TransformerBlock(others, heads, backend=self.backend, **options)
            except (TypeError, ValueError) as error:
                error.add_note(f"the error is in weights[{number}], those of block {number}")
                raise
            self.tables.append(table)
            self.blocks.append(block)
            first, width = self.blocks[0].width, self.blocks[-1].width
            if width != first:
                raise InputError(
                    f"weights[{number}] are of width {width}, weights[0] of width {first}: the "
                    "blocks of a stage have one width; make a stage for each"
                )

    @takes_foreign
    def __call__(self, x):
        """Return the stage of x: (B, height, width, E) float32, an array as the block's."""
        launches, out = self._launches(x)
        launches.run()
        return out

    @takes_foreign
    def plan(self, x) -> LayerPlan:
        """Prepare the stage on x: fill x in place, then ``plan()`` returns ``plan.out``."""
        return LayerPlan(*self._launches(x))

    @takes_foreign
    def forward(self, x):
        """Return the stage of x, as a call does, and what backward() needs; x must not change."""
        self._launches(x)  # checks
        kept, rows = [], (-1, self.blocks[0].width)
        for number, block in enumerate(self.blocks):
            launches = Launches(self.backend)  # with buffers of its own
            out, grouping = launches.xp.empty_like(x), self._grouping(number, *x.shape[:3])
            saved = block.append(launches, x.reshape(rows), out.reshape(rows), grouping, True)
            launches.run()
            kept.append(saved._replace(x=x))
            x = out
        return x, tuple(kept)

    def backward(self, saved, dout, *, deterministic: bool = False):
        """Return dx, and a dict of the weights' gradients for each block; see TransformerBlock."""
        found = []
        for number, kept in reversed([*enumerate(saved)]):
            block, grouping = self.blocks[number], self._grouping(number, *kept[0].shape[:3])
            dout, *arrays = block._backward(dout, *kept, grouping, deterministic=deterministic)
            found.insert(0, dict(zip(block.names, arrays, strict=False)))
            if self.tables[number] is not None:
                dscores = arrays[-1].reshape(-1, self.heads, grouping.n, grouping.n)
                found[0][BIAS_TABLE] = table_gradient(dscores, self.side, backend=self.backend)
        return dout, found

    def _launches(self, x):
        launches, width = Launches(self.backend), self.blocks[0].width
        check_floats("x", x, launches.xp)
        if x.ndim != 4 or x.shape[3] != width:
            raise InputError(f"x has shape {x.shape}, not (B, height, width, {width})")
        out = launches.xp.empty_like(x)
        source, target = x.reshape(-1, width), out.reshape(-1, width)
        for number, block in enumerate(self.blocks):
            block.append(launches, source, target, self._grouping(number, *x.shape[:3]))
            source = target  # the next block works in place
        return launches, out

    def _grouping(self, number: int, batch: int, height: int, width: int) -> Grouping:
        """The windows of one block, and the bias of their scores."""
        xp, side = array_module(self.backend), self.side
        shift = side // 2 if number % 2 and min(height, width) > side else 0
        tokens = window_tokens(height, width, side, shift)  # (windows, n)
        windows, n = tokens.shape
        all_tokens = tokens[None] + height * width * np.arange(batch, dtype=np.int32)[:, None, None]
        table, bias = self.tables[number], None
        if table is not None:
            bias = relative_bias(table, side)  # (heads, n, n)
        if shift:
            mask = shift_mask(height, width, side, shift)[:, None]  # (windows, 1, n, n)
            full = mask if bias is None else mask + bias
            full = np.broadcast_to(full, (windows, self.heads, n, n)).reshape(-1, n, n)
            # A bias of its own for each window: to the kernels, windows are further heads.
            groups = (batch, windows * self.heads)
        else:
            full, groups = bias, (batch * windows, self.heads)
        return Grouping(
            *groups,
            n,
            xp.asarray(all_tokens.reshape(-1)),
            None if full is None else xp.asarray(np.ascontiguousarray(full, np.float32)),
        )
