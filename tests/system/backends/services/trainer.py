"""Trains, and asks a server in each step: `trainer.py MODE DIRECTORY [URL]`; a report on stdout.

It stops between the steps of its last epoch until a line is written to it, so that a test can look
at what is there while it runs.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import requests
from opentelemetry import trace
from opentelemetry.instrumentation.requests import RequestsInstrumentor

import cirron_otel as ci
from tests.system.backends.services import telemetry
from tests.system.backends.services.trainer_counts import EPOCHS, EVENTS, STEPS


def ids(span: Any) -> dict[str, str]:
    context = span.get_span_context()
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def main() -> None:
    mode, directory, *url = sys.argv[1:]
    finish = telemetry.start(mode, directory)
    RequestsInstrumentor().instrument()
    report: dict[str, Any] = {"answers": []}
    for epoch in ci.epochs(range(EPOCHS)):
        report["epoch"] = ids(trace.get_current_span())
        for step in ci.batches(range(STEPS)):
            if (epoch, step) == (EPOCHS - 1, 1):
                ci.flush()
                print(json.dumps(report), flush=True)
                sys.stdin.readline()
            with ci.scope("forward"):
                ci.mark("loss", 1 / (1 + step))
            if url:
                report["answers"].append(requests.get(url[0], timeout=60).text)
    tracer = trace.get_tracer("app")
    with ci.scope("many") as many, tracer.start_as_current_span("foreign many") as foreign:
        for number in range(EVENTS):
            many.add_event("event", {"number": number})
            foreign.add_event("event", {"number": number})
    print(json.dumps(report | finish()), flush=True)


main()
