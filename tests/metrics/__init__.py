"""Metric points of memory samples: from recordings of Stormlog, and from our own sampler."""
