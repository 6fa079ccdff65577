"""The HTTP client: deadlines, limits, reuse of connections, forks, and proxies."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from cirron_otel.core.http import client
from cirron_otel.core.http.client import (
    AnswerTooLateError,
    AnswerTooLongError,
    BrokenAnswerError,
    HttpClient,
)
from cirron_otel.core.http.proxies import proxy_by_scheme, proxy_of_requests
from cirron_otel.errors import UsageError
from tests.kit.servers.servers import (
    Answer,
    Certificates,
    HttpReceiver,
    http_receiver,
)

PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@contextmanager
def raw_server(serve: Callable[[socket.socket, int], None]) -> Iterator[tuple[int, list[int]]]:
    """Yield the port of a server that passes each connection and its number to `serve`."""
    numbers: list[int] = []

    def run() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                numbers.append(len(numbers))
                with connection, contextlib.suppress(OSError):
                    serve(connection, numbers[-1])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield listener.getsockname()[1], numbers
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(180)


def read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return data
        data += piece
    return data


def client_of(server: HttpReceiver) -> HttpClient:
    return HttpClient(f"http://127.0.0.1:{server.port}")


def test_a_body_that_drips_ends_at_the_deadline() -> None:
    over = threading.Event()

    def drip(connection: socket.socket, _: int) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while not over.wait(0.02):  # that would take most of a year
            connection.sendall(b"x")

    with raw_server(drip) as (port, _):
        client = HttpClient(f"http://127.0.0.1:{port}")
        answer = client.request("GET", "/", {}, timeout=2)
        over.set()
    assert answer.status == 200
    assert isinstance(answer.problem, AnswerTooLateError)
    assert len(answer.content) < 1_000_000
    assert client._connection is None


def test_silent_server_times_out_ahead_of_the_deadline() -> None:
    hold = threading.Event()
    with http_receiver(Answer(hold=hold)) as server:
        with pytest.raises(TimeoutError) as caught:
            client_of(server).request("POST", "/", {}, b"x", timeout=3600, silence=0.1)
        assert not isinstance(caught.value, AnswerTooLateError)
        hold.set()


def test_the_limit_counts_decompressed_bytes() -> None:
    bomb = Answer(body=gzip.compress(bytes(2**24)), headers={"Content-Encoding": "gzip"})
    with http_receiver(bomb, bomb) as server:
        client = client_of(server)
        answer = client.request("POST", "/", {}, b"x", timeout=20, longest=2**20, decode=True)
        assert isinstance(answer.problem, AnswerTooLongError)
        assert len(answer.content) == 2**20
        raw = client.request("POST", "/", {}, b"x", timeout=20)
    assert (raw.problem, raw.content) == (None, bomb.body)


@pytest.mark.parametrize("decode", [False, True])
def test_answers_in_chunks_leave_the_connection_open(decode: bool) -> None:
    def serve(connection: socket.socket, _: int) -> None:
        while read_request(connection):
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
                b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
            )

    with raw_server(serve) as (port, connections):
        client = HttpClient(f"http://127.0.0.1:{port}")
        for _ in range(3):
            answer = client.request("GET", "/", {}, timeout=20, decode=decode)
            assert (answer.content, answer.problem) == (b"abcde", None)
            assert answer.cookies == ("a=1", "b=2")
        client.close()
        assert connections == [0]


def test_a_post_is_not_sent_again_when_the_connection_breaks() -> None:
    requests: list[bytes] = []

    def serve(connection: socket.socket, _: int) -> None:
        requests.append(read_request(connection))
        if len(requests) % 2:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            requests.append(read_request(connection))

    with raw_server(serve) as (port, connections):
        client = HttpClient(f"http://127.0.0.1:{port}")
        client.request("POST", "/", {}, b"1", timeout=20)
        with pytest.raises(ConnectionError):
            client.request("POST", "/", {}, b"2", timeout=20)
        assert len(requests) == 2
        client.request("POST", "/", {}, b"3", timeout=20)
        client.close()
    assert connections == [0, 1]


def test_a_file_is_sent_in_pieces_with_its_length() -> None:
    data = os.urandom(1_000_000)
    with http_receiver() as server:
        file = io.BytesIO(data)
        client_of(server).request("POST", "/", {"Content-Length": "1000000"}, file, timeout=20)
        (post,) = server.posts
    assert post.raw == data
    assert "transfer-encoding" not in post.headers


def test_an_illegal_header_closes_the_connection() -> None:
    with http_receiver() as server:
        client = client_of(server)
        with pytest.raises(ValueError, match="header"):
            client.request("POST", "/", {"X": "a\nb"}, b"x", timeout=20)
        assert client.request("POST", "/", {"X": "a"}, b"x", timeout=20).status == 200
        assert len(server.posts) == 1


def test_a_host_that_no_name_server_takes() -> None:
    with pytest.raises(ValueError, match="label"):
        HttpClient(f"http://{'a' * 64}.example").request("GET", "/", {}, timeout=5)


def tls_server(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.path("server.pem"), certificates.path("server.key"))
    return context


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_forked_child_leaves_the_connection_to_its_parent(
    is_tls: bool, certificates: Certificates
) -> None:
    tls = tls_server(certificates) if is_tls else None
    with http_receiver(tls=tls) as server:
        client = HttpClient(
            f"{'https' if is_tls else 'http'}://127.0.0.1:{server.port}",
            certificate=certificates.path("ca.pem"),
        )
        client.request("POST", "/", {}, b"x", timeout=20)
        connection = client._connection
        pid = os.fork()
        if pid == 0:
            client.abandon()
            is_gone = client._connection is None
            os._exit(0 if is_gone else 1)
        assert os.waitpid(pid, 0)[1] == 0
        client.request("POST", "/", {}, b"y", timeout=20)
        assert client._connection is connection
        client.close()
        assert [post.raw for post in server.posts] == [b"x", b"y"]


@contextmanager
def connect_proxy(
    tls: ssl.SSLContext | None = None, refuses: bytes = b""
) -> Iterator[tuple[int, list[bytes]]]:
    """A proxy that opens tunnels; yields its port and the requests that it received."""
    requests: list[bytes] = []

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                target.sendall(piece)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve(plain: socket.socket, _: int) -> None:
        connection = plain if tls is None else tls.wrap_socket(plain, server_side=True)
        with connection:
            request = read_request(connection)
            requests.append(request)
            if refuses:
                connection.sendall(refuses)
                return
            host, _, port = request.split()[1].decode().rpartition(":")
            with socket.create_connection((host, int(port))) as server:
                connection.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                back = threading.Thread(target=copy, args=(server, connection))
                back.start()
                copy(connection, server)
                back.join(30)

    with raw_server(serve) as (port, _):
        yield port, requests


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_tunnel_through_a_proxy(
    scheme: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = tls_server(certificates) if scheme == "https" else None
    with (
        http_receiver(tls=tls_server(certificates)) as server,
        connect_proxy(tls) as (port, requests),
    ):
        monkeypatch.setenv("https_proxy", f"{scheme}://user:p%40ss@127.0.0.1:{port}")
        client = HttpClient(
            f"https://127.0.0.1:{server.port}", certificate=certificates.path("ca.pem")
        )
        for _ in range(2):
            assert client.request("POST", "/a", {"X-A": "b"}, b"x", timeout=20).status == 200
        client.close()
        assert [post.path for post in server.posts] == ["/a", "/a"]
        assert "proxy-authorization" not in server.posts[0].headers
    (request,) = requests
    assert request.startswith(b"CONNECT 127.0.0.1:%d HTTP/1." % server.port)
    assert b"Proxy-Authorization: Basic dXNlcjpwQHNz\r\n" in request


def test_an_encrypted_proxy_for_plain_requests(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_receiver(tls=tls_server(certificates)) as proxy:
        monkeypatch.setenv("http_proxy", f"https://127.0.0.1:{proxy.port}")
        trusted = HttpClient("http://platform.test", certificate=certificates.path("ca.pem"))
        trusted.request("POST", "/a", {}, b"x", timeout=20)
        trusted.close()
        assert proxy.posts[0].path == "http://platform.test/a"
        assert proxy.posts[0].headers["host"] == "platform.test"
        with pytest.raises(OSError, match="to the proxy") as caught:
            HttpClient("http://platform.test").request("POST", "/a", {}, b"x", timeout=20)
        assert not isinstance(caught.value, ssl.SSLError)


def test_a_proxy_that_refuses_a_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"
    with connect_proxy(refuses=refusal) as (port, _):
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{port}")
        with pytest.raises(OSError, match="Tunnel connection failed: 407"):
            HttpClient("https://platform.test").request("POST", "/a", {}, b"x", timeout=20)


def test_a_socks_proxy_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_HAS_SOCKS", False)
    monkeypatch.setenv("https_proxy", "socks5h://user:s3cret@127.0.0.1:1")
    with pytest.raises(UsageError, match=r"PySocks.*https_proxy") as caught:
        HttpClient("https://platform.test").request("GET", "/", {}, timeout=20)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
def test_a_socks_proxy(scheme: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hellos: list[bytes] = []

    def serve(connection: socket.socket, _: int) -> None:
        hellos.append(connection.recv(2))
        connection.recv(hellos[0][1])
        connection.sendall(b"\x05\x02")  # asks for user and password
        length = connection.recv(2)[1]
        hellos.append(connection.recv(length))
        hellos.append(connection.recv(connection.recv(1)[0]))
        connection.sendall(b"\x01\x00")
        kind = connection.recv(4)[3]
        hellos.append(connection.recv(4 if kind == 1 else connection.recv(1)[0]))
        connection.recv(2)
        connection.sendall(b"\x05\x00\x00\x01" + bytes(6))
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with raw_server(serve) as (port, _):
        monkeypatch.setenv("http_proxy", f"{scheme}://user:p%40ss@127.0.0.1:{port}")
        answer = HttpClient(f"http://{name}:9").request("GET", "/", {}, timeout=20)
    assert answer.status == 200
    assert hellos[1:3] == [b"user", b"p@ss"]
    is_name = scheme == "socks5h" and name == "localhost"
    assert hellos[3] == (b"localhost" if is_name else bytes((127, 0, 0, 1)))


@pytest.mark.parametrize("address", ["ftp://127.0.0.1:1", "http://", "http://[", "http://h:x"])
def test_a_proxy_that_cannot_be_used(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", address)
    for find in (proxy_by_scheme, proxy_of_requests):
        with pytest.raises(UsageError, match="http_proxy"):
            find(urlsplit("http://platform.test"))


@pytest.mark.parametrize(
    ("no_proxy", "host", "requests", "by_scheme"),
    [
        ("", "example.com", True, True),
        ("*", "example.com", False, False),
        ("example.com", "example.com", False, False),
        ("example.com", "a.example.com:81", False, False),
        ("example.com:81", "a.example.com:81", False, False),
        ("example.com:81", "a.example.com:82", True, True),
        ("ample.com", "example.com", True, True),
        ("a, 10.0.0.0/8", "10.1.2.3", False, True),
        ("10.0.0.0/8", "11.1.2.3", True, True),
        ("10.1.2.3", "10.1.2.3:81", False, False),
        ("10.0.0.0/8", "host10.0.0.0", True, True),
        ("localhost", "[::1]:81", True, True),
        ("::1", "[::1]:81", False, True),
    ],
)
def test_hosts_without_a_proxy(
    no_proxy: str, host: str, requests: bool, by_scheme: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expected values of `proxy_of_requests` are those of the library."""
    from requests.utils import get_environ_proxies, select_proxy

    monkeypatch.setenv("http_proxy", "http://proxy.test:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    url = f"http://{host}/v1/traces"
    library = select_proxy(url, get_environ_proxies(url)) is not None
    assert library == requests
    assert (proxy_of_requests(urlsplit(url)) is not None) == requests
    assert (proxy_by_scheme(urlsplit(url)) is not None) == by_scheme


def test_the_proxy_for_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "http://all.test:1")
    monkeypatch.setenv("HTTPS_PROXY", "https.test")
    plain, secure = urlsplit("http://h"), urlsplit("https://h")
    first, second = proxy_of_requests(plain), proxy_of_requests(secure)
    assert first is not None
    assert second is not None
    assert (first.host, first.port) == ("all.test", 1)
    assert (second.host, second.port) == ("https.test", None)
    assert proxy_by_scheme(plain) is None


def test_garbage_is_a_broken_answer() -> None:
    def serve(connection: socket.socket, _: int) -> None:
        read_request(connection)
        connection.sendall(b"220 smtp.example ready\r\n")

    with raw_server(serve) as (port, _), pytest.raises(BrokenAnswerError, match="BadStatusLine"):
        HttpClient(f"http://127.0.0.1:{port}").request("GET", "/", {}, timeout=20)
