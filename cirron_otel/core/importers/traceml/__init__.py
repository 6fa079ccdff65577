"""TraceML's telemetry: its frames, rows and files, without TraceML (docs/traceml.md).

`TraceMLStream` (stream.py) imports one connection, live or recorded; `FrameDecoder` (framing.py)
cuts its bytes into frames; `TraceMLImport` (reading.py) imports files.
"""
