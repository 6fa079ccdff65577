"""cirron-otel: the bridge between Cirron's training traces and OpenTelemetry."""

__version__ = "0.1.0"
