"""Comparison of two runs, and of the ranks of one run, by the digests of their steps."""
