"""The real Prometheus, started for a test and ended after it.

```python
with prometheus(tmp_path) as server:
    ...send metrics to server.otlp_metrics, or let it scrape `targets`...
    series = server.query("rate(cirron_units_total[1m])")
```
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from .process import BackendError, Process, get, running
from .run import POLL_SECONDS, WAIT_SECONDS, binary_of

_SCRIPT = (
    'exec "$0" --config.file="$1" --storage.tsdb.path="$2" --web.listen-address="$HEALTH"'
    " --web.enable-otlp-receiver --log.level=warn"
)


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    process: Process
    url: str
    """`http://127.0.0.1:port`."""

    @property
    def otlp_metrics(self) -> str:
        """The endpoint of OTLP metrics over HTTP."""
        return f"{self.url}/api/v1/otlp/v1/metrics"

    def query(self, promql: str, at_s: float | None = None) -> list[dict[str, Any]]:
        """The series that a query finds at a time (Unix, s), by default now.

        Each has its labels under `metric`, and under `value` a time and a number as text. Raises
        BackendError with Prometheus' message for a query that it rejects.
        """
        arguments = {"query": promql} if at_s is None else {"query": promql, "time": at_s}
        found: list[dict[str, Any]] = self._ask("query", arguments)["result"]
        return found

    def wait_for(self, promql: str, count: int = 1) -> list[dict[str, Any]]:
        """The series that a query finds, once there are at least `count`."""
        deadline = time.monotonic() + WAIT_SECONDS
        while len(found := self.query(promql)) < count:
            if time.monotonic() > deadline:
                raise BackendError(f"{promql}: {len(found)} of {count} series")
            time.sleep(POLL_SECONDS)
        return found

    def names(self) -> set[str]:
        """The names of all metrics."""
        return set(self._ask("label/__name__/values", {}))

    def _ask(self, what: str, arguments: dict[str, Any]) -> Any:
        status, body = get(f"{self.url}/api/v1/{what}?{urlencode(arguments)}")
        if status != 200:
            raise BackendError(f"Prometheus answered {status} to {arguments}: {body[:500]!r}")
        return json.loads(body)["data"]


@contextlib.contextmanager
def prometheus(directory: Path, config: str = "") -> Iterator[Prometheus]:
    """Run one with its data and its log below `directory`; `config` is its configuration, YAML."""
    file = directory / "prometheus.yaml"
    file.write_text(config)
    command = ["sh", "-c", _SCRIPT, binary_of("prometheus"), str(file), str(directory / "data")]
    with running(command, ("HEALTH",), "/-/ready", directory, {}) as (process, endpoints):
        yield Prometheus(process, f"http://{endpoints['HEALTH']}")
