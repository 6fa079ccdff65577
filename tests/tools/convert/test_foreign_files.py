"""OTLP files of other programs: data that no batch can hold is reported, and memory is bounded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from cirron_otel.core.otlp.wire import encode_varint
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from cirron_otel.tools.convert.otlp_source import dense_problem
from cirron_otel.tools.convert.report import Report
from cirron_otel.tools.convert.select import Selection
from tests.core.translator.test_foreign_header import message, received
from tests.core.translator.test_lossless import PLAN, to_otlp

UNKNOWN = bytes.fromhex("c2be02") + b"\x03new"
MANY = 80_000


def otlp_file(path: Path, *messages: bytes) -> str:
    path.write_bytes(b"".join(encode_varint(len(data)) + data for data in messages))
    return str(path)


def converted(source: str, target: Path, select: Selection | None = None) -> Report:
    return convert(ConvertRequest(source, str(target), select=select, jobs=1))


def test_an_unknown_field_of_a_message_is_reported(tmp_path: Path) -> None:
    source = otlp_file(tmp_path / "in.binpb", b"\x0a\x00" + UNKNOWN, b"\x0a\x00", UNKNOWN)
    report = converted(source, tmp_path / "spool/")
    assert report.exit_code == 1
    assert report.losses == {"unknown protobuf fields of TracesData itself": 2}
    again = converted(source, tmp_path / "again.binpb")
    assert again.exit_code == 0
    assert UNKNOWN in (tmp_path / "again.binpb").read_bytes()
    assert converted(source, tmp_path / "again.jsonl").exit_code == 1


def test_so_it_is_if_batches_are_selected(tmp_path: Path) -> None:
    data = TracesData(resource_spans=[message()]).SerializeToString() + UNKNOWN
    source = otlp_file(tmp_path / "in.binpb", data)
    report = converted(source, tmp_path / "spool/", Selection.parse(["name=GET /"]))
    assert report.losses == {"unknown protobuf fields of TracesData itself": 1}


def test_a_header_without_its_messages_is_reported(tmp_path: Path) -> None:
    made = to_otlp(received(message()), PLAN)
    files = [TracesData(resource_spans=[each]).SerializeToString() for each in made]
    report = converted(otlp_file(tmp_path / "in.binpb", *files), tmp_path / "spool/")
    assert report.exit_code == 1
    assert sum(report.losses.values()) == 1
    whole = TracesData(resource_spans=made).SerializeToString()
    assert converted(otlp_file(tmp_path / "in.binpb", whole), tmp_path / "b/").exit_code == 0


def nested(data: bytes, *tags: int) -> bytes:
    for tag in tags:
        data = bytes((tag,)) + encode_varint(len(data)) + data
    return data


DENSE = {
    "ResourceSpans": b"\x0a\x00" * MANY,
    "ScopeSpans": nested(b"\x12\x00" * MANY * 2, 10),
    "spans": nested(b"\x12\x00" * MANY, 18, 10),
    "events": nested(b"\x5a\x00" * MANY * 2, 18, 18, 10),
    "links": nested(b"\x6a\x00" * MANY * 2, 18, 18, 10),
}


@pytest.mark.parametrize("data", DENSE.values(), ids=DENSE)
def test_a_message_of_empty_elements_is_refused(data: bytes, tmp_path: Path) -> None:
    source = otlp_file(tmp_path / "in.binpb", data, b"\x0a\x00")
    for target in ("spool/", "out.jsonl"):
        report = converted(source, tmp_path / target)
        assert report.exit_code == 1
        assert report.skipped_count == 1
        assert "nearly all of them empty" in report.skipped[0].message
        assert report.written == 1, "what is behind it is converted"


def test_messages_of_ordinary_spans_are_not() -> None:
    span = message().scope_spans[0].spans[0]
    group = ResourceSpans()
    group.scope_spans.add().spans.extend([span] * 50_000)
    traces = TracesData(resource_spans=[group])
    assert dense_problem(traces, traces.ByteSize()) is None


SMALLEST = {
    "ResourceSpans": (b"\x0a\x00" * 25_000, b"{}", ("resourceSpans",)),
    "spans": (nested(b"\x12\x00" * 7_000, 18, 10), b"{}", ("resourceSpans", "scopeSpans", "spans")),
    "values": (nested(b"\x0a\x00" * 200_000, 42, 18, 74, 18, 18, 10), b"", ()),
}


@pytest.mark.parametrize("kind", SMALLEST)
def test_memory_is_bounded(kind: str, tmp_path: Path) -> None:
    """A message takes at most 64 MiB and 200 bytes per byte, even if it is just not refused."""
    data, item, path = SMALLEST[kind]
    least = peak(otlp_file(tmp_path / "least.binpb", b"\x0a\x00"), tmp_path)
    assert peak(otlp_file(tmp_path / "in.binpb", data), tmp_path) - least < most(data)
    if path:
        text = b",".join([item] * 25_000)
        for name in reversed(path):
            text = b'{"%b":[%b]}' % (name.encode(), text)
        source = tmp_path / "in.jsonl"
        source.write_bytes(text + b"\n")
        assert peak(str(source), tmp_path) - least < most(text)


def peak(source: str, tmp_path: Path) -> int:
    """Return the peak memory of a conversion of `source`, in bytes."""
    command = [Path(sys.executable).with_name("cirron-otel"), "convert", source, tmp_path / "out/"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 1)
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def most(data: bytes) -> int:
    return (64 << 20) + 200 * len(data)
