from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.core.otlp.files import TracesWriter, read_messages
from cirron_otel.core.otlp.formats import Compression, Encoding, Format
from cirron_otel.core.otlp.json_codec import traces_to_json
from cirron_otel.errors import InputError, TargetError
from tests.kit.generators import otlp_messages as generated

from .streams import (
    FORMATS,
    JSON,
    PROTO,
    Dripping,
    buffered,
    compressed,
    framed,
    line,
    names,
    read_until_error,
    traces,
    written,
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(generated.traces(), max_size=4),
    st.sampled_from(FORMATS),
    st.integers(1, 70),
)
def test_written_messages_are_read_back(
    messages: list[TracesData], form: Format, step: int
) -> None:
    data = written(messages, form)
    for stream in (io.BytesIO(data), buffered(Dripping(data, step), 16)):
        back = list(read_messages(stream, form))
        assert [
            TracesData.FromString(m.data).SerializeToString(deterministic=True) for m in back
        ] == [m.SerializeToString(deterministic=True) for m in messages]
        assert [m.position for m in back] == list(range(1, len(messages) + 1))
        assert all(m.warnings == [] for m in back)
    assert written(messages, form) == data  # the same input, the same bytes


def test_protobuf_messages_are_the_very_bytes_of_the_file() -> None:
    odd = b"\xa0\x06\x01" + traces("a").SerializeToString() + b"\xa2\x06\x00"
    out = io.BytesIO()
    with TracesWriter(out, PROTO) as writer:
        assert writer.write(odd) == []
        assert writer.write(b"") == []
    assert out.getvalue() == framed(odd) + b"\0"
    assert [m.data for m in read_messages(io.BytesIO(out.getvalue()), PROTO)] == [odd, b""]


def test_json_writer_reports_unrepresentable_fields() -> None:
    with TracesWriter(io.BytesIO(), JSON) as writer:
        assert writer.write(traces("a").SerializeToString()) == []
        assert writer.write(b"\xa0\x06\x01") == [
            "unknown protobuf fields cannot be represented in JSON"
        ]
        with pytest.raises(InputError, match="2 bytes are not a protobuf TracesData"):
            writer.write(b"\x0a\x05")


def test_json_lines_as_other_programs_write_them() -> None:
    text = b"\xef\xbb\xbf" + line("a") + b"\r\n  \n" + line("b").replace(b"\n", b"\r\n") + b"{}\n"
    found = list(read_messages(io.BytesIO(text + line("c").rstrip()), JSON))
    assert names(found) == ["a0", "b0", "c0"]
    assert [m.position for m in found] == [1, 4, 5, 6]
    assert found[2].data == b""
    assert list(read_messages(io.BytesIO(b""), JSON)) == []
    assert list(read_messages(io.BytesIO(b"\n \n"), JSON)) == []
    assert list(read_messages(io.BytesIO(b""), PROTO)) == []


@pytest.mark.parametrize("indent", [0, 1, 2, "\t"])
@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n \n"])
def test_one_document_over_many_lines(indent: int | str, before: bytes) -> None:
    text = json.dumps(json.loads(traces_to_json(traces("a", 50))), indent=indent).encode()
    assert text.count(b"\n") > 100
    (found,) = read_messages(io.BytesIO(before + text + b"\n"), JSON)
    assert TracesData.FromString(found.data) == traces("a", 50)


def test_unknown_keys_come_as_warnings() -> None:
    (found,) = read_messages(io.BytesIO(b'{"resourceSpans":[],"x":1}\n'), JSON)
    assert found.warnings == ["unknown key 'x' in TracesData ignored"]


BAD_LINES = {
    b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"na\n': "line 2: not JSON",
    b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"kind":[]}]}]}]}\n': (
        "line 2: resourceSpans[0].scopeSpans[0].spans[0].kind: expected int32"
    ),
    b"[]\n": "line 2: expected an object",
    b"\0\0\0\0\n": "line 2: not JSON",
    b'{"schema_version":1,"sdk_version":"0.3.0","batch_id":"ab"}\n': "this is a Cirron batch",
    b'{"hello":1}\n': "line 2: expected a TracesData object with the key 'resourceSpans'",
}


@pytest.mark.parametrize(("bad", "reason"), BAD_LINES.items())
def test_a_bad_line_in_the_middle(bad: bytes, reason: str) -> None:
    found, error = read_until_error(line("a") + bad + line("b"), JSON)
    assert names(found) == ["a0"]
    assert reason in error
    problems: list[tuple[int, str]] = []
    found, error = read_until_error(
        line("a") + bad + line("b"), JSON, on_error=lambda *problem: problems.append(problem)
    )
    assert error == ""
    assert names(found) == ["a0", "b0"]
    ((position, text),) = problems
    assert position == 2
    assert text in f"line 2: {text}"
    assert reason.removeprefix("line 2: ") in text


