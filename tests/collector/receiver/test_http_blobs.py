"""Snapshot files: docs/cirron-http.md, "Snapshot files", whole and in parts."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cirron_otel.collector.receiver.consumer import Reason, RefusalError
from cirron_otel.collector.receiver.http import blobs as http_blobs
from cirron_otel.collector.receiver.http import parts
from cirron_otel.collector.receiver.http.bodies import HttpLimits
from cirron_otel.collector.receiver.http.server import HttpReceiver
from cirron_otel.errors import TargetError

from .fake_intake import FakeIntake
from .http_serving import (
    Blobs,
    Said,
    Served,
    serving,
    statuses,
    until,
)

SPAN = "d2ce78ef00209c97e9740147daea358d"
FILE = "weights.safetensors"
PATH = f"/v1/traces/blobs/snapshots/{SPAN}/{FILE}"
CONTENT = bytes(range(256)) * 4096


@pytest.fixture
def blobs() -> Blobs:
    return Blobs()


@pytest.fixture
def server(blobs: Blobs, tmp_path: Path) -> Iterator[Served]:
    limits = HttpLimits(upload_bytes=2_000_000, uploads=2, linger_s=0.2)
    with serving(blobs=blobs, limits=limits, staging=tmp_path / "parts") as served:
        yield served


def put(server: Served, first: int, last: int, total: int, content: bytes | None = None) -> Said:
    body = CONTENT[first : last + 1] if content is None else content
    return server.ask("PUT", PATH, body, {"Content-Range": f"bytes {first}-{last}/{total}"})


def sizes(tmp_path: Path) -> list[int]:
    return [path.stat().st_size for path in (tmp_path / "parts").rglob(f"{FILE}.*")]


def staged(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "parts").rglob("*") if path.is_file())


@pytest.mark.parametrize("ingest", ["/v1/traces", "/api/traces"])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_file_uploaded_in_one_request_is_stored(
    server: Served, blobs: Blobs, ingest: str, is_chunked: bool
) -> None:
    path = PATH.replace("/v1/traces", ingest)
    before = server.ask("HEAD", path)
    assert (before.status, before.headers["upload-offset"]) == (404, "0")

    body = iter([CONTENT[:1000], CONTENT[1000:]]) if is_chunked else CONTENT
    assert server.ask("PUT", path, body).status == 201

    assert blobs.files == {(SPAN, FILE): CONTENT}
    assert blobs.sizes == [None if is_chunked else len(CONTENT)]
    after = server.ask("HEAD", path)
    assert (after.status, after.headers["content-length"]) == (200, str(len(CONTENT)))
    assert "upload-offset" not in after.headers
    assert server.intake.most_in_flight == 0, "files are not held in memory"


def test_an_empty_file(server: Served, blobs: Blobs) -> None:
    assert server.ask("PUT", PATH, b"").status == 201
    assert blobs.files == {(SPAN, FILE): b""}
    assert server.ask("HEAD", PATH).headers["content-length"] == "0"


def test_in_parts(server: Served, blobs: Blobs, tmp_path: Path) -> None:
    total = len(CONTENT)
    first = put(server, 0, 399_999, total)
    assert (first.status, first.headers["upload-offset"]) == (308, "400000")
    assert not blobs.files
    asked = server.ask("HEAD", PATH)
    assert (asked.status, asked.headers["upload-offset"]) == (404, "400000")

    for start, why in ((0, "again"), (399_999, "an overlap"), (400_001, "a gap")):
        elsewhere = put(server, start, start + 9, total)
        assert (elsewhere.status, elsewhere.headers["upload-offset"]) == (409, "400000"), why

    last = put(server, 400_000, total - 1, total)
    assert (last.status, last.headers["upload-offset"]) == (201, str(total))
    assert blobs.files == {(SPAN, FILE): CONTENT}
    assert staged(tmp_path) == []
    assert server.ask("HEAD", PATH).status == 200


def test_interrupted_part_is_stored_up_to_the_last_byte_received(
    server: Served, blobs: Blobs, tmp_path: Path
) -> None:
    total = len(CONTENT)
    head = f"PUT {PATH} HTTP/1.1\r\nHost: a\r\nContent-Range: bytes 0-{total - 1}/{total}\r\n"
    with server.socket() as connection:
        connection.sendall(f"{head}Content-Length: {total}\r\n\r\n".encode() + CONTENT[:500_000])
        until(lambda: sizes(tmp_path) == [500_000])
    until(lambda: server.ask("HEAD", PATH).headers["upload-offset"] == "500000")

    assert put(server, 500_000, total - 1, total).status == 201
    assert blobs.files == {(SPAN, FILE): CONTENT}


def test_parts_outlive_the_server(blobs: Blobs, tmp_path: Path) -> None:
    total, staging = len(CONTENT), tmp_path / "parts"
    with serving(blobs=blobs, staging=staging) as server:
        put(server, 0, 99_999, total)
    with serving(blobs=blobs, staging=staging) as server:
        assert server.ask("HEAD", PATH).headers["upload-offset"] == "100000"
        blobs.fault = OSError(errno.ENOSPC, "no space left")
        full = put(server, 100_000, total - 1, total)
        assert (full.status, full.headers["retry-after"]) == (503, "5")
        assert server.ask("HEAD", PATH).status == 503
    blobs.fault = None
    with serving(blobs=blobs, staging=staging) as server:
        # All parts are there, and the store has had none of them until it is asked for.
        asked = server.ask("HEAD", PATH)
        assert (asked.status, asked.headers["content-length"]) == (200, str(total))
    assert blobs.files == {(SPAN, FILE): CONTENT}
    assert staged(tmp_path) == []


LISTED = """
import sys
from pathlib import Path
from cirron_otel.collector.receiver.http import parts
from cirron_otel.collector.receiver.upload_room import UploadRoom

