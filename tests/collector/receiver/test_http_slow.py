"""Bodies that come slowly, and those who have no room because of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from cirron_otel.collector.receiver.http.bodies import HttpLimits

from .fake_intake import FakeIntake
from .http_serving import (
    Served,
    read_all,
    serving,
    statuses,
    traces,
    until,
)

HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-protobuf\r\n"
SLOW = HttpLimits(slow_s=0.1, request_s=3600, grace_s=3600)


def announced(server: Served, size: int, sent: int, count: int) -> contextlib.ExitStack:
    """Connections that each announced a body of `size` bytes, and sent some of it."""
    stack = contextlib.ExitStack()
    for _ in range(count):
        connection = stack.enter_context(server.socket())
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % size + bytes(sent))
    return stack


def test_announced_body_length_reserves_no_room() -> None:
    intake = FakeIntake(max_body_bytes=1000, room=4000)
    with serving(intake) as server, announced(server, 1000, 10, 20):
        until(lambda: intake.in_flight == 200)
        assert server.post(traces()).status == 200


def test_slow_bodies_are_rejected_one_at_a_time_when_room_runs_out() -> None:
    """One after another, and no more than must."""
    intake = FakeIntake(max_body_bytes=1000, room=4000)
    with serving(intake, limits=SLOW) as server, announced(server, 1000, 999, 4):
        until(lambda: intake.in_flight == 3996)
        assert server.post(traces()).status == 429
        until(lambda: server.receiver.answered["/v1/traces", 429] == 2)
        assert server.post(traces()).status == 200
        time.sleep(0.3)
        assert intake.in_flight == 2997
        assert server.receiver.answered["/v1/traces", 429] == 2


def test_a_body_that_trickles_gives_way_too() -> None:
    intake = FakeIntake(max_body_bytes=100_000, room=100_000)
    with serving(intake, limits=SLOW) as server:
        with server.socket() as slow:
            slow.sendall(HEAD + b"Content-Length: 100000\r\n\r\n" + bytes(10))
            answer: list[bytes] = []
            reader = threading.Thread(target=lambda: answer.append(slow.recv(4096)))
            reader.start()
            with contextlib.suppress(ConnectionError):
                while reader.is_alive():
                    slow.sendall(b"a")
                    time.sleep(0.005)
            reader.join()
        assert statuses(answer[0]) == [429]
        assert b"slow body" in answer[0]
        assert b"Retry-After: 1" in answer[0]


def test_slow_body_is_accepted_while_there_is_room() -> None:
    def slowly() -> Iterator[bytes]:
        for _ in range(10):
            yield b"a" * 10
            time.sleep(0.05)

    with serving(limits=HttpLimits(slow_s=0.1)) as server:
        assert server.post(slowly()).status == 200
        assert server.intake.bodies == [b"a" * 100]


def test_body_waiting_for_the_intake_is_not_treated_as_slow() -> None:
    intake = FakeIntake(max_body_bytes=1000, room=1000)
    with serving(intake, limits=HttpLimits(slow_s=0.05)) as server:
        release = server.hold()
        with server.socket() as connection:
            connection.sendall(
                HEAD + b"Content-Length: 1000\r\nConnection: close\r\n\r\n" + bytes(1000)
            )
            until(lambda: intake.waiting == 1)
            time.sleep(0.3)
            release()
            assert statuses(read_all(connection)) == [200]
