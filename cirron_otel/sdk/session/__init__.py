"""Sessions: identity, provider, lifetime, and the public Profiler."""
