"""OTLP files and messages: JSON tables, framing, compression, splitting."""
