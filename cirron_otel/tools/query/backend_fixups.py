"""Undo a backend's changes to spans if its response still contains the original."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, TracesData

from ... import semconv as sc
from ...core.translator import residual as residuals
from ...core.translator.events import MARK, SNAPSHOT, kind_of
from ...core.translator.values import UnencodableError, split_attributes, write_value

_WARNINGS = "@jaeger@warnings"
_MOMENT = r"(-?\d{4,6}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,9}))? \+0000 UTC"
_NEGATIVE = re.compile(
    "Negative duration detected, sanitizing end timestamp\\. Original end timestamp:"
    f" {_MOMENT}, adjusted to: {_MOMENT}"
)
"""A warning about a span that ends at its start or earlier; Jaeger moves its end to 1 ns after its
start. Source: Jaeger 2.13, internal/jptrace/sanitizer/negative_duration_santizer.go."""
_HARMLESS = re.compile("skipping clock skew adjustment|not applying calculated delta")
"""Warnings that do not indicate a change. Source: Jaeger 2.13, query/app/querysvc/v2/adjuster."""
_REFERENCE, _FOLLOWS = "opentracing.ref_type", "follows_from"
_NO_SERVICE, _EMPTY_SERVICE = "missing-service-name", "empty-service-name"
_WRONG_SERVICE = "service-name-wrong-type"
"""The service names that Jaeger sets. Source: Jaeger 2.13,
internal/jptrace/sanitizer/emptyservicename.go."""


def undo_jaeger_changes(traces: TracesData) -> list[str]:
    """Undo Jaeger's changes to times, links, events and service names.

    Returns a note for each kind of change that cannot be undone.
    """
    notes = []
    wrong = sum(_undo_service(group) for group in traces.resource_spans)
    if wrong:
        notes.append(
            f"Jaeger has replaced the service.name of {wrong} resources, which was no text"
        )
    warnings: list[str] = []
    warned = 0
    for group in traces.resource_spans:
        for scoped in group.scope_spans:
            for span in scoped.spans:
                left = _undo_end(span)
                warned += bool(left)
                warnings += left[: not warnings]
                _undo_sorting(span)
                for link in span.links:
                    _undo_reference(link)
    if warned:
        notes.append(f"Jaeger warns of {warned} spans, first: {warnings[0][:200]!a}")
    return notes


def _undo_service(group: ResourceSpans) -> int:
    """Remove a service name that Jaeger set; return 1 if the original name is unknown, else 0."""
    attributes = group.resource.attributes
    for index, pair in enumerate(attributes):
        if pair.key == sc.SERVICE_NAME:
            name = pair.value.string_value
            if name == _NO_SERVICE:
                del attributes[index]
            elif name == _EMPTY_SERVICE:
                pair.value.string_value = ""
            return int(name == _WRONG_SERVICE)
    return 0


def _undo_reference(link: Span.Link) -> None:
    """Remove the attribute that Jaeger's span model adds to a link."""
    for index, pair in enumerate(link.attributes):
        if pair.key == _REFERENCE and pair.value.string_value == _FOLLOWS:
            del link.attributes[index]
            return


def _undo_end(span: Span) -> list[str]:
    """Remove Jaeger's warnings; restore the end from a warning about it, and return all others."""
    others: list[str] = []
    for index in reversed(range(len(span.attributes))):
        if span.attributes[index].key != _WARNINGS:
            continue
        for warning in _warnings(span.attributes[index].value):
            ends = _ends(warning)
            if ends is None:
                others += [] if _HARMLESS.search(warning) else [warning]
            # If Jaeger stores on disk, a span also has the warnings of its descendants.
            elif ends[1] == span.end_time_unix_nano == span.start_time_unix_nano + 1:
                span.end_time_unix_nano = ends[0]
        del span.attributes[index]
    return others


_FIRST = {MARK: 0, SNAPSHOT: 1}
"""The order of events (docs/otlp-mapping.md, "Snapshots", "Telling events apart")."""


