"""Engines that reduce a recording to its relations with SQL: DuckDB, PostgreSQL and Spark."""
