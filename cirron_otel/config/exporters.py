"""Where batches are sent: the option `exporters`, and what `auto` makes of the environment."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from .options import Config

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_TRACES_EXPORTER = "OTEL_TRACES_EXPORTER"
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


def _chosen(config: Config, cirron: Export | None) -> tuple[Export, ...]:
    by_name = {"otlp": Export.OTLP, "cirron": cirron}
    return tuple(found for name in config.exporters if (found := by_name[name]) is not None)


def _cirron(config: Config) -> Export | None:
    # Source: the concepts page, "Transport selection".
    if config.run_id is not None:
        return Export.EVENT_STREAM
    return None if config.api_key is None else Export.CIRRON_HTTP


def _is_otlp_asked_for(environ: Mapping[str, str]) -> bool:
    named = environ.get(_TRACES_EXPORTER, "").strip()
    if named:
        return any(name.strip() in _OTLP for name in named.split(","))
    return any(environ.get(variable, "").strip() for variable in _ENDPOINTS)
