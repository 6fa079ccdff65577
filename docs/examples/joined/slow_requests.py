"""Print the steps that made slow requests: `python slow_requests.py SERVICE MILLISECONDS`.

Standard input is Jaeger's response for a search or for one trace (`/api/v3/traces…`).
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

Span = dict[str, Any]
SERVER = 2


def attributes(of: Span) -> dict[str, Any]:
    """Return the attributes as a dict, with values as in the JSON: {"cirron.index": "7"}."""
    return {
        each["key"]: next(iter(each["value"].values()), "") for each in of.get("attributes", [])
    }


def spans(text: str) -> Iterator[Span]:
    """Yield every span of the response, which consists of one or more JSON documents."""
    while text:
        answer, end = json.JSONDecoder().raw_decode(text)
        text = text[end:].lstrip()
        for group in answer.get("result", {}).get("resourceSpans", []):
            service = attributes(group.get("resource", {})).get("service.name")
            for scope in group.get("scopeSpans", []):
                for span in scope.get("spans", []):
                    yield {**span, "service": service}


def milliseconds(span: Span) -> float:
    """Return the duration of a span."""
    return (int(span["endTimeUnixNano"]) - int(span.get("startTimeUnixNano", 0))) / 1e6


def named(span: Span) -> str:
    """Return the name of a span and, for an epoch or a step, its number."""
    return f"{span['name']} {attributes(span).get('cirron.index', '')}".rstrip()


service, limit = sys.argv[1], float(sys.argv[2])
known = {(span["traceId"], span["spanId"]): span for span in spans(sys.stdin.read().strip())}
for span in known.values():
    if (span["service"], span.get("kind")) == (service, SERVER) and milliseconds(span) > limit:
        way, above = [], span
        while above := known.get((above["traceId"], above.get("parentSpanId"))):
            way.append(named(above))
        print(f"{milliseconds(span):.0f} ms  {span['name']}  <  {'  <  '.join(way)}")
