"""Ids that are sent in place of ids that backends refuse."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from cirron_otel.core.translator.codec import pushable
from tests.kit.examples import examples

IDS = st.sampled_from(
    [b"", bytes(8), bytes(16), b"\1" * 8, b"\2" * 8, b"\3" * 16, b"\4" * 16, b"\5"]
)


def message(*ids: tuple[bytes, bytes, bytes]) -> TracesData:
    data = TracesData()
    spans = data.resource_spans.add().scope_spans.add().spans
    for trace_id, span_id, parent in ids:
        spans.add(name="n", trace_id=trace_id, span_id=span_id, parent_span_id=parent)
    return data


def sent(data: TracesData) -> tuple[list[Span], int]:
    content, derived = pushable(data.SerializeToString())
    traces = TracesData.FromString(content)
    return list(traces.resource_spans[0].scope_spans[0].spans), derived


def is_valid(span_id: bytes, length: int) -> bool:
    return len(span_id) == length and any(span_id)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(IDS, IDS, IDS), min_size=1, max_size=6))
def test_ids_are_valid_and_only_equal_ids_stay_equal(ids: list[tuple[bytes, bytes, bytes]]) -> None:
    data = message(*ids)
    spans, derived = sent(data)
    for span, (trace_id, span_id, parent) in zip(spans, ids, strict=True):
        assert is_valid(span.trace_id, 16)
        assert is_valid(span.span_id, 8)
        assert not span.parent_span_id or is_valid(span.parent_span_id, 8)
        assert not is_valid(trace_id, 16) or span.trace_id == trace_id
        assert not is_valid(span_id, 8) or span.span_id == span_id
        assert bool(span.parent_span_id) == any(parent)
    changed = [
        not is_valid(trace_id, 16) or not is_valid(span_id, 8)
        or (bool(parent) and not is_valid(parent, 8))
        for trace_id, span_id, parent in ids
    ]  # fmt: skip
    assert derived == sum(changed)
    without = [span.span_id for span, each in zip(spans, ids, strict=True) if not any(each[1])]
    assert len(set(without)) == len(without), "spans without an id are not the same span"
    assert sent(data)[0] == spans, "sent again, they are the same spans"


def test_equal_spans_without_ids_in_several_messages_have_different_ids() -> None:
    first, second = message((b"", b"", b"")), message((b"", b"", b""), (b"", b"", b""))
    spans = [*sent(first)[0], *sent(second)[0]]
    assert len({span.span_id for span in spans}) == len({span.trace_id for span in spans}) == 3


def test_references_to_an_id_of_a_wrong_length_stay() -> None:
    trace, long = b"\3" * 16, b"\7" * 16
    (parent, child), derived = sent(message((trace, long, b""), (trace, b"\1" * 8, long)))
    assert derived == 2
    assert child.parent_span_id == parent.span_id
    assert child.trace_id == parent.trace_id == trace


def test_related_spans_without_a_trace_id_are_in_one_trace() -> None:
    (parent, child), _ = sent(message((b"", b"\1" * 8, b""), (b"", b"\2" * 8, b"\1" * 8)))
    assert parent.trace_id == child.trace_id
    assert child.parent_span_id == parent.span_id
