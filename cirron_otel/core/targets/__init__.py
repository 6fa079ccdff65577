"""Targets: everything that a batch can be delivered to."""
