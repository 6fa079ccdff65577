"""From the journal into the spool while files are damaged and processes die: once, never stuck."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from cirron_otel.collector.receiver import state_file
from cirron_otel.collector.receiver.consumer import BodyEncoding, ReceivedSignal
from cirron_otel.collector.receiver.journal.files import (
    Head,
    Position,
    aside_bytes,
    intake_directory,
    segment_numbers,
    segment_path,
)
from cirron_otel.collector.receiver.journal.writer import IntakeJournal
from cirron_otel.collector.receiver.seen import Seen
from cirron_otel.collector.receiver.tenancy import TenantStore
from cirron_otel.collector.receiver.translation import Translation, remove_damaged
from cirron_otel.core.spool.writer import SpoolWriter

DYING = """
import os, sys
from pathlib import Path
from cirron_otel.collector.receiver import seen, storing
from tests.collector.receiver.test_translation_faults import opened
where = {
    "before the spool": (storing.FrameStorage, "store"),
    "behind the spool": (seen.Seen, "add"),
}
setattr(*where[sys.argv[2]], lambda *_: os._exit(9))
opened(Path(sys.argv[1])).work(None)
"""


def request(name: str, size: int = 0) -> bytes:
    message = ResourceSpans()
    span = message.scope_spans.add().spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name=name)
    span.attributes.add(key="text").value.string_value = "x" * size
    return TracesData(resource_spans=[message]).SerializeToString()


def batch(name: str, created_ns: int = 5) -> bytes:
    span = {"id": name, "parent_id": None, "name": name, "start_ns": 1, "end_ns": 2}
    told = {"schema_version": 1, "sdk_version": "0.3.0", "batch_id": "same", "spans": [span]}
    return json.dumps({**told, "created_ns": created_ns, "marks": [], "snapshots": []}).encode()


def journal(
    folder: Path, bodies: Sequence[bytes], signal: ReceivedSignal = ReceivedSignal.TRACES
) -> tuple[Path, list[Position]]:
    """A journal of these requests, and where they end."""
    directory = intake_directory(folder / "state")
    encoding = BodyEncoding.JSON if signal is ReceivedSignal.CIRRON else BodyEncoding.PROTOBUF

    async def write() -> list[Position]:
        kept = IntakeJournal(directory)
        ends = []
        for body in bodies:
            ends.append(await kept.append(Head(signal, encoding, 5, {}), body))
        await kept.close()
        return ends

    return directory, asyncio.run(write())


def opened(
    folder: Path, max_bytes: int | None = None, damaged_bytes: int | None = None
) -> Translation:
    directory = intake_directory(folder / "state")
    seen, owners = Seen(directory / "seen.sqlite"), TenantStore(directory / "whose.sqlite")
    return Translation(directory, SpoolWriter(folder, max_bytes), seen, owners, damaged_bytes)


def finish(
    folder: Path, max_bytes: int | None = None, damaged_bytes: int | None = None
) -> Translation:
    """Translate all there is, and close."""
    translation = opened(folder, max_bytes, damaged_bytes)
    for _ in range(10):
        if translation.work(None) is None:
            translation.close()
            return translation
    raise AssertionError("it does not come to an end")


def die(folder: Path, where: str) -> None:
    """Have a process begin with the translation, and die at it."""
    command = [sys.executable, "-c", DYING, str(folder), where]
    done = subprocess.run(command, check=False, timeout=60)
    assert done.returncode == 9


def stored(folder: Path) -> list[str]:
    """The names of all spans in the spool, sorted."""
    files = (folder / "spool").glob("*.json")
    return sorted(s["name"] for f in files for s in json.loads(f.read_bytes())["spans"])


class Synced:
    """The files and directories that were synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self._sync = os.fsync
        monkeypatch.setattr(os, "fsync", self._watched)

    def _watched(self, descriptor: int) -> None:
        self.names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        self._sync(descriptor)


def test_oversized_request_is_set_aside_without_blocking_others(tmp_path: Path) -> None:
    """Neither one that is too large by itself, nor a few that are too large together."""
    large = request("large", 50_000)
    small = [request(f"n{number}", 4_000) for number in range(6)]
    directory, _ = journal(tmp_path, [*small[:3], large, *small[3:]])
    translation = finish(tmp_path, max_bytes=12_000)
    (aside,) = directory.glob("refused-*.bin")
    assert aside.read_bytes() == large
    assert translation.counts["spans"] == len(small)
    assert translation.counts["set_aside"] == 1
    assert "n5" in stored(tmp_path)


