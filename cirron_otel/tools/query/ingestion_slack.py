"""Detect whether Tempo's search finds a run that is sent long after it was recorded.

If spans arrive later than `ingestion_time_range_slack` (2 minutes by default) after their start,
Tempo indexes them under the time of arrival. A search over either time then finds nothing; the
spans can be found only by trace id (docs/backends.md, "Old runs in Tempo"). The OTLP receiver does
not identify itself as Tempo, so a request is sent to the query port of the same host.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from ...core.http.client import AnswerTooLongError, BrokenAnswerError, HttpClient
from ...core.targets.otlp.config import OtlpConfig, OtlpProtocol
from ...errors import UsageError

QUERY_PORT = 3200
"""Tempo's default port for queries."""
DEFAULT_SECONDS = 120.0
"""Tempo's default slack."""
_CLOUD = ".grafana.net"
_TIMEOUT_S = 1.0
_MOST_BYTES = 1_000_000
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|us|µs|ns|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


class IngestionSlack(NamedTuple):
    """The slack of a Tempo server that was detected."""

    place: str
    """The name of the server in messages."""
    seconds: float
    is_read: bool
    """Whether the slack was read from the server's configuration; otherwise it is the default."""

    def problem(self, age_s: float) -> str:
        """Describe why Tempo's search does not find spans of age `age_s`; "" if it does."""
        if age_s <= self.seconds:
            return ""
        default = "" if self.is_read else " by default"
        limit = shown_time(self.seconds)
        return (
            f"the oldest batch sent is {shown_time(age_s)} old, and {self.place}, a Tempo, indexes"
            f" spans up to {limit} old{default} (ingestion_time_range_slack): its search"
            " does not find older ones, only their trace ids do"
        )


def find_slack(config: OtlpConfig) -> IngestionSlack | None:
    """Return the slack of Tempo at an OTLP endpoint; None if Tempo is not detected.

    This takes at most two seconds.
    """
    host = _host(config)
    if not host:
        return None
    if host == _CLOUD[1:] or host.endswith(_CLOUD):
        return IngestionSlack(host, DEFAULT_SECONDS, is_read=False)
    seconds = _configured(host)
    if seconds is None:
        return None
    return IngestionSlack(f"{_shown(host)}:{QUERY_PORT}", seconds, is_read=True)


def _host(config: OtlpConfig) -> str:
    try:
        if config.protocol is not OtlpProtocol.GRPC:
            return urlsplit(config.endpoint).hostname or ""
        target = config.endpoint.removeprefix("dns:///")
        is_address = not target.startswith(("unix:", "unix-abstract:", "xds:"))
        return (urlsplit(f"//{target}").hostname or "") if is_address else ""
    except ValueError:
        return ""


def _configured(host: str) -> float | None:
    """Return the slack in the configuration of Tempo on `host`, seconds; None if it does not run
    there.
    """
    try:
        client = HttpClient(f"http://{_shown(host)}:{QUERY_PORT}", find_proxy=lambda _: None)
        answer = client.request(
            "GET", "/status/config", {}, timeout=_TIMEOUT_S, longest=_MOST_BYTES
        )
        client.close()
    except (OSError, BrokenAnswerError, ValueError, UsageError):
        return None
    if answer.status != 200 or not isinstance(answer.problem, AnswerTooLongError | None):
        return None
    return slack_in(answer.content.decode(errors="replace"))


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def slack_in(text: str) -> float | None:
    """Return `storage.trace.wal.ingestion_time_range_slack` of Tempo's configuration, seconds."""
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        key, colon, value = line.strip().partition(":")
        if not colon or line.lstrip().startswith(("-", "#")):
            continue
        depth = len(line) - len(line.lstrip())
        while path and path[-1][0] >= depth:
            path.pop()
        path.append((depth, key))
        if [name for _, name in path] == ["storage", "trace", "wal", "ingestion_time_range_slack"]:
            parts = _PART.findall(value)
            return sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else None
    return None


def shown_time(seconds: float) -> str:
    """Format a duration for messages, in the largest suitable unit."""
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
