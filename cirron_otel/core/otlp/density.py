"""An estimate of the memory that a message needs as Python objects, before they are created.

An element of OTLP may have two bytes on the wire and take thousands as an object. Requests to a
collector have a limit of elements (receiver/measure). A message in a file may have any size, so
only messages that contain almost nothing but empty elements are refused.
"""

from __future__ import annotations

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

_RESOURCE_SPANS, _SCOPE_SPANS, _SPAN, _EVENT_OR_LINK = 1200, 600, 4400, 550
"""Bytes of an empty element, measured with CPython 3.11. A span needs most when it becomes JSON."""
_PER_BYTE = 130
"""Bytes of elements that are allowed per byte of the message. Attributes add at most 70."""
_ALWAYS = 32 << 20
_SMALL = _ALWAYS // (_SPAN // 2)
"""A message of this many bytes never needs more than `_ALWAYS`: an element has at least two."""


def dense_problem(message: TracesData, size: int) -> str | None:
    """Return why a message of `size` bytes needs too much memory; None if it does not."""
    if size <= _SMALL:
        return None
    scopes = spans = others = 0
    for resource_spans in message.resource_spans:
        scopes += len(resource_spans.scope_spans)
        for scope_spans in resource_spans.scope_spans:
            spans += len(scope_spans.spans)
            for span in scope_spans.spans:
                others += len(span.events) + len(span.links)
    resources = len(message.resource_spans)
    needed = resources * _RESOURCE_SPANS + scopes * _SCOPE_SPANS
    needed += spans * _SPAN + others * _EVENT_OR_LINK
    if needed <= _ALWAYS + size * _PER_BYTE:
        return None
    return (
        f"{resources + scopes + spans + others} elements (spans, events, …) in {size} bytes, nearly"
        f" all of them empty: they need about {needed >> 20} MiB of memory"
    )
