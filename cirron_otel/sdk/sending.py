"""What a session sends, and by what: batches to each target, metrics, what dead processes left."""

# ruff: noqa: PLC0415 - each target brings libraries of its own

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import TracerProvider

from .._version import SDK_VERSION
from ..config import Config
from ..config.exporters import Export, are_metrics_sent, exports_of
from ..errors import CirronOtelError
from ..spool.paths import SpoolPaths
from ..spool.recovery import recover
from ..translator.encode import Options
from .errors import swallowed
from .foreign import ForeignSpans
from .pipeline import Exporter, Metrics
from .span_processor import ForeignSpanProcessor, Observers

if TYPE_CHECKING:
    from .runtime import Runtime


def recover_left(paths: SpoolPaths, exporters: list[Exporter]) -> None:
    """Close what dead processes left open in this directory, and have it sent."""
    try:
        recovered = recover(paths)
    except CirronOtelError as error:
        swallowed("recovery", error)
        return
    for found in recovered:
        if found.problem:
            swallowed("recovery", found.problem)
    if any(found.name for found in recovered):
        for exporter in exporters:
            exporter.look_again()


def exports_of_session(
    config: Config, environ: Mapping[str, str], applications: TracerProvider | None
) -> list[Export]:
    """Where batches are sent, by the options, the environment and the application's provider."""
    exports = exports_of(config, environ)
    for problem in exports.problems:
        swallowed("exporters", problem)
    others = Observers(applications, ForeignSpanProcessor(ForeignSpans())).others()
    if config.exporters == ("auto",) and others:
        # The application's own exporter, if it has one, is handed every scope already.
        return [target for target in exports.targets if target is not Export.OTLP]
    return list(exports.targets)


def deliveries_of(exports: list[Export], runtime: Runtime) -> list[Exporter]:
    """A delivery for each target, started."""
    made: list[Exporter] = []
    for target in exports:
        try:
            made.append(_delivery(target, runtime))
        except Exception as error:
            swallowed(f"exporter {target}", error)
    return made


def start_metrics(runtime: Runtime) -> Metrics | None:
    """What sends metrics, started; None where none are wanted, or can be had."""
    if not are_metrics_sent(runtime.config, runtime.environ):
        return None
    try:
        from .metrics_push import metrics_of

        metrics = metrics_of(runtime, runtime.environ)
        metrics.start()
    except Exception as error:
        swallowed("metrics", error)
        return None
    runtime.collector.keeps_taken = True
    runtime.pipeline.sinks += (metrics.measures,)
    return metrics


def _delivery(target: Export, runtime: Runtime) -> Exporter:
    from ..exporter.delivery import Delivery

    delivery = Delivery(runtime.paths, runtime.owner, _target(target, runtime))
    delivery.start()
    return delivery


def _target(target: Export, runtime: Runtime) -> Any:
    config = runtime.config
    if target is Export.OTLP:
        from ..exporter.config import OtlpConfig
        from ..exporter.otlp_target import OtlpTarget

        service = str(runtime.resource.attributes.get("service.name", "cirron"))
        options = Options(config.trace_layout, service)
        otlp = OtlpTarget(
            OtlpConfig.from_env(runtime.environ),
            options,
            whole_snapshots=config.otlp_snapshots == "full",
        )
        if config.exporters == ("auto",):
            runtime.otlp = otlp
        return otlp
    if target is Export.EVENT_STREAM:
        from ..exporter.event_stream import EventStreamTarget

        return EventStreamTarget(SDK_VERSION)
    from ..exporter.cirron_http import CirronTarget

    return CirronTarget(config.api_endpoint, config.ingest_path, config.api_key or "", SDK_VERSION)
