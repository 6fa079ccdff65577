"""Killed at any moment, under load, with clients that try again: nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from .serving import Serving, spans_of

KILLS = int(os.environ.get("KILLS", "8"))
CLIENTS = 4
SPANS = 20


class Client(threading.Thread):
    """Sends requests of its own, each until it is acknowledged, wherever the collector is."""

    def __init__(self, number: int) -> None:
        super().__init__(daemon=True)
        self.number, self.url = number, ""
        self.acknowledged: list[str] = []
        self.is_over = False
        self.problems: list[str] = []

    def run(self) -> None:
        at = 0
        while not self.is_over:
            name = f"{self.number}-{at}"
            if self._send(self._request(name)):
                self.acknowledged.append(name)
                at += 1

    def _request(self, name: str) -> bytes:
        message = ResourceSpans()
        scope = message.scope_spans.add()
        trace_id = os.urandom(16)
        for _ in range(SPANS):
            scope.spans.add(trace_id=trace_id, span_id=os.urandom(8), name=name)
        return TracesData(resource_spans=[message]).SerializeToString()

    def _send(self, body: bytes) -> bool:
        while not self.is_over:
            request = urllib.request.Request(
                f"{self.url}/v1/traces", body, {"Content-Type": "application/x-protobuf"}
            )
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    return bool(answer.status == 200)
            except urllib.error.HTTPError as error:
                if error.code not in (429, 502, 503, 504):
                    self.problems.append(f"answered {error.code}")
                    return False
            except OSError:
                pass  # it is dead: try again, with the same bytes
            time.sleep(0.02)
        return False


@pytest.mark.slow
def test_acknowledged_is_stored_once(tmp_path: Path) -> None:
    folder, chance = tmp_path / "data", random.Random(7)
    clients = [Client(number) for number in range(CLIENTS)]
    here = Serving(folder)
    for client in clients:
        client.url = here.http
        client.start()
    killed: Counter[str] = Counter()
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.0, 0.6))
        victim = chance.choice(("both", "receiver", "translator"))
        killed[victim] += 1
        translator = here.translator()
        if victim != "receiver" and translator is not None:
            os.kill(translator, signal.SIGKILL)
        if victim != "translator":
            here.kill()
            here = Serving(folder)
            for client in clients:
                client.url = here.http
    time.sleep(0.3)
    for client in clients:
        client.is_over = True
    for client in clients:
        client.join(60)
    assert here.end() == 0
    assert [problem for client in clients for problem in client.problems] == []
    stored = Counter(span["name"] for span in spans_of(folder))
    acknowledged = {name for client in clients for name in client.acknowledged}
    assert len(acknowledged) > KILLS, "there was no load"
    assert {name: stored[name] for name in acknowledged} == dict.fromkeys(acknowledged, SPANS)
    # Each client may have had one request under way that was kept and not acknowledged.
    others = {name: count for name, count in stored.items() if name not in acknowledged}
    assert len(others) <= CLIENTS
    assert set(others.values()) <= {SPANS}
    ids = [span["id"] for span in spans_of(folder)]
    assert len(set(ids)) == len(ids)
