"""SIGHUP: what may change does while requests go on, what may not is named."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

from cirron_otel.collector.receiver.tenancy import FILE_NAME, TenantStore
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.errors import InputError
from tests.kit.backends.process import free_endpoints
from tests.kit.servers.otlp_sink import otlp_sink, wait_for
from tests.kit.servers.servers import Certificates, make_certificates
from tests.kit.servers.serving import Serving, serving, spans_of

from .test_running import post, record, request

PROTOBUF = "application/x-protobuf"
WAIT_S = 180.0


class Reloaded:
    """A collector with a file that is written anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "collector.yaml"
        self.count = 0

    def write(self, tree: Any) -> str:
        self.path.write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree))
        return str(self.path)

    def lines(self, here: Serving) -> list[dict[str, Any]]:
        """The log so far."""
        whole = here.log.read_text().split("\n")[:-1]
        return [json.loads(line) for line in whole if line[:1] == "{"]

    def hang_up(self, here: Serving, tree: Any = None) -> list[dict[str, Any]]:
        """Change the file, say so, and wait until that is answered; what was logged meanwhile."""
        if tree is not None:
            self.write(tree)
        before = len(self.lines(here))
        os.kill(here.process.pid, signal.SIGHUP)
        self.count += 1

        def answers() -> int:
            told = [line["message"] for line in self.lines(here)]
            return sum("were reloaded" in each or "stays in effect" in each for each in told)

        until(lambda: answers() == self.count)
        return self.lines(here)[before:]


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.02)


@pytest.fixture
def config(tmp_path: Path) -> Reloaded:
    return Reloaded(tmp_path)


def test_no_request_fails_across_reloads(config: Reloaded, tmp_path: Path) -> None:
    """Exporters come and go meanwhile; together they get all, whoever was there when it came."""
    ends = free_endpoints(2)
    exporters = [{"type": "otlp", "endpoint": f"http://{end}"} for end in ends]
    with otlp_sink(ends[0]) as first, otlp_sink(ends[1]) as second:
        path = config.write({"exporters": exporters[:1]})
        with serving(tmp_path / "data", "--config", path) as here:
            is_over, failures, sent = threading.Event(), list[str](), [0, 0]

            def load_http() -> None:
                while not is_over.is_set():
                    status, said = post(f"{here.http}/v1/traces", request(f"h{sent[0]}"), PROTOBUF)
                    sent[0] += 1
                    if status != 200:
                        failures.append(f"{status} {said!r}")

            def load_grpc() -> None:
                with grpc.insecure_channel(here.grpc) as channel:
                    call = channel.unary_unary(
                        "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
                    )
                    while not is_over.is_set():
                        try:
                            call(request(f"g{sent[1]}"), timeout=30)
                        except grpc.RpcError as error:
                            failures.append(str(error))
                        sent[1] += 1

            threads = [threading.Thread(target=each) for each in (load_http, load_grpc)]
            for thread in threads:
                thread.start()
            for number in range(6):
                tree = {
                    "exporters": exporters[number % 2 :][:1] if number % 3 else exporters,
                    "receivers": {"signals": {"metrics": ("accept", "refuse")[number % 2]}},
                    "storage": {"context": {"workspace": f"w{number}"}},
                }
                config.hang_up(here, tree)
            config.hang_up(here, {"exporters": exporters})
            is_over.set()
            for thread in threads:
                thread.join()
            assert failures == []
            names = {f"h{n}" for n in range(sent[0])} | {f"g{n}" for n in range(sent[1])}
            assert here.end() == 0
        assert {span["name"] for span in spans_of(tmp_path / "data")} == names
        assert len(spans_of(tmp_path / "data")) == len(names)
        for sink in (first, second):
            assert {span.name for _, span in sink.spans} == names


