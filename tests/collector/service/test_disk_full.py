"""The disk is full: what cannot be kept is refused, nothing is lost, and room alone is enough."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from cirron_otel.core.targets.sql.storage import Storage
from tests.kit.servers.away import until
from tests.kit.servers.serving import Serving, spans_of

from .test_running import post

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
PROTOBUF = "application/x-protobuf"
SPANS = 50
CLIENTS = 3


class Disk:
    """A file system of 64 MiB at `place`, and a file on it that takes all the room."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._ballast = place / "ballast"

    def fill(self) -> None:
        """Take all that is left now."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (65_536, 512):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def clear(self) -> None:
        """Give it back."""
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    place = tmp_path / "data"  # the log of the collector stands beside it
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "tmpfs", place]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    yield Disk(place)
    subprocess.run(["umount", place], check=True)


@contextlib.contextmanager
def running(disk: Disk, *options: str) -> Iterator[Serving]:
    """A collector that stores on that disk."""
    here = Serving(disk.place, *options)
    translator = here.translator()
    try:
        yield here
    finally:
        if here.process.poll() is None:
            here.kill()
        with contextlib.suppress(ProcessLookupError, TypeError):
            os.kill(translator, signal.SIGKILL)  # type: ignore[arg-type] # it may be stopped


def request(name: str) -> bytes:
    message = ResourceSpans()
    scope, trace_id = message.scope_spans.add(), os.urandom(16)
    for _ in range(SPANS):
        span = scope.spans.add(trace_id=trace_id, span_id=os.urandom(8), name=name)
        span.attributes.add(key="text").value.string_value = "x" * 100
    return TracesData(resource_spans=[message]).SerializeToString()


class Client(threading.Thread):
    """Sends requests of its own, each until it is acknowledged."""

    def __init__(self, number: int, url: str) -> None:
        super().__init__(daemon=True)
        self.number, self.url = number, url
        self.acknowledged: list[str] = []
        self.refused: list[tuple[int, str | None]] = []
        """Status and Retry-After of every answer that was none."""
        self.is_over = False

    def run(self) -> None:
        while not self.is_over:
            name = f"{self.number}-{len(self.acknowledged)}"
            body = request(name)
            while not self.is_over and not self._send(body):
                time.sleep(0.05)
            if not self.is_over:
                self.acknowledged.append(name)
            time.sleep(0.02)

    def _send(self, body: bytes) -> bool:
        told = urllib.request.Request(f"{self.url}/v1/traces", body, {"Content-Type": PROTOBUF})
        try:
            with urllib.request.urlopen(told, timeout=60) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            self.refused.append((error.code, error.headers["Retry-After"]))
            return False


def refusal_over_grpc(here: Serving) -> tuple[grpc.StatusCode, float]:
    """The code, and after how many seconds to send again."""
    with grpc.insecure_channel(here.grpc) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(EXPORT)(request("refused"), timeout=60, wait_for_ready=True)
    details = dict(raised.value.trailing_metadata())["grpc-status-details-bin"]
    retry = RetryInfo()
    assert Status.FromString(details).details[0].Unpack(retry)
    return raised.value.code(), retry.retry_delay.ToTimedelta().total_seconds()


def ready(here: Serving) -> int:
    try:
        with urllib.request.urlopen(f"{here.http}/ready", timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("storage", ["none", "sqlite"])
def test_it_fills_up_under_load(storage: str, disk: Disk) -> None:
    url = f"sqlite:///{disk.place / 'runs.db'}"
    with running(disk, *(["--storage", url] if storage == "sqlite" else [])) as here:
        clients = [Client(number, here.http) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        until(lambda: all(len(client.acknowledged) >= 10 for client in clients))
        disk.fill()
        until(lambda: all(len(client.refused) >= 10 for client in clients))
        code, seconds = refusal_over_grpc(here)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert seconds > 0
        told = [len(client.acknowledged) for client in clients]
        disk.clear()
        until(
            lambda: all(
                len(client.acknowledged) > before + 10
                for client, before in zip(clients, told, strict=True)
            )
        )
        for client in clients:
            client.is_over = True
        for client in clients:
            client.join(90)
        until(lambda: ready(here) == 200)
        assert here.end() == 0
    refused = {each for client in clients for each in client.refused}
    assert {status for status, _ in refused} == {503}
    assert all(after is not None and int(after) > 0 for _, after in refused)
    names = Counter(span["name"] for span in spans_of(disk.place))
    acknowledged = {name for client in clients for name in client.acknowledged}
    assert {name: names[name] for name in acknowledged} == dict.fromkeys(acknowledged, SPANS)
    assert set(names.values()) == {SPANS}, "what was refused may be there, but not in part"
    if storage == "sqlite":
        with Storage.open(url, create=False) as rows:
            found = rows.database.rows('SELECT "name", count(*) FROM "TraceSpan" GROUP BY "name"')
        assert {str(name): int(count) for name, count in found} == dict(names)


def acknowledged_and_not_translated(here: Serving, count: int) -> list[str]:
    """Requests that are in the journal, and no further: the second process stands still."""
    translator = here.translator()
    assert translator is not None
    os.kill(translator, signal.SIGSTOP)
    names = [f"waiting {number}" for number in range(count)]
    for name in names:
        assert post(f"{here.http}/v1/traces", request(name), PROTOBUF)[0] == 200
    return names


def test_disk_full_ahead_of_translation_loses_no_acknowledged_spans(disk: Disk) -> None:
    """What was acknowledged waits in the journal until there is room for its batches."""
    with running(disk) as here:
        names = acknowledged_and_not_translated(here, 30)
        disk.fill()
        assert post(f"{here.http}/v1/traces", request("one more"), PROTOBUF)[0] == 503
        translator = here.translator()
        assert translator is not None
        os.kill(translator, signal.SIGCONT)
        told = "cannot be written: No space left on device; free some space"
        until(lambda: told in here.log.read_text())
        assert post(f"{here.http}/v1/traces", request("another"), PROTOBUF)[0] == 503
        assert ready(here) == 503
        assert spans_of(disk.place) == []
        disk.clear()
        until(lambda: ready(here) == 200)
        assert here.translator() == translator, "it was started again"
        assert here.end() == 0
    stored = Counter(span["name"] for span in spans_of(disk.place))
    assert stored == dict.fromkeys(names, SPANS)


def test_it_is_killed_while_the_disk_is_full(disk: Disk, tmp_path: Path) -> None:
    """It starts all the same, and says at its end that not all of what it has is stored."""
    config = tmp_path / "collector.yaml"
    config.write_text("drain_s: 1\n")
    with running(disk, "--config", str(config)) as here:
        names = acknowledged_and_not_translated(here, 10)
        disk.fill()
    with running(disk, "--config", str(config)) as here:
        assert here.end() == 1
    disk.clear()
    with running(disk) as here:
        assert here.end() == 0
    stored = Counter(span["name"] for span in spans_of(disk.place))
    assert stored == dict.fromkeys(names, SPANS)
