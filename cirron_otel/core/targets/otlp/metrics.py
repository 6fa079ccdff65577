"""Export metrics with OpenTelemetry's OTLP exporters; count the results and suppress the logs.

OpenTelemetry's exporters log every failed attempt, but one line is enough for a training run. This
module needs the extra `otlp`, so it is imported only when it is used.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData

from ....errors import MissingExtraError
from .config import OtlpCompression, OtlpConfig, OtlpProtocol, Signal
from .transport import cause_of, read_file, without_secrets

if TYPE_CHECKING:
    import grpc

_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http._common",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.common.http",
    # This logger's module logs headers that it cannot parse, including secrets.
    "opentelemetry.util.re",
)
"""The loggers that are suppressed; `OtlpMetricExporter` reports their failures itself, once."""
_NO_SERVICE_CODES = frozenset({404, 405, 501})
"""The HTTP status codes for a missing service. The corresponding gRPC code is UNIMPLEMENTED."""
_MOST_RECORDS = 16

ReportFailure = Callable[[str, bool], None]
"""Takes the description of a failure, and whether the endpoint does not accept metrics at all."""


class OtlpMetricExporter(MetricExporter):
    """Wraps OpenTelemetry's exporter: counts the results of exports and catches exceptions."""

    def __init__(self, environ: Mapping[str, str], report: ReportFailure) -> None:
        """Prepare the exporter, without opening a connection. `report` receives failures.

        Raises UsageError if a variable is invalid, and MissingExtraError if the packages of the
        extra `otlp` are not installed.
        """
        self.config = OtlpConfig.from_env(environ, Signal.METRICS)
        self._report = report
        self._quiet = _Quiet()
        self._gate: Callable[[], AbstractContextManager[None]] = nullcontext
        with self._quiet:
            try:
                self._inner = self._made()
            except BaseException as error:
                self._quiet.close()
                if isinstance(error, ModuleNotFoundError):
                    raise MissingExtraError("otlp", "metrics over OTLP") from error
                raise
        super().__init__(self._inner._preferred_temporality, self._inner._preferred_aggregation)
        self._is_over = False
        self.exports = self.failures = 0
        self.last_error: str | None = None

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Export metrics. OpenTelemetry's exporter applies the timeout from the environment."""
        failed = MetricExportResult.FAILURE
        why = ""
        with self._quiet as heard, self._gate():
            try:
                result = self._inner.export(metrics_data, timeout_millis, **kwargs)
            except Exception as error:
                result, why = failed, f"{type(error).__name__}: {error}"
        if result is MetricExportResult.SUCCESS:
            self.exports += 1
        else:
            self.failures += 1
            self.last_error = self._shown(why or heard.first or "the export failed")
            self._report(self.last_error, heard.has_no_service)
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:  # noqa: ARG002 - the interface's
        """Return True, since nothing is buffered."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:  # noqa: ARG002
        """Close the connection. An export in progress soon fails."""
        if self._is_over:
            return
        self._is_over = True
        self._report = _ignore
        try:
            self._inner.shutdown()
        finally:
            self._quiet.close()

    def abandon(self) -> None:
        """In a forked child: leave the parent's connection untouched."""
        self._is_over = True
        self._quiet.forget()
        _abandoned.append(self._inner)

    def _shown(self, text: str) -> str:
        """Return `text` for a log, without header values and without the user in the URL."""
        authority = urlparse(f"//{self.config.endpoint.partition('://')[2]}").netloc
        user = (self.config.endpoint, authority)[bool(authority)].rpartition("@")[0]
        secrets = [*self.config.headers.values(), user, user.partition(":")[2]]
        return without_secrets(text, secrets)

    def _made(self) -> MetricExporter:
        return self._over_grpc() if self.config.protocol is OtlpProtocol.GRPC else self._over_http()

    def _over_http(self) -> MetricExporter:
        # ruff: noqa: PLC0415 - each protocol needs different libraries
        from opentelemetry.exporter.otlp.proto.http import Compression as Coding
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        from . import http_transport  # noqa: F401 - it imports what the first request would

        config = self.config
        codings = {
            OtlpCompression.NONE: Coding.NoCompression,
            OtlpCompression.GZIP: Coding.Gzip,
            OtlpCompression.DEFLATE: Coding.Deflate,
        }
        return OTLPMetricExporter(
            endpoint=config.endpoint,
            certificate_file=config.certificate,
            client_key_file=config.client_key,
            client_certificate_file=config.client_certificate,
            headers=dict(config.headers),
            timeout=config.timeout,
            compression=codings[config.compression],
        )

    def _over_grpc(self) -> MetricExporter:
        import grpc
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

        from .grpc_transport import gate

        config = self.config
        self._gate = gate.call
        gzip = config.compression is OtlpCompression.GZIP
        return OTLPMetricExporter(
            endpoint=config.endpoint,
            insecure=config.insecure,
            credentials=None if config.insecure else _credentials(config),
            headers=_Headers(config.headers),
            timeout=config.timeout,
            compression=grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression,
        )


