"""Settings of the environment that requests over OTLP and to query APIs use.

They are those of the library `requests`, which sent these requests in earlier versions.
"""

from __future__ import annotations

import gzip
import ssl
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.delivery.errors import RefusedError, UnreachableError
from cirron_otel.core.http.session import HttpSession, prepared_url
from cirron_otel.errors import EndpointError, UsageError
from cirron_otel.tools.query.address import HEADERS_VARIABLE, parse_address
from cirron_otel.tools.query.client import QueryClient
from tests.kit.servers.servers import (
    Answer,
    Certificates,
    HttpReceiver,
    Post,
    http_receiver,
    traces,
)
from tests.tools.query.serving import Said, serving

from .http_pushes import push

CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in (*CA_VARIABLES, "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def tls_server(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.path("server.pem"), certificates.path("server.key"))
    return context


def as_https(server: HttpReceiver) -> str:
    return server.url.replace("http:", "https:")


def sent(url: str, headers: dict[str, str] | None = None, **options: Any) -> Post:
    """Return what a server receives that is addressed by `url`, in which PORT is its port."""
    with http_receiver() as server:
        session = HttpSession(url.replace("PORT", str(server.port)), **options)
        session.request("POST", "", headers or {}, b"abc", timeout=20)
        session.close()
        return server.posts[0]


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_a_bundle_of_certificates(
    variable: str,
    is_folder: bool,
    certificates: Certificates,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = Path(certificates.path("ca.pem"))
    if is_folder:
        command = ["openssl", "x509", "-hash", "-noout", "-in", str(bundle)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        (tmp_path / f"{done.stdout.strip()}.0").write_bytes(bundle.read_bytes())
        bundle = tmp_path
    with http_receiver(tls=tls_server(certificates)) as server:
        with pytest.raises(RefusedError, match="certificate verify failed"):
            push(server, traces(1), endpoint=as_https(server))
        monkeypatch.setenv(variable, str(bundle))
        assert push(server, traces(1), endpoint=as_https(server)).accepted_spans == 1
    assert len(server.posts) == 1


def test_the_bundles_and_their_order(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's variable is not used, and the more specific variables take precedence."""
    ca, other = certificates.path("ca.pem"), certificates.path("client.pem")
    with http_receiver(tls=tls_server(certificates)) as server:
        https = {"endpoint": as_https(server)}
        monkeypatch.setenv("SSL_CERT_FILE", ca)
        with pytest.raises(RefusedError, match="no TLS connection"):
            push(server, traces(1), **https)
        monkeypatch.setenv("CURL_CA_BUNDLE", other)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", ca)
        push(server, traces(1), **https)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", other)
        with pytest.raises(RefusedError, match="no TLS connection"):
            push(server, traces(1), **https)
        push(server, traces(1), certificate=ca, **https)


def test_a_missing_bundle(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "missing.pem"))
    with http_receiver(tls=tls_server(certificates)) as server:
        with pytest.raises(UsageError, match="nothing that TLS can use: No such file"):
            push(server, traces(1), endpoint=as_https(server))
        address = parse_address(f"tempo:https://127.0.0.1:{server.port}?session=x", {})
        with (
            QueryClient(address) as client,
            pytest.raises(EndpointError, match="REQUESTS_CA_BUNDLE"),
        ):
            client.get("/api/echo")


def test_a_query_over_tls(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    with http_receiver(tls=tls_server(certificates)) as server:
        address = parse_address(f"tempo:https://127.0.0.1:{server.port}?session=x", {})
        with QueryClient(address) as client, pytest.raises(EndpointError) as caught:
            client.get("/api/echo")
        assert "no TLS connection" in str(caught.value)
        assert "certificate verify failed" in str(caught.value).lower()
        assert "REQUESTS_CA_BUNDLE" in str(caught.value)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificates.path("ca.pem"))
        with QueryClient(address) as client, pytest.raises(EndpointError, match="answered 501"):
            client.get("/api/echo")  # the server accepts no GET


def test_an_encrypted_key_is_not_asked_for(certificates: Certificates, tmp_path: Path) -> None:
    key = tmp_path / "encrypted.key"
    command = ["openssl", "pkcs8", "-topk8", "-in", certificates.path("client.key"), "-out"]
    subprocess.run([*command, str(key), "-passout", "pass:secret"], check=True, capture_output=True)
    files = {
        "certificate": certificates.path("ca.pem"),
        "client_certificate": certificates.path("client.pem"),
        "client_key": str(key),
    }
    with (
        http_receiver(tls=tls_server(certificates)) as server,
        pytest.raises(RefusedError, match=r"no TLS connection .*key is encrypted"),
    ):
        push(server, traces(1), endpoint=as_https(server), **files)


def test_certificates_are_read_for_each_connection(
    certificates: Certificates, tmp_path: Path
) -> None:
    """A long training run outlives short-lived certificates."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(certificates.read("ca.pem"))
    close = {"Connection": "close"}
    with http_receiver(Answer(headers=close), tls=tls_server(certificates)) as server:
        session = HttpSession(as_https(server), certificate=str(ca))
        session.request("POST", "", {}, b"x", timeout=20)
        ca.write_bytes(certificates.read("client.pem"))
        with pytest.raises(ssl.SSLError):
            session.request("POST", "", {}, b"x", timeout=20)


def test_the_login_of_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://user:p%40ss@localhost:PORT/"
    assert sent(url).headers["authorization"] == "Basic dXNlcjpwQHNz"
    (tmp_path / "_netrc").write_text("machine localhost login under password score\n")
    assert sent(url).headers["authorization"] == "Basic dW5kZXI6c2NvcmU="
    (tmp_path / ".netrc").write_text("machine localhost login me password öther\n")
    assert sent(url).headers["authorization"] == "Basic bWU69nRoZXI="  # in Latin-1
    assert sent(url.replace("localhost", "127.0.0.1")).headers["authorization"].endswith("QHNz")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("machine localhost login a password b\n")
    monkeypatch.setenv("NETRC", str(elsewhere))
    assert sent(url).headers["authorization"] == "Basic YTpi"
    elsewhere.write_text("machine localhost login")
    assert sent(url).headers["authorization"] == "Basic dXNlcjpwQHNz"
    assert "authorization" not in sent("http://localhost:PORT/").headers
    monkeypatch.setenv("NETRC", "")
    assert "authorization" not in sent("http://localhost:PORT/").headers
    assert "authorization" not in sent(url, finds_login=False).headers


def test_a_query_uses_no_netrc(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password other\n")
    with serving(lambda *_: Said()) as served:
        for variables in ({}, {HEADERS_VARIABLE: "authorization=Bearer%20x"}):
            with QueryClient(parse_address(f"tempo:{served.url}?session=x", variables)) as client:
                client.get("/api/echo")
    assert [headers.get("authorization") for _, headers in served.asked] == [None, "Bearer x"]


def test_cookies_are_returned() -> None:
    cookies = Answer(headers={"Set-Cookie": "sticky=abc; Path=/v1"})
    with http_receiver(cookies) as server:
        session = HttpSession(server.url)
        for headers in ({}, {}, {"cookie": "mine=1"}):
            session.request("POST", "", headers, b"x", timeout=20)
        session.request("POST", "/../../other", {}, b"x", timeout=20)
    assert [post.headers.get("cookie") for post in server.posts] == [
        None, "sticky=abc", "mine=1", None
    ]  # fmt: skip


def test_the_headers_of_a_request() -> None:
    plain = sent("http://127.0.0.1:PORT/")
    port = plain.headers["host"].rpartition(":")[2]
    assert plain.headers == {
        "host": f"127.0.0.1:{port}",
        "user-agent": "",
        "accept-encoding": "gzip, deflate",
        "accept": "*/*",
        "connection": "keep-alive",
        "content-length": "3",
    }
    own = {"ACCEPT": "a/b", "host": "other", "content-length": "7", "x": "é"}
    headers = sent("http://127.0.0.1:PORT/", own).headers
    assert (headers["accept"], headers["host"]) == ("a/b", "other")
    assert (headers["content-length"], headers["x"]) == ("3", "é")


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("http://h", "h", ""),
        (" http://H:80/v1/traces?a=b#c", "h", "/v1/traces?a=b"),
        ("http://h/a b/%41%7e%2f?x=é y", "h", "/a%20b/A~%2F?x=%C3%A9%20y"),
        ("http://h/a/../b//c%zz", "h", "/b//c%25zz"),
        ("http://bücher.example/", "xn--bcher-kva.example", "/"),
        ("http://[::1]:4318/", "::1", "/"),
    ],
)
def test_urls_are_prepared_as_requests_prepares_them(url: str, host: str, path: str) -> None:
    from requests import Request

    prepared = prepared_url(url)
    assert (prepared.hostname, prepared._replace(scheme="", netloc="").geturl().split("#")[0]) == (
        host,
        path,
    )
    library = Request("POST", url).prepare()
    assert library.path_url == (path or "/")


@pytest.mark.parametrize("url", ["ftp://h", "h:80", "http://", "http://h:x", "http:"])
def test_urls_that_cannot_be_used(url: str) -> None:
    with http_receiver() as server, pytest.raises(UsageError, match="_ENDPOINT"):
        push(server, traces(1), endpoint=url)


def test_a_proxy_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_receiver() as proxy, http_receiver() as server:
        monkeypatch.setenv("all_proxy", f"http://us%C3%A9r:p%40ss@127.0.0.1:{proxy.port}")
        url = server.url.replace("//", "//user:pass@") + "?key=a"
        push(server, traces(1), endpoint=url)
        (post,) = proxy.posts
        assert post.path == f"{server.url}?key=a"
        assert post.headers["proxy-authorization"] == "Basic dXPpcjpwQHNz"  # in Latin-1
        assert post.headers["authorization"] == "Basic dXNlcjpwYXNz"
        monkeypatch.setenv("no_proxy", "127.0.0.0/8")
        push(server, traces(1))
        assert (len(proxy.posts), len(server.posts)) == (1, 1)


def test_a_proxy_of_no_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "ftp://user:s3cret@127.0.0.1:1")
    with http_receiver() as server:
        with pytest.raises(UsageError, match="http_proxy") as caught:
            push(server, traces(1))
        address = parse_address(f"tempo:http://127.0.0.1:{server.port}?session=x", {})
        with QueryClient(address) as client, pytest.raises(UsageError, match="http_proxy") as other:
            client.get("/api/echo")
    assert "s3cret" not in f"{caught.value}{other.value}"


def test_a_proxy_without_tls_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_receiver() as proxy:
        monkeypatch.setenv("http_proxy", f"https://127.0.0.1:{proxy.port}")
        with http_receiver() as server, pytest.raises(UnreachableError, match="no answer"):
            push(server, traces(1), {"deadline": 0.2})


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_answers_may_be_compressed(encoding: str) -> None:
    body = b'{"partialSuccess":{"rejectedSpans":"1","errorMessage":"too old"}}'
    packed = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    with http_receiver(Answer(body=packed, headers=headers)) as server:
        assert push(server, traces(2)).error_message == "too old"


FIRST_REQUESTS = """
import os, sys
from cirron_otel.core.http.client import HttpClient
from cirron_otel.core.targets.otlp.config import OtlpConfig, OtlpProtocol
from cirron_otel.core.targets.otlp.pusher import transport_for

plain, encrypted = sys.argv[1:]
client = HttpClient(plain)
transports = [
    transport_for(OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, url)) for url in (plain, encrypted)
]
before = set(sys.modules)
client.request("POST", "/", {}, b"x", timeout=20)
print([transport.send(b"", 20).status for transport in transports for _ in range(2)])
os.environ["http_proxy"] = "127.0.0.1:1"
os.environ["no_proxy"] = "10.0.0.0/8"
print(transport_for(OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, plain)).send(b"", 20).message)
print(sorted(set(sys.modules) - before))
"""


def test_the_first_request_imports_nothing(tmp_path: Path, certificates: Certificates) -> None:
    """A fork during an import would leave the child with a partly imported module."""
    (tmp_path / ".netrc").write_text("machine localhost login me password other\n")
    packed = gzip.compress(b"{}")
    headers = {
        "Content-Encoding": "gzip",
        "Content-Type": "application/json",
        "Set-Cookie": "sticky=abc",
    }
    with (
        http_receiver(*[Answer(body=packed, headers=headers)] * 9) as plain,
        http_receiver(tls=tls_server(certificates)) as encrypted,
    ):
        urls = [f"http://localhost:{plain.port}", f"https://localhost:{encrypted.port}"]
        command = [sys.executable, "-c", FIRST_REQUESTS, *urls]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "['200 OK', '200 OK', 'no TLS connection', 'no TLS connection']",
        "Connection refused",
        "[]",
    ]
    assert [post.headers.get("cookie") for post in plain.posts] == [None, None, "sticky=abc"]
