"""Bearer tokens out of lists and files; TLS out of files; what is said where they are wrong."""

from __future__ import annotations

import logging
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.collector.receiver.auth import Tokens
from cirron_otel.collector.receiver.tls import reload_certificate, server_context
from cirron_otel.errors import UsageError
from tests.kit.servers.servers import Certificates, make_certificates

from .http_serving import serving, traces


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_token_file_is_reread_after_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    clock, file = Clock(), tmp_path / "tokens"
    file.write_text("# ours\n\n  first-secret  \nsecond-secret\n")
    tokens = Tokens(["given-secret"], file, clock=clock)

    def let_in() -> list[str]:
        clock.now += 2
        names = ("given", "first", "second", "third")
        return [name for name in names if tokens.allows(f"Bearer {name}-secret")]

    assert let_in() == ["given", "first", "second"]
    file.write_text("third-secret\nsecond-secret")
    assert let_in() == ["given", "second", "third"]
    new = tmp_path / "new"
    new.write_text("first-secret")
    new.replace(file)
    assert let_in() == ["given", "first"]

    for break_it in (file.unlink, lambda: file.write_text("\n"), lambda: file.write_text("a b")):
        caplog.clear()
        break_it()
        assert let_in() == ["given", "first"]
        assert warnings(caplog) == 1, "reported, once"
        assert let_in() == ["given", "first"]
        assert warnings(caplog) == 1
    file.write_text("second-secret")
    assert let_in() == ["given", "second"]
    assert "secret" not in caplog.text
    assert "secret" not in repr(tokens) + repr(vars(tokens))


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.name.startswith("cirron_otel") for record in caplog.records)


def test_the_file_is_looked_at_once_a_second(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "tokens"
    file.write_text("one")
    tokens = Tokens(file=file, clock=clock)
    file.write_text("other")
    assert tokens.allows("Bearer one")
    clock.now += 1
    assert not tokens.allows("Bearer one")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "contains no token"),
        (b"# a\n", "contains no token"),
        (b"se same", "spaces"),
        (b"\xff\xfe", "non-ASCII"),
        (b"x" * 2_000_000, "larger than 1 MiB"),
    ],
)
def test_invalid_token_file_is_a_usage_error(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    file = tmp_path / "tokens"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=words) as raised:
        Tokens(file=file)
    assert str(file) in str(raised.value)
    assert "same" not in str(raised.value)


@pytest.mark.parametrize("tokens", [[], [""], ["a b"], ["é"], ["a\n"]])
def test_invalid_tokens_are_a_usage_error(tokens: list[str]) -> None:
    with pytest.raises(UsageError):
        Tokens(tokens)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = make_certificates(tmp_path_factory.mktemp("certificates"))
    for name in ("server", "client"):
        words = f"ec -in {name}.key -aes128 -passout pass:sesame -out {name}-locked.key"
        subprocess.run(
            ["openssl", *words.split()],
            cwd=made.folder,
            check=True,
            capture_output=True,
        )
    return made


def trusting(certificates: Certificates, client: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.path("ca.pem"))
    if client is not None:
        context.load_cert_chain(
            certificates.path(f"{client}.pem"), certificates.path(f"{client}.key")
        )
    return context


def of_server(certificates: Certificates, **more: Path) -> ssl.SSLContext:
    folder = certificates.folder
    return server_context(folder / "server.pem", folder / "server.key", **more)


def test_tls(certificates: Certificates) -> None:
    with serving(tls=of_server(certificates)) as server:
        tls = trusting(certificates)
        headers = {"Content-Type": "application/x-protobuf"}
        assert server.ask("POST", "/v1/traces", traces(), headers, tls).status == 200
        assert server.raw(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n") == b"", "no plain HTTP"
        assert len(server.intake.requests) == 1


def test_mutual_tls(certificates: Certificates) -> None:
    ca = certificates.folder / "ca.pem"
    with serving(tls=of_server(certificates, client_ca=ca)) as server:
        assert server.ask("GET", "/health", tls=trusting(certificates, "client")).status == 200
        with pytest.raises((ssl.SSLError, ConnectionError)):
            server.ask("GET", "/health", tls=trusting(certificates))


def test_another_certificate_while_it_runs(certificates: Certificates, tmp_path: Path) -> None:
    context = of_server(certificates)
    with serving(tls=context) as server:
        folder = certificates.folder
        with pytest.raises(UsageError, match="does not belong"):
            reload_certificate(context, folder / "client.pem", folder / "server.key")
        assert subject(server.port, certificates) == "server"
        reload_certificate(context, folder / "client.pem", folder / "client.key")
        assert subject(server.port, certificates) == "client"


def subject(port: int, certificates: Certificates) -> str:
    context = trusting(certificates)
    with (
        socket.create_connection(("127.0.0.1", port), 60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
    ):
        found: Any = tls.getpeercert()
        return str(dict(pair for part in found["subject"] for pair in part)["commonName"])


@pytest.mark.parametrize(
    ("certificate", "key", "ca", "words"),
    [
        ("missing.pem", "server.key", None, "certificate .*missing.pem cannot be read: No such"),
        ("server.pem", "missing.key", None, "key .*missing.key cannot be read"),
        ("server.pem", "server.key", "missing.pem", "client CA .*missing.pem cannot be read"),
        (".", "server.key", None, "cannot be read: Is a directory"),
        ("server.pem", "client.key", None, "key .*client.key does not belong to .*server.pem"),
        ("server.key", "server.key", None, "must be PEM"),
        ("server.pem", "server.pem", None, "must be PEM"),
        ("names", "server.key", None, "must be PEM"),
        ("server.pem", "server-locked.key", None, "without a password"),
        ("server.pem", "server.key", "names", "client CA .*names contains no certificate"),
    ],
)
def test_files_that_tls_cannot_use(
    certificates: Certificates, certificate: str, key: str, ca: str | None, words: str
) -> None:
    folder = certificates.folder
    with pytest.raises(UsageError, match=words):
        server_context(folder / certificate, folder / key, folder / ca if ca else None)
