"""The real Tempo, started for a test and ended after it.

```python
with tempo(tmp_path) as backend:
    ...send to backend.otlp_grpc or backend.otlp_http...
    spans = backend.wait_for_trace(trace_id, 100)
    backend.flush()
with tempo(tmp_path) as backend:  # the same blocks
    spans = backend.get_trace(trace_id)
```

Of what was not flushed a restart finds what stood in the write-ahead log.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from .build import PINS
from .process import BackendError, get, running
from .run import (
    POLL_SECONDS,
    WAIT_SECONDS,
    Backend,
    binary_of,
    config_file,
    spans_of,
    wait_for_shown,
)

TEMPO = PINS / "tempo.yaml"
_ID_KEYS = ("traceId", "spanId", "parentSpanId")
_SAMPLE = re.compile(r"^(\w+)(\{.*\})? ([0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Tempo(Backend):
    """A running Tempo."""

    query: str
    """`http://127.0.0.1:port`, with `/api/v2/` below it."""
    directory: Path
    """What it keeps: blocks below `blocks/`, what is no block yet below `wal/`."""

    def get_trace(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans of a trace (32 hex digits) as OTLP JSON; empty where Tempo has none of it.

        Each has its resource under `resource` and its scope under `scope` beside its own fields.
        Tempo says ids in base64: here they are hex, those of links too. Attributes may stand in
        another order, and flags are gone where the trace comes out of a block.
        """
        status, body = get(f"{self.query}/api/v2/traces/{trace_id}", timeout=WAIT_SECONDS)
        if status == 404:
            return []
        if status != 200:
            raise BackendError(f"Tempo answered {status} for trace {trace_id}: {body[:300]!r}")
        answer = json.loads(body)
        if answer.get("status") == "PARTIAL":
            raise BackendError(f"Tempo shows a part of {trace_id} only: {answer.get('message')}")
        spans = spans_of([answer.get("trace") or {}])
        for span in spans:
            _with_hex(span)
        return spans

    def wait_for_trace(
        self, trace_id: str, wanted: int | Set[str], seconds: float = WAIT_SECONDS
    ) -> list[dict[str, Any]]:
        """The spans of a trace once Tempo shows that many of them, or the spans of these ids."""
        return wait_for_shown("Tempo", self.get_trace, trace_id, wanted, seconds)

    def search(self, traceql: str, limit: int = 100) -> list[dict[str, Any]]:
        """What a TraceQL query finds at this moment, a trace each, newest first.

        A span is found about a second behind the last one of its trace. Raises BackendError with
        Tempo's words for a query that it does not take.
        """
        asked = urlencode({"q": traceql, "limit": limit, "spss": limit})
        status, body = get(f"{self.query}/api/search?{asked}", timeout=WAIT_SECONDS)
        if status != 200:
            raise BackendError(f"Tempo answered {status} to {traceql}: {body[:300]!r}")
        found: list[dict[str, Any]] = json.loads(body).get("traces", [])
        for trace in found:
            trace["traceID"] = trace["traceID"].zfill(32)  # Tempo leaves leading zeros out
        return found

    def wait_for_search(
        self, traceql: str, count: int = 1, seconds: float = WAIT_SECONDS
    ) -> list[dict[str, Any]]:
        """What a TraceQL query finds, once it is at least `count` traces."""
        deadline = time.monotonic() + seconds
        while len(found := self.search(traceql, max(count, 100))) < count:
            if time.monotonic() > deadline:
                raise BackendError(
                    f"Tempo finds {len(found)} of {count} traces by {traceql} after {seconds} s"
                )
            time.sleep(POLL_SECONDS)
        return found

    def metric(self, name: str, label: str = "") -> float:
        """A metric of Tempo's own, summed over its labels; 0 where it was never counted.

        With `label`, such as `reason="rate_limited"`, only what has that label is summed.
        """
        status, body = get(f"{self.query}/metrics")
        if status != 200:
            raise BackendError(f"Tempo answered {status} for its metrics")
        return sum(
            float(value)
            for found, labels, value in _SAMPLE.findall(body.decode())
            if found == name and label in labels
        )

    def flush(self, seconds: float = WAIT_SECONDS) -> None:
        """Have all that was taken written into blocks, and wait until they stand."""
        deadline = time.monotonic() + seconds
        status, body = get(f"{self.query}/flush", timeout=WAIT_SECONDS)
        if status != 204:
            raise BackendError(f"Tempo answered {status} to a flush: {body[:300]!r}")
        # By now everything stands in a log; what is sent meanwhile is in other ones.
        rest = _unwritten(self.directory)
        while rest := rest & _unwritten(self.directory):
            if time.monotonic() > deadline:
                raise BackendError(f"Tempo has not flushed after {seconds} s")
            time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def tempo(
    directory: Path,
    config: Path | str = TEMPO,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Tempo]:
    """Run Tempo on what `directory` holds, or will hold; its log goes there too.

    It is killed in the end, as SIGTERM may hang: what is to be there the next time is flushed.
    """
    file = config_file(config, directory)
    command = [binary_of("tempo"), f"-config.file={file}", "-config.expand-env=true"]
    names = ("OTLP_GRPC", "OTLP_HTTP", "QUERY", "QUERY_GRPC")
    settings = {**(environment or {}), "DIR": str(directory)}
    with running(command, names, "/ready", directory, settings, "QUERY") as (process, endpoints):
        try:
            yield Tempo(
                process=process,
                otlp_grpc=endpoints["OTLP_GRPC"],
                otlp_http=f"http://{endpoints['OTLP_HTTP']}",
                query=f"http://{endpoints['QUERY']}",
                directory=directory,
            )
        finally:
            process.kill()


def _with_hex(span: dict[str, Any]) -> None:
    for part in (span, *span.get("links", ())):
        for key in _ID_KEYS:
            if key in part:
                part[key] = base64.b64decode(part[key]).hex()


def _unwritten(directory: Path) -> set[str]:
    """The blocks that do not stand below `blocks/` yet: a log, or whole but not copied."""
    wal = directory / "wal"
    logs = {path.name.partition("+")[0] for path in wal.glob("*+*") if _has_content(path)}
    whole = {path.name for path in wal.glob("blocks/*/*") if not (path / "flushed").exists()}
    return logs | whole


def _has_content(log: Path) -> bool:
    try:
        return any(path.stat().st_size for path in log.iterdir())
    except FileNotFoundError:
        return False  # it just became a block
