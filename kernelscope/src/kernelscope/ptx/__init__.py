"""Reads PTX text: syntax, debug names, shapes of shared arrays."""
