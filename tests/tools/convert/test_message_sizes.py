"""Everything that is written can be read: no message is too long, or refused by protobuf."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from cirron_otel import exactjson
from cirron_otel.core.otlp.files import TracesWriter, read_messages
from cirron_otel.core.otlp.formats import Format, format_of
from cirron_otel.core.translator.foreign.messages import decode_foreign
from cirron_otel.core.translator.own.encode import file_name
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from cirron_otel.tools.convert.messages import SizeLimits
from tests.kit.spools.comparing import RECORDED, assert_same, batches

from .test_hostile_values import name_of, spool_of

FORMS = pytest.mark.parametrize("form", ["binpb", "jsonl"])


def form_of(path: Path) -> Format:
    form = format_of(path)
    assert form is not None
    return form


def longest(path: Path) -> int:
    with path.open("rb") as stream:
        if path.suffix == ".jsonl":
            return max(map(len, stream.read().splitlines()))
        return max(len(each.data) for each in read_messages(stream, form_of(path)))


def write(path: Path, traces: TracesData) -> None:
    with path.open("wb") as stream, TracesWriter(stream, form_of(path)) as writer:
        writer.write_message(traces)


@FORMS
@pytest.mark.parametrize("share", [0.9, 0.5])
def test_a_batch_that_is_too_long_is_split_and_comes_back(
    form: str, share: float, tmp_path: Path
) -> None:
    source, file = RECORDED / "01_torch_basic", tmp_path / f"traces.{form}"
    convert(ConvertRequest(str(source), str(file)))
    limit = int(longest(file) * share)
    report = convert(ConvertRequest(str(source), str(file), limits=SizeLimits(message_bytes=limit)))
    assert (report.exit_code, longest(file) <= limit) == (0, True)
    assert report.messages > report.batches
    back = convert(
        ConvertRequest(str(file), str(tmp_path / "back"), limits=SizeLimits(message_bytes=limit))
    )
    assert back.exit_code == 0
    assert_same(batches(tmp_path / "back"), batches(source))


@FORMS
def test_a_batch_that_cannot_be_split_is_refused_by_name(form: str, tmp_path: Path) -> None:
    """The good batches around it come back."""
    source = spool_of(tmp_path / "in", "1", '"' + "é" * 5_000 + '"', "2")
    file, limits = tmp_path / f"traces.{form}", SizeLimits(message_bytes=8_000)
    report = convert(ConvertRequest(str(source), str(file), limits=limits))
    assert [(each.name, each.code) for each in report.skipped] == [(name_of(2), "too-large")]
    assert report.exit_code == 1
    assert convert(ConvertRequest(str(file), str(tmp_path / "back"), limits=limits)).exit_code == 0
    assert batches(tmp_path / "back").keys() == {name_of(1), name_of(3)}


@FORMS
def test_a_batch_born_in_otlp_is_not_split(form: str, tmp_path: Path) -> None:
    """If it were split, its parts would come back as several batches."""
    traces = TracesData()
    spans = traces.resource_spans.add().scope_spans.add().spans
    for number in range(1, 100):
        spans.add(trace_id=b"t" * 16, span_id=number.to_bytes(8, "big"), name="x" * 50)
    write(tmp_path / "a.binpb", traces)
    convert(ConvertRequest(str(tmp_path / "a.binpb"), str(tmp_path / "in")))
    (name,) = batches(tmp_path / "in")
    limits = SizeLimits(message_bytes=4_000)
    report = convert(
        ConvertRequest(str(tmp_path / "in"), str(tmp_path / f"b.{form}"), limits=limits)
    )
    assert [(each.name, each.code) for each in report.skipped] == [(name, "too-large")]


def test_a_message_that_becomes_too_long_a_line_is_split(tmp_path: Path) -> None:
    source, limit = RECORDED / "01_torch_basic", 20_000
    convert(ConvertRequest(str(source), str(tmp_path / "a.binpb")))
    limits = SizeLimits(message_bytes=max(limit, longest(tmp_path / "a.binpb")))
    lines = convert(
        ConvertRequest(str(tmp_path / "a.binpb"), str(tmp_path / "b.jsonl"), limits=limits)
    )
    assert lines.exit_code == 0
    assert longest(tmp_path / "b.jsonl") <= limits.message_bytes
    assert convert(ConvertRequest(str(tmp_path / "b.jsonl"), str(tmp_path / "back"))).exit_code == 0
    assert_same(batches(tmp_path / "back"), batches(source))


@pytest.mark.parametrize("to", ["back", "back.json"])
def test_a_batch_that_no_spool_is_read_with_is_refused(to: str, tmp_path: Path) -> None:
    source = spool_of(tmp_path / "in", json.dumps("x" * 2_000), "1")
    convert(ConvertRequest(str(source), str(tmp_path / "a.binpb")))
    request = ConvertRequest(
        str(tmp_path / "a.binpb"),
        str(tmp_path / to),
        target_format="batch" if to.endswith(".json") else None,
        limits=SizeLimits(batch_bytes=1_000),
    )
    report = convert(request)
    assert [(each.name, each.code) for each in report.skipped] == [(name_of(1), "too-large")]
    assert (report.written, report.exit_code) == (1, 1)


def test_from_spool_to_spool_a_batch_that_no_spool_is_read_with_is_refused(tmp_path: Path) -> None:
    source = spool_of(tmp_path / "in", json.dumps("x" * 2_000), "1")
    request = ConvertRequest(
        str(source), str(tmp_path / "back"), limits=SizeLimits(batch_bytes=1_000)
    )
    report = convert(request)
    assert [(each.name, each.code) for each in report.skipped] == [(name_of(1), "too-large")]
    assert (report.written, report.exit_code) == (1, 1)


@pytest.mark.parametrize("levels", [30, 46, 47, 48, 49, 60, 300])
def test_batches_too_deep_for_protobuf_use_another_encoding(levels: int, tmp_path: Path) -> None:
    """The batch claims to come from OTLP, but its attributes are too deep for a parser."""
    message = ResourceSpans()
    span = message.scope_spans.add().spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="x")
    value = span.attributes.add(key="v").value
    for _ in range(levels):
        value = value.array_value.values.add()
    value.int_value = 1
    truth = decode_foreign([message])
    path = spool_of(tmp_path / "in") / "spool" / str(file_name(truth))
    path.write_bytes(exactjson.dumps(truth))
    for form in ("binpb", "jsonl"):
        file = tmp_path / f"b.{form}"
        assert convert(ConvertRequest(str(tmp_path / "in"), str(file))).exit_code == 0
        with file.open("rb") as stream:
            for each in read_messages(stream, form_of(file)):
                TracesData.FromString(each.data)
        assert convert(ConvertRequest(str(file), str(tmp_path / f"back-{form}"))).exit_code == 0
        (found,) = batches(tmp_path / f"back-{form}").values()
        assert exactjson.equal(found, truth)
