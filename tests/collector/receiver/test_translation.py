"""From the journal into the spool where something is in the way: late, and whole."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from cirron_otel.collector.receiver.consumer import BodyEncoding, ReceivedSignal
from cirron_otel.collector.receiver.journal.files import Head, intake_directory
from cirron_otel.collector.receiver.journal.writer import IntakeJournal
from cirron_otel.collector.receiver.seen import Seen
from cirron_otel.collector.receiver.tenancy import TenantStore
from cirron_otel.collector.receiver.translation import Translation
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.errors import TargetError


def request(name: str) -> bytes:
    message = ResourceSpans()
    message.scope_spans.add().spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name=name)
    return TracesData(resource_spans=[message]).SerializeToString()


def journal(folder: Path, names: list[str]) -> Path:
    """A journal of these requests."""
    directory = intake_directory(folder / "state")

    async def write() -> None:
        kept = IntakeJournal(directory)
        for name in names:
            body = request(name)
            await kept.append(Head(ReceivedSignal.TRACES, BodyEncoding.PROTOBUF, 5, {}), body)
        await kept.close()

    asyncio.run(write())
    return directory


def opened(folder: Path, directory: Path) -> Translation:
    seen, owners = Seen(directory / "seen.sqlite"), TenantStore(directory / "whose.sqlite")
    return Translation(directory, SpoolWriter(folder), seen, owners)


def stored(folder: Path) -> list[str]:
    """The names of all spans in the spool, sorted."""
    files = (folder / "spool").glob("*.json")
    return sorted(s["name"] for f in files for s in json.loads(f.read_bytes())["spans"])


@pytest.mark.parametrize("blocked", ["consumer.json.tmp", "spool"])
def test_failed_writes_are_retried_without_skipping_requests(blocked: str, tmp_path: Path) -> None:
    """Neither the place nor a batch can be written at first: no request is passed over by that."""
    directory = journal(tmp_path, ["a", "b"])
    way = tmp_path / "spool" if blocked == "spool" else directory / blocked
    translation = opened(tmp_path, directory)
    if blocked == "spool":
        way.write_text("in the way")
    else:
        way.mkdir()
    for _ in range(3):
        with pytest.raises(TargetError):
            translation.work(None)
    assert list(directory.glob("intake-*.log"))
    if blocked == "spool":
        way.unlink()
    else:
        way.rmdir()
    assert translation.work(None) is not None
    assert translation.work(None) is None
    translation.close()
    assert stored(tmp_path) == ["a", "b"]


def test_interrupted_translation_is_finished_by_the_next_instance(tmp_path: Path) -> None:
    directory = journal(tmp_path, ["a", "b", "a"])
    (tmp_path / "spool").write_text("in the way")
    translation = opened(tmp_path, directory)
    with pytest.raises(TargetError):
        translation.work(None)
    translation.close()
    (tmp_path / "spool").unlink()
    after = opened(tmp_path, directory)
    assert after.recover() is not None
    assert after.work(None) is None
    assert after.counts["duplicates"] == 1
    after.close()
    assert stored(tmp_path) == ["a", "b"]
