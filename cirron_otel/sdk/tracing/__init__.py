"""The hot path: scopes, spans, marks and loops, and their buffers."""
