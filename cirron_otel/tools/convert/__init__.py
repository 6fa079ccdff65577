"""Conversion between spools, batch files, OTLP files, storages and backends."""
