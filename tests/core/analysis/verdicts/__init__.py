"""Tests of the verdicts: the rules, their input from records, the command, and real jobs."""
