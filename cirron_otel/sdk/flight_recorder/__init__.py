"""The out-of-memory flight recorder: a mark and a bundle for each OOM that leaves a scope."""
