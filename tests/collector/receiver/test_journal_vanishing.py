"""The intake journal whose files somebody takes away while it is written."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from cirron_otel.collector.receiver.journal.files import segment_path
from cirron_otel.collector.receiver.journal.writer import IntakeJournal, JournalFullError
from cirron_otel.errors import TargetError

from .journalled import read
from .test_journal import append


@pytest.mark.parametrize("how", ["removed", "moved", "removed file"])
def test_a_segment_without_a_name_is_not_acknowledged(how: str, tmp_path: Path) -> None:
    """What is written and synced into it is gone with the process."""

    async def main() -> None:
        directory = tmp_path / "spool" / "intake"
        journal = IntakeJournal(directory)
        await append(journal, b"a")
        if how == "removed":
            shutil.rmtree(tmp_path / "spool")
        elif how == "moved":
            (tmp_path / "spool").rename(tmp_path / "away")
        else:
            segment_path(directory, 1).unlink()
        with pytest.raises(JournalFullError, match="removed or moved"):
            await append(journal, b"b")
        assert (await append(journal, b"b")).segment == 2
        assert (await append(journal, b"c")).segment == 2
        assert read(directory) == ([b"b", b"c"], [])
        with pytest.raises(TargetError, match="another collector"):
            IntakeJournal(directory)
        await journal.close()
        if how == "moved":
            assert read(tmp_path / "away" / "intake") == ([b"a"], [])

    asyncio.run(main())


def test_directory_removed_ahead_of_the_first_frame_is_recreated(tmp_path: Path) -> None:
    async def main() -> None:
        directory = tmp_path / "intake"
        journal = IntakeJournal(directory)
        directory.rename(tmp_path / "away")
        await append(journal, b"a")
        directory.rename(tmp_path / "elsewhere")
        # Somebody else has a journal there meanwhile.
        other = IntakeJournal(directory)
        for _ in range(2):
            with pytest.raises(JournalFullError, match=r"another collector|removed or moved"):
                await append(journal, b"b")
        await append(other, b"c")
        await other.close()
        end = await append(journal, b"b")
        assert end.segment > other.end.segment
        await journal.close()
        assert read(directory) == ([b"c", b"b"], [])

    asyncio.run(main())
