"""Check the endpoints to which batches are sent, and whether Tempo's search will find them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..._version import SDK_VERSION
from ...core.config.exporters import Export, exports_of
from ...core.config.options import Config
from ...core.delivery.follow import unsent
from ...core.spool.paths import parse_name
from ...core.spool.reader import SpoolReader
from ...core.targets.cirron.batches import CirronTarget
from ...core.targets.otlp.config import OtlpConfig, default_service_name, target_key
from ...errors import CirronOtelError
from ..query.ingestion_slack import IngestionSlack, find_slack, shown_time
from .check import Check, ok, warning, within
from .otlp import OtlpRequest, examine_otlp
from .platform import examine_platform
from .spool import examine_spool
from .traceml import examine_traceml

_LONGEST_S = 5.0


def examine_search(directory: Path, environ: Mapping[str, str]) -> Iterator[Check]:
    """If the endpoint is Tempo, compare the age of unsent batches with its ingestion slack."""
    try:
        config = OtlpConfig.from_env(environ)
        slack = within(_LONGEST_S, lambda: find_slack(config))
        if slack is not None:
            yield _compared(slack, _oldest_unsent_s(directory, config))
    except (CirronOtelError, OSError, TimeoutError):
        return  # other checks report the error


def _oldest_unsent_s(directory: Path, config: OtlpConfig) -> float:
    """Return the age of the spool's oldest batch in seconds, or 0 if no batch is unsent."""
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
        f"{finding}; unsent batches are up to {shown_time(age_s)} old",
        'raise its ingestion_time_range_slack, or query by trace id: docs/backends.md, "Old runs in'
        ' Tempo"',
        **details,
    )


__all__ = ["examine_endpoints", "examine_spool", "keys_of"]


def examine_endpoints(
    config: Config, environ: Mapping[str, str], timeout: float, *, is_sent: bool
) -> Iterator[Check]:
    """Yield the checks of all endpoints; `timeout` is the limit per endpoint, seconds."""
    targets = exports_of(config, environ).targets
    if not targets:
        yield ok(
            "endpoint",
            f"none is set: batches are only stored in the spool, {config.output_dir}"
            " (set OTEL_EXPORTER_OTLP_ENDPOINT to send them)",
        )
    if Export.OTLP in targets:
        service = default_service_name(environ)
        yield from examine_otlp(OtlpRequest(environ, timeout, is_sent, service))
        yield from examine_search(config.output_dir, environ)
    if Export.EVENT_STREAM in targets:
        yield ok("cirron", "in a run of the platform: batches go to standard output, as events")
    elif Export.CIRRON_HTTP in targets:
        yield from examine_platform(config, timeout, is_sent=is_sent)
    yield from examine_traceml(environ, timeout)


def keys_of(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the ledger key of each valid target, by the target's name in messages."""
    keys: dict[str, str] = {}
    for export in exports_of(config, environ).targets:
        try:
            if export is Export.OTLP:
                otlp = OtlpConfig.from_env(environ)
                keys[otlp.shown_endpoint] = target_key(otlp)
            elif export is Export.CIRRON_HTTP:
                place = config.api_endpoint, config.ingest_path, config.api_key or ""
                target = CirronTarget(*place, SDK_VERSION)
                keys[target.shown] = target.key
        except CirronOtelError:
            continue  # the checks of the endpoint report the error
    return keys
