"""Collectors whose endpoint gives different answers to the parts of one batch."""
