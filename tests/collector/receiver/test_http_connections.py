"""The limit of HTTP connections: idle ones give way, and the operational endpoints have places."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from cirron_otel.collector.receiver.consumer import Refused
from cirron_otel.collector.receiver.http import connections
from cirron_otel.collector.receiver.http.bodies import HttpLimits
from cirron_otel.collector.receiver.http.connections import OPERATION_PLACES

from .http_serving import PROTOBUF, Served, read_all, said, serving, statuses, traces, until

MOST = 3
ALL = MOST + OPERATION_PLACES
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"


def keep_alive(server: Served) -> http.client.HTTPConnection:
    """A client that has sent a batch and keeps its connection."""
    client = server.client()
    client.request("POST", "/v1/traces", traces(), {"Content-Type": PROTOBUF})
    assert said(client).status == 200
    return client


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection over which it has sent everything."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def silent(server: Served) -> socket.socket:
    return server.socket()


def partial(server: Served) -> socket.socket:
    connection = server.socket()
    connection.sendall(GET)
    return connection


def idle(server: Served) -> socket.socket:
    connection = keep_alive(server).sock
    assert isinstance(connection, socket.socket)
    return connection


@pytest.mark.parametrize("kind", [silent, partial, idle])
def test_connection_that_waits_gives_way_to_a_new_one(
    kind: Callable[[Served], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_SILENT_S", 0.0)
    refusals: list[Refused] = []
    limits = HttpLimits(connections=MOST)
    with serving(limits=limits, refused=refusals.append) as server, ExitStack() as stack:
        held = [stack.enter_context(kind(server)) for _ in range(ALL)]
        for _ in range(3):
            stack.enter_context(idle(server))
        assert server.ask("GET", "/health").status == 200
        until(lambda: all(is_closed(each) for each in held[:3]))
        assert {(each.reason, each.status) for each in refusals} == {("connections", "closed")}


def test_connection_that_has_waited_longest_is_closed_first() -> None:
    with serving(limits=HttpLimits(connections=MOST)) as server, ExitStack() as stack:
        clients = [keep_alive(server) for _ in range(ALL)]
        first, second, *_ = clients
        first.request("POST", "/v1/traces", traces(), {"Content-Type": PROTOBUF})
        assert said(first).status == 200
        assert server.ask("GET", "/health").status == 200
        for client in clients:
            stack.enter_context(client.sock)
        until(lambda: is_closed(second.sock))
        assert not is_closed(first.sock)


def test_operational_endpoints_answer_while_all_places_are_busy() -> None:
    refusals: list[Refused] = []
    with serving(limits=HttpLimits(connections=MOST), refused=refusals.append) as server:
        release = server.hold()
        clients = [server.client() for _ in range(MOST)]
        for client in clients:
            client.request("POST", "/v1/traces", traces(), {"Content-Type": PROTOBUF})
        until(lambda: server.intake.waiting == MOST)
        for path in ("/health", "/ready"):
            assert server.ask("GET", path).status == 200
        answer = server.post(traces())
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.headers["connection"] == "close"
        assert [(each.signal, each.reason, each.status) for each in refusals] == [
            ("traces", "connections", "503")
        ]
        release()
        assert [said(client).status for client in clients] == [200] * MOST


def test_connection_is_refused_if_none_waits() -> None:
    refusals: list[Refused] = []
    with serving(limits=HttpLimits(connections=1), refused=refusals.append) as server:
        release = server.hold()
        clients = [server.client() for _ in range(1 + OPERATION_PLACES)]
        for number, client in enumerate(clients):
            # Only the headers: the server waits for the body, and nothing is refused yet.
            client.putrequest("PUT" if number else "POST", "/v1/traces")
            client.putheader("Content-Type", PROTOBUF)
            client.putheader("Content-Length", "1")
            client.endheaders(b"x" if number == 0 else None)
            if number == 0:
                until(lambda: server.intake.waiting == 1)
        assert said(clients[1]).status == 503
        release()
        assert said(clients[0]).status == 200


@pytest.mark.parametrize("before", [b"", GET + b"\r\n"])
def test_headers_that_do_not_arrive_in_time_are_answered_with_408(before: bytes) -> None:
    """In the first request of a connection, or in a later one."""
    refusals: list[Refused] = []
    limits = HttpLimits(head_s=0.3)
    with serving(limits=limits, refused=refusals.append) as server, server.socket() as connection:
        if before:
            connection.sendall(before)
            assert statuses(connection.recv(4096)) == [200]
        connection.sendall(GET)
        assert statuses(read_all(connection)) == [408]
        assert [(each.reason, each.status) for each in refusals] == [("slow", "408")]


def test_limit_of_headers_does_not_apply_to_bodies_and_idle_times() -> None:
    with serving(limits=HttpLimits(head_s=0.2)) as server, server.socket() as connection:
        connection.sendall(
            b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
            b"Content-Length: 2\r\n\r\n\x0a"
        )
        connection.settimeout(0.6)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(60)
        connection.sendall(b"\x00")
        assert statuses(connection.recv(4096)) == [200]
        connection.settimeout(0.6)
        with pytest.raises(TimeoutError):
            connection.recv(1)


def test_rest_of_a_body_after_an_early_answer_does_not_begin_a_request() -> None:
    """The connection is idle afterwards, and takes another request."""
    refusals: list[Refused] = []
    limits = HttpLimits(head_s=0.3)
    with serving(limits=limits, refused=refusals.append) as server, server.socket() as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n")
        connection.sendall(bytes(10))
        assert statuses(connection.recv(4096)) == [404]
        connection.sendall(bytes(10))
        connection.settimeout(1.0)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(60)
        connection.sendall(GET + b"\r\n")
        assert statuses(connection.recv(4096)) == [200]
        assert [each.status for each in refusals] == ["404"]
        connection.sendall(GET)  # the headers of a later request are limited again
        assert statuses(read_all(connection)) == [408]
