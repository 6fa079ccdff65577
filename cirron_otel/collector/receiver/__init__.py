"""Servers that accept OTLP and Cirron JSON, and the consumer that stores all their requests."""
