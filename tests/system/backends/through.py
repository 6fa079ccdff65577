"""OTLP messages held side by side, whatever grouped them, and what a real Collector changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, TracesData

from cirron_otel.core.otlp.files import read_messages
from cirron_otel.core.otlp.formats import format_of


class Sent(NamedTuple):
    """A span with all that stands around it, as bytes that are the same for the same content."""

    resource: bytes
    scope: bytes
    span: bytes


def messages_of(path: Path) -> list[TracesData]:
    """The messages of an OTLP file."""
    form = format_of(path)
    assert form is not None
    with path.open("rb") as file:
        return [TracesData.FromString(message.data) for message in read_messages(file, form)]


def spans_in(messages: Iterable[TracesData]) -> Counter[Sent]:
    """Every span, each as often as it is there; schema URLs belong to what is around it."""
    found: Counter[Sent] = Counter()
    for message in messages:
        for group in message.resource_spans:
            resource = ResourceSpans(resource=group.resource, schema_url=group.schema_url)
            for scoped in group.scope_spans:
                scope = ScopeSpans(scope=scoped.scope, schema_url=scoped.schema_url)
                for span in scoped.spans:
                    found[Sent(_bytes(resource), _bytes(scope), _bytes(span))] += 1
    return found


def _bytes(message: ResourceSpans | ScopeSpans | Span) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def as_a_collector_hands_it_on(messages: Sequence[TracesData]) -> list[TracesData]:
    """What OpenTelemetry Collector 0.159 makes of messages: three things, and nothing else.

    Fields that it does not know are gone, a resource, scope or status that was not there is there
    and empty, and so is the value of an attribute that had none.
    """
    handed_on = []
    for message in messages:
        changed = TracesData()
        changed.CopyFrom(message)
        changed.DiscardUnknownFields()
        for group in changed.resource_spans:
            group.resource.SetInParent()
            for scoped in group.scope_spans:
                scoped.scope.SetInParent()
                for span in scoped.spans:
                    span.status.SetInParent()
        handed_on.append(changed)
    return handed_on
