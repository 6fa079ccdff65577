"""What no client should send: torn, slow, endless, swollen, smuggled, or no HTTP at all."""

from __future__ import annotations

import functools
import gzip
import json
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cirron_otel.collector.receiver.http.bodies import HttpLimits

from .fake_intake import FakeIntake
from .http_serving import (
    PROTOBUF,
    Served,
    read_all,
    serving,
    statuses,
    traces,
    until,
)

packed = functools.partial(gzip.compress, mtime=0)
"""The same bytes in each process: they are in the names of tests."""
HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-protobuf\r\n"
OK = HEAD + b"Content-Length: 0\r\n\r\n"
LAST = HEAD + b"Content-Length: 0\r\nConnection: close\r\n\r\n"

HASTY = HttpLimits(grace_s=0.3, bytes_per_s=1000.0, idle_s=0.5, linger_s=0.2, request_s=1.5)


@pytest.fixture(scope="module")
def server() -> Any:
    with serving() as served:
        yield served


@pytest.mark.parametrize(
    ("garbage", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400),  # TLS to a plain port
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /health HTTP/9.9\r\n\r\n", 400),
        (b"\0" * 4096 + b"\r\n\r\n", 400),
        (b"BREW /v1/traces HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"POST <script> HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Content-Length: 1x\r\n\r\n", 400),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy", 400),
        (HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Bad Header: x\r\n\r\n", 400),
        (HEAD + b"A: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", 431),
        (HEAD + b"".join(b"A%d: x\r\n" % n for n in range(200)) + b"\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n", 400),
    ],
)
@pytest.mark.parametrize("is_pipelined", [False, True])
def test_no_http(server: Served, garbage: bytes, status: int, is_pipelined: bool) -> None:
    """It is answered and hung up on; what came whole before it counts if it is answered."""
    server.intake.requests.clear()

    answer = server.raw((OK if is_pipelined else b"") + garbage)

    assert statuses(answer)[-1] == status
    assert statuses(answer)[:-1] == [200] * len(server.intake.requests)
    assert b"<script" not in answer
    assert b"Server:" not in answer


def test_invalid_http_after_an_answer_is_a_bad_request(server: Served) -> None:
    with server.socket() as connection:
        connection.sendall(OK)
        assert statuses(connection.recv(4096)) == [200]
        connection.sendall(b"no HTTP\r\n\r\n" + OK)
        assert statuses(read_all(connection)) == [400]


@pytest.mark.filterwarnings("error")
def test_garbage_is_counted_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as server:
        server.raw(b"secret garbage\r\n\r\n")
        server.raw(b"GET / HTTP/1.1\r\nA: " + b"x" * 20_000 + b"\r\n\r\n")
        assert server.receiver.answered == {("-", 400): 1, ("-", 431): 1}
    assert "secret" not in caplog.text
    assert "Traceback" not in caplog.text


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.binary(max_size=200), is_behind_a_head=st.booleans())
def test_no_bytes_bring_it_down(data: bytes, is_behind_a_head: bool) -> None:
    server = _one()
    answer = server.raw((HEAD if is_behind_a_head else b"") + data, is_ended=True)
    assert all(status < 500 for status in statuses(answer))
    assert server.ask("GET", "/health").status == 200


_running: list[Served] = []


def _one() -> Served:
    return _running[0]


@pytest.fixture(autouse=True, scope="module")
def _share(server: Served) -> Any:
    _running.append(server)
    yield
    _running.clear()


def test_requests_in_one_piece_are_answered_in_order(server: Served) -> None:
    server.intake.requests.clear()
    one = HEAD + b"Content-Length: 2\r\n\r\n"
    bodies = [b"%02d" % number for number in range(50)]

    answer = server.raw(b"".join(one + body for body in bodies) + LAST)

    assert statuses(answer) == [200] * 51
    assert server.intake.bodies == [*bodies, b""]


def test_a_request_byte_by_byte(server: Served) -> None:
    server.intake.requests.clear()
    whole = HEAD + b"Content-Length: 5\r\nConnection: close\r\n\r\nhello"
    assert statuses(server.raw(*(whole[at : at + 1] for at in range(len(whole))))) == [200]
    assert server.intake.bodies == [b"hello"]