def test_another_content_under_its_name_does_not_stop_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch was sealed, and is not what it was when it is made again."""
    journal(tmp_path, [request("a"), request("b")])
    die(tmp_path, "behind the spool")
    (file,) = (tmp_path / "spool").glob("*.json")
    file.write_bytes(file.read_bytes().replace(b'"a"', b'"z"', 1))
    journal(tmp_path, [request("c")])
    translation = finish(tmp_path)
    assert stored(tmp_path) == ["a", "b", "b", "c", "z"]
    assert translation.counts["conflicts"] == 1
    assert f"{file} exists with other content" in caplog.text
    # And so it is when that is done again, too.
    assert finish(tmp_path).counts["requests"] == 0


@pytest.mark.parametrize("is_bad_twice", [False, True])
def test_an_id_that_comes_with_other_content(is_bad_twice: bool, tmp_path: Path) -> None:
    """Forked processes give their batches the same ids."""
    bodies = [batch("a"), batch("b"), batch("a"), batch("c", 6), batch("b")]
    journal(tmp_path, bodies[:2], ReceivedSignal.CIRRON)
    before = finish(tmp_path)
    assert before.counts["conflicts"] == 1
    if is_bad_twice:
        (other,) = (f for f in (tmp_path / "spool").iterdir() if f.name != f"{5:020d}-same.json")
        other.write_bytes(b"{}")
        with Seen(intake_directory(tmp_path / "state") / "seen.sqlite") as seen:
            seen.forget(2**62)
        bodies = [batch("b")]
    journal(tmp_path, bodies, ReceivedSignal.CIRRON)
    translation = finish(tmp_path)
    if is_bad_twice:
        assert {batch("a"), batch("b")} <= {f.read_bytes() for f in (tmp_path / "spool").iterdir()}
        return
    assert stored(tmp_path) == ["a", "b", "c"]
    assert translation.counts["duplicates"] == 4
    files = {f.name: f.read_bytes() for f in (tmp_path / "spool").iterdir()}
    assert files[f"{5:020d}-same.json"] == batch("a")
    assert files[f"{6:020d}-same.json"] == batch("c", 6)
    assert batch("b") in files.values()


def test_torn_tails_do_not_fill_the_journal_for_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each crash leaves a tail that is no frame; copies of the segments have a limit."""
    limit = 100_000
    names = [f"{number:02d}" for number in range(12)]
    for name in names:
        directory, _ = journal(tmp_path, [request(name, 20_000)])
        segment = segment_path(directory, segment_numbers(directory)[-1])
        with segment.open("ab") as file:
            file.write(b"torn" * 500)
        finish(tmp_path, damaged_bytes=limit)
        kept = sorted(directory.glob("*.damaged"))
        assert kept[-1].name == f"{segment.name}.damaged"  # the newest stays
        assert aside_bytes(directory) <= limit
    assert stored(tmp_path) == names
    assert len(kept) < len(names)
    told = [record.getMessage() for record in caplog.records]
    removed = [each for each in told if each.startswith("removed ") and ".damaged (" in each]
    assert len(removed) == len(names) - len(kept)


def test_damaged_copies_of_other_files_are_removed_ahead_of_segments(tmp_path: Path) -> None:
    """A refused request is never removed: it was acknowledged, and is nowhere else."""
    for name in (
        "seen.sqlite.damaged", "seen.sqlite.damaged-wal", "consumer.json.damaged",
        f"{segment_path(tmp_path, 16).name}.damaged", f"{segment_path(tmp_path, 9).name}.damaged",
        "refused-1.bin", segment_path(tmp_path, 17).name,
    ):  # fmt: skip
        (tmp_path / name).write_bytes(bytes(1000))
    linked = tmp_path / f"{segment_path(tmp_path, 17).name}.damaged"
    linked.hardlink_to(segment_path(tmp_path, 17))  # still a segment: it takes no room
    left = {path.name for path in tmp_path.iterdir()}
    for most, gone in (
        (5000, set()),
        (2000, {"seen.sqlite.damaged", "seen.sqlite.damaged-wal", "consumer.json.damaged"}),
        (1999, {f"{segment_path(tmp_path, 9).name}.damaged"}),
        (0, {f"{segment_path(tmp_path, 16).name}.damaged"}),
        (0, set()),
    ):
        assert {path.name for path, _ in remove_damaged(tmp_path, most)} == gone
        left -= gone
        assert {path.name for path in tmp_path.iterdir()} == left


