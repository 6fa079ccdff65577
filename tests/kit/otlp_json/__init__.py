"""The conformance corpus of OTLP/JSON in tests/testdata/otlp-json: its cases and its readers."""
