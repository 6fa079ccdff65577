"""Cirron batches as OTLP, and back."""