def test_duplicates_are_identified_by_their_journal_position(tmp_path: Path) -> None:
    """A frame that cannot be read any more must not make others the duplicates."""
    bodies = [request(name) for name in "ABAC"]
    directory, _ = journal(tmp_path, [request("A"), *bodies])
    die(tmp_path, "before the spool")
    segment = segment_path(directory, segment_numbers(directory)[0])
    data = bytearray(segment.read_bytes())
    data[data.find(bodies[0]) + len(bodies[0]) - 1] ^= 1
    segment.write_bytes(data)
    assert finish(tmp_path).counts["damaged"] == 1
    assert stored(tmp_path) == ["A", "B", "C"]


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_stored_requests_are_recognized_without_a_consumer_position(
    is_forgotten: bool, tmp_path: Path
) -> None:
    directory, ends = journal(tmp_path, [request(name) for name in "abcdef"])
    translation = opened(tmp_path)
    for end in ends[:4]:
        assert translation.work(end) is not None
    if is_forgotten:  # days later, with the same segment
        translation.forget(2**62)
    translation.close()
    assert stored(tmp_path) == ["a", "b", "c", "d"]
    place = directory / "consumer.json"
    place.write_bytes(place.read_bytes()[:5])
    assert finish(tmp_path).counts["duplicates"] == 4
    assert stored(tmp_path) == ["a", "b", "c", "d", "e", "f"]


def test_entries_of_deleted_segments_are_forgotten(tmp_path: Path) -> None:
    journal(tmp_path, [request("a")])
    finish(tmp_path)
    journal(tmp_path, [request("b")])  # a segment of its own
    translation = opened(tmp_path)
    translation.work(None)
    translation.forget(2**62)
    translation.close()
    with Seen(intake_directory(tmp_path / "state") / "seen.sqlite") as seen:
        known = seen._file.read("SELECT segment FROM seen")
    assert known == [(2,)]


def test_an_intent_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    directory, _ = journal(tmp_path, [request("a")])
    (directory / "consumer.json").write_text('{"position": null, "intent": {"until": 5}}')
    assert finish(tmp_path).counts["damaged"] == 1
    assert stored(tmp_path) == ["a"]


@pytest.mark.parametrize("is_checked", [True, False], ids=["at the start", "when it is used"])
@pytest.mark.parametrize("damage", ["pages", "no tables", "rubbish", "empty"])
def test_damaged_keys_are_set_aside(
    damage: str, is_checked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = journal(tmp_path, [request("a"), request("b"), request("a")])
    path = directory / "seen.sqlite"
    with Seen(path) as seen:
        seen.add((os.urandom(16), 5, Position(1, number)) for number in range(5000))
    size = path.stat().st_size
    if damage == "pages":
        with path.open("r+b") as file:
            for at in range(3 * 4096, size - 4096, 4096):
                file.seek(at)
                file.write(os.urandom(512))
    elif damage == "no tables":
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TABLE seen")
            connection.execute("CREATE TABLE seen (key BLOB, at_ns INTEGER)")
    else:
        path.write_bytes(b"x" * size if damage == "rubbish" else b"")
    if not is_checked:
        monkeypatch.setattr(state_file, "_CHECKED_BYTES", 0)
    assert finish(tmp_path).counts["duplicates"] == 1
    assert stored(tmp_path) == ["a", "b"]
    aside = list(directory.glob("seen.sqlite.damaged*"))
    assert bool(aside) == (damage != "empty")
    journal(tmp_path, [request("a")])
    assert finish(tmp_path).counts["duplicates"] == 1


def test_damage_in_unused_pages_is_detected_on_opening(tmp_path: Path) -> None:
    path = tmp_path / "seen.sqlite"
    with Seen(path) as seen:
        seen.add((os.urandom(16), 5, Position(1, number)) for number in range(5000))
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(os.urandom(512))
    Seen(path).close()
    assert path.with_name("seen.sqlite.damaged").exists()


def test_untranslatable_request_is_synced_ahead_of_the_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = journal(tmp_path, [b"\xff\xff", request("a")])
    translation = opened(tmp_path)
    synced = Synced(monkeypatch)
    translation.work(None)
    translation.close()
    (aside,) = directory.glob("refused-*")
    assert aside.read_bytes() == b"\xff\xff"
    assert aside.stat().st_mode & 0o777 == 0o600
    # The place is what lets the journal go.
    names = synced.names[synced.names.index(f"{aside.name}.tmp") :]
    assert names[1] == directory.name
    assert "consumer.json.tmp" in names[2:]


def test_recovered_spool_directory_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who renamed it may have died before the directory was on disk."""
    journal(tmp_path, [request("a")])
    die(tmp_path, "behind the spool")
    translation = opened(tmp_path)
    synced = Synced(monkeypatch)
    assert translation.recover() is not None
    assert "spool" in synced.names[: synced.names.index("consumer.json.tmp")]
    translation.close()
    assert stored(tmp_path) == ["a"]
