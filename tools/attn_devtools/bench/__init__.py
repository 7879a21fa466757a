"""Suites of problems on which the course's methods and layers meet PyTorch's."""

from .attention import ATTENTION_SUITES
from .backward import BACKWARD_SUITES
from .layers import LAYER_SUITES
from .parallel import PARALLEL_SUITES
from .suite import Suite, problems

SUITES: dict[str, Suite] = {
    **ATTENTION_SUITES,
    **BACKWARD_SUITES,
    **LAYER_SUITES,
    **PARALLEL_SUITES,
}
