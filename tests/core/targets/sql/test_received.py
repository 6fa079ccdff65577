"""The same request is stored once, whichever collectors of a database put it into which batches."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.records.canonical import batch_bytes
from cirron_otel.core.spool.paths import file_name
from cirron_otel.core.targets.sql.ownership import OwnerContext
from cirron_otel.core.targets.sql.received import parts_of
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.core.translator.foreign.fast import ForeignText
from cirron_otel.core.translator.logs.log_marks import LogMarks
from cirron_otel.ids import digest, uuid4_shaped

from .helpers import (
    ALL_TABLES,
    clear,
    column,
    stored,
)

Request = tuple[int, ...]
"""The contents of its ResourceSpans. Content n has n % 3 + 1 spans; n and n + 10 share all ids."""

REQUESTS = st.lists(st.integers(0, 19), min_size=1, max_size=4).map(tuple)


def traces(request: Request, resource_name: str = "") -> bytes:
    message = TracesData()
    for content in request:
        resource = message.resource_spans.add()
        if resource_name:
            resource.resource.attributes.add(key="host.name").value.string_value = resource_name
        resource.resource.attributes.add(key="service.name").value.string_value = f"s{content % 2}"
        scope = resource.scope_spans.add()
        for number in range(content % 3 + 1):
            scope.spans.add(
                trace_id=bytes([content % 10 + 1]) * 16,
                span_id=bytes([content % 10 + 1, number + 1]) * 4,
                name=f"content {content}",
                start_time_unix_nano=1,
                end_time_unix_nano=2 + content,
            )
    return message.SerializeToString()


def spans_of(request: Request) -> Counter[tuple[str, int]]:
    return Counter((f"content {c}", n) for c in request for n in range(c % 3 + 1))


def logs(request: Request, resource_name: str = "", scope_name: str = "scope") -> bytes:
    message = LogsData()
    for content in request:
        resource = message.resource_logs.add()
        if resource_name:
            resource.resource.attributes.add(key="host.name").value.string_value = resource_name
        scope = resource.scope_logs.add()
        scope.scope.name = f"{scope_name} {content % 4}"
        scope.log_records.add(
            trace_id=b"t" * 16, span_id=b"s" * 8, event_name=f"mark {content}", time_unix_nano=5
        )
    return message.SerializeToString()


def batch(
    member: int,
    requests: Sequence[Request],
    at_ns: int = 1_790_000_000 * 10**9,
    resource_name: str = "",
) -> SealedBatch:
    """What a collector makes of requests that it receives together."""
    text = ForeignText()
    for request in requests:
        text.add(traces(request, resource_name))
    batch_id = uuid4_shaped(digest("test", member, repr(requests), resource_name))
    return SealedBatch(file_name(at_ns + member, batch_id), text.text(batch_id, at_ns + member))


def log_batches(member: int, requests: Sequence[Request], *names: str) -> list[SealedBatch]:
    """Batches of log records; `names` are those of the resource and of the scope."""
    marks = LogMarks()
    for request in requests:
        marks.add(logs(request, *names))
    return [
        SealedBatch(file_name(member, made["batch_id"]), batch_bytes(made))
        for made in marks.batches(f"{member} {requests} {names}", member)
    ]


def names(storage: Storage) -> Counter[str]:
    return Counter(column(storage, 'SELECT "name" FROM "TraceSpan"'))


def assert_whole(storage: Storage) -> None:
    """What comes back is consistent: the batches hold as many spans as their resources count."""
    for _, value in stored(storage):
        resources = value["otel"]["resource_spans"]
        assert resources
        counts = [s["spans"] for r in resources for s in r["scope_spans"]]
        assert sum(counts) == len(value["spans"])
    total = sum(len(value["spans"]) for _, value in stored(storage))
    assert total == column(storage, 'SELECT COUNT(*) FROM "TraceSpan"')[0]


def expected_names(requests: Iterable[Request]) -> Counter[str]:
    """Of each content as many copies as the request has that has most of them."""
    most: Counter[int] = Counter()
    for request in requests:
        most |= Counter(request)
    return Counter({f"content {c}": n * (c % 3 + 1) for c, n in most.items()})


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(REQUESTS, min_size=1, max_size=6, unique=True),
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), min_size=1, max_size=5),
    st.integers(1, 3),
)
def test_whatever_the_members_make_of_the_same_requests(
    shared_storage: Storage,
    requests: list[Request],
    groups: list[list[int]],
    at_once: int,
) -> None:
    """Each group of requests is a batch of some member; a member takes a request once."""
    clear(shared_storage)
    batches, sent = [], []
    for member, group in enumerate(groups):
        wanted = [
            requests[n % len(requests)] for n in dict.fromkeys(n % len(requests) for n in group)
        ]
        sent.append(tuple(c for request in wanted for c in request))
        batches.append(batch(member, wanted))
    for start in range(0, len(batches), at_once):
        shared_storage.write(batches[start : start + at_once])
    first = names(shared_storage)
    assert first == expected_names(sent)
    assert_whole(shared_storage)
    for each in reversed(batches):  # every one comes again
        assert shared_storage.write([each]).new == 0
    assert names(shared_storage) == first
    clear(shared_storage)


def test_same_ids_with_different_content_are_both_stored(storage: Storage) -> None:
    storage.write([batch(1, [(1,), (2,)])])
    storage.write([batch(2, [(11,), (2,)])])
    assert names(storage) == expected_names([(1, 2), (11,)])
    assert len(set(column(storage, 'SELECT "id" FROM "TraceSpan"'))) == 6


def test_same_spans_of_different_resources_are_both_stored(storage: Storage) -> None:
    for member, resource_name in enumerate(("", "a", "b", "a", "")):
        storage.write([batch(member, [(1,)], resource_name=resource_name)])
    assert names(storage) == Counter({"content 1": 6})
    assert len(list(stored(storage))) == 3


def test_the_same_log_record_of_another_resource_or_scope_is_another_mark(
    storage: Storage,
) -> None:
    for member, origin in enumerate([("", "s"), ("a", "s"), ("", "t"), ("a", "t"), ("", "s")]):
        storage.write(log_batches(member, [(1,)], *origin))
    assert column(storage, 'SELECT "name" FROM "TraceMark"') == ["mark 1"] * 4


@pytest.mark.parametrize("kind", ["overrides", "defaults"])
def test_of_another_tenant_it_is_another(kind: str, storage: Storage) -> None:
    for tenant in ("a", "b", "a"):
        context = OwnerContext(**{kind: {"cirron.workspace.id": tenant}})
        storage.write([batch(1 if tenant == "a" else 2, [(1,), (2,)])], context)
        storage.write([batch(3 if tenant == "a" else 4, [(2,)])], context)
    assert names(storage) == expected_names([(1, 2)]) + expected_names([(1, 2)])


def test_marks_that_were_log_records(storage: Storage) -> None:
    storage.write(log_batches(1, [(1, 2), (3,), (7, 7)]))
    first = column(storage, 'SELECT COUNT(*) FROM "TraceMark"')[0]
    assert first == 5
    storage.write(log_batches(2, [(3,), (7, 7)]))
    storage.write(log_batches(3, [(4,), (2, 3)]))
    assert sorted(column(storage, 'SELECT "name" FROM "TraceMark"')) == [
        "mark 1", "mark 2", "mark 3", "mark 4", "mark 7", "mark 7",
    ]  # fmt: skip
    for _, value in stored(storage):
        assert value["marks"]


def test_requests_removed_by_retention_are_stored_again(storage: Storage) -> None:
    storage.write([batch(1, [(1,), (2,)])])
    storage.write([batch(2, [(2,), (3,)], at_ns=1_791_000_000 * 10**9)])
    storage.retain(1_790_500_000 * 10**9)
    assert names(storage) == expected_names([(3,)])
    storage.write([batch(3, [(1,), (3,)])])
    assert names(storage) == expected_names([(1, 3)])
    storage.retain(1_792_000_000 * 10**9)
    assert [column(storage, f'SELECT COUNT(*) FROM "{t}"')[0] for t in ALL_TABLES] == [0] * 8


def test_many_writers_at_once(url: str) -> None:
    """Each puts the same requests into other batches, in another order; none fails."""
    requests: list[Request] = [(n, n + 10) for n in range(10)]
    with Storage.open(url):
        pass
    errors: list[BaseException] = []

    def run(number: int) -> None:
        order = requests[number:] + requests[:number]
        step = number % 3 + 1
        try:
            with Storage.open(url) as storage:
                for start in range(0, len(order), step):
                    storage.write([batch(number, order[start : start + step])])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with Storage.open(url) as storage:
        assert names(storage) == expected_names(requests)
        assert_whole(storage)


def test_batches_of_programs_have_no_parts() -> None:
    def with_otel(otel: Any) -> SealedBatch:
        value = json.loads(batch(1, [(1,)]).data)
        return SealedBatch("x.json", json.dumps(value | {"otel": otel}).encode())

    good = json.loads(batch(1, [(1,)]).data)["otel"]
    negative = [{"scope_spans": [{"spans": -1}]}]
    balanced = [*negative, {"scope_spans": [{"spans": 3}]}]
    too_few = [{"scope_spans": [{"spans": 1}]}]
    for odd in (
        {}, None, [], {"received_ns": 1}, {"received_ns": 1, "resource_spans": []},
        good | {"resource_spans": None}, good | {"resource_spans": negative},
        good | {"resource_spans": balanced}, good | {"resource_spans": too_few},
        good | {"resource_spans": good["resource_spans"] * 2}, {"received_ns": 1, "logs": {}},
        {"received_ns": 1, "logs": {"scopes": [5]}},
    ):  # fmt: skip
        assert parts_of(with_otel(odd), OwnerContext()) == []
    assert len(parts_of(with_otel(good), OwnerContext())) == 1
    value = json.loads(with_otel({k: v for k, v in good.items() if k != "received_ns"}).data)
    value["spans"][0]["attrs"] = {"received_ns": 1}  # the text is in it, but not in its place
    data = json.dumps(value, separators=(",", ":")).encode()
    assert b'"received_ns":' in data
    assert parts_of(SealedBatch("x.json", data), OwnerContext()) == []
