"""Snapshots of weights and gradients: statistics, samples, and complete tensors in files."""
