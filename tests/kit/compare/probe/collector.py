"""A collector that receives the corpus: answers, rows, files, metric names, configuration."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .command_line import CommandLine, Output
from .descriptions import file_names

COMMAND = str(Path(sys.executable).with_name("cirron-otel"))
PLACE = Path("collected")
TYPES = {".binpb": "application/x-protobuf", ".json": "application/json"}
_END_S, _REST_S = 300, 60
_TIME = re.compile(r"0?(1[0-9]{18})(-[0-9a-f]{32})?\b")
"""A time in ns, which may begin the name of a file."""
_QUEUES = "cirron_collector_queue_requests{"
_WAITING = f'{_QUEUES}queue="translation"}} '
_SHARE = 20
"""One of so many files of a kind is sent: each request waits for the disk."""


def outputs(cli: CommandLine, corpus: Path) -> Iterator[Output]:
    """Start a collector, send files, end it, and read what it stored."""
    yield from cli.outputs("collector configuration", "collector", "--print-config")
    begun = time.time_ns()
    command = [COMMAND, "collector", "--spool", str(PLACE), "--grpc", "off", "--http"]
    stores = ["--storage", f"sqlite:///{PLACE}/rows.db", "--blobs", f"{PLACE}/blobs"]
    with subprocess.Popen(
        [*command, "localhost:0", *stores, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            address = json.loads(process.stdout.readline())["http"]
            yield from _answers(f"http://{address}", corpus)
            metrics = _metrics_at_rest(f"http://{address}/metrics")
            yield "collector metrics", "\n".join(_series(metrics)).encode()
        finally:
            process.terminate()
            code = process.wait(_END_S)
    yield "collector code", str(code).encode()
    yield "collector files", file_names(PLACE)
    yield from _tables(PLACE / "rows.db", begun)


def _answers(url: str, corpus: Path) -> Iterator[Output]:
    for number, path in enumerate(sorted((corpus / "files").iterdir())):
        content_type = TYPES.get(path.suffix)
        is_chosen = path.name.startswith(("vector-", "hostile-")) or number % _SHARE == 0
        if content_type is None or not is_chosen:
            continue
        route = "/v1/traces" if ".otlp." in path.name else "/api/traces"
        yield f"answer {path.name}", _answer(url, route, path.read_bytes(), content_type)
    for path in sorted((corpus / "spools").rglob("spool/*.json")):
        yield f"answer {path.name}", _answer(url, "/api/traces", path.read_bytes(), TYPES[".json"])


def _answer(url: str, route: str, data: bytes, content_type: str) -> bytes:
    """Return status and body, once the request is translated.

    Requests that are translated together can become one batch.
    """
    status, body = _request(url + route, data, content_type)
    deadline = time.monotonic() + _END_S
    while True:
        lines = _request(f"{url}/metrics")[1].decode().splitlines()
        (waiting,) = (line for line in lines if line.startswith(_WAITING))
        if float(waiting.rsplit(" ", 1)[1]) == 0:
            return f"{status} ".encode() + body
        if time.monotonic() > deadline:
            raise TimeoutError(f"the collector did not translate a request in {_END_S} s")
        time.sleep(0.01)


def _metrics_at_rest(url: str) -> str:
    """Return the metrics once no queue has a request, or after a while.

    Some series begin with a delivery.
    """
    deadline = time.monotonic() + _REST_S
    while True:
        metrics = _request(url)[1].decode()
        queues = [line for line in metrics.splitlines() if line.startswith(_QUEUES)]
        is_waiting = any(float(line.rsplit(" ", 1)[1]) for line in queues)
        if not is_waiting or time.monotonic() > deadline:
            return metrics
        time.sleep(0.05)


def _request(url: str, data: bytes | None = None, content_type: str = "") -> tuple[int, bytes]:
    """Send a request, a POST if there is `data`; return status and body."""
    request = urllib.request.Request(url, data, {"Content-Type": content_type} if data else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def _series(text: str) -> list[str]:
    """Return the comments and the names with labels; the figures differ."""
    return sorted(
        {line if line.startswith("#") else line.rsplit(" ", 1)[0] for line in text.splitlines()}
    )


def _tables(database: Path, begun: int) -> Iterator[Output]:
    """Dump the schema and the rows of each table, without the times of this run."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        schema = "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"
        for kind, name, sql in connection.execute(schema).fetchall():
            yield f"schema {kind} {name}", str(sql).encode()
            if kind == "table":
                rows = connection.execute(f'SELECT * FROM "{name}"').fetchall()
                lines = sorted(_stable(row, begun) for row in rows)
                yield f"rows {name}", "\n".join(lines).encode()


def _stable(row: tuple[Any, ...], begun: int) -> str:
    """Write a row without times of this run; hashes, which depend on them, by their length."""

    def replaced(found: re.Match[str]) -> str:
        return "(now)" if begun <= int(found[1]) <= time.time_ns() else found[0]

    values = (f"({len(each)} bytes)" if isinstance(each, bytes) else each for each in row)
    return _TIME.sub(replaced, repr(tuple(values)))
