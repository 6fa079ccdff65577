"""Snapshot files in a directory: what a crash leaves of them, what is on disk, and for whom."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cirron_otel.collector.receiver import blob_directory
from cirron_otel.collector.receiver.blob_directory import DirectoryBlobs
from tests.kit.servers.serving import PROGRAM, Serving, serving

from .http_serving import until


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


async def stream(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def put(blobs: DirectoryBlobs, content: bytes, span: str = "span", file: str = "file") -> None:
    asyncio.run(blobs.put(span, file, stream(content), len(content)))


def upload(here: Serving, sent: int, size: int) -> socket.socket:
    """A PUT of `size` bytes, of which `sent` are."""
    host, _, port = here.http.removeprefix("http://").rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), 60)
    head = "PUT /v1/traces/blobs/snapshots/abc/f.bin HTTP/1.1\r\nHost: x\r\n"
    connection.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode() + bytes(sent))
    return connection


@pytest.mark.usefixtures("usual_umask")
def test_a_killed_upload_leaves_nothing_and_all_is_private(tmp_path: Path) -> None:
    root = tmp_path / "above" / "data"
    (tmp_path / "above").mkdir()

    def files() -> list[Path]:
        return [path for path in (root / "snapshots").rglob("*") if path.is_file()]

    with serving(root, program=PROGRAM) as here, upload(here, 500_000, 1_000_000):
        until(lambda: sum(path.stat().st_size for path in files()) == 500_000)
        here.kill()
    assert len(files()) == 1
    with serving(root, program=PROGRAM) as here:
        assert files() == []
        with upload(here, 1000, 1000) as connection:
            assert connection.recv(12) == b"HTTP/1.1 201"
        open_to_others = {
            str(path.relative_to(tmp_path)): oct(path.lstat().st_mode)
            for path in (root, *root.rglob("*"))
            if stat.S_IMODE(path.lstat().st_mode) & 0o077
        }
        assert open_to_others == {}
        assert here.end() == 0
    assert [path.relative_to(root) for path in files()] == [Path("snapshots/abc/f.bin")]


@pytest.mark.usefixtures("usual_umask")
def test_each_name_on_the_way_to_a_file_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    snapshots = tmp_path / "new" / "snapshots"
    put(DirectoryBlobs(snapshots), b"abc")

    expected = {tmp_path, tmp_path / "new", snapshots, snapshots / "span"}
    assert {str(path) for path in expected} <= set(synced)
    assert synced[-1] == str(snapshots / "span")
    for path in (tmp_path / "new", snapshots, snapshots / "span"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    synced.clear()
    put(DirectoryBlobs(snapshots), b"abcd")
    assert set(synced) & {str(tmp_path), str(snapshots)} == set()  # once is enough


def test_stale_incoming_files_are_pruned_while_active_uploads_remain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = DirectoryBlobs(tmp_path)
    incoming = tmp_path / ".incoming"
    go_on = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"a"
        await go_on.wait()
        yield b"b"

    async def run() -> None:
        slow = asyncio.ensure_future(blobs.put("slow", "file", slowly(), 2))
        while not incoming.is_dir() or not list(incoming.iterdir()):
            await asyncio.sleep(0.005)
        (incoming / "left").write_bytes(b"by somebody")
        await blobs.put("quick", "file", stream(b"c"), 1)
        assert (incoming / "left").exists()
        monkeypatch.setattr(blob_directory, "_PRUNED_S", 0.0)
        await blobs.put("quick", "file", stream(b"cd"), 2)
        assert not (incoming / "left").exists()
        go_on.set()
        await slow

    asyncio.run(run())
    assert (tmp_path / "slow" / "file").read_bytes() == b"ab"
    assert (tmp_path / "quick" / "file").read_bytes() == b"cd"
    assert list(incoming.iterdir()) == []


def test_a_file_that_is_cut_short_is_not_there(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    put(blobs, b"before")
    with pytest.raises(OSError, match="3 of 4 bytes"):
        asyncio.run(blobs.put("span", "file", stream(b"abc"), 4))
    assert (tmp_path / "span" / "file").read_bytes() == b"before"
    assert list((tmp_path / ".incoming").iterdir()) == []
