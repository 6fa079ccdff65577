"""What is written past the page cache is what was given, whatever the file system can do."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from cirron_otel.core.spool.direct import BLOCK, BUFFER, DIRECT, write_all
from cirron_otel.core.spool.paths import file_name
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.errors import TargetError

LARGE = 3 * BUFFER + BLOCK + 17
SIZES = (0, 1, BLOCK, BUFFER - 1, BUFFER, BUFFER + 1, 2 * BUFFER + 5, LARGE)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    yield descriptor
    os.close(descriptor)


def content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size + 1, 0)


@pytest.mark.parametrize("size", SIZES)
def test_written_content_equals_the_data(file: int, size: int) -> None:
    data = Random(size).randbytes(size)
    write_all(file, data, is_synced=True)
    assert content(file) == data


class Writes:
    """Stands before `os.pwrite`: notes what goes past the page cache, and may refuse that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = os.pwrite
        self.direct: list[int] = []
        self.refusal: int | None = None
        self.most = LARGE
        monkeypatch.setattr(os, "pwrite", self)

    def __call__(self, descriptor: int, view: memoryview, at: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & DIRECT:
            if self.refusal is not None:
                raise OSError(self.refusal, os.strerror(self.refusal))
            self.direct.append(len(view))
        return self._real(descriptor, view[: self.most], at)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    return Writes(monkeypatch)


def test_only_large_writes_bypass_the_page_cache(file: int, writes: Writes) -> None:
    write_all(file, bytes(1000), is_synced=True)
    assert writes.direct == []
    write_all(file, bytes(LARGE), is_synced=True)
    assert writes.direct == [BUFFER, BUFFER, BUFFER, BLOCK]
    assert not fcntl.fcntl(file, fcntl.F_GETFL) & DIRECT


def test_unsynced_writes_stay_in_the_page_cache(file: int, writes: Writes) -> None:
    write_all(file, bytes(LARGE), is_synced=False)
    assert writes.direct == []


@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EOPNOTSUPP])
def test_direct_io_refused_on_write_falls_back_to_the_page_cache(
    file: int, writes: Writes, refusal: int
) -> None:
    writes.refusal = refusal
    data = Random(0).randbytes(LARGE)
    write_all(file, data, is_synced=True)
    assert content(file) == data
    assert writes.direct == []


def test_direct_io_refused_on_setup_falls_back_to_the_page_cache(
    file: int, writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.fcntl

    def refuse(descriptor: int, what: int, flags: int = 0) -> int:
        if what == fcntl.F_SETFL:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(descriptor, what, flags)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    data = Random(0).randbytes(LARGE)
    write_all(file, data, is_synced=True)
    assert content(file) == data
    assert writes.direct == []


@pytest.mark.parametrize("most", [BLOCK, 1000])
def test_writes_that_come_short_are_gone_on_with(file: int, writes: Writes, most: int) -> None:
    writes.most = most
    data = Random(0).randbytes(1_100_000)
    write_all(file, data, is_synced=True)
    assert content(file) == data


def test_a_file_system_in_memory() -> None:
    path = Path("/dev/shm") / f"cirron-otel-{os.getpid()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        data = Random(0).randbytes(LARGE)
        write_all(descriptor, data, is_synced=True)
        assert content(descriptor) == data
    finally:
        os.close(descriptor)
        path.unlink()


def test_full_disk_is_reported_and_leaves_no_file(tmp_path: Path, writes: Writes) -> None:
    writes.refusal = errno.ENOSPC
    writer = SpoolWriter(tmp_path)
    with pytest.raises(TargetError, match="No space left"):
        writer.write(bytes(LARGE), file_name(1, "00000000-0000-4000-8000-000000000000"))
    assert list(writer.paths.spool.iterdir()) == []
