"""Convert OTLP from other services to Cirron batches, and restore it from them."""
