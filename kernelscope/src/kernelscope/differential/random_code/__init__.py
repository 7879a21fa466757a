"""Random kernels: a tree, its CUDA C, and an oracle that evaluates it."""
