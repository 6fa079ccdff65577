"""OTLP of other services as Cirron batches, and back."""