def test_the_first_line_may_be_bad_too() -> None:
    problems: list[tuple[int, str]] = []
    found, error = read_until_error(
        b"# a comment\n" + line("b"), JSON, on_error=lambda *p: problems.append(p)
    )
    assert (names(found), error, [p for p, _ in problems]) == (["b0"], "", [1])


def test_lines_of_other_signals_are_skipped_and_reported() -> None:
    text = line("a") + b'{"resourceMetrics":[{}]}\n{"resourceLogs":[{}]}\n' + line("b")
    problems: list[tuple[int, str]] = []
    found, error = read_until_error(text, JSON, on_error=lambda *p: problems.append(p))
    assert (names(found), error) == (["a0", "b0"], "")
    assert problems == [
        (2, "contains resourceMetrics, not traces: skipped"),
        (3, "contains resourceLogs, not traces: skipped"),
    ]
    found, error = read_until_error(text, JSON)
    assert (names(found), error) == (["a0", "b0"], "")
    assert [(m.position, m.data, m.warnings) for m in found[1:3]] == [
        (position, b"", [text]) for position, text in problems
    ]


@pytest.mark.parametrize(
    "text",
    [
        b'{"resourceLogs":[]}',
        b'{"partialSuccess":{}}',
        b'{"resourceLogs":[],"partialSuccess":{"rejectedSpans":1}}',
    ],
)
def test_documents_without_telemetry_are_empty_messages(text: bytes) -> None:
    problems: list[tuple[int, str]] = []
    found, error = read_until_error(
        line("a") + text + b"\n" + line("b"), JSON, on_error=lambda *p: problems.append(p)
    )
    assert (names(found), error, problems) == (["a0", "b0"], "", [])
    assert [message.warnings for message in found] == [[], [], []]


_SHORT_OF_MEMORY = """
import re, resource, sys
from cirron_otel.core.otlp.files import _json_message
from cirron_otel.errors import InputError

text = b'{"resourceSpans":[' + b",".join([b"{}"] * 9_000_000) + b"]}"
size = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (size + 80_000_000,) * 2)  # the parser needs 200 MB first
try:
    _json_message(text, 1)
except InputError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_document_that_does_not_fit_in_memory_is_not_called_invalid() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SHORT_OF_MEMORY], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("not enough memory to read its 27000019 bytes")


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
def test_concatenated_members_and_frames(compression: Compression) -> None:
    half = line("bb")[:20], line("bb")[20:]
    data = b"".join(
        compressed(p, compression) for p in (line("a"), half[0], half[1], b"", line("c"))
    )
    if compression is Compression.GZIP:
        data += bytes(600)  # as tapes pad
    else:
        data = b"\x52\x2a\x4d\x18\x04\0\0\0skip" + data  # a skippable frame
    for step in (1, 7, 1 << 20):
        stream = buffered(Dripping(data, step))
        found = list(read_messages(stream, Format(Encoding.JSON, compression)))
        assert names(found) == ["a0", "bb0", "c0"]
    found, error = read_until_error(data + b"garbage", Format(Encoding.JSON, compression))
    assert names(found) == ["a0", "bb0", "c0"]
    assert f"not {compression}" in error


def test_a_pipe_gives_its_lines_as_they_come() -> None:
    """A reader of `tail -f` must not wait for a whole chunk, nor for the end."""
    reading, writing = os.pipe()
    first = threading.Event()

    def produce() -> None:
        with os.fdopen(writing, "wb", 0) as out:
            out.write(line("a" * 100))
            first.wait(180)
            out.write(line("b"))

    producer = threading.Thread(target=produce)
    producer.start()
    with os.fdopen(reading, "rb") as stream:
        messages = read_messages(stream, JSON)
        assert names([next(messages)]) == ["a" * 100 + "0"]
        first.set()
        assert names(list(messages)) == ["b0"]
    producer.join()


@pytest.mark.parametrize("form", FORMATS, ids=lambda f: f"{f.encoding}-{f.compression}")
def test_a_full_disk_is_a_target_error(form: Format) -> None:
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        pytest.raises(TargetError, match="No space left on device"),
        TracesWriter(full, form) as writer,
    ):
        writer.write(traces("a").SerializeToString())


@pytest.mark.parametrize("form", FORMATS, ids=lambda f: f"{f.encoding}-{f.compression}")
def test_interrupted_writer_leaves_the_file_open_and_visibly_truncated(form: Format) -> None:
    out = io.BytesIO()
    with pytest.raises(KeyboardInterrupt), TracesWriter(out, form) as writer:  # noqa: PT012
        writer.write(traces("a").SerializeToString())
        raise KeyboardInterrupt
    del writer
    assert not out.closed
    if form.compression is not Compression.NONE:
        assert "cut off" in read_until_error(out.getvalue(), form)[1]


def test_messages_are_written_from_objects_too() -> None:
    for form in FORMATS:
        out = io.BytesIO()
        with TracesWriter(out, form) as writer:
            writer.write_message(traces("a"))
        assert out.getvalue() == written([traces("a")], form)
