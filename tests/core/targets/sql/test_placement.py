"""Every store places the records of the table `placement_cases` the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cirron_otel import exactjson
from cirron_otel.core.placement import segments
from cirron_otel.core.placement.batch_outline import read_outline
from cirron_otel.core.placement.batch_placement import (
    Plan,
    RecordPlacement,
    first_index,
    place_spans,
)
from cirron_otel.core.placement.session_index import SessionIndex
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.core.translator.own.own import plan_of
from cirron_otel.ids import trace_id_for
from tests.kit.spools.made import span_id

from .helpers import clear, sealed
from .placement_cases import (
    CASES,
    INDEX,
    SQL,
    Case,
)

Placed = dict[int, tuple[str, int]]
"""The session's id and the number of the segment, by the number of a span."""

by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def number_of(record_id: str) -> int:
    return int(record_id[:16], 16)


def wanted(case: Case, kind: str) -> Placed:
    sessions = {**case.sessions, **case.only.get(kind, {})}
    return {
        number: (span_id(own), case.segments.get(number, 0)) for number, own in sessions.items()
    }


def segment_of(place: RecordPlacement, plan: Plan) -> int:
    for segment in plan.segments.get(place.session, ()):
        if segment.trace_id == place.trace_id:
            return segment.number
    assert place.trace_id == trace_id_for(place.session)
    return 0


@pytest.fixture(autouse=True)
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    case = request.node.callspec.params["case"]
    if case.limit is not None:
        monkeypatch.setattr(segments, "SEGMENT_RECORDS", case.limit)


@by_case
@pytest.mark.parametrize("is_reopened", [False, True], ids=["memory", "file"])
def test_the_index_of_a_spool(case: Case, is_reopened: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "index.sqlite") if is_reopened else ":memory:"
    batches = [(batch, read_outline(exactjson.dumps(batch))) for batch in case.batches]
    index = SessionIndex(path, durable=is_reopened)
    for _, outline in batches:
        index.observe(outline)
    index.rescan(lambda: [outline for _, outline in batches])
    for _, outline in batches:
        index.count(outline)
    if is_reopened:
        index.close()
        index = SessionIndex(path, durable=True)
    found: Placed = {}
    marks: dict[int, int] = {}
    for batch, outline in batches:
        plan = plan_of(batch) or index.plan(outline, segmented=True, fallback="f" * 32)
        spans = batch["spans"]
        for record, place in zip(spans, place_spans(spans, first_index(spans), plan), strict=True):
            found[number_of(record["id"])] = place.session, segment_of(place, plan)
        for record in batch["marks"]:
            place = plan.outside(record["span_id"])
            marks[number_of(record["span_id"])] = number_of(place.session)
    index.close()
    assert found == wanted(case, INDEX)
    assert marks == case.marks


@by_case
def test_the_sql_store(case: Case, shared_storage: Storage) -> None:
    try:
        for batch in case.batches:
            shared_storage.write([sealed(batch)])
        rows: list[tuple[Any, ...]] = shared_storage.database.rows(
            'SELECT "id", "traceId" FROM "TraceSpan"'
        )
    finally:
        clear(shared_storage)
    expected = {number: session for number, (session, _) in wanted(case, SQL).items()}
    assert {number_of(own): session for own, session in rows} == expected


IN_MEMORY = [case for case in CASES if case.needs_only_parents]


@pytest.mark.parametrize("case", IN_MEMORY, ids=lambda case: case.name)
def test_the_plan_of_one_batch(case: Case) -> None:
    """All records of a case in one batch: their parents are enough to place them."""
    spans = [record for batch in case.batches for record in batch["spans"]]
    named = {plan.default for batch in case.batches if (plan := plan_of(batch)) is not None}
    sessions = sorted({span_id(number) for number in case.sessions.values()})
    plan = Plan(named.pop() if named else sessions[0])
    found = place_spans(spans, first_index(spans), plan)
    placed = {number_of(s["id"]): place.session for s, place in zip(spans, found, strict=True)}
    assert placed == {number: span_id(own) for number, own in case.sessions.items()}
