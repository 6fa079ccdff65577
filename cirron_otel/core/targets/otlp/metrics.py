"""OpenTelemetry's OTLP metric exporters, configured, with counted results and without their logs.

The exporters log every attempt of every failure, while a training run needs one line. The module
needs the extra `otlp`, so it is imported only when it is used.
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
    # It logs headers that it cannot parse, including secrets.
    "opentelemetry.util.re",
)
"""The loggers of the messages that `OtlpMetricExporter` reports itself, once."""
_NO_SERVICE_CODES = frozenset({404, 405, 501})
"""The HTTP status codes for a missing service; gRPC's is UNIMPLEMENTED."""
_MOST_RECORDS = 16

ReportFailure = Callable[[str, bool], None]
"""Receives a failure: a description, and whether the endpoint accepts no metrics at all."""


class OtlpMetricExporter(MetricExporter):
    """Wraps the stock exporter: counts the results of exports, and catches its exceptions."""

    def __init__(self, environ: Mapping[str, str], report: ReportFailure) -> None:
        """Open no connection yet. `report` receives failures.

        Raises UsageError if a variable is invalid, and MissingExtraError without the packages of
        the extra `otlp`.
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
        """Export metrics; the stock exporter tries for the timeout of its own variable."""
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
        """Return True: nothing is buffered."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:  # noqa: ARG002
        """Close the connection; an export in progress fails soon."""
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
        """Return `text` for a log, without header values and the user in the endpoint's URL."""
        authority = urlparse(f"//{self.config.endpoint.partition('://')[2]}").netloc
        user = (self.config.endpoint, authority)[bool(authority)].rpartition("@")[0]
        secrets = [*self.config.headers.values(), user, user.partition(":")[2]]
        return without_secrets(text, secrets)

    def _made(self) -> MetricExporter:
        return self._over_grpc() if self.config.protocol is OtlpProtocol.GRPC else self._over_http()

    def _over_http(self) -> MetricExporter:
        # ruff: noqa: PLC0415 - each protocol brings libraries of its own
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
    """Headers that are true even if empty: else the stock exporter reads the variable itself."""

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
    """Captures the log records of the stock exporters inside a `with` block, and no others."""

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
        """The first captured message; later ones concern retries."""
        return _description(self._records[0]) if self._records else ""

    @property
    def has_no_service(self) -> bool:
        """Whether a captured message means that the endpoint has no such service."""
        arguments = [each for record in self._records for each in _arguments(record)]
        return any(
            (type(each) is int and each in _NO_SERVICE_CODES)
            or getattr(each, "name", None) == "UNIMPLEMENTED"
            for each in arguments
        )

    def forget(self) -> None:
        """In a forked child: forget the parent's threads."""
        self._threads.clear()
        self.close()

    def close(self) -> None:
        """Remove the filter once no thread is inside the `with` block."""
        self._is_closed = True
        if not self._threads:
            for name in _LOGGERS:
                logging.getLogger(name).removeFilter(self)


def _description(record: logging.LogRecord) -> str:
    """Describe the failure in a log record by its exception or status, if it has one."""
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
"""The parent's exporters in a forked child, since closing their channels could end the child."""
