"""What a launch's loads, stores and atomics ask of L1, L2 and DRAM."""
