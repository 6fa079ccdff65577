"""Spans of Cirron's that were changed on their way are kept, and reported by their batch."""

from __future__ import annotations

from pathlib import Path

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel import exactjson
from cirron_otel import semconv as sc
from cirron_otel.core.otlp.wire import encode_varint
from cirron_otel.core.translator.own.encode import encode_batch, file_name
from cirron_otel.core.translator.translate import FromOtlp
from cirron_otel.tools.convert.convert import ConvertRequest, convert

from .test_foreign_header import gen_batch, message
from .test_lossless import PLAN


def own(batch_id: object = "c" * 32, name: str | None = None) -> TracesData:
    batch = gen_batch() | {"batch_id": batch_id}
    return TracesData(resource_spans=encode_batch(batch, PLAN, name))


def changed(traces: TracesData) -> TracesData:
    for span in traces.resource_spans[0].scope_spans[0].spans:
        span.attributes.add(key=sc.INDEX).value.string_value = "hashed"
    return traces


def losses(*messages: TracesData) -> list[str]:
    reader = FromOtlp()
    for each in messages:
        reader.feed(each.resource_spans)
    return list(reader.altered.losses())


def test_by_the_name_of_the_batch() -> None:
    name = file_name(gen_batch())
    (line, again) = losses(changed(own()), own(), TracesData(resource_spans=[message()]),
                           changed(own()))  # fmt: skip
    assert line == again
    assert f"records of {name}, changed" in line


def test_by_the_name_of_its_file() -> None:
    (line,) = losses(changed(own(name="odd name.json")))
    assert "records of odd name.json, changed" in line


def test_of_a_batch_that_has_no_name() -> None:
    (line,) = losses(changed(own(batch_id=None)))
    assert "records of a batch without a name, changed" in line


def test_with_a_header_that_was_changed() -> None:
    traces = own()
    traces.resource_spans[0].scope_spans[0].scope.attributes.add(key="env")
    (line,) = losses(changed(traces))
    assert "a batch whose header was changed" in line


def test_as_many_names_as_are_bounded() -> None:
    lines = losses(*(changed(own(f"{number:032x}")) for number in range(1003)))
    assert len(lines) == 1003
    assert len(set(lines)) == 1001


def test_a_conversion_that_keeps_them_ends_with_1(tmp_path: Path) -> None:
    data = changed(own()).SerializeToString()
    (tmp_path / "in.binpb").write_bytes(encode_varint(len(data)) + data)
    report = convert(ConvertRequest(str(tmp_path / "in.binpb"), f"{tmp_path}/spool/", jobs=1))
    assert report.exit_code == 1
    assert [str(file_name(gen_batch())) in line for line in report.losses] == [True]


def test_a_resource_without_the_name_that_was_added() -> None:
    traces = own()
    del traces.resource_spans[0].resource.attributes[:1]
    (found,) = FromOtlp().feed(traces.resource_spans)
    assert exactjson.equal(found.batch, gen_batch())
