"""Compare messages that may have passed through a Collector.

The comparison decides whether a message was created from Cirron records. The order of attributes is
not significant, and an empty sub-message equals an absent one. Everything else is significant,
including unknown protobuf fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

_EMPTY_STATUS = Status().SerializeToString()


def _sort(owner: Any) -> None:
    pairs = sorted(owner.attributes, key=lambda pair: pair.key)
    for pair in pairs:
        pair.value.SetInParent()
    copies = [type(pair).FromString(pair.SerializeToString()) for pair in pairs]
    del owner.attributes[:]
    owner.attributes.extend(copies)


def _text(message: Any, owners: Iterable[Any]) -> bytes:
    for owner in owners:
        _sort(owner)
    return bytes(message.SerializeToString(deterministic=True))


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _identical(a: Any, b: Any) -> bool:
    """Return whether two messages are equal without normalisation; most messages are."""
    return bool(a.SerializeToString() == b.SerializeToString())


def same_span(a: Span, b: Span) -> bool:
    """Return whether two spans are equal in canonical form."""
    return _identical(a, b) or _span_text(a) == _span_text(b)


def _span_text(span: Span) -> bytes:
    copy = _copy(span)
    if copy.HasField("status") and copy.status.SerializeToString() == _EMPTY_STATUS:
        copy.ClearField("status")
    return _text(copy, [copy, *copy.events, *copy.links])


def same_scope(a: InstrumentationScope, b: InstrumentationScope) -> bool:
    """Return whether two scopes are equal in canonical form."""
    return _identical(a, b) or _sorted_text(a) == _sorted_text(b)


def same_resource(a: Resource, b: Resource) -> bool:
    """Return whether two resources are equal in canonical form."""
    return _identical(a, b) or _sorted_text(a) == _sorted_text(b)


def _sorted_text(message: Any) -> bytes:
    copy = _copy(message)
    return _text(copy, [copy])
