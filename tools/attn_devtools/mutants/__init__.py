"""Mutants of exercises' solutions, made by rule: `attn-course mutants` shows those that pass."""
