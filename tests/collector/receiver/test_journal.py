"""The writer of the intake journal: order, group commit, limits, and a disk that fails."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from cirron_otel.collector.receiver.journal.files import (
    HEADER_BYTES,
    Frame,
    Position,
    checksum,
    encode_head,
    encode_prefix,
    intake_directory,
    remove_before,
    segment_numbers,
    segment_path,
)
from cirron_otel.collector.receiver.journal.position import ConsumerPosition, write_position
from cirron_otel.collector.receiver.journal.reader import JournalReader, frames
from cirron_otel.collector.receiver.journal.writer import (
    IntakeJournal,
    JournalBusyError,
    JournalFullError,
)
from cirron_otel.core.spool.direct import BLOCK
from cirron_otel.errors import TargetError, UsageError

from .journalled import head, put, read


async def append(journal: IntakeJournal, body: bytes, **headers: str) -> Position:
    return await journal.append(head(**headers), body)


async def append_all(journal: IntakeJournal, *bodies: bytes) -> list[Position]:
    return await asyncio.gather(*(append(journal, body) for body in bodies))


def test_appended_frames_are_read_back(tmp_path: Path) -> None:
    async def main() -> None:
        directory = intake_directory(tmp_path / "spool-root" / "state")
        journal = IntakeJournal(directory)
        ends = []
        bodies = [b"", b"a", bytes(range(256)) * 1000]
        for body in bodies:
            ends.append(await append(journal, body, **{"x-scope-orgid": "é\udcff"}))
            assert journal.end == ends[-1]
        found = list(frames(directory, None, pytest.fail))
        assert [frame.body for frame in found] == bodies
        assert [frame.end for frame in found] == ends
        assert found[0].start == Position(1, HEADER_BYTES)
        assert found[1].head == head(**{"x-scope-orgid": "é\udcff"})
        assert sorted(os.listdir(directory)) == ["intake-0000000000000001.log", "lock"]  # noqa: PTH208
        assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
        for made in (directory, directory.parent):
            assert made.stat().st_mode & 0o777 == 0o700
        on_disk = segment_path(directory, 1).stat().st_size
        assert 0 <= on_disk - journal.stored_bytes < BLOCK
        assert (journal.waiting, journal.waiting_bytes, journal.frames) == (0, 0, 3)
        await journal.close()
        await journal.close()

    asyncio.run(main())


def test_those_that_wait_share_a_sync_and_keep_their_order(tmp_path: Path) -> None:
    async def main() -> None:
        journal = IntakeJournal(tmp_path)
        # More than a writev takes at once.
        bodies = [b"%d" % number for number in range(2000)]
        ends = await append_all(journal, *bodies)
        assert ends == sorted(set(ends))
        assert read(tmp_path) == (bodies, [])
        assert journal.syncs < len(bodies) / 10
        await journal.close()

    asyncio.run(main())


def test_segments_are_left_when_they_are_full_and_on_demand(tmp_path: Path) -> None:
    async def main() -> None:
        journal = IntakeJournal(tmp_path, segment_bytes=1700, max_bytes=100_000)
        for number in range(3):
            assert (await append(journal, bytes(500))).segment == 1 + number // 2
        journal.roll()
        assert (await append(journal, b"")).segment == 3
        assert (await append(journal, b"")).segment == 3
        # Larger than a segment: one of its own.
        assert (await append(journal, bytes(5000))).segment == 4
        assert (await append(journal, b"")).segment == 5
        # A group is cut where a segment is full.
        await append_all(journal, *[bytes(500)] * 20)
        assert len(read(tmp_path)[0]) == 27
        for number in segment_numbers(tmp_path):
            size = segment_path(tmp_path, number).stat().st_size
            # The last one, which is being written, ends with a whole block.
            assert number == 4 or size <= (
                1700 if number < segment_numbers(tmp_path)[-1] else BLOCK
            )
        count = len(segment_numbers(tmp_path))
        assert remove_before(tmp_path, journal.end) == count - 1
        assert segment_numbers(tmp_path) == [journal.end.segment]
        journal.recount()
        assert journal.stored_bytes == journal.end.offset
        await journal.close()

    asyncio.run(main())


def test_a_full_journal_refuses_until_segments_are_removed(tmp_path: Path) -> None:
    async def main() -> None:
        journal = IntakeJournal(tmp_path, segment_bytes=5000, max_bytes=20_000)
        results = await asyncio.gather(
            *(append(journal, bytes(1000)) for _ in range(100)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, JournalFullError)]
        assert "20000 may" in str(refused[0])
        assert not isinstance(refused[0], JournalBusyError)
        kept = len(results) - len(refused)
        assert 10 < kept < 20
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20_000 + BLOCK
        remove_before(tmp_path, journal.end)
        await until_taken(journal, bytes(1000))
        # Nothing that may ever fit is refused for good, and the other way round.
        remove_before(tmp_path, journal.end)
        journal.roll()
        await until_taken(journal, bytes(9_500))
        with pytest.raises(UsageError, match="at most 10000"):
            await append(journal, bytes(10_000))
        await journal.close()

    asyncio.run(main())


async def until_taken(journal: IntakeJournal, body: bytes) -> None:
    """Try again as a client would."""
    for _ in range(1000):
        try:
            await append(journal, body)
            return
        except JournalFullError:
            await asyncio.sleep(0.02)
    pytest.fail("it did not recover")


class Gate:
    """A disk that is waited for until `open` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self._fdatasync = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _sync(self, descriptor: int) -> None:
        assert self.open.wait(60)
        self._fdatasync(descriptor)


