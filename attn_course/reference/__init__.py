"""The truth: attention and its parts in float64 NumPy, strict comparison, and seeded inputs.

float64 imports nothing of the course, so nothing of the course can bend it.
"""

from .comparison import Comparison, compare, poisoned
from .dtypes import DTYPES, HALVES, TOLERANCES
from .float64 import (
    attention,
    attention_backward,
    attention_scores,
    causal_mask,
    gelu,
    gelu_backward,
    layer_norm,
    layer_norm_backward,
    log_sum_exp,
    softmax,
    swin_block,
    transformer_block,
)
from .inputs import (
    PATCH,
    MriWindows,
    brightest_windows,
    mri_slice,
    mri_windows,
    seeded_qkv,
    window_tokens,
)
