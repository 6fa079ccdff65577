"""Two of ours behind a Collector that balances by trace id; one is killed and comes back.

What otelcol itself guarantees: with its queue on disk (collector-config/fleet.yaml), an
acknowledgement means that otelcol has it, and hands it on for as long as that takes; without a
queue, that every member a request has spans for has acknowledged its part. A part that a member
took, of a request that another did not take, comes again, in the same bytes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from tests.kit.backends import run
from tests.kit.backends.build import PINS
from tests.kit.backends.process import free_endpoints
from tests.kit.servers.serving import Serving, spans_of

pytestmark = pytest.mark.backends

FLEET = PINS / "fleet.yaml"
CLIENTS = 3
TRACES, SPANS = 6, 2
RETRYABLE = {429, 502, 503, 504}


def without_queue() -> str:
    """The same fleet, whose answers wait for the members."""
    config = yaml.safe_load(FLEET.read_text())
    config["exporters"]["load_balancing"]["sending_queue"] = {"enabled": False}
    config["exporters"]["load_balancing"]["retry_on_failure"] = {"enabled": False}
    return yaml.safe_dump(config)


class Client(threading.Thread):
    """Sends requests of several traces each, every one until it is acknowledged."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.is_over = url, False
        self.acknowledged: set[str] = set()
        self.refused = 0
        self.problems: list[str] = []

    def run(self) -> None:
        while not self.is_over and not self.problems:
            ids, body = made()
            if self._send(body):
                self.acknowledged |= ids
            time.sleep(0.01)

    def _send(self, body: bytes) -> bool:
        """Whether it was acknowledged; it is tried on until it was, or until all is over."""
        while not self.is_over:
            request = urllib.request.Request(
                f"{self.url}/v1/traces", body, {"Content-Type": "application/x-protobuf"}
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return bool(answer.status == 200)
            except urllib.error.HTTPError as error:
                if error.code not in RETRYABLE:
                    self.problems.append(f"{error.code}: {error.read()[:200]!r}")
                    return False
            self.refused += 1
            time.sleep(0.1)
        return False


def made() -> tuple[set[str], bytes]:
    """A request, and the ids of its spans: the second half is their trace's."""
    group, ids = ResourceSpans(), set()
    group.resource.attributes.add(key="service.name").value.string_value = "train"
    scope = group.scope_spans.add()
    for _ in range(TRACES):
        trace_id = os.urandom(16)
        for _ in range(SPANS):
            span = scope.spans.add(trace_id=trace_id, span_id=os.urandom(8), name="step")
            ids.add((span.span_id + trace_id[8:]).hex())
    return ids, TracesData(resource_spans=[group]).SerializeToString()


@contextlib.contextmanager
def load(url: str) -> Iterator[list[Client]]:
    """Clients at work until the block ends."""
    clients = [Client(url) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield clients
    finally:
        for client in clients:
            client.is_over = True
        for client in clients:
            client.join(90)
        assert not any(client.is_alive() for client in clients)


def stored(folder: Path) -> Counter[str]:
    """Ids of the spans in a member's spool, each as often as it is there."""
    return Counter(span["id"] for span in spans_of(folder))


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not what():
        assert time.monotonic() < deadline, "nothing gets on"
        time.sleep(0.1)


def crash(member: Serving) -> None:
    """Both of its processes at once."""
    translator = member.translator()
    if translator is not None:
        os.kill(translator, signal.SIGKILL)
    member.kill()


@pytest.mark.slow
@pytest.mark.parametrize("queue", ["on disk", "none"])
def test_a_member_is_killed_and_comes_back(queue: str, tmp_path: Path) -> None:
    addresses = free_endpoints(2)
    folders = [tmp_path / "one", tmp_path / "two"]
    one, two = (
        Serving(folder, "--grpc", address)
        for folder, address in zip(folders, addresses, strict=True)
    )
    (tmp_path / "otelcol").mkdir()
    config = FLEET if queue == "on disk" else without_queue()
    settings = {"FLEET": f"[{addresses[0]}, {addresses[1]}]"}
    with run.otelcol(config, tmp_path / "otelcol", settings) as balancer:
        with load(balancer.otlp_http) as clients:
            until(lambda: all(stored(folder).total() > 200 for folder in folders))
            crash(one)
            left = stored(folders[1]).total()
            until(lambda: stored(folders[1]).total() > left)  # the other one goes on
            time.sleep(1.0)
            one, before = Serving(folders[0], "--grpc", addresses[0]), stored(folders[0]).total()
            until(lambda: stored(folders[0]).total() > before + 100)
        acknowledged = set().union(*(client.acknowledged for client in clients))
        until(lambda: acknowledged <= stored(folders[0]).keys() | stored(folders[1]).keys())
        assert [one.end(), two.end()] == [0, 0]
    assert [problem for client in clients for problem in client.problems] == []
    refused = sum(client.refused for client in clients)
    assert (refused > 0) == (queue == "none"), "who sends is told of it only without a queue"
    first, second = map(stored, folders)
    assert acknowledged <= first.keys() | second.keys()
    assert set((first + second).values()) == {1}, "stored twice"
    # The members were always the same two: where a trace belongs never changed.
    assert traces(first).isdisjoint(traces(second))


def traces(ids: Counter[str]) -> set[str]:
    return {each[16:] for each in ids}
