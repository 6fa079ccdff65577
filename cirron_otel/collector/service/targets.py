"""Convert the configured exporters to settings of targets; read their secrets from files."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from ...core.config.engine import TextFileError, read_text_file
from ...core.targets.cirron.batches import CirronSettingNames
from ...core.targets.otlp.config import (
    TENANT_HEADER,
    OtlpCompression,
    OtlpConfig,
    OtlpProtocol,
    SettingNames,
)
from ...errors import UsageError
from .exporter_options import CirronExporter, ClientTls, MetricsPushOptions, OtlpExporter
from .values import HEADERS

_MAX_FILE_BYTES = 64 * 1024


_WORDS = {
    "ENDPOINT": "endpoint",
    "HEADERS": "headers",
    "PROTOCOL": "protocol",
    "COMPRESSION": "compression",
    "CERTIFICATE": "tls.ca",
    "CLIENT_KEY": "tls.key",
    "CLIENT_CERTIFICATE": "tls.cert",
}


def otlp_config(exporter: OtlpExporter, path: str = "exporters[]") -> OtlpConfig:
    """Return the OTLP settings of `exporter`; `path` is its path in the configuration.

    Raises UsageError if its `headers_file` is invalid.
    """
    protocol = OtlpProtocol(exporter.protocol)
    url = urlsplit(exporter.endpoint)
    tls = exporter.tls or ClientTls()
    headers = {name: value.reveal() for name, value in exporter.headers.items()}
    if exporter.headers_file is not None:
        headers |= _headers_of(exporter.headers_file)
    if exporter.tenant is not None:
        headers[TENANT_HEADER] = exporter.tenant
    return OtlpConfig(
        protocol=protocol,
        endpoint=url.netloc
        if protocol is OtlpProtocol.GRPC
        else with_path(exporter.endpoint, "/v1/traces"),
        insecure=url.scheme == "http",
        headers=headers,
        timeout=exporter.timeout_s,
        compression=OtlpCompression(exporter.compression),
        certificate=_name(tls.ca),
        client_key=_name(tls.key),
        client_certificate=_name(tls.cert),
        settings=SettingNames(f"{path}.", "", _WORDS),
    )


def cirron_settings(path: str) -> CirronSettingNames:
    """Return the names of the settings of the Cirron exporter at `path`, for messages."""
    names = ("api_key", "endpoint", "ingest_path", "ca")
    return CirronSettingNames(*(f"{path}.{name}" for name in names))


def api_key(exporter: CirronExporter) -> str:
    """Return the API key of a Cirron exporter. Raises UsageError if its file is invalid."""
    if exporter.api_key is not None:
        return exporter.api_key.reveal()
    if exporter.api_key_file is None:
        raise UsageError("a cirron exporter has neither api_key nor api_key_file: set one of them")
    key = _lines(exporter.api_key_file)
    if len(key) != 1:
        raise UsageError(
            f"{exporter.api_key_file} has {len(key)} lines: expected the API key alone"
        )
    return key[0]


def name_of(exporter: OtlpExporter | CirronExporter) -> str:
    """Return the name of an exporter in metrics and logs: its type, endpoint and tenant."""
    tenant = exporter.tenant if isinstance(exporter, OtlpExporter) else None
    return " ".join(filter(None, (exporter.type, exporter.endpoint, tenant)))


def metrics_endpoint(push: MetricsPushOptions) -> str:
    """Return the endpoint for pushed metrics: the complete URL over HTTP."""
    return push.endpoint if push.protocol == "grpc" else with_path(push.endpoint, "/v1/metrics")


def with_path(endpoint: str, path: str) -> str:
    """Return `endpoint` followed by `path`, unless it already ends with it."""
    return endpoint if endpoint.endswith(path) else endpoint.rstrip("/") + path


def _name(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _headers_of(path: Path) -> dict[str, str]:
    pairs = [line.partition(":") for line in _lines(path)]
    try:
        headers = HEADERS.parse({name.strip(): value.strip() for name, _, value in pairs})
    except ValueError:
        raise UsageError(f"{path} contains invalid headers: expected lines `name: value`") from None
    return {name: value.reveal() for name, value in headers.items()}


def _lines(path: Path) -> list[str]:
    """Return the lines of a file of secrets, without empty lines and comments."""
    try:
        lines = read_text_file(path, _MAX_FILE_BYTES).splitlines()
    except TextFileError as problem:
        raise UsageError(f"{path} {problem}") from None
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
