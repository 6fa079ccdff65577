"""A file that is appended to past the page cache holds what was appended, whatever the pieces."""

from __future__ import annotations

import errno
import os
from itertools import accumulate
from pathlib import Path
from random import Random

import pytest

from cirron_otel.collector.receiver.journal import segment
from cirron_otel.collector.receiver.journal.segment import DirectFile
from cirron_otel.core.spool.direct import BLOCK, DIRECT

SIZES = (0, 1, 15, 100, BLOCK - 1, BLOCK, BLOCK + 1, 70_000, 2**20 - 1, 2**20, 2**20 + 5)


@pytest.mark.parametrize("seed", range(20))
def test_file_contains_the_appended_pieces(tmp_path: Path, seed: int) -> None:
    choice = Random(seed)
    file, held = DirectFile(tmp_path / "file"), b""
    for _ in range(8):
        pieces = [choice.randbytes(choice.choice(SIZES)) for _ in range(choice.randint(0, 4))]
        file.append(pieces)
        held += b"".join(pieces)
        found = (tmp_path / "file").read_bytes()
        assert found[: len(held)] == held
        assert not found[len(held) :].strip(b"\0")
        assert len(found) == -(-len(held) // BLOCK) * BLOCK
    file.close()
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("failing", ["open", "pwrite"])
def test_a_file_system_that_cannot_do_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Some say so when the file is opened, after they made it; others when it is written."""
    real = {"open": os.open, "pwrite": os.pwrite}[failing]
    refusals = []

    def refuse(first: object, second: object, *rest: object) -> object:
        is_open = failing == "open"
        if (is_open and second & DIRECT) or (not is_open and not refusals):  # type: ignore[operator]
            refusals.append(first)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(first, second, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, failing, refuse)
    file = DirectFile(tmp_path / "file")
    for piece in (b"a" * 5000, b"b" * 3, b"c" * 9000):
        file.append([piece])
    assert len(refusals) == 1
    file.close()
    found = (tmp_path / "file").read_bytes()
    assert found.rstrip(b"\0") == b"a" * 5000 + b"b" * 3 + b"c" * 9000


def test_a_write_that_comes_short_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, view, at: real(fd, view[:BLOCK], at))
    file = DirectFile(tmp_path / "file")
    pieces = [bytes([number]) * size for number, size in enumerate((9000, 1, 70_000), 1)]
    ends = list(accumulate(map(len, pieces)))
    file.append(pieces)
    found = (tmp_path / "file").read_bytes()
    assert found[: ends[-1]] == b"".join(pieces)
    file.close()


def test_no_file_remains_if_memory_allocation_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that the journal knows nothing of would be read as damaged."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(segment.mmap, "mmap", refuse)
    with pytest.raises(OSError, match="memory"):
        DirectFile(tmp_path / "file")
    assert not (tmp_path / "file").exists()
