"""The schema of a batch's records, and the validation, rows and columns derived from it."""
