"""OTLP log records that are marks."""
