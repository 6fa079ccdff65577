"""Hooks into Ray Train and Ray Tune."""
