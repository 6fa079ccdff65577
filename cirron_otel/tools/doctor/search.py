"""Check whether a Tempo's search will find the runs whose batches are still unsent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...core.delivery.follow import unsent
from ...core.spool.paths import parse_name
from ...core.spool.reader import SpoolReader
from ...core.targets.otlp.config import OtlpConfig, target_key
from ...errors import CirronOtelError
from ..query.ingestion_slack import IngestionSlack, find_slack, shown_time
from .check import Check, ok, warning, within

_LONGEST_S = 5.0


def examine_search(directory: Path, environ: Mapping[str, str]) -> Iterator[Check]:
    """Compare the age of unsent batches with the slack of the endpoint, if that is a Tempo."""
    try:
        config = OtlpConfig.from_env(environ)
        slack = within(_LONGEST_S, lambda: find_slack(config))
        if slack is not None:
            yield _compared(slack, _oldest_unsent_s(directory, config))
    except (CirronOtelError, OSError, TimeoutError):
        return  # the other checks report it


def _oldest_unsent_s(directory: Path, config: OtlpConfig) -> float:
    """Return the age of the oldest batch in seconds, if some batches are unsent; else 0."""
    try:
        reader = SpoolReader(directory)
    except CirronOtelError:
        return 0.0
    times = [parts[0] for name in reader.names() if (parts := parse_name(name)) is not None]
    if not times or not unsent(reader, target_key(config), ()):
        return 0.0
    return (time.time_ns() - min(times)) / 1e9


def _compared(slack: IngestionSlack, age_s: float) -> Check:
    default = "" if slack.is_read else " by default"
    finding = (
        f"{slack.place} is a Tempo: its search finds spans that are up to"
        f" {shown_time(slack.seconds)} old when they arrive{default}"
    )
    details = {"place": slack.place, "slack_s": slack.seconds, "is_read": slack.is_read}
    if age_s <= slack.seconds:
        return ok("otlp search", finding, **details)
    return warning(
        "otlp search",
        f"{finding}; batches that were not sent are up to {shown_time(age_s)} old",
        'raise its ingestion_time_range_slack, or ask by trace id: docs/backends.md, "Old runs in'
        ' Tempo"',
        **details,
    )
