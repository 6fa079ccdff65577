"""Recordings as tables for notebooks: Arrow, pandas, Polars (docs/dataframes.md)."""
