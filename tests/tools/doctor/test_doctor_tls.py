"""`doctor` and TLS: certificates that the test makes, each with another fault."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from cirron_otel.tools.doctor.check import Check
from tests.kit.servers.servers import (
    Certificates,
    grpc_receiver,
    http_receiver,
    make_certificates,
)

from .test_doctor_endpoint import (
    ENDPOINT,
    HTTP,
    checked,
    last,
)

CA = "OTEL_EXPORTER_OTLP_CERTIFICATE"
CLIENT, KEY = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_KEY"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A CA with certificates for a server and a client, and with `expired`, `soon` and `other`."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command, which makes the certificates, is not installed")
    folder = tmp_path_factory.mktemp("certificates")
    found = make_certificates(folder)
    (folder / "others").write_text("subjectAltName=DNS:elsewhere.example")
    for name, days, names in (
        ("expired", "-1", "names"),
        ("soon", "3", "names"),
        ("other", "30", "others"),
    ):
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", names)
        subprocess.run(
            ["openssl", "x509", "-req", "-in", "server.csr", "-out", f"{name}.pem",
             "-days", days, *signed],
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
    return found


def context(certificates: Certificates, name: str, *, wants_client: bool = False) -> ssl.SSLContext:
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(certificates.path(f"{name}.pem"), certificates.path("server.key"))
    if wants_client:
        found.verify_mode = ssl.CERT_REQUIRED
        found.load_verify_locations(certificates.path("ca.pem"))
    return found


@contextlib.contextmanager
def secure(
    certificates: Certificates, name: str = "server", *, wants_client: bool = False
) -> Iterator[str]:
    tls = context(certificates, name, wants_client=wants_client)
    with http_receiver(tls=tls) as receiver:
        yield f"https://127.0.0.1:{receiver.port}"


@contextlib.contextmanager
def secure_grpc(certificates: Certificates, *, wants_client: bool = False) -> Iterator[str]:
    pair = [(certificates.read("server.key"), certificates.read("server.pem"))]
    root = certificates.read("ca.pem") if wants_client else None
    credentials = grpc.ssl_server_credentials(pair, root, wants_client)
    with grpc_receiver(credentials=credentials) as receiver:
        yield f"https://127.0.0.1:{receiver.port}"


def failing(environ: dict[str, str]) -> Check:
    check = last(checked(environ))
    assert (check.name, check.state, check.is_endpoint) == ("otlp tls", "failed", True)
    return check


def test_a_trusted_certificate(certificates: Certificates) -> None:
    ours = {CA: certificates.path("ca.pem")}
    with secure(certificates) as http, secure_grpc(certificates) as server:
        found = [checked({**HTTP, **ours, ENDPOINT: http}), checked({**ours, ENDPOINT: server})]
    for each in found:
        assert {str(check.state) for check in each.values()} == {"ok"}
        assert "a trusted certificate until" in each["otlp tls"].found
        assert last(each).name == "otlp span"


def test_the_cas_of_the_http_library_are_trusted(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificates.path("ca.pem"))
    with secure(certificates) as place:
        found = checked({**HTTP, ENDPOINT: place})
    assert "a trusted certificate until" in found["otlp tls"].found
    assert {str(check.state) for check in found.values()} == {"ok"}


@pytest.mark.parametrize("protocol", [HTTP, {}])
def test_a_ca_that_is_not_known(
    certificates: Certificates, protocol: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"):
        monkeypatch.delenv(name, raising=False)
    with secure(certificates) if protocol else secure_grpc(certificates) as place:
        check = failing({**protocol, ENDPOINT: place})
    assert "an unknown CA; the trusted CAs are " in check.found
    assert check.advice == f"set {CA} to a file with the certificate of its CA"


def test_an_expired_certificate(certificates: Certificates) -> None:
    with secure(certificates, "expired") as place:
        check = failing({**HTTP, CA: certificates.path("ca.pem"), ENDPOINT: place})
    assert "has expired" in check.found


def test_a_certificate_that_expires_soon(certificates: Certificates) -> None:
    with secure(certificates, "soon") as place:
        found = checked({**HTTP, CA: certificates.path("ca.pem"), ENDPOINT: place})
    assert found["otlp tls"].state == "warning"
    assert "renew it" in found["otlp tls"].advice
    assert last(found).state == "ok"


def test_a_certificate_for_another_name(certificates: Certificates) -> None:
    with secure(certificates, "other") as place:
        check = failing({**HTTP, CA: certificates.path("ca.pem"), ENDPOINT: place})
    assert "is for another name" in check.found


@pytest.mark.parametrize("protocol", [HTTP, {}])
def test_a_client_certificate_is_wanted(
    certificates: Certificates, protocol: dict[str, str]
) -> None:
    ours = {**protocol, CA: certificates.path("ca.pem")}
    pair = {CLIENT: certificates.path("client.pem"), KEY: certificates.path("client.key")}
    served = (
        secure(certificates, wants_client=True)
        if protocol
        else secure_grpc(certificates, wants_client=True)
    )
    with served as place:
        without = failing({**ours, ENDPOINT: place})
        found = checked({**ours, **pair, ENDPOINT: place})
    assert "requires a client certificate" in without.found
    assert without.advice.startswith(f"set {CLIENT}")
    assert last(found).state == "ok"


def test_a_client_certificate_that_is_not_trusted(
    certificates: Certificates, tmp_path: Path
) -> None:
    strange = make_certificates(tmp_path)
    pair = {CLIENT: strange.path("client.pem"), KEY: strange.path("client.key")}
    with secure(certificates, wants_client=True) as place:
        check = failing({**HTTP, **pair, CA: certificates.path("ca.pem"), ENDPOINT: place})
    assert "does not accept our client certificate" in check.found
    assert CLIENT in check.advice


@pytest.mark.parametrize("protocol", [HTTP, {}])
def test_https_to_a_plaintext_endpoint_is_reported(protocol: dict[str, str]) -> None:
    with http_receiver() as http, grpc_receiver() as other:
        port = http.port if protocol else other.port
        check = failing({**protocol, ENDPOINT: f"https://127.0.0.1:{port}"})
    assert "does not speak TLS" in check.found
    assert f"use http:// in {ENDPOINT}" in check.advice


@pytest.mark.parametrize("protocol", [HTTP, {}])
def test_http_to_a_tls_endpoint_is_reported(
    certificates: Certificates, protocol: dict[str, str]
) -> None:
    with secure(certificates) if protocol else secure_grpc(certificates) as place:
        check = last(checked({**protocol, ENDPOINT: place.replace("https", "http")}))
    assert (check.name, check.is_endpoint) == ("otlp protocol", True)
    assert "speaks TLS" in check.found
    assert check.advice == f"use https:// in {ENDPOINT}"


def test_files_that_hold_no_certificates(certificates: Certificates, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    with secure(certificates) as place:
        for name in ("empty.pem", "missing.pem"):
            check = failing({**HTTP, CA: str(tmp_path / name), ENDPOINT: place})
            assert "the certificates cannot be used" in check.found
            assert CA in check.advice
