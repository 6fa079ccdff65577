"""Batches to the platform: what a request looks like, and what each answer means."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from pathlib import Path

import pytest

from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.delivery.errors import (
    MisconfiguredError,
    RefusedError,
    StoppedError,
    UnreachableError,
)
from cirron_otel.core.spool.paths import file_name
from cirron_otel.core.targets.cirron.batches import CirronTarget
from cirron_otel.errors import UsageError
from tests.kit.servers.cirron_server import CirronServer, Fault
from tests.kit.servers.servers import Answer, Certificates, http_receiver
from tests.kit.spools.deliveries import KEY, batch_of, cirron_target


def sealed(number: int = 1) -> SealedBatch:
    batch = batch_of(f"{number:032x}", 10**18 + number, number)
    return SealedBatch(file_name(10**18 + number, f"{number:032x}"), json.dumps(batch).encode())


def test_batch_is_sent_as_the_contract_specifies() -> None:
    with CirronServer().running() as server:
        target = cirron_target(server.url, "0.3.0+cirron-otel.9")
        first, second = sealed(1), sealed(2)
        target.send([first])
        target.send([second])
        target.close()
    one, two = server.posts()
    assert one.path == "/v1/traces"
    assert one.batch == json.loads(first.data)
    assert two.batch == json.loads(second.data)
    assert {
        "authorization": f"Bearer {KEY}",
        "content-type": "application/json",
        "content-encoding": "gzip",
        "x-cirron-sdk-version": "0.3.0+cirron-otel.9",
        "x-cirron-batch-id": f"{1:032x}",
    }.items() <= one.headers.items()


def test_connection_is_reused_and_reopened_when_lost() -> None:
    server = CirronServer()
    with server.running():
        target = cirron_target(server.url)
        target.send([sealed(1)])
        kept = target._client._connection
        target.send([sealed(2)])
        assert target._client._connection is kept
        server.faults = [Fault(202, {"Connection": "close"})]
        target.send([sealed(3)])
        target.send([sealed(4)])
    with server.running(server.port):
        target.send([sealed(5)])  # the kept connection died with the server
        target.close()
    assert len(server.posts()) == 5


@pytest.mark.parametrize("status", [400, 413, 422])
def test_permanent_rejection_raises_refused_error(status: int) -> None:
    with CirronServer().running() as server:
        server.faults = [Fault(status, body=b'{"message":"no good"}')]
        with pytest.raises(RefusedError, match=rf"{status} .*\(no good\)"):
            cirron_target(server.url).send([sealed()])


@pytest.mark.parametrize("status", [401, 403, 404, 405, 301, 307, 409])
def test_status_suggesting_wrong_configuration_raises_misconfigured_error(status: int) -> None:
    with CirronServer().running() as server:
        server.faults = [Fault(status, {"Location": server.url + "/elsewhere"})]
        with pytest.raises(MisconfiguredError, match=str(status)):
            cirron_target(server.url).send([sealed()])
        assert len(server.requests) == 1  # no redirect is followed: the key would go with it


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_temporary_failure_raises_unreachable_error_with_retry_after(status: int) -> None:
    with CirronServer().running() as server:
        server.faults = [Fault(status, {"Retry-After": "7"})]
        with pytest.raises(UnreachableError, match=str(status)) as caught:
            cirron_target(server.url).send([sealed()])
    assert not isinstance(caught.value, MisconfiguredError)
    assert caught.value.retry_after == 7


def test_retry_after_may_be_a_date() -> None:
    with CirronServer().running() as server:
        server.faults = [Fault(429, {"Retry-After": formatdate(time.time() + 3000, usegmt=True)})]
        with pytest.raises(UnreachableError) as caught:
            cirron_target(server.url).send([sealed()])
    assert caught.value.retry_after is not None
    assert 2000 < caught.value.retry_after <= 3000


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault(raw=b"\x00\x01garbage\r\n\r\n"), "not HTTP"),
        (Fault(raw=b"HTTP/1.1 abc\r\n\r\n"), "not HTTP"),
        (Fault(raw=b""), "no answer"),
        (Fault(is_lost=True), "no answer"),
    ],
)
def test_garbage(fault: Fault, says: str) -> None:
    with CirronServer().running() as server:
        server.faults = [fault]
        target = cirron_target(server.url)
        with pytest.raises(UnreachableError, match=says):
            target.send([sealed(1)])
        target.send([sealed(2)])
        assert server.accepted[-1] == f"{2:032x}"


def test_success_status_is_acceptance_regardless_of_the_body() -> None:
    with CirronServer().running() as server:
        target = cirron_target(server.url)
        server.faults = [
            Fault(200),
            Fault(202, body=b"x" * 1_000_000),
            Fault(204),
            Fault(raw=b"HTTP/1.1 202 Accepted\r\nContent-Length: 50\r\n\r\ncut"),
            Fault(raw=b"HTTP/1.1 202 Accepted\r\nContent-"),
        ]
        for number in range(5):
            target.send([sealed(number + 1)])
        assert len(server.posts()) == 5


def test_web_page_is_not_an_acceptance() -> None:
    with CirronServer().running() as server:
        page = {"Content-Type": "text/html; charset=utf-8"}
        server.faults = [Fault(200, page, b"<html>log in"), Fault(502, page, b"<html>bad gateway")]
        target = cirron_target(server.url)
        with pytest.raises(MisconfiguredError, match="web page"):
            target.send([sealed()])
        with pytest.raises(UnreachableError, match="502") as caught:
            target.send([sealed()])
        assert not isinstance(caught.value, MisconfiguredError)


@contextmanager
def dripping() -> Iterator[int]:
    """A server whose headers never end."""
    over = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 202 Accepted\r\n")
            while not over.wait(0.02):
                connection.sendall(b"X-A: b\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            thread.join()


def test_slow_answers_end_at_the_timeout() -> None:
    """Also where something keeps coming: the timeout is for the whole answer."""
    with CirronServer().running() as server:
        held = threading.Event()
        server.faults = [Fault(hold=held)]
        with pytest.raises(UnreachableError, match="timed out"):
            cirron_target(server.url, timeout=0.2).send([sealed()])
        held.set()

    with dripping() as port, pytest.raises(UnreachableError, match="timed out"):
        cirron_target(f"http://127.0.0.1:{port}", timeout=0.3).send([sealed()])


def test_an_attempt_can_be_broken_off() -> None:
    with CirronServer().running() as server:
        held = threading.Event()
        server.faults = [Fault(hold=held)]
        target = cirron_target(server.url, timeout=3600)
        timer = threading.Timer(0.2, target.interrupt)
        timer.start()
        with pytest.raises(StoppedError):
            target.send([sealed()])
        held.set()
        timer.join()
        with pytest.raises(StoppedError):
            target.send([sealed()])
        assert len(server.requests) == 1


def test_tls_is_verified(certificates: Certificates) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.path("server.pem"), certificates.path("server.key"))
    with http_receiver(*[Answer(202)] * 3, tls=context) as server:
        url = f"https://127.0.0.1:{server.port}"
        refused = r"no TLS connection \(.*\); check SSL_CERT_FILE"
        with pytest.raises(MisconfiguredError, match=refused):
            cirron_target(url).send([sealed()])
        assert server.posts == []
        target = cirron_target(url, certificate=certificates.path("ca.pem"))
        target.send([sealed()])
        target.send([sealed()])
        target.close()
        assert [post.path for post in server.posts] == ["/v1/traces"] * 2
    with CirronServer().running() as plain, pytest.raises(UnreachableError):
        cirron_target(plain.url.replace("http:", "https:")).send([sealed()])


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with CirronServer().running() as proxy:
        monkeypatch.setenv("http_proxy", f"http://user:p%40ss@127.0.0.1:{proxy.port}")
        target = CirronTarget("http://platform.test/base/", "/v1/traces", KEY, "v")
        target.send([sealed()])
        (post,) = proxy.posts()
        assert post.path == "http://platform.test/base/v1/traces"
        assert post.headers["host"] == "platform.test"
        assert post.headers["proxy-authorization"] == "Basic dXNlcjpwQHNz"
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with CirronServer().running() as server:
            cirron_target(server.url).send([sealed()])
            assert len(server.posts()) == 1
        monkeypatch.setenv("http_proxy", "ftp://127.0.0.1:1")
        with pytest.raises(MisconfiguredError, match="http_proxy"):
            CirronTarget("http://platform.test", "/v1/traces", KEY, "v").send([sealed()])


@pytest.mark.parametrize(
    ("endpoint", "path", "key"),
    [
        ("ftp://x", "/v1/traces", KEY),
        ("https://", "/v1/traces", KEY),
        ("https://user:word@host", "/v1/traces", KEY),
        ("https://host?a=b", "/v1/traces", KEY),
        ("https://host\r\nX: y", "/v1/traces", KEY),
        ("https://host:99999", "/v1/traces", KEY),
        ("https://host", "v1/traces", KEY),
        ("https://host", "/v1/traces?x", KEY),
        ("https://host", "/v1 traces", KEY),
        ("https://host", "/v1/traces", ""),
        ("https://host", "/v1/traces", "key\nX-Other: 1"),
        ("https://host", "/v1/traces", "kéy"),
    ],
)
def test_invalid_endpoint_path_or_key_is_a_usage_error(endpoint: str, path: str, key: str) -> None:
    with pytest.raises(UsageError) as caught:
        CirronTarget(endpoint, path, key, "v")
    assert not key or key not in str(caught.value)
    assert "word" not in str(caught.value)


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing"):
        CirronTarget("https://h", "/p", KEY, "v", certificate=str(tmp_path / "missing.pem"))


def test_the_key_is_nowhere_to_be_read(caplog: pytest.LogCaptureFixture) -> None:
    """Though the server repeats it in each of its answers."""
    caplog.set_level(logging.DEBUG)
    texts = []
    with CirronServer().running() as server:
        target = cirron_target(server.url)
        echo = json.dumps({"error": f"bad Bearer {KEY}"}).encode()
        server.faults = [Fault(status, body=echo) for status in (400, 401, 429, 500)]
        for _ in range(4):
            with pytest.raises((RefusedError, UnreachableError)) as caught:
                target.send([sealed()])
            texts.append(str(caught.value) + repr(caught.value))
    texts += [repr(target), target.shown, target.key, caplog.text]
    assert not any(KEY in text for text in texts)
    assert "***" in texts[0]


def test_a_key_over_an_unencrypted_line_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    CirronTarget("http://platform.test", "/v1/traces", KEY, "v")
    assert "is not encrypted" in caplog.text


def test_the_identity_of_a_target_does_not_depend_on_the_key() -> None:
    one = CirronTarget("https://h/", "/v1/traces", KEY, "v")
    other = CirronTarget("https://h", "/v1/traces/", "another", "w")
    assert one.key == other.key
    assert one.key != CirronTarget("https://h", "/api/traces", KEY, "v").key
