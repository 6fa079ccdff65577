"""A collector under load that is killed again and again, and what each of its targets has then.

Its clients try again until they have an answer. The targets are the spool, SQLite, an OTLP endpoint
and a directory for tensors.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData
from safetensors.numpy import save

from tests.kit.servers.serving import Serving, spans_of

from .sink import Sink, config_of, sink

CLIENTS = 4
SPANS = 20
VICTIMS = ("both", "receiver", "translator")
_SNAPSHOT_EVERY = 5
"""One request of so many is a batch of Cirron with a tensor."""
_SESSION = "5e55" * 8
_DIGITS = 16
"""Of a span's id in hex: what stands behind them is of its trace."""
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"


@dataclass
class Sent:
    """What one request brings."""

    ids: list[str] = field(default_factory=list)
    """Of its spans: as many digits as OTLP has."""
    snapshot: str = ""
    """The id of its snapshot, whose tensor is that text."""


class Client(threading.Thread):
    """Sends requests of its own, each until it is acknowledged, wherever the collector is."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.url = ""
        self.acknowledged: list[Sent] = []
        self.under_way: Sent | None = None
        """The last request, if it was not acknowledged."""
        self.is_over = False
        self.problems: list[str] = []

    def run(self) -> None:
        number = 0
        while not self.is_over:
            number += 1
            is_cirrons = number % _SNAPSHOT_EVERY == 0
            if not (self._cirron() if is_cirrons else self._otlp()):
                return

    def _otlp(self) -> bool:
        message, sent, trace_id = ResourceSpans(), Sent(), os.urandom(16)
        scope = message.scope_spans.add()
        for _ in range(SPANS):
            span_id = os.urandom(8)
            parent = os.urandom(8)  # a span of a service that never comes here
            scope.spans.add(trace_id=trace_id, span_id=span_id, parent_span_id=parent, name="s")
            sent.ids.append(span_id.hex())
        body = TracesData(resource_spans=[message]).SerializeToString()
        return self._keep(sent, [("POST", "", body, _PROTOBUF)])

    def _cirron(self) -> bool:
        span, snapshot, now = os.urandom(16).hex(), os.urandom(16).hex(), time.time_ns()
        file = f"blobs/snapshots/{span}/w.safetensors"
        batch = {
            "schema_version": 1, "sdk_version": "0.3.0", "batch_id": os.urandom(16).hex(),
            "created_ns": now, "marks": [], "otel": {"session": _SESSION},
            "spans": [{
                "id": span, "name": "c", "parent_id": _SESSION, "index": 1, "start_ns": now - 5,
                "end_ns": now, "cpu_ns": None, "gpu_ns": None, "memory_peak_bytes": None,
                "thread_id": 1, "pid": 2, "rank": 0, "attrs": {}, "mark_ids": [],
            }],
            "snapshots": [{
                "id": snapshot, "span_id": span, "tensor_name": "w", "shape": [32],
                "dtype": "uint8", "mode": "full", "stats": {}, "ts_ns": now, "attrs": {},
                "blob_uri": f"file:///x/snapshots/{span}/w.safetensors",
            }],
        }  # fmt: skip
        tensor = save({"w": np.frombuffer(snapshot.encode(), np.uint8)})
        return self._keep(
            Sent([span[:_DIGITS]], snapshot),
            [
                ("PUT", file, tensor, "application/octet-stream"),
                ("POST", "", json.dumps(batch).encode(), _JSON),
            ],
        )

    def _keep(self, sent: Sent, requests: list[tuple[str, str, bytes, str]]) -> bool:
        self.under_way = sent
        if not all(self._send(*request) for request in requests):
            return False
        self.under_way = None
        self.acknowledged.append(sent)
        return True

    def _send(self, method: str, path: str, body: bytes, kind: str) -> bool:
        while not self.is_over:
            url = f"{self.url}/v1/traces{path and '/'}{path}"
            request = urllib.request.Request(url, body, {"Content-Type": kind}, method=method)
            try:
                with urllib.request.urlopen(request, timeout=20):
                    return True
            except urllib.error.HTTPError as error:
                if error.code not in (429, 502, 503, 504):
                    self.problems.append(f"{method} {path} was answered {error.code}")
                    return False
            except OSError:
                pass  # it is dead: try again, with the same bytes
            time.sleep(0.02)
        return False


@dataclass
class Found:
    """What each target has, by span id how often, and what was sent."""

    exit_code: int = -1
    kills: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    under_way: list[set[str]] = field(default_factory=list)
    """Of each client, the spans of a request that had no answer yet."""
    spool: Counter[str] = field(default_factory=Counter)
    database: Counter[str] = field(default_factory=Counter)
    endpoint: set[str] = field(default_factory=set)
    repeated: int = 0
    wrongly_repeated: set[bytes] = field(default_factory=set)
    tensors: Counter[str] = field(default_factory=Counter)
    wanted_tensors: set[str] = field(default_factory=set)

    def see(self) -> None:
        """All that was acknowledged is everywhere, once; twice only what an endpoint had to get
        again. Of a request that had no answer a target has all or nothing.
        """
        assert self.exit_code == 0
        assert self.problems == []
        assert len(self.acknowledged) > 10 * sum(self.kills.values()), "there was no load"
        for counted in (self.spool, self.database, Counter(self.endpoint)):
            assert set(counted.values()) == {1}
            assert counted.keys() >= self.acknowledged
            others = counted.keys() - self.acknowledged
            assert all(others >= each or not others & each for each in self.under_way)
            assert others <= {some_id for each in self.under_way for some_id in each}
        assert self.spool.keys() == self.database.keys() == self.endpoint
        assert self.wrongly_repeated == set()
        assert self.tensors.keys() >= self.wanted_tensors
        assert set(self.tensors.values()) == {1}

    def __str__(self) -> str:
        kills = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        lost = {
            "spool": self.acknowledged - self.spool.keys(),
            "SQLite": self.acknowledged - self.database.keys(),
            "OTLP": self.acknowledged - self.endpoint,
        }
        twice = [sum(count > 1 for count in each.values()) for each in (self.spool, self.database)]
        return (
            f"{sum(self.kills.values())} kills ({kills}), {len(self.acknowledged):,} spans"
            f" acknowledged; lost: {', '.join(f'{k} {len(v)}' for k, v in lost.items())},"
            f" tensors {len(self.wanted_tensors - self.tensors.keys())} of"
            f" {len(self.wanted_tensors)}; twice: spool {twice[0]}, SQLite {twice[1]}, OTLP"
            f" {self.repeated} (of requests without an answer; others:"
            f" {len(self.wrongly_repeated)})"
        )


def killed(folder: Path, kills: int, seed: int = 7) -> Found:
    """Kill a collector so often; what is found when the last one has ended."""
    chance, found = random.Random(seed), Found()
    clients = [Client() for _ in range(CLIENTS)]
    with sink() as endpoint:
        config = config_of(folder, endpoint)

        def start() -> Serving:
            here = Serving(folder / "data", "--config", str(config))
            for client in clients:
                client.url = here.http
            return here

        here = start()
        try:
            for client in clients:
                client.start()
            for number in range(kills):
                time.sleep(chance.uniform(0.0, 0.9))
                # Each at least once, whatever the seed.
                victim = VICTIMS[number] if number < len(VICTIMS) else chance.choice(VICTIMS)
                found.kills[victim] += 1
                endpoint.window += 1
                here = _kill(here, victim, start)
                endpoint.window += 1
            time.sleep(0.5)
            for client in clients:
                client.is_over = True
            for client in clients:
                client.join(60)
            found.exit_code = here.process.wait(90) if _ask(here) else here.process.returncode
        finally:
            if here.process.poll() is None:
                here.kill()
        _fill(found, folder, clients, endpoint)
    return found


def _ask(here: Serving) -> bool:
    if here.process.poll() is not None:
        return False
    here.process.terminate()
    return True


def _kill(here: Serving, victim: str, start: object) -> Serving:
    translator = here.translator()
    if victim != "receiver" and translator is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(translator, signal.SIGKILL)
    if victim == "translator":
        return here
    here.kill()
    assert callable(start)
    return start()  # type: ignore[no-any-return]


def _fill(found: Found, folder: Path, clients: list[Client], endpoint: Sink) -> None:
    for client in clients:
        found.problems += client.problems
        for sent in client.acknowledged:
            found.acknowledged.update(sent.ids)
            if sent.snapshot:
                found.wanted_tensors.add(sent.snapshot)
        found.under_way.append(set(client.under_way.ids) if client.under_way else set())
    found.spool = Counter(span["id"][:_DIGITS] for span in spans_of(folder / "data"))
    with contextlib.closing(sqlite3.connect(folder / "rows.db")) as database:
        rows = database.execute('SELECT "id" FROM "TraceSpan"')
        found.database = Counter(row[0][:_DIGITS] for row in rows)
    found.endpoint = {some_id.hex() for some_id in endpoint.ids()}
    found.repeated, found.wrongly_repeated = endpoint.repeated()
    for path in (folder / "blobs").rglob("*.safetensors"):
        [(_, tensor)] = safetensors.deserialize(path.read_bytes())
        text = bytes(tensor["data"]).decode()
        assert text == path.name.removesuffix(".safetensors")
        found.tensors[text] += 1
