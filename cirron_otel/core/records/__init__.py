"""The schema of a batch's records, and what is derived from it."""
