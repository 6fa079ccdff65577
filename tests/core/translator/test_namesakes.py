"""Batches that share name, id and counts: told apart by content, and never lost."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from cirron_otel import exactjson
from cirron_otel.core.otlp.wire import encode_varint
from cirron_otel.core.translator.own.encode import encode_batch
from cirron_otel.core.translator.translate import FromOtlp, to_otlp
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.tools.convert.test_deep_chains import calls_of

from .test_lossless import (
    PLAN,
    back,
    plan_for,
    split,
    wire,
)
from .test_own import batch, span

ONE, TWO, THREE = (f"{n:016x}1122334455667788" for n in (1, 2, 3))


def plain(*spans: Any, marks: Any = (), **more: Any) -> dict[str, Any]:
    made = batch(list(spans), marks)
    del made["otel"]
    return made | more


def mark(own: str, span_id: str, value: int) -> dict[str, Any]:
    return {
        "id": own, "span_id": span_id, "name": "loss", "value_type": "int", "value": value,
        "attrs": {}, "ts_ns": 5, "kind": "point",
    }  # fmt: skip


FIRST = plain(span(ONE, None, attrs={"v": "one"}), span(TWO, None, end_ns=21))
PAIRS = {
    "another record": (FIRST, plain(span(ONE, None, attrs={"v": "one"}), span(THREE, None))),
    "the same id, other content": (
        FIRST,
        plain(span(ONE, None, attrs={"v": "two"}), span(THREE, None, end_ns=21)),
    ),
    "another mark on the same span": (
        plain(span(ONE, None, mark_ids=[TWO]), marks=[mark(TWO, ONE, 1)]),
        plain(span(ONE, None, mark_ids=[TWO]), marks=[mark(TWO, ONE, 2)]),
    ),
    "null and its name": (
        plain(span(ONE, None), batch_id=None),
        plain(span(TWO, None), batch_id="None"),
    ),
    "null and its name, the same records": (
        plain(span(ONE, None), batch_id=None),
        plain(span(ONE, None), batch_id="None"),
    ),
    "an id that ends like a time": (
        plain(span(ONE, None), batch_id="a", created_ns=1),
        plain(span(TWO, None), batch_id="a\x001", created_ns=2),
    ),
}


def data_of(messages: list[ResourceSpans]) -> bytes:
    return TracesData(resource_spans=messages).SerializeToString()


def texts(batches: Any) -> list[str]:
    return sorted(map(exactjson.dumps_sorted, batches))


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
@pytest.mark.parametrize("size", [1, 10])
def test_both_come_back(pair: tuple[Any, Any], size: int) -> None:
    for batches in (pair, pair[::-1]):
        pieces = [
            piece
            for each in batches
            for message in wire(encode_batch(each, PLAN, "x.json"))
            for piece in split([message], size, random.Random(0))
        ]
        found = back(pieces)
        assert texts(decoded.batch for decoded in found) == texts(pair)
        assert len({decoded.name for decoded in found}) == 2 or found[0].key != found[1].key


def test_mixed_up_batches_lose_no_records() -> None:
    first, second = PAIRS["the same id, other content"]
    (one,) = split(wire(encode_batch(first, PLAN)), 2, random.Random(0))
    (two,) = split(wire(encode_batch(second, PLAN)), 2, random.Random(0))
    mixed = ResourceSpans.FromString(one.SerializeToString())
    mixed.scope_spans[0].spans.extend(two.scope_spans[0].spans)
    found = back([mixed])
    records = [record for decoded in found for record in decoded.batch["spans"]]
    wanted = [record for each in (first, second) for record in each["spans"]]
    assert texts(records) == texts(wanted)


def test_the_same_batch_again_is_left_out_whichever_way_it_comes() -> None:
    messages = wire(encode_batch(FIRST, PLAN))
    reader = FromOtlp()
    assert reader.feed_whole(data_of(messages)) is not None
    again = reader.feed_whole(data_of(messages))
    assert again is not None
    assert again.data == b""
    pieces = split(messages, 1, random.Random(0))
    assert reader.feed_whole(data_of(pieces[:1])) is None
    assert [d for piece in pieces for d in reader.feed([piece])] == []
    assert reader.feed(pieces[:1]) == []  # a third time, and not all of it
    assert reader.finish() == []
    assert reader.regrouper.duplicates == 2 + 2 + 1


def test_a_message_that_only_looks_the_same_goes_the_exact_path() -> None:
    first, second = PAIRS["the same id, other content"]
    reader = FromOtlp()
    assert reader.feed_whole(data_of(wire(encode_batch(first, PLAN)))) is not None
    other = wire(encode_batch(second, PLAN))
    assert reader.feed_whole(data_of(other)) is None
    (decoded,) = reader.feed(other)
    assert exactjson.equal(decoded.batch, second)
    assert decoded.namesake == f"{7:020d}-{'c' * 32}.json"


@pytest.mark.parametrize("is_merged", [False, True])
def test_convert_keeps_both_and_reports_it(is_merged: bool, tmp_path: Path) -> None:
    first, second = PAIRS["the same id, other content"]
    made = [to_otlp(each, plan_for(each)) for each in (first, second, first)]
    data = [data_of(each) for each in ([[*made[0], *made[1], *made[2]]] if is_merged else made)]
    source = tmp_path / "a.binpb"
    source.write_bytes(b"".join(encode_varint(len(each)) + each for each in data))
    report = convert(ConvertRequest(str(source), str(tmp_path / "back")))
    kept = [exactjson.loads(p.read_bytes()) for p in (tmp_path / "back/spool").iterdir()]
    assert texts(kept) == texts([first, second])
    assert report.exit_code == 1
    assert report.duplicates == 2
    (finding,) = report.skipped
    assert finding.code == "namesake"
    assert finding.name == f"{7:020d}-{'c' * 32}.json"


def test_a_late_part_with_other_content_is_a_part(tmp_path: Path) -> None:
    first, second = PAIRS["the same id, other content"]
    messages = to_otlp(first, plan_for(first))
    late = split(to_otlp(second, plan_for(second)), 1, random.Random(0))
    data = [data_of(messages), data_of(late[:1])]
    source = tmp_path / "a.binpb"
    source.write_bytes(b"".join(encode_varint(len(each)) + each for each in data))
    report = convert(ConvertRequest(str(source), str(tmp_path / "back")))
    assert report.exit_code == 1
    assert len(report.incomplete) == 1
    assert report.written == 2


def test_headers_that_differ_in_null_alone_are_not_mixed_up() -> None:
    first, second = PAIRS["null and its name, the same records"]
    pieces = []
    for each in (first, second):
        wide = each | {"spans": [*each["spans"], span(TWO, None, end_ns=30)]}
        pieces.append(split(wire(encode_batch(wide, PLAN, "x.json")), 1, random.Random(0)))
    found = back([piece for pair in zip(*pieces, strict=True) for piece in pair])
    assert {decoded.batch["batch_id"] for decoded in found} == {None, "None"}
    assert all(decoded.complete for decoded in found)


def test_twice_the_namesakes_are_twice_the_work(tmp_path: Path) -> None:
    calls = []
    for count in (30, 60):
        made = [plain(span(ONE, None, attrs={"v": number})) for number in range(count)]
        data = [data_of(encode_batch(each, PLAN)) for each in made]
        source = tmp_path / f"{count}.binpb"
        source.write_bytes(b"".join(encode_varint(len(each)) + each for each in data))
        target = tmp_path / str(count)
        calls.append(calls_of(lambda: convert(ConvertRequest(str(source), str(target)))))  # noqa: B023
        kept = [exactjson.loads(path.read_bytes()) for path in (target / "spool").iterdir()]
        assert texts(kept) == texts(made)
    assert calls[1] < 2.5 * calls[0]
