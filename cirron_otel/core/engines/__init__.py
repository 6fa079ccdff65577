"""The analyses as expressions that SQL engines compute (docs/engines.md)."""
