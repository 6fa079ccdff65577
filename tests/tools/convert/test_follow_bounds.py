"""An export that runs for months has a bounded index."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cirron_otel.core.delivery import indexed
from cirron_otel.core.delivery.indexed import FollowIndex
from cirron_otel.core.placement.batch_outline import (
    BatchOutline,
    OtelOutline,
    RecordRef,
    SpanOutline,
)

_numbers = itertools.count(1)


def _id() -> str:
    return f"{next(_numbers):032x}"


def _native(*spans: SpanOutline, refers_to: str = "") -> BatchOutline:
    return BatchOutline(list(spans), [RecordRef(refers_to, "loss")] if refers_to else [])


def _foreign(*spans: SpanOutline) -> BatchOutline:
    return BatchOutline(list(spans), otel=OtelOutline(resource_spans=[msgspec.Raw(b"{}")]))


def _child(parent: str, own: str = "", at: int = 1) -> SpanOutline:
    return SpanOutline(own or _id(), parent, "step", 1, at, at + 1, 7)


def _take(index: FollowIndex, *batches: BatchOutline) -> None:
    for batch in batches:
        name = f"{next(_numbers):020d}-{_id()}.json"
        index.observe_once(name, batch)
        index.count_once(name, batch)
    index.commit()
    index.forget_resolved()  # as each round does


def _rows(index: FollowIndex, table: str) -> int:
    return int(index._db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


@pytest.fixture
def index(tmp_path: Path) -> Iterator[FollowIndex]:
    found = FollowIndex(tmp_path / "index.sqlite")
    yield found
    found.close()


def test_parents_of_spans_that_came_in_otlp_are_not_waited_for(index: FollowIndex) -> None:
    _take(index, *(_foreign(*(_child(_id()) for _ in range(50))) for _ in range(20)))
    assert not index._pending
    assert [_rows(index, table) for table in ("referred", "weight", "node")] == [0, 0, 0]


def test_scope_received_as_otlp_is_resolved_for_its_children(index: FollowIndex) -> None:
    session, above, below = _id(), _id(), _id()
    _take(index, _native(_child(below)))
    _take(index, _foreign(_child(above, below)))
    _take(index, _foreign(_child(session, above)))
    assert index.resolve(below).session == session
    assert index.resolve(below).depth == 2


def test_scopes_that_never_come_are_not_waited_for_without_end(
    index: FollowIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexed, "MOST_PENDING", 40)
    waited = [_id() for _ in range(200)]
    for some_id in waited:
        _take(index, _native(_child(some_id)))
        assert len(index._pending) <= 40
    assert _rows(index, "referred") == len(index._pending)
    late = waited[-1]
    _take(index, _native(SpanOutline(late, None, "cirron.session", 1, 0, 9, 7)))
    assert late not in index._pending
    assert index.resolve(late).session == late


def test_marks_on_scopes_that_never_come_are_forgotten_as_well(
    index: FollowIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexed, "MOST_PENDING", 40)
    for _ in range(200):
        _take(index, _native(refers_to=_id()))
    assert len(index._unplaced) <= len(index._pending) <= 40


def test_sessions_that_are_over_are_forgotten_with_their_segments(
    index: FollowIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexed, "MOST_SESSIONS", 40)
    monkeypatch.setattr("cirron_otel.core.placement.segments.SEGMENT_RECORDS", 3)
    lasting = _id()
    for number in range(200):
        session = _id()
        spans = [_child(session, at=number + each) for each in range(8)]
        _take(index, _native(*spans, _child(lasting, at=number)))
        assert len(index._segments._weights) <= 41
    assert lasting in index._segments._weights
    assert index._segments.by_session.keys() <= index._segments._weights.keys()
    assert _rows(index, "weight") == len(index._segments._weights)
    segments = sum(map(len, index._segments.by_session.values()))
    assert _rows(index, "segment") == segments > 0


def test_recorded_scopes_are_forgotten_the_oldest_first(
    index: FollowIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexed, "MOST_NODES", 40)
    session = _id()
    for at in range(1, 200):
        epoch = SpanOutline(_id(), session, "epoch", at, at, at + 1, 7)
        _take(index, _native(epoch))
        assert _rows(index, "node") <= 41
    assert index.resolve(epoch.id).session == session


def test_a_commit_writes_the_sessions_that_changed(index: FollowIndex) -> None:
    _take(index, *(_native(_child(_id())) for _ in range(300)))
    before = index._db.total_changes
    _take(index, _native(_child(_id())))
    assert index._db.total_changes - before < 10


def test_the_memory_of_an_endless_export_is_bounded(index: FollowIndex) -> None:
    def take_some() -> None:
        for _ in range(20):
            _take(index, _foreign(*(_child(_id()) for _ in range(250))))
        index.forget(set())

    take_some()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(3):
            take_some()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 200_000, f"{grown / 15_000:.0f} bytes a span"