root, count, listed = Path(sys.argv[1]), 200, []
(root / "span").mkdir()
for number in range(count):
    (root / "span" / f"{number}.100").write_bytes(b"x")
(root / "span" / "other").write_bytes(b"no part")
hooked = ("os.listdir", "os.scandir")
sys.addaudithook(lambda event, _: listed.append(event) if event in hooked else None)
now_s = [0.0]
parts._now_s = lambda: now_s[0]
staging = parts.Staging(root, UploadRoom(10**9))
print(len(staging._unfinished), len(listed) < 10)
now_s[0] = 90_000.0
staging.expire()
print(len(staging._unfinished), len(listed) < 20, [path.name for path in root.rglob("*")])
"""


def test_many_files_of_a_span_are_not_listed_for_each(tmp_path: Path) -> None:
    """Neither at the start nor when they expire: the event loop waits for it."""
    command = [sys.executable, "-c", LISTED, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["200 True", "0 True ['span', 'other']"]


def test_a_file_of_another_length_begins_again(server: Served, blobs: Blobs) -> None:
    put(server, 0, 99_999, len(CONTENT))
    other = put(server, 100_000, 199_999, 300_000)
    assert (other.status, other.headers["upload-offset"]) == (409, "0")
    assert server.ask("HEAD", PATH).headers["upload-offset"] == "0"
    assert put(server, 0, 299_999, 300_000).status == 201
    assert blobs.files == {(SPAN, FILE): CONTENT[:300_000]}


def test_parts_idle_for_a_day_expire_while_the_server_runs(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that is never set: files that look old by the wall clock stay."""
    passed_s = [5.0]
    monkeypatch.setattr(parts, "_now_s", lambda: passed_s[0])
    monkeypatch.setattr(http_blobs, "_EXPIRE_S", 0.01)
    staging = tmp_path / "parts"
    with serving(blobs=blobs, staging=staging) as server:
        put(server, 0, 9, 100)
    old = staging / SPAN / f"{FILE}.100"
    os.utime(old, (time.time() - 90_000,) * 2)
    with serving(blobs=blobs, staging=staging) as server:
        passed_s[0] += 3600.0
        server.ask("PUT", PATH + "2", CONTENT[:10], {"Content-Range": "bytes 0-9/100"})
        assert staged(tmp_path) == [f"{FILE}.100", f"{FILE}2.100"]
        passed_s[0] += 23 * 3600.0
        until(lambda: staged(tmp_path) == [f"{FILE}2.100"])
        assert server.ask("HEAD", PATH).headers["upload-offset"] == "0"


