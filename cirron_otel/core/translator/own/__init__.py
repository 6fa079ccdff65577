"""Convert Cirron batches to OTLP, and decode them from OTLP again."""
