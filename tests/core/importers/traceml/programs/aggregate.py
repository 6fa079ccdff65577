"""Run in TraceML's environment: its aggregator's history and summary for files of frames.

    python aggregate.py DATABASE FILE...

Prints the summary as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
from traceml_ai.aggregator.sqlite_writer import SQLiteWriterConfig, SQLiteWriterSimple
from traceml_ai.reporting.final import build_summary_payload
from traceml_ai.telemetry.control import parse_rank_finished

database, *files = sys.argv[1:]
writer = SQLiteWriterSimple(SQLiteWriterConfig(path=database, history_retention_s=1e9))
writer.start()
finished = []
for file in files:
    data, at = Path(file).read_bytes(), 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        for message in msgspec.msgpack.decode(data[at + 4 : end]):
            control = parse_rank_finished(message)
            if control is not None:
                finished.append(control.global_rank)
            else:
                writer.ingest(message)
        at = end
result = writer.finalize()
summary = build_summary_payload(database, history_retention_s=1e9)
print(json.dumps({"ok": result.ok, "finished": finished, "summary": summary}, default=str))