class TestRoom:
    """Unfinished uploads have a limit: all together, and half of it for each tenant."""

    PART = 40_000

    @pytest.fixture
    def server(
        self, blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Served]:
        self.passed_s = 5.0
        monkeypatch.setattr(parts, "_now_s", lambda: self.passed_s)
        with self.serving(blobs, tmp_path) as served:
            yield served

    def serving(self, blobs: Blobs, tmp_path: Path) -> AbstractContextManager[Served]:
        limits = HttpLimits(unfinished_bytes=200_000, linger_s=0.2)
        return serving(blobs=blobs, limits=limits, staging=tmp_path / "parts")

    def part(self, server: Served, number: int, tenant: str = "") -> Said:
        path = PATH.replace(SPAN, f"{number:032x}")
        told = {"Content-Range": f"bytes 0-{self.PART - 1}/90000"}
        headers = told | ({"X-Scope-OrgID": tenant} if tenant else {})
        return server.ask("PUT", path, CONTENT[: self.PART], headers)

    def test_unfinished_parts_of_one_tenant_leave_room_for_others(
        self, server: Served, tmp_path: Path
    ) -> None:
        assert [self.part(server, n, "a").status for n in range(4)] == [308, 308, 429, 429]
        assert int(self.part(server, 9, "a").headers["retry-after"]) > 0
        assert [self.part(server, n, "b").status for n in range(3)] == [308, 308, 429]
        assert self.part(server, 1).status == 308  # of no tenant; then all together are full
        assert self.part(server, 2).status == 429
        total = sum(path.stat().st_size for path in (tmp_path / "parts").rglob("*.*"))
        assert total <= 200_000

    def test_finished_or_idle_parts_free_their_room(
        self, server: Served, blobs: Blobs, tmp_path: Path
    ) -> None:
        assert [self.part(server, n, "a").status for n in range(3)] == [308, 308, 429]
        rest = {"Content-Range": f"bytes {self.PART}-89999/90000", "X-Scope-OrgID": "a"}
        path = PATH.replace(SPAN, f"{0:032x}")
        body = CONTENT[self.PART : 90_000]
        assert server.ask("PUT", path, body, rest).status == 429
        self.passed_s += 3600.0  # the other one is idle, and goes
        asked = server.ask("HEAD", path, headers={"X-Scope-OrgID": "a"})
        offset = int(asked.headers["upload-offset"])
        rest["Content-Range"] = f"bytes {offset}-89999/90000"
        assert server.ask("PUT", path, CONTENT[offset:90_000], rest).status == 201
        assert list(blobs.files.values()) == [CONTENT[:90_000]]
        assert staged(tmp_path) == []
        assert [self.part(server, n, "a").status for n in range(5, 8)] == [308, 308, 429]

    def test_new_process_counts_existing_parts(
        self, server: Served, blobs: Blobs, tmp_path: Path
    ) -> None:
        assert [self.part(server, n, "a").status for n in range(2)] == [308, 308]
        with self.serving(blobs, tmp_path) as other:
            assert self.part(other, 5, "a").status == 429
            assert self.part(other, 5, "b").status == 308

    def test_a_file_that_never_fits_is_refused_for_good(self, server: Served) -> None:
        told = {"Content-Range": "bytes 0-9/100001"}
        assert server.ask("PUT", PATH, CONTENT[:10], told).status == 413
        assert server.ask("PUT", PATH, CONTENT[:100_001]).status == 413
        assert server.ask("PUT", PATH, CONTENT[:100_000]).status == 201
        with server.socket() as connection:
            head = f"PUT {PATH} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            chunk = b"%x\r\n" % 50_001 + CONTENT[:50_001] + b"\r\n"
            connection.sendall(head.encode() + 2 * chunk + b"0\r\n\r\n")
            assert b" 429 " in connection.recv(100)
        assert [self.part(server, n).status for n in range(2)] == [308, 308]


