"""The steps that made slow requests: `python slow_requests.py SERVICE MILLISECONDS`.

Standard input is Jaeger's answer to a search, or to one trace (`/api/v3/traces…`).
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

Span = dict[str, Any]
SERVER = 2


def attributes(of: Span) -> dict[str, Any]:
    """Attributes as they are read: {"cirron.index": "7"}."""
    return {
        each["key"]: next(iter(each["value"].values()), "") for each in of.get("attributes", [])
    }


def spans(text: str) -> Iterator[Span]:
    """Every span of the answer, which is one JSON document or several in a row."""
    while text:
        answer, end = json.JSONDecoder().raw_decode(text)
        text = text[end:].lstrip()
        for group in answer.get("result", {}).get("resourceSpans", []):
            service = attributes(group.get("resource", {})).get("service.name")
            for scope in group.get("scopeSpans", []):
                for span in scope.get("spans", []):
                    yield {**span, "service": service}


def milliseconds(span: Span) -> float:
    """How long it took."""
    return (int(span["endTimeUnixNano"]) - int(span.get("startTimeUnixNano", 0))) / 1e6


def named(span: Span) -> str:
    """Its name and, of an epoch or a step, its number."""
    return f"{span['name']} {attributes(span).get('cirron.index', '')}".rstrip()


service, limit = sys.argv[1], float(sys.argv[2])
known = {(span["traceId"], span["spanId"]): span for span in spans(sys.stdin.read().strip())}
for span in known.values():
    if (span["service"], span.get("kind")) == (service, SERVER) and milliseconds(span) > limit:
        way, above = [], span
        while above := known.get((above["traceId"], above.get("parentSpanId"))):
            way.append(named(above))
        print(f"{milliseconds(span):.0f} ms  {span['name']}  <  {'  <  '.join(way)}")