def test_reload_names_options_that_need_a_restart_and_applies_the_rest(
    config: Reloaded, tmp_path: Path
) -> None:
    metrics = "/v1/metrics"
    with serving(tmp_path / "data", "--config", config.write({})) as here:
        assert post(here.http + metrics, b"", PROTOBUF)[0] == 404
        tree = {
            "limits": {"journal_bytes": "2GiB", "request_elements": 5},
            "dedup": {"hours": 1},
            "receivers": {"signals": {"metrics": "accept"}},
            "logs": {"level": "warning"},
        }
        told = config.hang_up(here, {**tree, "logs": {"level": "info"}})
        warnings = [line["message"] for line in told if line["level"] == "warning"]
        assert warnings == [
            "changed, but not applied before a restart: limits.journal_bytes, dedup.hours"
        ]
        assert post(here.http + metrics, b"", PROTOBUF)[0] == 200
        assert post(f"{here.http}/v1/traces", request("many", 9), PROTOBUF)[0] == 413
        assert here.end() == 0


WRONG: dict[str, tuple[Any, str]] = {
    "a key": ({"limits": {"journal": 5}}, "limits.journal is not a key here"),
    "no YAML": ("a: [", "is not YAML"),
    "a file that is not there": (
        {"receivers": {"auth": {"tokens_file": "/nowhere/tokens"}}},
        "receivers.auth.tokens_file names '/nowhere/tokens'",
    ),
}