def test_parts_are_private(server: Served, tmp_path: Path) -> None:
    put(server, 0, 9, 100)
    for path in [tmp_path / "parts", *(tmp_path / "parts").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_uncreatable_directory_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetError, match=r"file/parts: Not a directory"):
        HttpReceiver(FakeIntake(), blobs=Blobs(), staging=tmp_path / "file" / "parts")


@pytest.mark.parametrize(
    ("told", "content", "status"),
    [
        ("bytes 0-9/100", b"123456789", 400),
        ("bytes 0-9/100", b"12345678901", 400),
        ("bytes 9-0/100", b"", 400),
        ("bytes 0-100/100", b"1" * 101, 400),
        ("bytes 0-9/*", b"1234567890", 400),
        ("bytes */100", b"", 400),
        ("rows 0-9/100", b"1234567890", 400),
        ("bytes 0-9/99999999999999999999", b"1234567890", 400),
        ("bytes 0-9/2000001", b"1234567890", 413),
    ],
)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_invalid_content_ranges_are_refused(
    server: Served, blobs: Blobs, told: str, content: bytes, status: int, is_chunked: bool
) -> None:
    body = iter([content]) if is_chunked else content
    assert server.ask("PUT", PATH, body, {"Content-Range": told}).status == status
    assert not blobs.files


def test_refused_files(server: Served, blobs: Blobs) -> None:
    large = bytes(2_000_001)
    assert server.ask("PUT", PATH, large).status == 413
    assert server.ask("PUT", PATH, iter([large])).status == 413
    assert server.ask("PUT", PATH, b"x", {"Content-Encoding": "gzip"}).status == 415
    blobs.fault = RefusalError(Reason.INVALID, "not a safetensors file")
    assert server.ask("PUT", PATH, b"x").message == "not a safetensors file"
    assert not blobs.files


def test_without_parts(blobs: Blobs) -> None:
    with serving(blobs=blobs) as server:
        asked = server.ask("HEAD", PATH)
        assert asked.status == 404
        assert "upload-offset" not in asked.headers
        assert put(server, 0, 9, 100).status == 400
        assert server.ask("PUT", PATH, CONTENT).status == 201


def test_a_broken_upload_stores_nothing_and_frees_its_place(server: Served, blobs: Blobs) -> None:
    head = f"PUT {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n".encode()
    sockets = [server.socket() for _ in range(2)]
    for connection in sockets:
        connection.sendall(head + b"abc")
    until(lambda: len(blobs.sizes) == 2)
    busy = server.ask("PUT", PATH + "2", b"x")
    assert (busy.status, busy.headers["retry-after"]) == (429, "5")
    for connection in sockets:
        connection.close()
    until(lambda: server.ask("PUT", PATH + "2", b"x").status == 201)
    assert blobs.files == {(SPAN, FILE + "2"): b"x"}


def test_slow_upload_is_answered_with_408(blobs: Blobs) -> None:
    limits = HttpLimits(grace_s=0.2, linger_s=0.1)
    with serving(blobs=blobs, limits=limits) as server:
        head = f"PUT {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n".encode()
        assert statuses(server.raw(head + b"abc")) == [408]
    assert not blobs.files


def test_a_slow_store_is_not_the_sender_s_fault() -> None:
    class Slow(Blobs):
        async def put(
            self, span_id: str, file: str, stream: AsyncIterator[bytes], size: int | None
        ) -> None:
            self.sizes.append(size)
            count = 0
            async for piece in stream:
                count += len(piece)
                await asyncio.sleep(0.3)
            self.files[span_id, file] = b"x" * count

    slow = Slow()
    with serving(blobs=slow, limits=HttpLimits(grace_s=0.25, bytes_per_s=1e9)) as server:
        assert server.ask("PUT", PATH, CONTENT).status == 201
    assert slow.files == {(SPAN, FILE): b"x" * len(CONTENT)}
