"""Batches that name their session: live and offline, fast and exact, the same bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from cirron_otel import exactjson, semconv
from cirron_otel.core.placement.session_index import SessionIndex
from cirron_otel.core.translator.codec import encode
from cirron_otel.core.translator.own.encode import Options, encode_batch
from cirron_otel.core.translator.own.fast_decode import fast_decode
from cirron_otel.core.translator.own.fast_encode import fast_encode, typed_batch
from cirron_otel.core.translator.own.own import plan_of
from cirron_otel.core.translator.own.spans import overhead_mark
from cirron_otel.core.translator.translate import FromOtlp, encode_own, to_otlp
from cirron_otel.core.translator.typed import NotCanonicalError
from cirron_otel.errors import InputError
from cirron_otel.ids import digest, span_id_for
from tests.kit.examples import examples
from tests.kit.generators import strategies as gen
from tests.kit.spools.made import snapshot

from .sdk_batches import ADOPTED, sdk_batches
from .test_lossless import (
    LAYOUTS,
    PHASES,
    SLOW,
    split,
    wire,
)

SESSION, LOWER = gen.SESSION_ID, gen.LOWER
FIRST = bytes.fromhex(SESSION)
SEGMENT = "5e6" + "0" * 13 + LOWER
EPOCH, STEP = f"{0xE0C:016x}{LOWER}", f"{0x57E:016x}{LOWER}"


def span(own: str, parent: str | None, **more: Any) -> dict[str, Any]:
    return {
        "id": own, "name": "step", "parent_id": parent, "index": None, "start_ns": 10,
        "end_ns": 20, "cpu_ns": None, "gpu_ns": None, "memory_peak_bytes": None,
        "thread_id": 1, "pid": 1, "rank": 0, "attrs": {}, "mark_ids": [],
    } | more  # fmt: skip


def batch(spans: list[Any], marks: Any = (), **otel: Any) -> dict[str, Any]:
    return {
        "schema_version": 1, "sdk_version": "0.3.0", "batch_id": "c" * 32, "created_ns": 7,
        "spans": spans, "marks": list(marks), "snapshots": [],
        "otel": {"session": SESSION, "trace_id": SESSION} | otel,
    }  # fmt: skip


def spans_of(made: dict[str, Any], options: Options = LAYOUTS[0]) -> list[Span]:
    """The spans of a batch on the wire, which must be in one message and give the batch back."""
    data = encode_own(msgspec.json.encode(made), None, options)
    (message,) = TracesData.FromString(data).resource_spans
    (decoded,) = FromOtlp().feed([message])
    assert exactjson.equal(decoded.batch, made)
    return list(message.scope_spans[0].spans)


def exactly(made: dict[str, Any], options: Options) -> bytes:
    messages = to_otlp(made, plan_of(made), None, options)
    return TracesData(resource_spans=messages).SerializeToString()


def is_plain(made: dict[str, Any]) -> bool:
    """Whether plain JSON can say it, and msgspec can."""
    try:
        msgspec.json.encode(made)
        json.dumps(made, allow_nan=False)  # for what is not finite msgspec writes null
    except (TypeError, ValueError):
        return False
    return True


# --- fast and exact, live and offline -----------------------------------------------------------


@settings(max_examples=examples(700), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(made=sdk_batches(), options=st.sampled_from(LAYOUTS), limits=gen.limits)
def test_fast_and_exact_codecs_give_the_same_result(
    made: Any, options: Options, limits: Any
) -> None:
    with gen.cut(limits):
        compare_fast_and_exact(made, options, is_cut=bool(limits))


def compare_fast_and_exact(made: Any, options: Options, *, is_cut: bool) -> None:
    data = exactjson.dumps(made)
    message = exactly(exactjson.loads(data), options)
    assert encode_own(data, None, options) == message
    plan = plan_of(made)
    assert plan is not None
    try:
        typed = typed_batch(data)
    except NotCanonicalError:
        assert not is_plain(made), "only what msgspec can't write may end here"
        return
    try:
        assert fast_encode(typed, plan, None, options) == message
    except NotCanonicalError:
        own = any("trace_id" in s.get("otel", {}) for s in made["spans"])
        assert (
            is_cut
            or not made["spans"]
            or "trace_id" not in made["otel"]
            or (own and options != LAYOUTS[0])
        )
    (decoded,) = FromOtlp().feed(TracesData.FromString(message).resource_spans)
    assert decoded.complete
    assert exactjson.equal(decoded.batch, made)
    try:
        whole = fast_decode(message)
    except NotCanonicalError:
        return
    assert exactjson.equal(exactjson.loads(whole.data), made)
    assert whole.name == decoded.name


@settings(max_examples=examples(250), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(made=gen.batches | sdk_batches(), options=st.sampled_from(LAYOUTS))
def test_live_export_gives_the_bytes_of_a_conversion(made: Any, options: Options) -> None:
    data, name = exactjson.dumps(made), "00000000000000000007-x.json"
    if plan_of(made) is None or made.get("schema_version") != 1:
        with pytest.raises(InputError):
            encode_own(data, name, options)
        return
    try:
        message = encode_own(data, name, options)
    except InputError:
        assert not all(isinstance(made.get(k, []), list) for k in ("spans", "marks", "snapshots"))
        return
    index = SessionIndex()
    assert encode(name, data, index, options).data == message
    index.close()


@settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(
    made=st.lists(sdk_batches(), min_size=2, max_size=3),
    size=st.integers(1, 3),
    shuffler=st.randoms(use_true_random=False),
)
def test_batches_split_shuffled_and_merged(made: list[Any], size: int, shuffler: Any) -> None:
    pieces = []
    for number, each in enumerate(made):
        each["batch_id"] = f"{number:032x}"
        pieces += split(wire(encode_batch(each, plan_of(each))), size, shuffler)
    shuffler.shuffle(pieces)
    reader = FromOtlp()
    found = reader.feed(pieces)
    assert reader.finish() == []
    assert sorted(d.batch["batch_id"] for d in found) == [each["batch_id"] for each in made]
    for decoded in found:
        assert exactjson.equal(decoded.batch, made[int(decoded.batch["batch_id"], 16)])


@settings(max_examples=examples(200), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(made=sdk_batches(), data=st.data())
def test_parts_that_meet_again_are_one_batch(made: Any, data: st.DataObject) -> None:
    made["marks"] = [m for m in made["marks"] if m["span_id"] not in (ADOPTED, "root")]
    made["marks"].sort(key=lambda m: (m["ts_ns"], m["id"]))
    made["spans"].sort(key=lambda s: (s["end_ns"], s["id"]))
    pieces = split(wire(encode_batch(made, plan_of(made))), 1, data.draw(st.randoms()))
    cut = data.draw(st.integers(0, len(pieces)))
    again = []
    for part in (pieces[:cut], pieces[cut:]):
        reader = FromOtlp()
        for decoded in reader.feed(part) + reader.finish():
            if not decoded.batch["spans"]:
                return  # its one carrier is counted anew
            again += to_otlp(decoded.batch, plan_of(decoded.batch), decoded.name)
    reader = FromOtlp()
    found = reader.feed(wire(again))
    assert reader.finish() == []
    assert [exactjson.equal(decoded.batch, made) for decoded in found] == [True]


# --- what stands where --------------------------------------------------------------------------


def test_records_are_placed_in_the_traces_named_by_the_batch() -> None:
    marks = [
        {"id": f"{n:016x}{LOWER}", "span_id": scope, "name": "loss", "value_type": "int",
         "value": n, "attrs": {}, "ts_ns": n, "kind": "point"}
        for n, scope in enumerate((EPOCH, ADOPTED, "root"), 1)
    ]  # fmt: skip
    spans = [span(STEP, EPOCH), span(f"{1:016x}{LOWER}", STEP, otel={"trace_id": SESSION})]
    made = batch(spans, marks, trace_id=SEGMENT, traces={EPOCH: SESSION})
    segment = bytes.fromhex(SEGMENT)
    assert [s.trace_id for s in spans_of(made)] == [segment, FIRST, FIRST, segment, segment]
    assert {s.trace_id for s in spans_of(made, LAYOUTS[1])} == {FIRST}


def test_joined_session_uses_the_trace_that_it_joined() -> None:
    joined = "4bf92f3577b34da6" + LOWER
    root = span(SESSION, None, name="cirron.session", otel={"parent_span_id": "00f067aa0ba902b7"})
    made = batch([span(STEP, SESSION), root], session_trace_id=joined, trace_id=joined)
    for options in LAYOUTS:
        step, session = spans_of(made, options)
        assert step.trace_id == session.trace_id == bytes.fromhex(joined)
        assert session.parent_span_id.hex() == "00f067aa0ba902b7"


def test_a_running_scope_is_a_marker_below_its_parent() -> None:
    told = {"id": EPOCH, "name": "epoch", "index": 3, "start_ns": 5, "parent_id": SESSION}
    made = batch([span(STEP, EPOCH)], trace_id=SEGMENT, running=[told, told])
    _, marker = spans_of(made)
    assert marker.name == "cirron.running"
    assert marker.span_id == digest("cirron.running", EPOCH)[:8]
    assert marker.parent_span_id == span_id_for(SESSION)
    assert marker.trace_id.hex() == SEGMENT
    assert (marker.start_time_unix_nano, marker.end_time_unix_nano) == (5, 6)
    attributes = {pair.key: pair.value for pair in marker.attributes}
    assert attributes[semconv.RUNNING_NAME].string_value == "epoch"
    assert attributes[semconv.INDEX].int_value == 3
    assert spans_of(made, LAYOUTS[1])[1].trace_id == FIRST


def test_seam_spans_are_emitted_only_for_batches_naming_a_segment() -> None:
    told = {
        "number": 1, "trace_id": SEGMENT, "previous_trace_id": SESSION, "start_ns": 9,
        "unit_id": STEP, "parent_id": EPOCH, "parent_trace_id": SESSION,
    }  # fmt: skip
    made = batch([span(f"{1:016x}{LOWER}", EPOCH)], segments=[told], trace_id=SEGMENT)
    seams = spans_of(made)[1:]
    assert [(s.name, s.trace_id.hex()) for s in seams] == [
        ("cirron.continuation", SEGMENT),
        ("cirron.continuation", SEGMENT),
        ("cirron.segment", SESSION),
    ]
    assert seams[1].span_id == span_id_for(EPOCH)
    later = batch([span(STEP, EPOCH)], trace_id=SEGMENT)
    assert len(spans_of(later)) == 1, "the opener's own record brings none"
    beside = told | {"parent_trace_id": SEGMENT}
    assert len(spans_of(batch([span(STEP, EPOCH)], segments=[beside]))) == 3
    assert len(spans_of(made, LAYOUTS[1])) == 1


@pytest.mark.parametrize("parent", [EPOCH, None, "\ud800", "x"])
def test_a_root_on_the_wire_keeps_its_parent_in_cirron(parent: str | None) -> None:
    made = batch([span(STEP, parent, otel={"parent_span_id": "", "trace_id": "5e" * 16})])
    (message,) = wire(to_otlp(made, plan_of(made)))
    assert message.scope_spans[0].spans[0].parent_span_id == b""
    (decoded,) = FromOtlp().feed([message])
    assert exactjson.equal(decoded.batch, made)


def test_a_rest_too_long_for_the_scope_has_a_carrier_in_the_batchs_trace() -> None:
    told = [
        {"id": f"{n:016x}{LOWER}", "name": "epoch" * 9, "index": n, "start_ns": 5,
         "parent_id": SESSION} for n in range(20)
    ]  # fmt: skip
    made = batch([span(STEP, EPOCH)], running=told, trace_id=SEGMENT)
    data = msgspec.json.encode(made)
    plan = plan_of(made)
    assert plan is not None
    assert fast_encode(typed_batch(data), plan, None) == exactly(made, LAYOUTS[0])
    carrier = spans_of(made)[1]
    assert (carrier.name, carrier.trace_id.hex()) == ("cirron.batch", SEGMENT)
    # At any other time than that of its batch it would tear its trace apart.
    when = made["created_ns"]
    assert (carrier.start_time_unix_nano, carrier.end_time_unix_nano) == (when, when + 1)


@pytest.mark.parametrize("snapshots", [0, 1])
def test_the_marks_and_snapshots_of_an_open_scope_share_the_maximum_of_events(
    snapshots: int,
) -> None:
    marks = [
        {"id": f"{number:016x}{LOWER}", "span_id": SESSION, "name": "loss", "value_type": "int",
         "value": 1, "attrs": {}, "ts_ns": number, "kind": "point"}
        for number in (1, 2)
    ]  # fmt: skip
    made = batch([span(STEP, SESSION)], marks)
    made["snapshots"] = [snapshot(3, 1, span_id=SESSION)] * snapshots
    with gen.cut({"MAX_EVENTS": 2}):
        compare_fast_and_exact(made, LAYOUTS[0], is_cut=snapshots > 0)


@pytest.mark.parametrize("created", [0, -1, 2**63 - 1, 2**63, 2**70, 1.5, "5", True, None])
def test_carrier_span_uses_the_creation_time_of_the_batch_if_valid(created: object) -> None:
    made = batch([]) | {"created_ns": created}
    (message,) = wire(to_otlp(made, plan_of(made)))
    carrier = message.scope_spans[0].spans[0]
    when = created if type(created) is int and 0 <= created < 2**63 else 0
    end = when if when == 2**63 - 1 else when + 1
    assert (carrier.start_time_unix_nano, carrier.end_time_unix_nano) == (when, end)
    (decoded,) = FromOtlp().feed([message])
    assert exactjson.equal(decoded.batch, made)
    carrier.start_time_unix_nano, carrier.end_time_unix_nano = 7, 9  # a decoder takes any
    (decoded,) = FromOtlp().feed([message])
    assert exactjson.equal(decoded.batch, made)


def test_resource_is_not_duplicated_in_a_carrier_span() -> None:
    attributes = {f"key.{n}": "x" * 60 for n in range(30)}
    told = {"id": EPOCH, "name": "epoch", "index": 0, "start_ns": 5, "parent_id": SESSION}
    made = batch([span(STEP, EPOCH)], resource={"attributes": attributes}, running=[told])
    assert [s.name for s in spans_of(made)] == ["step", "cirron.running"]


def test_complete_sdk_batch_round_trips_byte_for_byte_on_the_fast_path() -> None:
    spans, marks = [], []
    for number in range(1, 40):
        own = f"{number:016x}{LOWER}"
        marks.append(overhead_mark(own, 100 + number, 700 + number % 7))
        otel = {"otel": {"kind": 3}} if number == 7 else {}
        otel = {"otel": {"trace_id": SEGMENT}} if number == 9 else otel
        index = number if number % 5 == 0 else None
        ids = [marks[-1]["id"]]
        spans.append(span(own, EPOCH, end_ns=100 + number, index=index, mark_ids=ids) | otel)
    running = [{"id": EPOCH, "name": "epoch", "index": 0, "start_ns": 5, "parent_id": SESSION}]
    resource = {"attributes": {"service.name": "train", "host.name": "é"}}
    made = batch(spans, marks, resource=resource, running=running)
    data = msgspec.json.encode(made)
    whole = FromOtlp().feed_whole(encode_own(data))
    assert whole is not None
    assert whole.data == data


@pytest.mark.parametrize(
    "large", [{"attrs": {"k": "\x01" * 50_000}}, {"attrs": {"k": "é" * 150_000}, "mark_ids": []}]
)
def test_records_too_large_for_a_span_fall_back_to_the_exact_encoder(large: dict[str, Any]) -> None:
    marks = [
        {"id": f"{n:016x}{LOWER}", "span_id": STEP, "name": "text", "value_type": "string",
         "value": "\x01" * 60_000, "attrs": {}, "ts_ns": n, "kind": "point"}
        for n in range(1, 3)
    ]  # fmt: skip
    made = batch([span(STEP, EPOCH, **large)], marks)
    data = msgspec.json.encode(made)
    assert encode_own(data) == exactly(exactjson.loads(data), LAYOUTS[0])


# --- what is no such batch ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[]", "not a batch"),
        (b'{"schema_version":2}', "not a batch"),
        (b'{"schema_version":true,"otel":{"session":"' + b"a" * 32 + b'"}}', "not a batch"),
        (b'{"schema_version":1,"spans":{}}', "spans is not a list"),
        (b'{"schema_version":1,"spans":[]}', "does not name its session"),
        (b'{"schema_version":1,"otel":{"session":"x"}}', "does not name its session"),
        (b'{"schema_version":1,"otel":5}', "does not name its session"),
        (b'{"schema_version":1,"otel":{"session":1,"session":2}}', "does not name its session"),
        (b'{"schema_version":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
    ],
)
def test_bytes_that_are_not_an_sdk_batch_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        encode_own(data)


def test_live_export_needs_no_sqlite() -> None:
    code = "import sys, cirron_otel.core.translator.translate; sys.exit('sqlite3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
