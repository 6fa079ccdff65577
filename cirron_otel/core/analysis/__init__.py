"""Analysis of a spool: trees, reports, verdicts, runs and verification."""
