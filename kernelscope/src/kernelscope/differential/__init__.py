"""The simulator against a GPU, bit for bit: opcodes, matrices, kernels, functions."""
