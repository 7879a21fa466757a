"""Facts that the machine and its observers share."""

import numpy as np

from attn_course.engine.events import place_in


def test_linear_numbers_count_x_first():
    shape = (5, 3, 2)
    for number in range(30):
        z, y, x = np.unravel_index(number, shape[::-1])
        assert place_in(number, shape) == (x, y, z)
