"""Where batches and metrics are sent: the option `exporters`, and what `auto` makes of the
environment.
"""

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
    """A way out of the spool."""

    OTLP = "otlp"
    CIRRON_HTTP = "cirron_http"
    EVENT_STREAM = "event_stream"


class Exports(NamedTuple):
    """Where batches are sent."""

    targets: tuple[Export, ...]
    problems: tuple[str, ...] = ()
    """What was asked for and cannot be had, a line each."""


def exports_of(config: Config, environ: Mapping[str, str]) -> Exports:
    """Where the batches of a process go, by its options and its environment.

    `auto`: by OTLP where `OTEL_TRACES_EXPORTER` says so or, where that is unset, an OTLP endpoint
    is set; to Cirron where there is a key or a run. Cirron's own is the event stream inside of a
    run, HTTP elsewhere. Nowhere is an answer too: the spool is there.
    """
    cirron = _cirron(config)
    if config.exporters == ("auto",):
        otlp = Export.OTLP if _is_otlp_asked_for(environ) else None
        return Exports(tuple(each for each in (otlp, cirron) if each is not None))
    if "cirron" in config.exporters and cirron is None:
        problem = "exporters names cirron, and there is no api_key: set CIRRON_API_KEY"
        return Exports(_chosen(config, None), (problem,))
    return Exports(_chosen(config, cirron))


def are_metrics_sent(config: Config, environ: Mapping[str, str]) -> bool:
    """Whether OTLP metrics go beside the spans, by the options and the environment of a process.

    `OTEL_METRICS_EXPORTER` decides where it is set. Else they go where `exporters` names `otlp`
    or, with `auto`, where an OTLP endpoint is set, theirs or the general one.
    """
    if not config.metrics:
        return False
    if environ.get(_METRICS_EXPORTER, "").strip():
        return names_otlp(environ[_METRICS_EXPORTER])
    if config.exporters == ("auto",):
        return any(environ.get(variable, "").strip() for variable in _METRICS_ENDPOINTS)
    return "otlp" in config.exporters


def are_metrics_named(environ: Mapping[str, str]) -> bool:
    """Whether the environment asks for metrics by name, and not for OTLP in general."""
    variables = (_METRICS_EXPORTER, _METRICS_ENDPOINTS[0])
    return any(environ.get(variable, "").strip() for variable in variables)


def _chosen(config: Config, cirron: Export | None) -> tuple[Export, ...]:
    by_name = {"otlp": Export.OTLP, "cirron": cirron}
    return tuple(found for name in config.exporters if (found := by_name[name]) is not None)


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
    """Whether OTLP is among the exporters of a list, by the names that OTel Python gives it."""
    return any(name.strip() in _OTLP for name in text.split(","))
