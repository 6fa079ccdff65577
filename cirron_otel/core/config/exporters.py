"""Determine where batches and metrics are sent, from the option `exporters` and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from .options import Config

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
TRACES_EXPORTER = "OTEL_TRACES_EXPORTER"
_METRICS_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_METRICS_EXPORTER = "OTEL_METRICS_EXPORTER"
# The names under which OTel Python registers its OTLP exporters.
_OTLP = frozenset({"otlp", "otlp_proto_grpc", "otlp_proto_http"})


class Export(StrEnum):
    """A destination of the spool's batches."""

    OTLP = "otlp"
    CIRRON_HTTP = "cirron_http"
    EVENT_STREAM = "event_stream"


class Exports(NamedTuple):
    """The destinations of a process's batches."""

    targets: tuple[Export, ...]
    problems: tuple[str, ...] = ()
    """Requested destinations that are not available, one line each."""


def exports_of(config: Config, environ: Mapping[str, str]) -> Exports:
    """Determine the destinations of a process's batches from its options and its environment.

    With `auto`, OTLP is a destination if `OTEL_TRACES_EXPORTER` names it or, if that is unset, if
    an OTLP endpoint is set. Cirron is a destination if an API key or a run id is set: through the
    event stream if there is a run id, otherwise over HTTP. The result may have no destination,
    because the spool keeps every batch.
    """
    cirron = _cirron(config)
    if config.exporters == ("auto",):
        otlp = Export.OTLP if _is_otlp_asked_for(environ) else None
        return Exports(tuple(each for each in (otlp, cirron) if each is not None))
    if "cirron" in config.exporters and cirron is None:
        problem = "exporters contains cirron, but there is no api_key: set CIRRON_API_KEY"
        return Exports(_chosen(config, None), (problem,))
    return Exports(_chosen(config, cirron))


def are_metrics_sent(config: Config, environ: Mapping[str, str]) -> bool:
    """Return whether a process sends OTLP metrics, according to its options and environment.

    `OTEL_METRICS_EXPORTER` decides if it is set. Otherwise metrics are sent if `exporters` names
    `otlp` or, with `auto`, if an OTLP endpoint is set, for metrics or for all signals.
    """
    if not config.metrics:
        return False
    if environ.get(_METRICS_EXPORTER, "").strip():
        return names_otlp(environ[_METRICS_EXPORTER])
    if config.exporters == ("auto",):
        return any(environ.get(variable, "").strip() for variable in _METRICS_ENDPOINTS)
    return "otlp" in config.exporters


def are_metrics_named(environ: Mapping[str, str]) -> bool:
    """Return whether the environment requests metrics explicitly, not just OTLP in general."""
    variables = (_METRICS_EXPORTER, _METRICS_ENDPOINTS[0])
    return any(environ.get(variable, "").strip() for variable in variables)


def _chosen(config: Config, cirron: Export | None) -> tuple[Export, ...]:
    by_name = {"otlp": Export.OTLP, "cirron": cirron}
    return tuple(export for name in config.exporters if (export := by_name[name]) is not None)


def _cirron(config: Config) -> Export | None:
    # Source: the concepts page, "Transport selection".
    if config.run_id is not None:
        return Export.EVENT_STREAM
    return None if config.api_key is None else Export.CIRRON_HTTP


def _is_otlp_asked_for(environ: Mapping[str, str]) -> bool:
    named = environ.get(TRACES_EXPORTER, "").strip()
    if named:
        return names_otlp(named)
    return any(environ.get(variable, "").strip() for variable in _ENDPOINTS)


def names_otlp(text: str) -> bool:
    """Return whether a comma-separated list of exporters names an OTLP exporter of OTel Python."""
    return any(name.strip() in _OTLP for name in text.split(","))
