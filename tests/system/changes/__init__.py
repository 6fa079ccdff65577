"""Pairs of real training runs with a planted change, and the result of `diff` for each."""