@pytest.mark.parametrize(("tree", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_changes_nothing(
    tree: Any, said: str, config: Reloaded, tmp_path: Path
) -> None:
    before = {"receivers": {"signals": {"metrics": "accept"}}}
    with serving(tmp_path / "data", "--config", config.write(before)) as here:
        for _ in range(2):  # each is answered
            told = config.hang_up(here, tree)
            errors = [line["message"] for line in told if line["level"] == "error"]
            assert any(said in each for each in errors[:-1])
            assert errors[-1] == "the configuration is invalid: the previous one stays in effect"
        assert post(f"{here.http}/v1/metrics", b"", PROTOBUF)[0] == 200
        assert here.end() == 0


def test_tokens_are_read_again(config: Reloaded, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("first-of-file\n")
    auth = {"tokens": ["first"], "tokens_file": str(file)}

    def status(here: Serving, token: str) -> int:
        told = urllib.request.Request(
            f"{here.http}/v1/traces",
            request(token),
            {"Content-Type": PROTOBUF, "Authorization": f"Bearer {token}"},
        )
        try:
            with urllib.request.urlopen(told, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return int(error.code)

    with serving(
        tmp_path / "data", "--config", config.write({"receivers": {"auth": auth}})
    ) as here:
        known = ("first", "first-of-file", "second", "second-of-file")
        assert [status(here, token) for token in known] == [200, 200, 401, 401]
        file.write_text("second-of-file\n")
        config.hang_up(here, {"receivers": {"auth": {**auth, "tokens": ["second"]}}})
        assert [status(here, token) for token in known] == [401, 401, 200, 200]
        config.hang_up(here, {})
        assert post(f"{here.http}/v1/traces", request(), PROTOBUF)[0] == 200
        assert here.end() == 0
    log = here.log.read_text()
    assert not [token for token in known if f'"{token}' in log or f" {token}" in log]


def test_rows_are_of_the_new_context(config: Reloaded, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    storage = {"url": url, "context": {"workspace": "before"}}
    with serving(tmp_path / "data", "--config", config.write({"storage": storage})) as here:
        record(OTLPSpanExporter(endpoint=f"http://{here.grpc}", insecure=True), 1, "before")

        def rows() -> list[Any]:
            with contextlib.suppress(InputError), Storage.open(url, create=False) as opened:
                return opened.database.rows('SELECT "workspaceId", "name" FROM "TraceSpan"')
            return []

        until(lambda: len(rows()) == 1)
        config.hang_up(here, {"storage": {**storage, "context": {"workspace": "after"}}})
        record(OTLPSpanExporter(endpoint=f"http://{here.grpc}", insecure=True), 1, "after")
        assert here.end() == 0
    assert sorted(tuple(map(str, row)) for row in rows()) == [
        ("after", "after0"),
        ("before", "before0"),
    ]


def test_restarted_translator_uses_the_reloaded_configuration(
    config: Reloaded, tmp_path: Path
) -> None:
    (end,) = free_endpoints(1)
    with (
        otlp_sink(end) as sink,
        serving(tmp_path / "data", "--config", config.write({})) as here,
    ):
        config.hang_up(here, {"exporters": [{"type": "otlp", "endpoint": f"http://{end}"}]})
        before = here.translator()
        assert before is not None
        os.kill(before, signal.SIGKILL)
        until(lambda: here.translator() not in (None, before))
        record(OTLPSpanExporter(endpoint=f"http://{here.grpc}", insecure=True), 3)
        until(lambda: len(sink.spans) >= 3)
        assert here.end() == 0
    wait_for([sink], {bytes.fromhex(span["id"][:16]) for span in spans_of(tmp_path / "data")})


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Certificates]:
    """Two sets of certificates, each of a CA of its own."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command, which makes the certificates, is not installed")
    return [make_certificates(tmp_path_factory.mktemp(name)) for name in ("first", "second")]


@pytest.mark.parametrize("is_mutual", [False, True])
def test_certificates_are_read_again(
    is_mutual: bool, pairs: list[Certificates], config: Reloaded, tmp_path: Path
) -> None:
    def put(pair: Certificates) -> None:
        for name in ("server.pem", "server.key", "ca.pem"):
            (tmp_path / name).write_bytes(pair.read(name))

    put(pairs[0])
    tls = {"cert": str(tmp_path / "server.pem"), "key": str(tmp_path / "server.key")}
    if is_mutual:
        tls["client_ca"] = str(tmp_path / "ca.pem")
    tree = {"receivers": {"grpc": {"tls": tls}, "http": {"tls": tls}}}
    with serving(tmp_path / "data", "--config", config.write(tree)) as here:
        assert [trusts(here, pair, is_mutual) for pair in pairs] == [(True, True), (False, False)]
        (tmp_path / "server.key").write_text("no key")
        told = config.hang_up(here)
        assert any("cannot be used" in line["message"] for line in told)
        assert [trusts(here, pair, is_mutual) for pair in pairs] == [(True, True), (False, False)]
        put(pairs[1])
        config.hang_up(here)
        assert [trusts(here, pair, is_mutual) for pair in pairs] == [(False, False), (True, True)]
        assert here.end() == 0


def trusts(here: Serving, pair: Certificates, is_mutual: bool) -> tuple[bool, bool]:
    """Whether a client with these certificates comes through, by gRPC and by HTTP."""
    files = ("ca.pem", "client.key", "client.pem") if is_mutual else ("ca.pem",)
    credentials = grpc.ssl_channel_credentials(*(pair.read(name) for name in files))
    port = here.grpc.rpartition(":")[2]
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        call = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        try:
            call(b"", timeout=30)
            by_grpc = True
        except grpc.RpcError:
            by_grpc = False
    context = ssl.create_default_context(cafile=str(pair.folder / "ca.pem"))
    if is_mutual:
        context.load_cert_chain(pair.folder / "client.pem", pair.folder / "client.key")
    try:
        http = int(here.http.rpartition(":")[2])
        with (
            socket.create_connection(("localhost", http), 30) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as wrapped,
        ):
            wrapped.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            by_http = wrapped.recv(100).startswith(b"HTTP/1.1 200")
    except (ssl.SSLError, ConnectionError):
        by_http = False
    return by_grpc, by_http


def test_reloaded_header_list_applies_to_later_requests(config: Reloaded, tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--config", config.write({})) as here:
        for number in range(2):
            for tenant in ("a", "b"):
                told = {"Content-Type": PROTOBUF, "X-Scope-OrgID": tenant, "X-Team": tenant}
                sent = urllib.request.Request(f"{here.http}/v1/traces", request("one"), told)
                with urllib.request.urlopen(sent, timeout=30) as answer:
                    assert answer.status == 200
            if not number:
                config.hang_up(here, {"receivers": {"headers": {"pass": ["x-team"]}}})
        assert here.end() == 0
    owners = TenantStore(tmp_path / "data" / "state" / FILE_NAME)
    found = {owners.of(path.name) for path in (tmp_path / "data" / "spool").glob("*.json")}
    owners.close()
    assert found == {((name, t),) for name in ("x-scope-orgid", "x-team") for t in ("a", "b")}
