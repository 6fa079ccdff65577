"""Headers that are kept with a request: one rule for both transports, over real connections."""

from __future__ import annotations

import http.client
from typing import Any

import grpc.aio
import pytest

from cirron_otel.collector.receiver.auth import Tokens
from cirron_otel.collector.receiver.headers import LONGEST_VALUE, NEVER_KEPT

from .fake_intake import FakeIntake
from .grpc_clients import Server, against_server
from .http_serving import PROTOBUF, serving, traces

TENANT, WORKSPACE = "x-scope-orgid", "x-cirron-workspace-id"
ANY = "x" * LONGEST_VALUE

TAKEN: list[tuple[list[tuple[str, str]], dict[str, str]]] = [
    ([], {}),
    ([(TENANT, "a")], {TENANT: "a"}),
    ([(TENANT, "a b,c|d")], {TENANT: "a b,c|d"}),
    ([(TENANT, "  a  ")], {TENANT: "a"}),
    ([(TENANT, ANY)], {TENANT: ANY}),
    ([(TENANT, "a"), (WORKSPACE, "a"), ("x-other", "")], {TENANT: "a", WORKSPACE: "a"}),
    ([("x-other", "1"), ("x-other", "2")], {}),
]
REFUSED: list[list[tuple[str, str]]] = [
    [(TENANT, "")],
    [(TENANT, "   ")],
    [(TENANT, "a"), (TENANT, "b")],
    [(TENANT, "a"), (TENANT, "a")],
    [(WORKSPACE, "a"), (TENANT, "a"), (WORKSPACE, "b")],
    [(TENANT, ANY + "x")],
    [(TENANT, "x" * 7000)],
]


def over_http(headers: list[tuple[str, str]], **options: Any) -> tuple[int, FakeIntake]:
    with serving(**options) as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        body = traces()
        client.putrequest("POST", "/v1/traces")
        for name, value in [("Content-Type", PROTOBUF), ("Content-Length", str(len(body)))]:
            client.putheader(name, value)
        for name, value in headers:
            client.putheader(name, value)
        client.endheaders(body)
        status = client.getresponse().status
        client.close()
        return status, server.intake


def over_grpc(headers: list[tuple[str, str]], **options: Any) -> tuple[str, FakeIntake]:
    told: list[str] = []

    async def test(server: Server, intake: FakeIntake) -> None:
        try:
            await server.send(traces(), metadata=headers)
            told.append("OK")
        except grpc.aio.AioRpcError as error:
            told.append(error.code().name)

    intake = against_server(test, **options)
    return told[0], intake


@pytest.mark.parametrize(("sent", "kept"), TAKEN)
def test_both_transports_keep_the_same(sent: list[tuple[str, str]], kept: dict[str, str]) -> None:
    status, intake = over_http(sent)
    assert (status, [request.headers for request in intake.requests]) == (200, [kept])
    code, intake = over_grpc(sent)
    assert (code, [request.headers for request in intake.requests]) == ("OK", [kept])


@pytest.mark.parametrize("sent", REFUSED)
def test_both_transports_refuse_the_same(sent: list[tuple[str, str]]) -> None:
    status, intake = over_http(sent)
    assert (status, intake.requests) == (400, [])
    code, intake = over_grpc(sent)
    assert (code, intake.requests) == ("INVALID_ARGUMENT", [])


@pytest.mark.parametrize("value", ["a\tb", "caf\xe9", "a\x7f", "a\x01b"], ids=ascii)
def test_other_characters_are_refused(value: str) -> None:
    """Over HTTP alone: a client of gRPC cannot send them."""
    status, intake = over_http([(TENANT, value)])
    assert (status, intake.requests) == (400, [])


def test_names_are_in_any_case_over_http() -> None:
    status, intake = over_http([("X-Scope-ORGID", "a")])
    assert (status, [request.headers for request in intake.requests]) == (200, [{TENANT: "a"}])
    status, intake = over_http([(TENANT, "a"), (TENANT.upper(), "a")])
    assert (status, intake.requests) == (400, [])


@pytest.mark.parametrize("name", sorted(NEVER_KEPT))
def test_credentials_are_never_stored(name: str) -> None:
    """Not even if the configuration names them."""
    headers, kept = [(name, "s3cret"), ("x-any", "1")], {"x-any": "1"}
    with serving() as server:
        server.receiver.pass_on([name.title(), "X-Any"])
        sent = {"Content-Type": PROTOBUF} | dict(headers)
        assert server.ask("POST", "/v1/traces", traces(), sent).status == 200
        assert [request.headers for request in server.intake.requests] == [kept]

    async def test(server: Server, intake: FakeIntake) -> None:
        server.receiver.pass_on([name.title(), "X-Any"])
        await server.send(traces(), metadata=headers)

    assert [request.headers for request in against_server(test).requests] == [kept]


@pytest.mark.parametrize(
    "sent", [["Bearer right", "Bearer wrong"], ["Bearer wrong", "Bearer right"]]
)
def test_a_repeated_authorization_is_refused(sent: list[str]) -> None:
    headers = [("authorization", value) for value in sent]
    auth = Tokens(["right"])
    assert over_http(headers, auth=auth)[0] == 401
    assert over_grpc(headers, auth=auth)[0] == "UNAUTHENTICATED"
    assert over_http(headers[:1], auth=auth)[0] == (200 if "right" in sent[0] else 401)


def test_non_text_metadata_bytes_are_refused_over_grpc() -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        server.receiver.pass_on(["X-Any-Bin"])
        refusal = await server.refusal(b"", metadata=[("x-any-bin", b"\xff")])
        assert refusal.code == "INVALID_ARGUMENT"

    assert against_server(test).requests == []
