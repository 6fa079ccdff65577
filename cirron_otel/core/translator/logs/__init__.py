"""Convert between OTLP log records and marks."""
