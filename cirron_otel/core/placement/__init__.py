"""Placement: the session, the trace and the segment that a record belongs to."""
