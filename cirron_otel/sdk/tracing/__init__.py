"""The hot path: scopes, spans, marks and loops, and the buffers that hold them."""
