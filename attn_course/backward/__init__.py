"""The backward pass: its kernels, how each is launched, and `attention_backward()` over them."""

from .methods import BackwardPlan, attention_backward
from .steps import BACKWARD, METHODS, BackwardMethod, choose_backward, method_of
from .verify import verify_backward
