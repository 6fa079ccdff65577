"""A conversion there and back keeps the name of each batch's file, whatever its bytes are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.core.delivery.indexed import FollowIndex
from cirron_otel.core.otlp.files import TracesWriter, read_messages
from cirron_otel.core.otlp.formats import Encoding, Format, format_of
from cirron_otel.core.placement.batch_outline import read_outline
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from cirron_otel.tools.convert.report import Report
from cirron_otel.tools.convert.targets import SpoolTarget

from .test_hostile_values import SESSION, batch_with

NAMES = (
    b"caf\xe9.json", b"caf\xe8.json", b"\xff.json", b"\xed\xa0\x80.json", b"a\xc3.json", b".json",
    "café.json".encode(), "\U0001f98a.json".encode(), b"a b.json", b"a\nb.json", b"\x1b[2J.json",
    b"%s{}'\".json", b"-.json", b"x" * 246 + b".json", b"\xe9" * 246 + b".json",
)  # fmt: skip


def spool_of(folder: Path, more: dict[str, Any] | None = None) -> Path:
    """Write a spool of batches that have the same id and time, and different contents."""
    (folder / "spool").mkdir(parents=True)
    for number, name in enumerate(NAMES):
        batch = json.loads(batch_with(str(number))) | (more or {})
        try:
            (folder / "spool" / os.fsdecode(name)).write_bytes(json.dumps(batch).encode())
        except OSError as error:
            pytest.skip(f"this file system has no such names: {error}")
    return folder


def contents(folder: Path) -> dict[bytes, Any]:
    """Return the batches of a spool by the bytes of their names."""
    found = {}
    for name in os.listdir(os.fsencode(folder / "spool")):  # noqa: PTH208 - names in bytes
        found[name] = json.loads((folder / "spool" / os.fsdecode(name)).read_bytes())
    return found


@pytest.mark.parametrize("form", ["binpb", "jsonl"])
@pytest.mark.parametrize("more", [{}, {"otel": {"session": SESSION}}], ids=["plain", "named"])
@pytest.mark.parametrize("merged", [False, True])
def test_every_name_comes_back(
    form: str, more: dict[str, Any], merged: bool, tmp_path: Path
) -> None:
    source, file = spool_of(tmp_path / "in", more), tmp_path / f"traces.{form}"
    assert convert(ConvertRequest(str(source), str(file))).exit_code == 0
    if merged:
        merge(file)
    assert convert(ConvertRequest(str(file), str(tmp_path / "back"))).exit_code == 0
    assert contents(tmp_path / "back") == contents(source)


def merge(file: Path) -> None:
    """Put all messages of a file into one, in reverse order: the exact decoder has to read it."""
    form = format_of(file)
    assert form is not None
    with file.open("rb") as stream:
        messages = [TracesData.FromString(each.data) for each in read_messages(stream, form)]
    merged = TracesData()
    for message in reversed(messages):
        merged.resource_spans.extend(message.resource_spans)
    with file.open("wb") as stream, TracesWriter(stream, form) as writer:
        writer.write_message(merged)


def test_an_export_that_goes_on_remembers_every_name(tmp_path: Path) -> None:
    names = sorted(map(os.fsdecode, NAMES))
    index = FollowIndex(tmp_path / "index.sqlite")
    for number, name in enumerate(names):
        batch = read_outline(batch_with(str(number)))
        index.observe_once(name, batch)
        index.count_once(name, batch)
    index.close()
    again = FollowIndex(tmp_path / "index.sqlite")
    assert [name for name in names if name in again] == names
    again.forget(set(names[::2]))
    again.close()
    last = FollowIndex(tmp_path / "index.sqlite")
    assert [name for name in names if name in last] == names[::2]
    last.close()


def test_a_name_that_no_file_can_have_is_refused_and_the_others_come_back(tmp_path: Path) -> None:
    source, file = spool_of(tmp_path / "in"), tmp_path / "traces.binpb"
    convert(ConvertRequest(str(source), str(file)))
    with file.open("rb") as stream:
        messages = [
            TracesData.FromString(each.data)
            for each in read_messages(stream, Format(Encoding.PROTO))
        ]
    odd = (b"../up.json", b"/tmp/x.json", b"a/b.json", b"a\\b.json", b"", b"no-suffix", b"..")
    for message, name in zip(messages, odd, strict=False):
        for attribute in message.resource_spans[0].scope_spans[0].scope.attributes:
            if attribute.key == "cirron.batch.file":
                attribute.value.string_value = name.decode()
    with file.open("wb") as stream, TracesWriter(stream, Format(Encoding.PROTO)) as writer:
        for message in messages:
            writer.write_message(message)
    report = convert(ConvertRequest(str(file), str(tmp_path / "back")))
    assert report.exit_code == 1
    assert report.batches == len(NAMES)
    assert len(contents(tmp_path / "back")) + report.skipped_count == len(NAMES)
    assert {path.name for path in tmp_path.iterdir()} == {"in", "back", "traces.binpb"}


def test_no_file_outside_the_spool_is_compared(tmp_path: Path) -> None:
    (tmp_path / "outside.json").write_bytes(b"{}")
    (tmp_path / "spool" / "spool").mkdir(parents=True)
    os.mkfifo(tmp_path / "spool" / "spool" / "fifo.json")
    target = SpoolTarget(str(tmp_path / "spool"), Report(), 100)
    names = ("../../outside.json", str(tmp_path / "outside.json"), "nul\0.json", "..", "fifo.json")
    assert [target.read(name) for name in names] == [None] * 5