TORN = [
    HEAD,
    HEAD + b"Content-Length: 100\r\n\r\nabc",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    HEAD + b"Content-Encoding: gzip\r\nContent-Length: 900\r\n\r\n" + packed(b"a" * 99),
]


@pytest.mark.parametrize("sent", TORN)
def test_a_torn_request_is_not_taken(server: Served, sent: bytes) -> None:
    server.intake.requests.clear()

    with server.socket() as connection:
        connection.sendall(sent)
        time.sleep(0.02)  # so that it hangs up in the middle of what the server reads

    until(lambda: not server.intake.in_flight)
    assert not server.intake.requests
    assert server.ask("GET", "/health").status == 200


@pytest.mark.parametrize(
    "start",
    [
        b"Content-Length: 900000\r\n\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"Content-Encoding: gzip\r\nContent-Length: 900\r\n\r\n" + packed(b"a" * 99)[:9],
    ],
)
def test_stalled_sender_gets_a_timeout_response(start: bytes) -> None:
    with serving(limits=HASTY) as server:
        answer = server.raw(HEAD + start)
        assert statuses(answer) == [408]
        assert b"too slow" in answer
        assert not server.intake.requests


def test_trickling_sender_gets_a_timeout_response() -> None:
    with serving(limits=HASTY) as server, server.socket() as connection:
        connection.sendall(HEAD + b"Content-Length: 900000\r\n\r\n")
        connection.settimeout(0.02)
        answer = b""
        while not answer:
            connection.sendall(b"a")
            try:
                answer = connection.recv(4096)
            except TimeoutError:
                continue
        assert statuses(answer) == [408]


def test_endless_sender_gets_a_timeout_response() -> None:
    """Fast enough, but beyond the time for a request, and never beyond its limit in bytes."""
    limits = HttpLimits(request_s=0.5, linger_s=0.2)
    with serving(FakeIntake(max_body_bytes=1 << 40), limits=limits) as server:
        with server.socket() as connection:
            connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            connection.settimeout(0.01)
            answer = b""
            while not answer:
                try:
                    connection.sendall(b"400\r\n" + b"a" * 1024 + b"\r\n")
                    answer = connection.recv(4096)
                except TimeoutError:
                    continue
        assert statuses(answer) == [408]


def test_headers_that_do_not_end_and_idle_connections_are_closed() -> None:
    with serving(limits=HASTY) as server:
        assert server.raw(b"") == b""
        assert server.raw(HEAD) == b""
        assert statuses(server.raw(OK)) == [200]


def test_chunks_without_end_stop_at_the_limit() -> None:
    with serving(limits=HttpLimits(linger_s=0.2)) as server, server.socket() as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        sent = 0
        try:
            while sent < 1 << 27:
                connection.sendall(b"10000\r\n" + bytes(65536) + b"\r\n")
                sent += 65536
                # The server limits the time. Without a pause, it depends on the machine how many
                # bytes are sent in it.
                time.sleep(0.001)
        except ConnectionError:
            pass
        assert sent < 1 << 27
        assert server.receiver.answered == {("/v1/traces", 413): 1}
        assert server.intake.most_in_flight <= server.intake.max_body_bytes


def test_bytes_in_flight_are_bounded() -> None:
    """Those that came while there was room are kept; the others are told when to come again."""
    intake = FakeIntake(room=300_000)
    with serving(intake) as server:
        release = server.hold()
        body = b"x" * 100_000
        sockets = [server.socket() for _ in range(3)]
        for connection in sockets:
            connection.sendall(HEAD + b"Content-Length: 100000\r\nConnection: close\r\n\r\n" + body)
        until(lambda: intake.waiting == 3)
        length = server.post(b"x")
        chunked = server.post(iter([b"x" * 1000] * 3))
        swollen = server.post(packed(b"x" * 100_000), Content_Encoding="gzip")
        for refused in (length, chunked, swollen):
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        release()
        for connection in sockets:
            with connection:
                assert statuses(read_all(connection)) == [200]
        assert intake.most_in_flight <= 300_000
        assert server.post(packed(b"x" * 100_000), Content_Encoding="gzip").status == 200
    assert intake.in_flight == 0


