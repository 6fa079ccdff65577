"""TraceML's recordings and jobs."""
