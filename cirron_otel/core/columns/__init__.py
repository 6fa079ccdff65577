"""Batches as the rows of columnar tables, and the files of these tables (docs/columns.md)."""