def test_body_occupies_its_decompressed_size_until_answered() -> None:
    """Not of what it was on the wire; and it is held until the intake has answered."""
    with serving() as server:
        release = server.hold()
        sent = packed(b"x" * 500_000)
        connection = server.socket()
        connection.sendall(
            HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(sent) + sent
        )
        until(lambda: server.intake.waiting == 1)
        assert server.intake.in_flight == 500_000
        release()
        with connection:
            assert statuses(connection.recv(4096)) == [200]
        until(lambda: not server.intake.in_flight)


def test_a_client_that_waits_for_100_continue(server: Served) -> None:
    server.intake.requests.clear()
    with server.socket() as connection:
        connection.sendall(HEAD + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"abc")
        assert statuses(connection.recv(4096)) == [200]
    assert server.intake.bodies == [b"abc"]
    with server.socket() as connection:
        connection.sendall(
            HEAD + b"Content-Length: 99999999\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
        )
        assert statuses(connection.recv(4096)) == [413], "refused before anything is sent"


def test_connection_stays_open_after_an_error(server: Served) -> None:
    bad = HEAD.replace(b"x-protobuf", b"json") + b"Content-Length: 2\r\n\r\n[]"
    assert statuses(server.raw(bad + OK + bad + LAST)) == [400, 200, 400, 200]


BOMBER = """
import asyncio, json, resource, sys
from cirron_otel.collector.service.event_loop import new_event_loop
from cirron_otel.collector.receiver.http.server import HttpReceiver
from tests.collector.receiver.fake_intake import FakeIntake

def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024

async def main():
    intake = FakeIntake(max_body_bytes=8 << 20, room=64 << 20)
    receiver = HttpReceiver(intake, host="127.0.0.1", port=0)
    print(json.dumps([(await receiver.start())[1], peak()]), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await receiver.stop(1)
    print(json.dumps([len(intake.requests), intake.in_flight, peak()]), flush=True)

asyncio.Runner(loop_factory=new_event_loop).run(main())
"""


def bombs() -> list[tuple[str, bytes]]:
    """1 GB of zeros in each coding, and as many members and frames of nothing."""
    mega = bytes(1 << 20)
    zstd = zstandard.ZstdCompressor().compressobj()
    empty = packed(b"") * 500_000
    skipped = b"\x50\x2a\x4d\x18\x00\x00\x00\x00" * 1_200_000
    return [
        ("gzip", _repeated(zlib.compressobj(9, wbits=31), mega)),
        ("deflate", _repeated(zlib.compressobj(9), mega)),
        ("zstd", b"".join([zstd.compress(mega) for _ in range(1024)]) + zstd.flush()),
        ("gzip", empty),
        ("zstd", skipped),
        ("gzip", packed(b"") * 20_000),
        ("zstd", skipped[:160_000]),
    ]


def _repeated(packer: Any, mega: bytes) -> bytes:
    """1024 times `mega`; behind a full flush the same input gives the same bytes."""
    first = packer.compress(mega) + packer.flush(zlib.Z_FULL_FLUSH)
    more = packer.compress(mega) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + more * 1022 + packer.compress(mega) + packer.flush()


def test_zip_bombs_cost_no_memory() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BOMBER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        port, before = json.loads(process.stdout.readline())
        target = Served(FakeIntake(), None, None)  # type: ignore[arg-type]
        target.port = port
        for coding, bomb in bombs():
            for is_chunked in (False, True):
                answer = target.post(iter([bomb]) if is_chunked else bomb, Content_Encoding=coding)
                assert answer.status in (400, 413), (coding, is_chunked)
                assert any(word in answer.message for word in ("are accepted", "10000 members"))
        process.stdin.write("\n")
        process.stdin.flush()
        kept, in_flight, after = json.loads(process.stdout.readline())
    assert (kept, in_flight) == (0, 0)
    assert after - before < 48, f"{before} MiB before, {after} MiB after"


def test_a_real_request_still_goes_through(server: Served) -> None:
    server.intake.requests.clear()
    assert server.post(traces(500), kind=PROTOBUF).status == 200
    assert server.intake.bodies == [traces(500)]
