"""Suites of layers: layer norm, MLP and transformer blocks against PyTorch's."""

from .suites import LAYER_SUITES, run_layer_suite
