"""Counts requests, sectors, wavefronts and instructions as Nsight Compute does."""