class _Headers(dict[str, str]):
    """Headers that are truthy even if empty.

    Without this, OpenTelemetry's exporter would read the headers from the environment.
    """

    def __bool__(self) -> bool:
        return True


def _credentials(config: OtlpConfig) -> grpc.ChannelCredentials:
    import grpc

    return grpc.ssl_channel_credentials(
        read_file(config.certificate, "CERTIFICATE", config),
        read_file(config.client_key, "CLIENT_KEY", config),
        read_file(config.client_certificate, "CLIENT_CERTIFICATE", config),
    )


class _Quiet(logging.Filter):
    """Captures the log records of OpenTelemetry's exporters inside a `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self._threads: set[int] = set()
        self._records: list[logging.LogRecord] = []
        self._is_closed = False
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self)

    def __enter__(self) -> _Quiet:
        self._records = []
        self._threads.add(threading.get_ident())
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.discard(threading.get_ident())
        if self._is_closed:
            self.close()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record."""
        if threading.get_ident() not in self._threads:
            return True
        if len(self._records) < _MOST_RECORDS:
            self._records.append(record)
        return False

    @property
    def first(self) -> str:
        """The first captured message; later messages are about retries."""
        return _description(self._records[0]) if self._records else ""

    @property
    def has_no_service(self) -> bool:
        """Whether a captured message means that the endpoint has no metrics service."""
        arguments = [each for record in self._records for each in _arguments(record)]
        return any(
            (type(each) is int and each in _NO_SERVICE_CODES)
            or getattr(each, "name", None) == "UNIMPLEMENTED"
            for each in arguments
        )

    def forget(self) -> None:
        """In a forked child: forget the parent's threads, and remove the filter."""
        self._threads.clear()
        self.close()

    def close(self) -> None:
        """Remove the filter once no thread is inside the `with` block."""
        self._is_closed = True
        if not self._threads:
            for name in _LOGGERS:
                logging.getLogger(name).removeFilter(self)


def _description(record: logging.LogRecord) -> str:
    """Describe the failure in a log record by its exception or status, or else by its text."""
    arguments = _arguments(record)
    for at, each in enumerate(arguments):
        if isinstance(each, BaseException):
            return f"no answer ({cause_of(each)})"
        status = f"HTTP {each}" if type(each) is int else getattr(each, "name", None)
        if isinstance(status, str):
            words = [more for more in arguments[at + 1 :] if isinstance(more, str)]
            return f"{status} ({words[-1]})" if words else status
    return record.getMessage()


def _arguments(record: logging.LogRecord) -> tuple[object, ...]:
    return record.args if isinstance(record.args, tuple) else ()


def _ignore(_why: str, _is_not_taken: bool) -> None:
    """Ignore failures after the end of the session, such as a cancelled push."""


_abandoned: list[MetricExporter] = []
"""In a forked child, the parent's exporters, kept alive: closing them could end the child."""
