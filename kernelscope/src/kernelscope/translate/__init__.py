"""Turns PTX into NumPy: control flow, operands, instructions, programs."""
