"""The spool: Cirron's trace format on disk, its writers, readers and state."""
