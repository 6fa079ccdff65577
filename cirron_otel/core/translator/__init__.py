"""The translation between OTLP and Cirron batches, without I/O."""
