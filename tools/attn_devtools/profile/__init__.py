"""Nsight Compute on the ladder's kernels: runs it, and shows what it or the records say."""
