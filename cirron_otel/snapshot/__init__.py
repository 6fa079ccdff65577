"""Snapshots of weights and gradients: statistics, samples, and whole tensors beside the spool."""
