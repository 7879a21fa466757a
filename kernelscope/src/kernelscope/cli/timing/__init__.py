"""Commands that predict times, and measure what predictions are made from."""
