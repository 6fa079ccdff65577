"""OTLP endpoints as targets, over gRPC and HTTP."""
