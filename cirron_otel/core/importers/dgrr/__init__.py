"""DGRR traces of the Training Trace Runtime (docs/dgrr.md)."""