def _undo_sorting(span: Span) -> None:
    """Restore the order of marks and snapshots that are sorted by name.

    Jaeger sorts events for clients that do not request `raw_traces`, such as its own page; in its
    memory storage they remain sorted for later requests. If a span has only foreign events, their
    original order is unknown.
    """
    names = [event.name for event in span.events]
    if len(set(names)) < 2 or names != sorted(names):
        return
    if all(kind_of(event) not in _FIRST for event in span.events):
        return
    events = sorted(span.events, key=_place)
    if events != list(span.events):
        del span.events[:]
        span.events.extend(events)


def _place(event: Span.Event) -> tuple[int, int, str]:
    kind = kind_of(event)
    mark_id = next((p.value.string_value for p in event.attributes if p.key == sc.MARK_ID), "")
    return _FIRST.get(kind, 2), event.time_unix_nano, mark_id


def _warnings(value: AnyValue) -> list[str]:
    """Return Jaeger's warnings, from a list or, if Jaeger stores on disk, from its JSON text."""
    if value.WhichOneof("value") != "string_value":
        return [each.string_value for each in value.array_value.values]
    try:
        texts = json.loads(value.string_value)
    except (ValueError, RecursionError):
        return []
    return [str(text) for text in texts] if isinstance(texts, list) else []


def _ends(warning: str) -> tuple[int, int] | None:
    """Return the original end and its replacement from a warning, Unix ns; None for other
    warnings.
    """
    match = _NEGATIVE.fullmatch(warning)
    if match is None:
        return None
    try:
        return _nanoseconds(match[1], match[2]), _nanoseconds(match[3], match[4])
    except ValueError:
        return None


def _nanoseconds(moment: str, fraction: str | None) -> int:
    since = datetime.fromisoformat(moment).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    whole = since.days * 86400 + since.seconds
    # Go's times are signed: a time beyond 2**63 ns appears as a time before 1970.
    return (whole * 10**9 + int((fraction or "").ljust(9, "0"))) % 2**64


def restore_truncated(traces: TracesData, limit: int) -> int:
    """Restore strings that were truncated to `limit` bytes, using the complete strings in the
    residual.

    Returns the number of attributes that may still be truncated, judging by their length.
    """
    return sum(_restore(owner, limit) for owner in _owners(traces))


def _restore(owner: Any, limit: int) -> int:
    long = [pair for pair in owner.attributes if _is_cut(pair.value, limit)]
    if not long:
        return 0
    whole = residual_attributes(owner.attributes)
    left = 0
    for pair in long:
        original = AnyValue()
        write_value(original, whole.get(pair.key.removeprefix(sc.ESCAPE)))
        cut = pair.value.string_value
        if cut and original.string_value.startswith(cut):
            pair.value.string_value = original.string_value
        else:
            left += 1
    return left


def residual_attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """Return the `attrs` in the residual of a record."""
    try:
        ours, _ = split_attributes(pairs)
        residual = residuals.parse(
            residuals.joined(ours, sc.REST) or residuals.joined(ours, sc.SNAPSHOT_REST)
        )
    except UnencodableError:
        return {}
    attrs = residual.get("set", {}).get("attrs")
    return attrs if isinstance(attrs, dict) else {}


def _is_cut(value: AnyValue, limit: int) -> bool:
    """Return whether a value has the length of a truncated value.

    This is `limit` bytes, or up to three bytes less if a character was cut.
    """
    kind = value.WhichOneof("value")
    if kind == "string_value":
        # Encode only strings of about that length to count their bytes.
        text = value.string_value
        return limit // 4 - 1 <= len(text) <= limit and limit - 3 <= len(text.encode()) <= limit
    return kind == "bytes_value" and len(value.bytes_value) == limit


def _owners(traces: TracesData) -> Iterator[Any]:
    for group in traces.resource_spans:
        yield group.resource
        for scoped in group.scope_spans:
            yield scoped.scope
            for span in scoped.spans:
                yield span
                yield from span.events
                yield from span.links
