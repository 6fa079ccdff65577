"""Trace ids and run ids are those of the session, in whatever order batches come."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cirron_otel import exactjson
from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.targets.sql.ownership import OwnerContext
from cirron_otel.core.targets.sql.storage import Storage
from tests.kit.spools.made import (
    made,
    mark,
    span,
    span_id,
)
from tests.kit.spools.recorded import NAMES, batch_files

from .helpers import (
    clear,
    column,
    files,
    sealed,
)

SESSION, EPOCH, STEP, PHASE, LOOSE, BELOW = range(1, 7)
TREE = [
    sealed(made(1, spans=[span(PHASE, STEP)])),
    sealed(made(2, spans=[span(STEP, EPOCH), span(30, STEP)])),
    sealed(made(3, spans=[span(EPOCH, SESSION)])),
    sealed(made(4, spans=[span(SESSION, None, name="cirron.session"), span(LOOSE)])),
    sealed(made(5, spans=[span(BELOW, LOOSE)])),
]

Traces = dict[tuple[str, int], tuple[str, str]]


def traces(storage: Storage) -> Traces:
    """(trace id, run id) by (file name, ordinal) of each span."""
    rows = storage.database.rows(
        'SELECT b."name", s."ordinal", s."traceId", s."runId" FROM "TraceSpan" s'
        ' JOIN "TraceBatch" b ON b."batchKey" = s."batchKey"'
    )
    return {(name, ordinal): (trace_id, run_id) for name, ordinal, trace_id, run_id in rows}


def written(storage: Storage, groups: Iterable[Sequence[SealedBatch]]) -> Traces:
    try:
        for group in groups:
            storage.write(group)
        return traces(storage)
    finally:
        clear(storage)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_session_in_any_order(shared_storage: Storage, size: int) -> None:
    chance = random.Random(size)
    orders = chance.sample(list(itertools.permutations(TREE)), 25)
    for order in orders:
        groups = [order[start : start + size] for start in range(0, len(order), size)]
        found = written(shared_storage, groups)
        assert set(found.values()) == {(span_id(SESSION),) * 2}, [b.name for b in order]
        assert len(found) == 7


def test_trace_id_follows_the_topmost_span_known_so_far(storage: Storage) -> None:
    def waiting() -> list[Any]:
        return column(storage, 'SELECT "id" FROM "TraceUnresolved"')

    for number, top in enumerate((STEP, EPOCH, SESSION, SESSION)):
        storage.write([TREE[number]])
        assert {trace for trace, _ in traces(storage).values()} == {span_id(top)}
        assert waiting() == ([span_id(top)] if number < 3 else [])


def test_a_run_that_was_given_stays(storage: Storage) -> None:
    for batch in TREE:
        storage.write([batch], OwnerContext(defaults={"cirron.run.id": "mine"}))
    assert set(traces(storage).values()) == {(span_id(SESSION), "mine")}


def test_a_batch_that_names_its_session(storage: Storage) -> None:
    named = {"otel": {"session": span_id(SESSION)}}
    storage.write([sealed(made(1, spans=[span(8, 7)]))])  # of another service, made inside step 7
    storage.write([sealed(made(2, spans=[span(7, 6), span(9)], **named))])
    assert set(traces(storage).values()) == {(span_id(SESSION),) * 2}
    assert column(storage, 'SELECT "runId" FROM "TraceBatch" ORDER BY "name"') == [None, None]


def test_roots_of_other_programs_stay_apart(storage: Storage) -> None:
    born = {"otel": {"resource_spans": [{"scope_spans": [{"spans": 3}]}]}}
    storage.write([sealed(made(1, spans=[span(1), span(2), span(3, 2)], **born))])
    assert [trace for trace, _ in traces(storage).values()] == [
        span_id(1), span_id(2), span_id(2),
    ]  # fmt: skip


def test_circles_and_ids_that_are_used_twice_end(shared_storage: Storage) -> None:
    circle = [sealed(made(n, spans=[span(n, n % 3 + 1)])) for n in (1, 2, 3)]
    twice = [sealed(made(n, spans=[span(1, n), span(1, 9 - n), span(n, 1)])) for n in (4, 5)]
    orders = list(itertools.permutations([*circle, *twice]))
    for order in random.Random(1).sample(orders, 25):
        found = written(shared_storage, [[batch] for batch in order])
        assert len(found) == 9
        assert all(trace for trace, _ in found.values())


@pytest.mark.parametrize("name", NAMES)
def test_recordings_in_any_order(shared_storage: Storage, name: str) -> None:
    batches = files(batch_files(name))
    expected = written(shared_storage, [batches])
    sessions = {
        record["id"]
        for batch in batches
        for record in exactjson.loads(batch.data)["spans"]
        if record["name"] == "cirron.session"
    }
    if sessions and not name.startswith("23"):
        assert {trace for trace, _ in expected.values()} == sessions
    chance = random.Random(name)
    for size in (1, 3):
        order = chance.sample(batches, len(batches))
        groups = [order[start : start + size] for start in range(0, len(order), size)]
        assert written(shared_storage, groups) == expected


@st.composite
def forests(draw: st.DrawFn) -> tuple[dict[int, int | None], list[list[int]]]:
    """Scopes with their parents, some of which nobody records; and batches of scopes."""
    parents = {
        number: draw(st.none() | st.integers(number + 1, 14)) for number in range(1, 13)
    }  # 13 and 14 are never recorded
    order = draw(st.permutations(sorted(parents)))
    cuts = sorted(draw(st.sets(st.integers(1, 11), max_size=6)))
    batches = [order[a:b] for a, b in zip([0, *cuts], [*cuts, 12], strict=True)]
    return parents, batches


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(forest=forests())
def test_any_forest(shared_storage: Storage, forest: Any) -> None:
    parents, batches = forest

    def top(number: int) -> int:
        above = parents.get(number)
        return number if above is None else top(above)

    born = {"otel": {}}  # none of them is one program's own
    made_batches = [
        sealed(made(n, spans=[span(number, parents[number]) for number in numbers], **born))
        for n, numbers in enumerate(batches)
    ]
    found = written(shared_storage, [[batch] for batch in made_batches])
    for batch, numbers in zip(made_batches, batches, strict=True):
        for ordinal, number in enumerate(numbers):
            assert found[batch.name, ordinal] == (span_id(top(number)),) * 2


def test_children_and_parents_that_are_stored_at_the_same_time(url: str) -> None:
    Storage.open(url).close()
    parents = [sealed(made(n, spans=[span(1000 + n, 2000 + n)])) for n in range(60)]
    children = [sealed(made(100 + n, spans=[span(n + 1, 1000 + n)])) for n in range(60)]
    errors: list[BaseException] = []

    def write(batches: list[SealedBatch]) -> None:
        try:
            with Storage.open(url) as storage:
                for batch in batches:
                    storage.write([batch])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(some,)) for some in (parents, children)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with Storage.open(url) as storage:
        found = column(storage, 'SELECT "traceId" FROM "TraceSpan" ORDER BY "traceId"')
        assert found == sorted(2 * [span_id(2000 + n) for n in range(60)])


class TestThreadsWithoutAScope:
    """Their spans have no parent; in a batch of their own nothing tells their session."""

    session = span(1, name="cirron.session", start_ns=100, end_ns=900, pid=7)
    early, late = span(2, start_ns=50, pid=7), span(3, start_ns=901, pid=7)
    inside = span(4, start_ns=500, pid=7)
    other_process, other_rank = span(5, start_ns=500, pid=8), span(6, start_ns=500, pid=7, rank=1)
    below = span(7, 4, start_ns=500, pid=7)

    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
    def test_the_session_of_their_process(
        self, shared_storage: Storage, order: tuple[int, ...]
    ) -> None:
        loose = [self.early, self.late, self.inside, self.other_process, self.other_rank]
        batches = [
            sealed(made(1, spans=loose)),
            sealed(made(2, spans=[self.session])),
            sealed(made(3, spans=[self.below])),
        ]
        found = written(shared_storage, [[batches[number]] for number in order])
        assert [found[batches[0].name, n][0] for n in range(5)] == [
            span_id(number) for number in (2, 3, 1, 5, 6)
        ]
        assert found[batches[2].name, 0] == (span_id(1),) * 2

    def test_session_is_ambiguous_if_two_have_the_same_process_id(self, storage: Storage) -> None:
        again = {**self.session, "id": span_id(9)}
        storage.write([sealed(made(1, spans=[self.session])), sealed(made(2, spans=[again]))])
        storage.write([sealed(made(3, spans=[self.inside]))])
        assert sorted(trace for trace, _ in traces(storage).values()) == [
            span_id(1), span_id(4), span_id(9),
        ]  # fmt: skip

    def test_sessions_of_other_workspaces_are_not_considered(self, storage: Storage) -> None:
        elsewhere = OwnerContext(overrides={"cirron.workspace.id": "w"})
        storage.write([sealed(made(1, spans=[self.session]))], elsewhere)
        storage.write([sealed(made(2, spans=[self.inside]))])
        assert traces(storage)[sealed(made(2)).name, 0][0] == span_id(4)

    def test_retention_clears_the_lookup_tables(self, storage: Storage) -> None:
        storage.write([sealed(made(1, spans=[self.session, self.early]))])
        storage.write([sealed(made(2, spans=[self.other_process]))])
        storage.write([sealed(made(3, spans=[span(8, 99)]))])
        tables = ("TraceSession", "TraceLoose", "TraceUnresolved")
        counts = [f'SELECT COUNT(*) FROM "{table}"' for table in tables]
        assert [column(storage, count) for count in counts] == [[1], [1], [1]]
        storage.retain(2**63 - 1)
        assert [column(storage, count) for count in counts] == [[0], [0], [0]]


def test_marks_do_not_matter(storage: Storage) -> None:
    storage.write([sealed(made(1, marks=[mark(1, SESSION), mark(2, "root")]))])
    assert traces(storage) == {}
