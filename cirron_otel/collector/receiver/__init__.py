"""Servers that take OTLP and Cirron JSON, and what keeps their requests: one `export` for all."""
