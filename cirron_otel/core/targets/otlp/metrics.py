"""OpenTelemetry's own OTLP exporters of metrics, configured, counted and kept quiet.

They log every failure, and each attempt of it; a training run wants one line. Needs the extra
`otlp`; whoever wants it imports this module when it is wanted.
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
from .config import Compression, OtlpConfig, Protocol, Signal
from .transport import cause_of, read_file, without_secrets

if TYPE_CHECKING:
    import grpc

_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http._common",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.common.http",
    # It writes headers that it cannot read, secrets included.
    "opentelemetry.util.re",
)
"""Where they log what `OtlpMetricExporter` says itself, once."""
_NOT_TAKEN = frozenset({404, 405, 501})
"""HTTP's ways to say that there is no such service; gRPC's is UNIMPLEMENTED."""
_MOST_HEARD = 16

Told = Callable[[str, bool], None]
"""Told of a failure: what happened, and whether the endpoint takes no metrics at all."""


class OtlpMetricExporter(MetricExporter):
    """The stock exporter behind a count of what became of each export. Its methods raise nothing
    that the stock one raises.
    """

    def __init__(self, environ: Mapping[str, str], told: Told) -> None:
        """Connects nowhere yet.

        Raises UsageError where a variable is wrong, and MissingExtraError without the packages of
        the extra `otlp`.
        """
        self.config = OtlpConfig.from_env(environ, Signal.METRICS)
        self._told = told
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
        """Send them; the stock exporter tries for the timeout of its own variable."""
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
            self._told(self.last_error, heard.is_not_taken)
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:  # noqa: ARG002 - the interface's
        """Nothing is kept here."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:  # noqa: ARG002
        """Give up the connection; an export under way ends soon, in failure."""
        if self._is_over:
            return
        self._is_over = True
        self._told = _nobody
        try:
            self._inner.shutdown()
        finally:
            self._quiet.close()

    def abandon(self) -> None:
        """In a forked child: the connection is the parent's, and stays untouched."""
        self._is_over = True
        self._quiet.forget()
        _abandoned.append(self._inner)

    def _shown(self, text: str) -> str:
        """What may stand in a log: no header's value, nor who the endpoint's URL says we are."""
        authority = urlparse(f"//{self.config.endpoint.partition('://')[2]}").netloc
        user = (self.config.endpoint, authority)[bool(authority)].rpartition("@")[0]
        secrets = [*self.config.headers.values(), user, user.partition(":")[2]]
        return without_secrets(text, secrets)

    def _made(self) -> MetricExporter:
        return self._over_grpc() if self.config.protocol is Protocol.GRPC else self._over_http()

    def _over_http(self) -> MetricExporter:
        # ruff: noqa: PLC0415 - each protocol brings libraries of its own
        from opentelemetry.exporter.otlp.proto.http import Compression as Coding
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        from . import http_transport  # noqa: F401 - it imports what the first request would

        config = self.config
        codings = {
            Compression.NONE: Coding.NoCompression,
            Compression.GZIP: Coding.Gzip,
            Compression.DEFLATE: Coding.Deflate,
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
        gzip = config.compression is Compression.GZIP
        return OTLPMetricExporter(
            endpoint=config.endpoint,
            insecure=config.insecure,
            credentials=None if config.insecure else _credentials(config),
            headers=_Headers(config.headers),
            timeout=config.timeout,
            compression=grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression,
        )


class _Headers(dict[str, str]):
    """True even if it is empty: else the stock exporter reads the variable itself."""

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
    """Keeps what the stock exporters log inside of a `with` block, and nothing else, to itself."""

    def __init__(self) -> None:
        super().__init__()
        self._threads: set[int] = set()
        self._heard: list[logging.LogRecord] = []
        self._is_closed = False
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self)

    def __enter__(self) -> _Quiet:
        self._heard = []
        self._threads.add(threading.get_ident())
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.discard(threading.get_ident())
        if self._is_closed:
            self.close()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be logged."""
        if threading.get_ident() not in self._threads:
            return True
        if len(self._heard) < _MOST_HEARD:
            self._heard.append(record)
        return False

    @property
    def first(self) -> str:
        """The first thing that was said: those that follow are of attempts to repair it."""
        return _said(self._heard[0]) if self._heard else ""

    @property
    def is_not_taken(self) -> bool:
        """Whether what was said is that the endpoint has no such service."""
        said = [each for record in self._heard for each in _arguments(record)]
        return any(
            (type(each) is int and each in _NOT_TAKEN)
            or getattr(each, "name", None) == "UNIMPLEMENTED"
            for each in said
        )

    def forget(self) -> None:
        """In a forked child: the threads that are inside are the parent's."""
        self._threads.clear()
        self.close()

    def close(self) -> None:
        """Take it out again, as soon as no thread is inside."""
        self._is_closed = True
        if not self._threads:
            for name in _LOGGERS:
                logging.getLogger(name).removeFilter(self)


def _said(record: logging.LogRecord) -> str:
    """What a record says happened: the exception or the status in it, if it has one."""
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


def _nobody(_why: str, _is_not_taken: bool) -> None:
    """The session is over: a push that was broken off is no news."""


_abandoned: list[MetricExporter] = []
"""Parents' exporters in a forked child: to end a channel there might end the child."""
