"""Simulated runs with planted causes, and a score of the findings about them."""
