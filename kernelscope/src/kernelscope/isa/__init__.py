"""The table of pure PTX operations as NumPy functions."""
