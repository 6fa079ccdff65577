"""Processes and targets that are there, but do not answer."""

from __future__ import annotations

import asyncio
import logging
import os
import selectors
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cirron_otel.collector.receiver.tenancy import FILE_NAME, TenantStore
from cirron_otel.collector.service import second_process, senders
from cirron_otel.collector.service.metrics import Registry
from cirron_otel.collector.service.options import CollectorOptions
from cirron_otel.collector.service.service import CollectorService
from cirron_otel.core.spool.paths import target_spool
from cirron_otel.core.spool.state import make_state
from cirron_otel.core.targets.sql.storage import Storage
from tests.core.targets.sql.conftest import postgres_server, postgres_url
from tests.kit.servers.away import until
from tests.kit.servers.serving import serving, spans_of
from tests.kit.spools.made import encoded, made, span

from .configs import options
from .test_ready import take

__all__ = ["postgres_server", "postgres_url"]


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_second_process_that_sends_no_message_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Meanwhile the collector is not ready."""
    monkeypatch.setattr(second_process, "_RESTART_S", (2.0,))
    wanted: CollectorOptions = options(
        tmp_path,
        {
            "spool": {"directory": str(tmp_path / "data")},
            "receivers": {
                "grpc": {"address": "localhost:0"},
                "http": {"address": "localhost:0"},
            },
        },
    )

    async def test() -> None:
        collector = CollectorService(wanted, silence_s=5.0)
        await collector.start()
        url = f"http://{collector.addresses['http']}/ready"
        process = collector._translator._process
        assert process is not None
        assert await asyncio.to_thread(_status, url) == 200
        os.kill(process.pid, signal.SIGSTOP)
        async with asyncio.timeout(180):
            while await asyncio.to_thread(_status, url) == 200:
                await asyncio.sleep(0.01)
            while await asyncio.to_thread(_status, url) == 503:
                await asyncio.sleep(0.01)
        other = collector._translator._process
        assert other is not None
        assert other.pid != process.pid
        assert process.returncode == -signal.SIGKILL
        assert await collector.stop()

    asyncio.run(test())
    assert "the translation has not answered for 5 s: it is restarted" in caplog.text


def test_idle_second_process_is_not_restarted(tmp_path: Path) -> None:
    """It sends a message each second; its silence is measured from the latest."""
    wanted: CollectorOptions = options(tmp_path, {"spool": {"directory": str(tmp_path / "data")}})

    async def test() -> None:
        heard = 0
        translator = second_process.Translator(wanted, Registry(), silence_s=60.0)
        original = translator._heard

        def count(message: dict[str, object]) -> None:
            nonlocal heard
            heard += 1
            original(message)

        translator._heard = count  # type: ignore[method-assign]
        await translator.start()
        process = translator._process
        async with asyncio.timeout(180):
            while heard < 5:
                await asyncio.sleep(0.05)
        assert translator._process is process
        assert await translator.finish(60.0)

    asyncio.run(test())


class Relay:
    """A relay to a server, which can stop to pass anything over its present connections."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self.connections = 0
        self._muted: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def mute(self) -> None:
        """Pass nothing more over the connections that are open now, and close none."""
        self._muted |= {
            key.fileobj
            for key in list(self._selector.get_map().values())
            if isinstance(key.fileobj, socket.socket)
        }

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._pass(key)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(self._target)
        self.connections += 1
        self._selector.register(client, selectors.EVENT_READ, server)
        self._selector.register(server, selectors.EVENT_READ, client)

    def _pass(self, key: selectors.SelectorKey) -> None:
        source = key.fileobj
        assert isinstance(source, socket.socket)
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(source)
        if source in self._muted:
            return
        with suppress(OSError):
            key.data.sendall(data) if data else key.data.shutdown(socket.SHUT_WR)


def test_database_that_no_longer_answers_is_connected_again(
    postgres_url: str, tmp_path: Path
) -> None:
    """The old connection stays open: only the time shows that the server does not answer."""
    host, _, port = postgres_url.partition("@")[2].partition("/")[0].rpartition(":")
    relay = Relay(host, int(port))
    url = postgres_url.replace(f"@{host}:{port}/", f"@127.0.0.1:{relay.port}/")
    config = tmp_path / "c.yaml"
    config.write_text(f"storage: {{url: '{url}', timeout_s: 2}}\n")

    def names() -> set[str]:
        with Storage.open(postgres_url, create=True) as storage:
            return {
                str(name) for (name,) in storage.database.rows('SELECT "name" FROM "TraceSpan"')
            }

    with serving(tmp_path / "data", "--config", str(config)) as here:
        assert take(here, "one") == 200
        until(lambda: names() == {"one"})
        relay.mute()
        assert take(here, "two") == 200
        until(lambda: names() == {"one", "two"})
        assert relay.connections >= 2
        assert "did not answer within 2 s: the connection is closed" in here.log.read_text()
        assert here.end() == 0
    assert len(spans_of(here.folder)) == 2


@contextmanager
def hole() -> Iterator[str]:
    """An endpoint that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_target_that_does_not_answer_is_logged(
    protocol: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(senders, "_SILENT_S", 0.2)
    with hole() as endpoint:
        exporter = {"type": "otlp", "endpoint": endpoint, "protocol": protocol, "timeout_s": 300}
        spool = {"directory": str(tmp_path / "data")}
        wanted: CollectorOptions = options(tmp_path, {"spool": spool, "exporters": [exporter]})
        paths = target_spool(wanted.spool.directory)
        make_state(paths.state)
        paths.spool.mkdir(parents=True)
        name = f"{1:020d}-{'ab' * 16}.json"
        (paths.spool / name).write_bytes(encoded(made(1, spans=[span(1)])))
        owners = TenantStore(paths.state / FILE_NAME)
        running = senders.Senders(wanted, owners, Registry())
        with caplog.at_level(logging.WARNING):
            running.start(paths)
            running.stored([name])
            until(lambda: running.measure() or "has not answered for" in caplog.text)
        assert f"otlp {endpoint} has not answered for 0 s" in caplog.text
        threading.Thread(target=running.finish, args=(0.0,), daemon=True).start()
