"""Tests of the schema of records, and of what is derived from it."""
