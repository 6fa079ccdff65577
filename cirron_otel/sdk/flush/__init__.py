"""The flush thread: drains the buffers, builds batches and seals them in the spool."""
