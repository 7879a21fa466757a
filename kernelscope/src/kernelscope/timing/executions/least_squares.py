"""Least squares over numbers >= 0."""

import numpy as np

MOST_PIVOTS = 60  # exchanges of sides; where rounding keeps variables changing, no more helps
_PATIENCE = 3


def nonnegative(
    matrix: np.ndarray, right: np.ndarray, positive: np.ndarray | None = None
) -> np.ndarray:
    """Return x >= 0 with the least |matrix x - right|, by block principal pivoting.

    positive: (variables,) bool, a guess which of them are.

    Kim and Park, "Fast nonnegative matrix factorization", SIAM J. Sci. Comput. 33 (2011): all
    variables that break a condition change sides at once; where that does not help for long, one.
    """
    count = matrix.shape[1]
    length = np.maximum(np.sqrt((matrix**2).sum(0)), 1e-300)  # columns are made alike in size
    matrix = matrix / length
    square, linear = matrix.T @ matrix, matrix.T @ right
    square.flat[:: count + 1] += 1e-11
    positive = np.ones(count, bool) if positive is None else positive.copy()
    fewest, patience = count + 1, _PATIENCE
    x = np.zeros(count)
    for _ in range(MOST_PIVOTS):
        if positive.all():
            x = np.linalg.solve(square, linear)
        else:
            x, at = np.zeros(count), np.flatnonzero(positive)
            x[at] = np.linalg.solve(square[at[:, None], at], linear[at])
        gain = linear - square @ x
        wrong = positive & (x < -1e-12) | ~positive & (gain > 1e-9)
        if not wrong.any():
            break
        if wrong.sum() < fewest:
            fewest, patience = int(wrong.sum()), _PATIENCE
        elif patience:
            patience -= 1
        else:
            wrong[: np.flatnonzero(wrong)[-1]] = False
        positive ^= wrong
    return np.maximum(x, 0.0) / length
