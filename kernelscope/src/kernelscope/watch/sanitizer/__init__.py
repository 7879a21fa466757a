"""Finds races, bad accesses, uninitialised reads and divergent barriers."""