def test_no_more_waits_than_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        gate = Gate(monkeypatch)
        journal = IntakeJournal(tmp_path, max_waiting_bytes=10_000)
        # One is always taken, however large.
        first = asyncio.create_task(append(journal, bytes(20_000)))
        await asyncio.sleep(0)
        assert (journal.waiting, journal.waiting_bytes > 20_000) == (1, True)
        with pytest.raises(JournalBusyError):
            await append(journal, b"")
        assert journal.end < (1, HEADER_BYTES)
        assert not first.done()
        gate.open.set()
        assert await first == journal.end
        await append(journal, b"")
        await journal.close()

    asyncio.run(main())


def test_a_task_that_is_cancelled_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        gate = Gate(monkeypatch)
        journal = IntakeJournal(tmp_path)
        tasks = [asyncio.create_task(append(journal, b"%d" % number)) for number in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        gate.open.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[1], asyncio.CancelledError)
        assert results[0] < results[2] == journal.end
        assert journal.waiting == 0
        assert set(read(tmp_path)[0]) >= {b"0", b"2"}
        await journal.close()

    asyncio.run(main())


def test_closing_answers_all_and_then_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        gate = Gate(monkeypatch)
        journal = IntakeJournal(tmp_path)
        tasks = [asyncio.create_task(append(journal, b"%d" % number)) for number in range(50)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(journal.close())
        await asyncio.sleep(0)
        with pytest.raises(JournalFullError, match="is closed"):
            await append(journal, b"late")
        with pytest.raises(TargetError, match="another collector"):
            IntakeJournal(tmp_path)
        gate.open.set()
        await closing
        assert [end.segment for end in await asyncio.gather(*tasks)] == [1] * 50
        assert read(tmp_path)[0] == [b"%d" % number for number in range(50)]
        await IntakeJournal(tmp_path).close()

    asyncio.run(main())


def test_a_sync_that_fails_refuses_its_group_and_leaves_the_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file system here fails to sync on demand; the rest is real."""
    fdatasync = os.fdatasync
    failures = [errno.EIO]

    def sync(descriptor: int) -> None:
        fdatasync(descriptor)
        if failures:
            raise OSError(failures[0], os.strerror(failures.pop()))

    async def main() -> None:
        journal = IntakeJournal(tmp_path)
        # Without a frame, the segment goes.
        monkeypatch.setattr(os, "fdatasync", sync)
        with pytest.raises(JournalFullError, match="Input/output error"):
            await append(journal, b"refused")
        assert segment_numbers(tmp_path) == []
        before = await append(journal, b"before")
        failures.append(errno.EDQUOT)
        with pytest.raises(JournalFullError, match=r"[Qq]uota"):
            await append(journal, b"refused")
        assert segment_path(tmp_path, 2).stat().st_size == before.offset == before[1]
        assert journal.end == before
        after = await append(journal, b"after")
        assert (before.segment, after.segment) == (2, 3)
        assert read(tmp_path) == ([b"before", b"after"], [])
        assert (journal.frames, journal.refused) == (2, 2)
        await journal.close()

    asyncio.run(main())


def test_files_set_aside_count_toward_the_size_limit(tmp_path: Path) -> None:
    async def main() -> None:
        journal = IntakeJournal(tmp_path, segment_bytes=5000, max_bytes=20_000)
        await append(journal, b"a")
        aside = tmp_path / "refused-1.bin"
        aside.write_bytes(bytes(19_950))
        journal.recount()
        with pytest.raises(JournalFullError, match="set aside"):
            await append(journal, bytes(100))
        aside.unlink()
        await until_taken(journal, bytes(100))
        await journal.close()

    asyncio.run(main())


def test_a_damaged_segment_is_left(tmp_path: Path) -> None:
    async def main() -> None:
        journal = IntakeJournal(tmp_path)
        assert (await append(journal, b"a")).segment == 1
        journal.roll(1)
        assert (await append(journal, b"b")).segment == 2
        journal.roll(1)
        assert (await append(journal, b"c")).segment == 2
        await journal.close()

    asyncio.run(main())


def test_a_new_start_goes_on_in_a_new_segment(tmp_path: Path) -> None:
    async def main() -> None:
        [ends] = put(tmp_path, [[b"a", b"b"]])
        half = encode_prefix(1, text := encode_head(head()), b"", checksum(text, b"")) + b"{"
        with segment_path(tmp_path, 1).open("ab") as file:
            file.write(half)
        for number in range(2, 5):
            journal = IntakeJournal(tmp_path)
            assert journal.trimmed_bytes == (len(half) if number == 2 else 0)
            assert journal.end == Position(number, 0)
            assert (await append(journal, b"%d" % number)).segment == number
            await journal.close()
        assert segment_path(tmp_path, 1).stat().st_size == ends[1]
        assert read(tmp_path) == ([b"a", b"b", b"2", b"3", b"4"], [])

    asyncio.run(main())


def test_positions_increase_even_if_all_segments_are_gone(tmp_path: Path) -> None:
    async def main() -> None:
        write_position(tmp_path, ConsumerPosition(Position(7, 100)))
        journal = IntakeJournal(tmp_path)
        assert (await append(journal, b"")).segment == 8
        await journal.close()
        segment_path(tmp_path, 8).rename(tmp_path / (segment_path(tmp_path, 11).name + ".damaged"))
        journal = IntakeJournal(tmp_path)
        assert (await append(journal, b"")).segment == 12
        await journal.close()

    asyncio.run(main())


def test_a_file_that_is_there_already_is_never_written(tmp_path: Path) -> None:
    async def main() -> None:
        journal = IntakeJournal(tmp_path)
        segment_path(tmp_path, 1).write_bytes(b"another's")
        with pytest.raises(JournalFullError, match="File exists"):
            await append(journal, b"a")
        assert (await append(journal, b"a")).segment == 2
        await journal.close()
        assert segment_path(tmp_path, 1).read_bytes() == b"another's"

    asyncio.run(main())


def test_limits_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for segment_bytes in (0, 51):
        with pytest.raises(UsageError, match="at most half"):
            IntakeJournal(tmp_path, segment_bytes=segment_bytes, max_bytes=100)
    (tmp_path / "file").touch()
    with pytest.raises(TargetError, match="cannot be written"):
        IntakeJournal(tmp_path / "file" / "intake")


def test_reader_follows_the_writer_and_removes_consumed_segments(tmp_path: Path) -> None:
    count, tasks = 400, 8

    async def write(journal: IntakeJournal, task: int) -> None:
        for number in range(count):
            await until_taken(journal, b"%d %d " % (task, number) + bytes(number % 900))

    async def follow(journal: IntakeJournal) -> list[Frame]:
        reader = JournalReader(tmp_path, None, pytest.fail)
        found: list[Frame] = []
        while len(found) < count * tasks:
            batch = await asyncio.to_thread(reader.poll, 10_000, journal.end)
            assert not batch or batch[-1].end <= journal.end
            found += batch
            remove_before(tmp_path, reader.position)
            await asyncio.sleep(0 if batch else 0.001)
        reader.close()
        return found

    async def main() -> None:
        # What is written is many times what may lie there.
        journal = IntakeJournal(tmp_path, segment_bytes=10_000, max_bytes=50_000)
        found, *_ = await asyncio.gather(
            follow(journal), *(write(journal, task) for task in range(tasks))
        )
        assert journal.syncs < journal.frames
        seen: dict[int, int] = dict.fromkeys(range(tasks), -1)
        for frame in found:
            task, number = map(int, frame.body.split()[:2])
            assert number == seen[task] + 1
            seen[task] = number
        assert set(seen.values()) == {count - 1}
        assert len(segment_numbers(tmp_path)) == 1
        await journal.close()

    asyncio.run(main())
