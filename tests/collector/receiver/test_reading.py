"""What requests hold, found out without harm to others: JSON above all."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.collector.receiver import reading
from cirron_otel.collector.receiver.consumer import (
    BodyEncoding,
    Reason,
    ReceivedRequest,
    ReceivedSignal,
    RefusalError,
)
from cirron_otel.collector.receiver.intake import Intake, IntakeLimits, SignalPolicy
from cirron_otel.collector.receiver.journal.reader import frames
from cirron_otel.collector.receiver.journal.writer import IntakeJournal
from cirron_otel.core.records import check

from .http_serving import BATCH

MOST = 200_000
TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def document(*spans: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}], **more}).encode()


def batch(**more: Any) -> bytes:
    return json.dumps({**BATCH, **more}).encode()


def request(body: bytes, signal: ReceivedSignal = ReceivedSignal.TRACES) -> ReceivedRequest:
    return ReceivedRequest(signal, BodyEncoding.JSON, body, 1)


def with_intake(
    folder: Path, test: Callable[[Intake], Awaitable[None]], limits: IntakeLimits | None = None
) -> list[bytes]:
    """Run a test with an intake; the bodies that are in its journal then."""

    async def run() -> None:
        journal = IntakeJournal(folder, max_bytes=1 << 30)
        try:
            await test(Intake(journal, limits, SignalPolicy("marks", "refuse")))
        finally:
            await journal.close()

    asyncio.run(run())
    return [frame.body for frame in frames(folder, None, lambda damage: pytest.fail(str(damage)))]


def refusal(work: Callable[[], object]) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        work()
    return caught.value


# --- counting -----------------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from([b'"', b"\\", b"{", b"[", b",", b"a"])).map(b"".join),
    st.integers(1, 9),
)
def test_texts_are_left_out_wherever_a_step_ends(body: bytes, step: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_STEP", step)
        assert b"".join(reading._outside_texts(body)) == TEXT.sub(b"", body)


def test_oversized_json_is_refused_without_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_FROM_JSON", {})  # it would be a KeyError
    body = document(*[{}] * 31)
    for signal in (ReceivedSignal.TRACES, ReceivedSignal.LOGS):
        found = refusal(lambda signal=signal: reading.from_json(body, signal, 10))  # type: ignore[misc]
        assert found.reason is Reason.TOO_LARGE
    assert refusal(lambda: reading.batch_of(body, 10)).reason is Reason.TOO_LARGE


# --- Cirron batches -----------------------------------------------------------------------------


def test_records_are_counted() -> None:
    body = batch(spans=[{}] * 5, marks=[{}, 1, None], snapshots=[[]])
    assert reading.batch_of(body, 9) == (BATCH["batch_id"], 5, 9)
    found = refusal(lambda: reading.batch_of(body, 8))
    assert found.reason is Reason.TOO_LARGE
    assert "9 spans, marks and snapshots: expected up to 8" in found.message


@pytest.mark.parametrize(
    ("body", "batch_id"),
    [
        (b'{"schema_version":1}', ""),
        (b'{"schema_version":1,"batch_id":5}', ""),
        (b'{"schema_version":1,"batch_id":"\\ud800"}', "\ud800"),
        (b' {\n"schema_version" : 1 ,\t"\\u0062atch_id":"a" }\r\n', "a"),
        (b'{"schema_version":1,"batch_id":"a","x":NaN,"spans":[{"y":Infinity}]}', "a"),
        (b'{"schema_version":1,"batch_id":"a","spans":[{"x":1,"x":2}]}', "a"),
    ],
)
def test_batches_of_all_kinds(body: bytes, batch_id: str) -> None:
    found = reading.batch_of(body, MOST)
    assert found.batch_id == batch_id
    assert found.records == body.count(b'"spans"')


@pytest.mark.parametrize(
    "body",
    [
        b'{"schema_version":1,"schema_version":1}',
        b'{"schema_version":1,"spans":[{"a":1}],"x":2,"spans":[]}',
        b'{"a":12,"schema_version":1,"a":1}',
        b'{"a":",","schema_version":1,"\\u0061":""}',
        b'{"schema_version":1,"spans":[],"marks":[],\n"spans":[ ]}',
        b'{":":{\n ",": null\n},":":null,"":null,"schema_version":1}',
        b'{"a":[1,2,"\xff"],"a":null,"schema_version":1}',
    ],
)
def test_repeated_key_is_refused_without_a_full_parse(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "check_value_of", lambda _body: pytest.fail("read the slow way"))
    found = refusal(lambda: reading.batch_of(body, MOST))
    assert found.reason is Reason.INVALID
    assert "a key is repeated" in found.message


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b'{"schema_version":2}', b'{"a":1',
    b'{"schema_version":1,"spans":null}', b'{"schema_version":1,"x":"\xff"}'])  # fmt: skip
def test_invalid_batch_is_refused(body: bytes) -> None:
    found = refusal(lambda: reading.batch_of(body, MOST))
    assert found.reason is Reason.INVALID
    assert found.message.startswith("not a Cirron batch: ")


KEYS = st.text(st.sampled_from('ab"\\,:{é\U0001f600\ud7ff'), max_size=3)
VALUES = st.recursive(
    st.none() | st.integers(0, 99) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
)


@given(st.dictionaries(KEYS, VALUES), st.sampled_from([None, 1]), st.booleans(), st.data())
def test_unique_keys_are_accepted_and_repeated_keys_refused(
    more: dict[str, Any], indent: int | None, is_ascii: bool, data: st.DataObject
) -> None:
    items = [*more.items(), ("schema_version", 1)]
    items = data.draw(st.permutations(items))

    def written(items: list[tuple[str, Any]]) -> bytes:
        texts = [
            f"{json.dumps(key, ensure_ascii=is_ascii)}:{json.dumps(value, indent=indent)}"
            for key, value in items
        ]
        return f"{{{','.join(texts)}}}".encode()

    assert reading.batch_of(written(items), MOST).records == 0
    again = (data.draw(st.sampled_from(items))[0], data.draw(VALUES))
    place = data.draw(st.integers(0, len(items)))
    twice = written([*items[:place], again, *items[place:]])
    assert refusal(lambda: reading.batch_of(twice, MOST)).reason is Reason.INVALID


@pytest.mark.parametrize("body", [b"{", b"[]", b'"a"', b"", b"\xff"])
def test_dropped_signals_are_still_validated(tmp_path: Path, body: bytes) -> None:
    async def test(intake: Intake) -> None:
        intake.apply(IntakeLimits(), SignalPolicy("accept", "accept"))
        for signal in (ReceivedSignal.LOGS, ReceivedSignal.METRICS):
            with pytest.raises(RefusalError) as caught:
                await intake.consume(request(body, signal))
            assert caught.value.reason is Reason.INVALID
            assert (await intake.consume(request(b'{"a":[]}', signal))).rejected == 0

    assert with_intake(tmp_path, test) == []


# --- keys that are not known --------------------------------------------------------------------


def test_unknown_keys_are_ignored_and_named(tmp_path: Path) -> None:
    said: list[Any] = []

    async def test(intake: Intake) -> None:
        span = {"name": "a", "newer": {"x": [1]}, "status": {"code": 1, "colour": "red"}}
        said.append(await intake.consume(request(document(span, newest=1))))
        said.append(await intake.consume(request(document({"name": "a"}))))
        record = {"eventName": "a", "spanId": "eee19b7ec3c1b174", "traceId": "0" * 31 + "1", "z": 1}
        logs = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}).encode()
        said.append(await intake.consume(request(logs, ReceivedSignal.LOGS)))
        many = {f"key{number}": number for number in range(9)}
        said.append(await intake.consume(request(document(many))))

    bodies = with_intake(tmp_path, test)
    assert [answer.rejected for answer in said] == [0] * 4
    assert set(said[0].message.split("; ")) == {
        "unknown key 'newer' in Span ignored",
        "unknown key 'colour' in Status ignored",
        "unknown key 'newest' in TracesData ignored",
    }
    assert said[1].message == ""
    assert said[2].message == "unknown key 'z' in LogRecord ignored"
    assert said[3].message.endswith("and 6 more")
    assert len(bodies) == 4
    span = TracesData.FromString(bodies[0]).resource_spans[0].scope_spans[0].spans[0]
    assert (span.name, span.status.code) == ("a", 1)


# --- others meanwhile ---------------------------------------------------------------------------

LARGE = document(*[{"name": "a", "attributes": [{"key": "k", "value": {"intValue": 1}}]}] * 30_000)
LARGE_BATCH = b'{"schema_version":1,"x":NaN,' + batch(spans=[{"id": "a"}] * 100_000)[22:]


@pytest.mark.parametrize(
    ("body", "signal"),
    [(LARGE, ReceivedSignal.TRACES), (LARGE_BATCH, ReceivedSignal.CIRRON)],
    ids=["otlp", "cirron"],
)
def test_a_large_body_keeps_none_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes, signal: ReceivedSignal
) -> None:
    assert len(body) > 1 << 20
    order: list[str] = []
    gate, read = threading.Event(), reading._tried

    def slowly(work: Callable[[], Any]) -> Any:
        """Read in its thread, but not before the others are through."""
        assert gate.wait(60)
        return read(work)

    monkeypatch.setattr(reading, "_tried", slowly)

    async def test(intake: Intake) -> None:
        async def send(name: str, body: bytes, signal: ReceivedSignal) -> None:
            await intake.consume(request(body, signal))
            order.append(name)

        large = asyncio.create_task(send("large", body, signal))
        await asyncio.sleep(0)
        for _ in range(3):
            await send("small", document({}), ReceivedSignal.TRACES)
            await send("small", batch(), ReceivedSignal.CIRRON)
        gate.set()
        await large

    assert len(with_intake(tmp_path, test)) == 7
    assert order == ["small"] * 6 + ["large"]


def test_large_bodies_are_read_one_at_a_time() -> None:
    now, most = 0, 0
    lock = threading.Lock()

    def work() -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.01)
        with lock:
            now -= 1
        return 1

    async def run() -> list[int]:
        turns = reading.ReadTurns()
        body = bytes(reading.LARGE + 1)
        return await asyncio.gather(*(turns.read(body, work) for _ in range(5)))

    assert asyncio.run(run()) == [1] * 5
    assert most == 1


def test_a_refusal_from_another_thread_holds_on_to_nothing() -> None:
    def work() -> None:
        raise RefusalError(Reason.INVALID, "no")

    async def run() -> None:
        turns = reading.ReadTurns()
        for size in (1, 1 << 17, 1 << 21):
            with pytest.raises(RefusalError, match="no") as caught:
                await turns.read(bytes(size), work)
            frames = [entry.name for entry in caught.traceback]
            assert ("work" in frames) == (size == 1)

    asyncio.run(run())
