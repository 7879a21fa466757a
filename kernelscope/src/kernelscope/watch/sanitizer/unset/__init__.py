"""Reads of local variables that a thread has not set."""
