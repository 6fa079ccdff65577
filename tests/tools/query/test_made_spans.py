"""Generated spans come back from the real Jaeger and the real Tempo."""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from cirron_otel.tools.query.address import parse_address
from cirron_otel.tools.query.backend import Backend
from cirron_otel.tools.query.client import QueryClient
from cirron_otel.tools.query.jaeger import Jaeger
from cirron_otel.tools.query.tempo import Tempo
from tests.kit.backends.run import Jaeger as RunningJaeger
from tests.kit.backends.tempo import Tempo as RunningTempo
from tests.kit.generators import strategies

from .backends import Store, spans_in

pytestmark = pytest.mark.backends

SETTINGS = settings(
    max_examples=60,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
_MOST_NS = 2**63 - 1


def acceptable(made: TracesData) -> TracesData:
    """Return the message with ids that backends accept: one trace, and an own id for each span."""
    traces = TracesData()
    traces.CopyFrom(made)
    traces.DiscardUnknownFields()
    trace_id = os.urandom(16)
    for group in traces.resource_spans:
        for number, scoped in enumerate(group.scope_spans):
            scoped.scope.name += str(number)  # Tempo merges scopes of the same name and version
            for span in scoped.spans:
                span.trace_id, span.span_id = trace_id, os.urandom(8)
                span.parent_span_id = os.urandom(8) if span.parent_span_id else b""
                for link in span.links:
                    link.trace_id, link.span_id = os.urandom(16), os.urandom(8)
    return traces


def kept(traces: TracesData, backend: str) -> Counter[bytes]:
    """Return every span with its resource and scope, without the documented losses."""
    found: Counter[bytes] = Counter()
    for group in traces.resource_spans:
        resource = _sorted(group.resource, backend)
        for scoped in group.scope_spans:
            scope = _sorted(scoped.scope, backend)
            for span in scoped.spans:
                parts = (resource, scope, _span(span, backend))
                found[b"|".join(parts)] += 1
    return found


def _span(span: Span, backend: str) -> bytes:
    copy = Span()
    copy.CopyFrom(span)
    if not copy.status.ByteSize():
        copy.ClearField("status")
    for part in (*copy.events, *copy.links):
        part.CopyFrom(type(part).FromString(_sorted(part, backend)))
    if backend == "tempo":
        copy.flags = 0
        for link in copy.links:
            link.flags = 0
    return _sorted(copy, backend)


def _sorted(owner: object, backend: str) -> bytes:
    copy = type(owner)()
    copy.CopyFrom(owner)  # type: ignore[attr-defined]
    pairs = list(copy.attributes)  # type: ignore[attr-defined]
    for pair in pairs:
        if not pair.HasField("value"):
            pair.value.SetInParent()
        pair.key_strindex = 0
        _plain(pair.value)
    if hasattr(copy, "entity_refs") and backend == "tempo":
        del copy.entity_refs[:]
    pairs.sort(key=lambda pair: pair.SerializeToString(deterministic=True))
    pairs = [type(pair).FromString(pair.SerializeToString()) for pair in pairs]
    del copy.attributes[:]  # type: ignore[attr-defined]
    copy.attributes.extend(pairs)  # type: ignore[attr-defined]
    return bytes(copy.SerializeToString(deterministic=True))  # type: ignore[attr-defined]


def _plain(value: AnyValue) -> None:
    """Remove fields that are newer than these backends, and set a value in each pair."""
    if value.WhichOneof("value") == "string_value_strindex":
        value.Clear()
    for each in value.array_value.values if value.HasField("array_value") else ():
        _plain(each)
    for pair in value.kvlist_value.values if value.HasField("kvlist_value") else ():
        pair.key_strindex = 0
        pair.value.SetInParent()
        _plain(pair.value)


def check(store: Store, made: TracesData) -> None:
    traces = acceptable(made)
    spans = list(spans_in([traces]))
    if not spans:
        return
    store.send([traces])
    address = parse_address(store.address("session=none"), {})
    with QueryClient(address) as client:
        backend: Backend = (Tempo if store.name == "tempo" else Jaeger)(address, client)
        deadline = time.monotonic() + 180
        while True:
            trace = backend.trace(spans[0].trace_id)
            if trace is not None and len(list(spans_in([trace.data]))) == len(spans):
                break
            assert time.monotonic() < deadline, "not all spans come"
            time.sleep(0.02)
    assert kept(trace.data, store.name) == kept(traces, store.name)


def test_jaeger(jaeger: RunningJaeger) -> None:
    @SETTINGS
    @given(strategies.traces)
    def holds(made: TracesData) -> None:
        check(Store("jaeger", jaeger), made)

    holds()


def test_tempo(tempo: RunningTempo) -> None:
    @SETTINGS
    @given(strategies.traces)
    def holds(made: TracesData) -> None:
        check(Store("tempo", tempo), made)

    holds()
