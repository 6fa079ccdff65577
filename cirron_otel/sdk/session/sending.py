"""A session's deliveries: batches for each target, metrics, and batches left by dead processes."""

# ruff: noqa: PLC0415 - each target imports its own libraries

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from ..._version import SDK_VERSION
from ...core.config.exporters import Export, are_metrics_sent, exports_of
from ...core.config.options import Config
from ...core.spool.owner import Owner
from ...core.spool.paths import SpoolPaths
from ...core.spool.recovery import recover
from ...core.translator.own.encode import Options
from ...errors import CirronOtelError
from ..flush.interfaces import Exporter
from ..tracing.clock import wall_now
from ..tracing.foreign_spans import ForeignSpans
from ..tracing.span_processor import ForeignSpanProcessor, Observers
from .errors import record_error

if TYPE_CHECKING:
    from .metrics_push import MetricsPush

_SEAL_S = 5.0
"""Maximum seconds to wait for existing records to be sealed when the program sets a provider."""


def recover_left(paths: SpoolPaths, exporters: list[Exporter]) -> None:
    """Recover the journals that dead processes left in this directory, and notify the exporters."""
    try:
        recovered = recover(paths)
    except CirronOtelError as error:
        record_error("recovery", error)
        return
    for result in recovered:
        if result.problem:
            record_error("recovery", result.problem)
    if any(result.name or result.saved for result in recovered):
        for exporter in exporters:
            exporter.rescan()


def exports_of_session(
    config: Config, environ: Mapping[str, str], applications: TracerProvider | None
) -> list[Export]:
    """Choose the targets from the options, the environment, and the application's provider."""
    exports = exports_of(config, environ)
    for problem in exports.problems:
        record_error("exporters", problem)
    others = Observers(applications, ForeignSpanProcessor(ForeignSpans())).others()
    if config.exporters == ("auto",) and others:
        # The application's own exporter, if it has one, already receives every scope.
        return [target for target in exports.targets if target is not Export.OTLP]
    return list(exports.targets)


class Deliveries:
    """Starts one delivery for each target of a session."""

    def __init__(
        self, config: Config, environ: Mapping[str, str], paths: SpoolPaths, owner: Owner
    ) -> None:
        """Start nothing yet. `owner` writes the batches to the spool at `paths`."""
        self._config, self._environ = config, environ
        self._paths, self._owner = paths, owner
        self.automatic_otlp: Any = None
        """The OTLP target of `exporters="auto"`, which the application's exporters supersede."""

    def start(self, exports: list[Export], resource: Resource) -> list[Exporter]:
        """Start a delivery for each target; one that cannot be started is reported and skipped."""
        started: list[Exporter] = []
        for target in exports:
            try:
                from ...core.delivery.delivery import Delivery

                delivery = Delivery(self._paths, self._owner, self._target(target, resource))
                delivery.start()
                started.append(delivery)
            except Exception as error:
                record_error(f"exporter {target}", error)
        return started

    def leave_otlp(self, flush: Callable[[float], bool]) -> None:
        """Stop sending new records over OTLP: the application's exporters now get all scopes."""
        otlp, self.automatic_otlp = self.automatic_otlp, None
        if otlp is not None and flush(_SEAL_S):  # otherwise spans are sent twice, but none is lost
            otlp.skip_after(wall_now(), self._owner.prefix)

    def _target(self, target: Export, resource: Resource) -> Any:
        config = self._config
        if target is Export.OTLP:
            from ...core.targets.otlp.config import OtlpConfig
            from ...core.targets.otlp.target import OtlpTarget

            service = str(resource.attributes.get("service.name", "cirron"))
            otlp = OtlpTarget(
                OtlpConfig.from_env(self._environ),
                Options(config.trace_layout, service),
                whole_snapshots=config.otlp_snapshots == "full",
                within_budget=True,
            )
            if config.exporters == ("auto",):
                self.automatic_otlp = otlp
            return otlp
        if target is Export.EVENT_STREAM:
            from ...core.targets.event_stream import EventStreamTarget

            return EventStreamTarget(SDK_VERSION)
        from ...core.targets.cirron.batches import CirronTarget

        key = config.api_key or ""
        return CirronTarget(
            config.api_endpoint, config.ingest_path, key, SDK_VERSION, within_budget=True
        )


def start_metrics(
    config: Config,
    environ: Mapping[str, str],
    resource: Callable[[], Resource],
    drops: Callable[[], Mapping[str, int]],
) -> MetricsPush | None:
    """Start the thread that sends metrics; None if they are off or it cannot be started."""
    if not are_metrics_sent(config, environ):
        return None
    try:
        from .metrics_push import metrics_of

        metrics = metrics_of(environ, resource, drops)
        metrics.start()
    except Exception as error:
        record_error("metrics", error)
        return None
    return metrics
