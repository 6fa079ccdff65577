"""The CPU that a collector takes for a new batch, with few and with many batches in its spool."""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from tests.kit.servers.serving import Serving

from .sink import Sink, sink
from .steady import loaded

A_SECOND = 3
_QUIET_S = 4.0
_SETTLE_S = 600.0


def batch(at_ns: int) -> tuple[str, bytes]:
    """The name and the bytes of a batch of cirron-sdk's with one span."""
    batch_id, span_id = uuid.uuid4().hex, uuid.uuid4().hex
    text = (
        '{"schema_version":1,"sdk_version":"0.3.0","batch_id":"%s","created_ns":%d,"spans":[{"id":'
        '"%s","name":"c","parent_id":null,"index":1,"start_ns":%d,"end_ns":%d,"cpu_ns":null,'
        '"gpu_ns":null,"memory_peak_bytes":null,"thread_id":1,"pid":2,"rank":0,"attrs":{},'
        '"mark_ids":[]}],"marks":[],"snapshots":[]}'
    )
    return (
        f"{at_ns:020d}-{batch_id}.json",
        (text % (batch_id, at_ns, span_id, at_ns - 5, at_ns)).encode(),
    )


@dataclass
class Cost:
    """What was measured with one number of batches."""

    batches: int
    a_batch_s: float
    """CPU of both processes for a new batch."""
    restart_s: float
    """CPU of both processes of a collector that was started anew, until the first new batch was in
    its database and at its endpoint."""


def _cpu_s(here: Serving) -> float:
    """CPU of the processes of a collector so far."""
    ticks = 0
    for pid in (here.process.pid, here.translator()):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _settle(here: Serving, folder: Path, endpoint: Sink, count: int) -> None:
    """Wait until all is in the database and at the endpoint, and the processes rest."""
    deadline = time.monotonic() + _SETTLE_S
    while _stored(folder) < count or endpoint.spans < count:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    before = _cpu_s(here)
    while True:
        time.sleep(_QUIET_S)
        now = _cpu_s(here)
        if now - before < 0.05 * _QUIET_S:
            return
        assert time.monotonic() < deadline
        before = now


def _stored(folder: Path) -> int:
    try:
        with closing(sqlite3.connect(folder / "rows.db")) as database:
            return int(database.execute('SELECT COUNT(*) FROM "TraceBatch"').fetchone()[0])
    except sqlite3.OperationalError:
        return 0


class _Client:
    def __init__(self, here: Serving) -> None:
        self._to = HTTPConnection(here.http.removeprefix("http://"), timeout=60)

    def post(self) -> None:
        body = batch(time.time_ns())[1]
        self._to.request("POST", "/v1/traces", body, {"Content-Type": "application/json"})
        answer = self._to.getresponse()
        answer.read()
        assert answer.status in (200, 202)


def cost(folder: Path, batches: int, seconds: float) -> Cost:
    """Measure with so many batches in the spool, all of which every target has."""
    spool = folder / "data" / "spool"
    spool.mkdir(parents=True)
    begin_ns = time.time_ns() - batches * 1000 - 10**9
    for number in range(batches):
        name, data = batch(begin_ns + number * 1000)
        (spool / name).write_bytes(data)
    with sink() as endpoint:
        endpoint.is_kept = False
        return _cost(folder, endpoint, batches, seconds)


def _cost(folder: Path, endpoint: Sink, batches: int, seconds: float) -> Cost:
    with loaded(folder, endpoint) as here:
        _settle(here, folder, endpoint, batches)
        client, posted = _Client(here), 1
        client.post()  # the first one after a start reads how large the spool is
        time.sleep(_QUIET_S)
        before, end = _cpu_s(here), time.monotonic() + seconds
        warm = posted
        while time.monotonic() < end:
            client.post()
            posted += 1
            time.sleep(1 / A_SECOND)
        a_batch_s = (_cpu_s(here) - before) / (posted - warm)
        assert here.end() == 0
    with loaded(folder, endpoint) as here:
        spans = endpoint.spans
        _Client(here).post()
        while _stored(folder) <= batches + posted or endpoint.spans == spans:
            time.sleep(0.02)
        restart_s = _cpu_s(here)
        assert here.end() == 0
    return Cost(batches, a_batch_s, restart_s)
