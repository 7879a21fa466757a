"""Kernels of Numba and Triton in a Python file, for the commands."""
