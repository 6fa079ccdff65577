"""Readers that turn batches into the relations of a run."""
