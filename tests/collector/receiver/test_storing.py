"""A group that is made again after a crash gives the very same batches, whatever is in it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import shutil
from pathlib import Path

import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.collector.receiver.consumer import BodyEncoding, ReceivedSignal
from cirron_otel.collector.receiver.journal.files import Head, intake_directory
from cirron_otel.collector.receiver.journal.position import ConsumerPosition, write_position
from cirron_otel.collector.receiver.journal.reader import frames
from cirron_otel.collector.receiver.journal.writer import IntakeJournal
from cirron_otel.collector.receiver.seen import Seen
from cirron_otel.collector.receiver.tenancy import FILE_NAME, TenantStore
from cirron_otel.collector.receiver.translation import Translation
from cirron_otel.core.otlp.files import read_messages
from cirron_otel.core.otlp.formats import Encoding as Form
from cirron_otel.core.otlp.formats import Format
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.translator.translate import to_otlp
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.core.translator.test_lossless import PLAN, split
from tests.core.translator.test_namesakes import PAIRS, data_of
from tests.kit.spools.comparing import recorded

from .test_translation import request

Sent = tuple[ReceivedSignal, bytes, dict[str, str]]
TENANTS = ({"x-scope-orgid": "a"}, {"x-scope-orgid": "b"}, {})
SPOOL = next(path for path in recorded() if not list(path.rglob("*.json.tmp")))


def logs() -> bytes:
    """Two equal records, which are two marks."""
    data = LogsData()
    for _ in range(2):
        data.resource_logs.add().scope_logs.add().log_records.add(
            trace_id=b"t" * 16, span_id=b"s" * 8, event_name="loss", time_unix_nano=7
        )
    return data.SerializeToString()


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> list[Sent]:
    """Of everything something, of several tenants, parts of batches in several sizes."""
    file = tmp_path_factory.mktemp("otlp") / "traces.binpb"
    convert(ConvertRequest(str(SPOOL), str(file), target_format="otlp-proto"))
    with file.open("rb") as stream:
        data = [message.data for message in read_messages(stream, Format(Form.PROTO))]
    messages = [each for one in data for each in TracesData.FromString(one).resource_spans]
    batch = min(SPOOL.rglob("spool/*.json"), key=lambda path: path.stat().st_size).read_bytes()
    found: list[Sent] = []
    for headers in TENANTS:
        found += [(ReceivedSignal.TRACES, request(name), headers) for name in ("x", "y")]
        found += [(ReceivedSignal.CIRRON, batch, headers), (ReceivedSignal.LOGS, logs(), headers)]
        for size in (3, 5):
            pieces = split(messages[:1], size, random.Random(size))
            found += [
                (
                    ReceivedSignal.TRACES,
                    TracesData(resource_spans=[piece]).SerializeToString(),
                    headers,
                )
                for piece in pieces
            ]
        found.append((ReceivedSignal.TRACES, data[0], headers))
    return found


def journal(folder: Path, sent: list[Sent]) -> Path:
    directory = intake_directory(folder / "state")

    async def write() -> None:
        kept = IntakeJournal(directory)
        for number, (signal, body, headers) in enumerate(sent):
            encoding = (
                BodyEncoding.JSON if signal is ReceivedSignal.CIRRON else BodyEncoding.PROTOBUF
            )
            await kept.append(Head(signal, encoding, number, headers), body)
        await kept.close()

    asyncio.run(write())
    return directory


def translate(folder: Path, directory: Path) -> None:
    seen, owners = Seen(directory / "seen.sqlite"), TenantStore(folder / "state" / FILE_NAME)
    translation = Translation(directory, SpoolWriter(folder), seen, owners)
    translation.recover()
    while translation.work(None) is not None:
        pass
    assert not translation.counts["set_aside"]
    translation.close()
    owners.close()


def stored(folder: Path) -> dict[str, tuple[bytes, object]]:
    """What is in the spool, and whose."""
    owners = TenantStore(folder / "state" / FILE_NAME)
    found = {
        path.name: (path.read_bytes(), owners.of(path.name))
        for path in (folder / "spool").iterdir()
    }
    owners.close()
    return found


@pytest.mark.parametrize("is_left", ["all", "no spool", "half of the spool", "nothing known"])
def test_regenerated_group_is_identical(is_left: str, sent: list[Sent], tmp_path: Path) -> None:
    directory = journal(tmp_path, sent)
    before = tmp_path / "before"
    shutil.copytree(directory, before)
    ends = [frame.end for frame in frames(directory, None, lambda _: None)]
    translate(tmp_path, directory)
    truth = stored(tmp_path)
    for path in before.glob("intake-*.log"):
        shutil.copy(path, directory)
    write_position(
        directory, ConsumerPosition(None, {"until": list(ends[-1]), "skip": duplicates(sent)})
    )
    files = sorted((tmp_path / "spool").iterdir())
    for path in {"no spool": files, "half of the spool": files[::2]}.get(is_left, []):
        path.unlink()
    if is_left == "nothing known":
        for path in directory.glob("seen.sqlite*"):
            path.unlink()
    translate(tmp_path, directory)
    assert stored(tmp_path) == truth


def duplicates(sent: list[Sent]) -> list[int]:
    """Numbers of those that came before: equal bytes of one tenant."""
    known: set[str] = set()
    found = []
    for number, (signal, body, headers) in enumerate(sent):
        key = json.dumps([signal.value, hashlib.sha256(body).hexdigest(), headers])
        if key in known:
            found.append(number)
        known.add(key)
    return found


def test_each_tenant_receives_every_record(sent: list[Sent], tmp_path: Path) -> None:
    """Each tenant has all of it."""
    directory = journal(tmp_path, sent)
    translate(tmp_path, directory)
    by_owner: dict[object, list[str]] = {}
    for data, owner in stored(tmp_path).values():
        batch = json.loads(data)
        ids = [each["id"] for kind in ("spans", "marks", "snapshots") for each in batch[kind]]
        by_owner.setdefault(owner, []).extend(ids)
    contents = [sorted(ids) for ids in by_owner.values()]
    assert len(contents) == len(TENANTS)
    assert contents[0] == contents[1] == contents[2]


def test_another_batch_with_the_same_header_is_not_a_duplicate(tmp_path: Path) -> None:
    pair = PAIRS["the same id, other content"]
    bodies = [data_of(to_otlp(each, PLAN)) for each in pair]
    both = b"".join(bodies)  # one message with both
    directory = journal(
        tmp_path, [(ReceivedSignal.TRACES, body, {}) for body in (*bodies, *bodies, both, both)]
    )
    translate(tmp_path, directory)
    found = [json.loads(data) for data, _ in stored(tmp_path).values()]
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, pair))
