"""Tensor maps: the descriptions of arrays by which the copy engine of sm_90 (TMA) copies boxes.

arrays has TensorMap, which a caller makes of an array; encoding its 128 bytes on either machine,
fields the places of the simulator's, which kernels may fill themselves.
"""

from .arrays import TensorMap
