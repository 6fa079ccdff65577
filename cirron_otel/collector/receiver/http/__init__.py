"""The HTTP receiver: OTLP, Cirron batches, and snapshot files."""
