"""OTEL_EXPORTER_OTLP_METRICS_*: what the stock exporters are made of, as they would read it."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as Grpc
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as Http

from cirron_otel.core.targets.otlp.config import OtlpConfig, Signal
from cirron_otel.core.targets.otlp.metrics import OtlpMetricExporter
from cirron_otel.errors import MissingExtraError, UsageError

PREFIX = "OTEL_EXPORTER_OTLP_"

CASES = [
    {},
    {"ENDPOINT": "http://c:1/base/"},
    {"METRICS_ENDPOINT": "http://m:1/own/path", "ENDPOINT": "http://c:1"},
    {"TRACES_ENDPOINT": "http://t:1", "TRACES_HEADERS": "a=t", "TRACES_TIMEOUT": "9"},
    {"HEADERS": "a=1,B=x%20y", "TIMEOUT": "3"},
    {"HEADERS": "a=1", "METRICS_HEADERS": "c=2", "METRICS_TIMEOUT": "4.5", "TIMEOUT": "3"},
    {"COMPRESSION": "gzip"},
    {"COMPRESSION": "gzip", "METRICS_COMPRESSION": "gzip"},
    {"ENDPOINT": "https://c:1", "INSECURE": "true"},
    {"ENDPOINT": "http://c:1", "METRICS_INSECURE": "false"},
]


def set_all(monkeypatch: pytest.MonkeyPatch, protocol: str, case: dict[str, str]) -> dict[str, str]:
    environ = {PREFIX + name: value for name, value in case.items()}
    environ[PREFIX + "METRICS_PROTOCOL"] = protocol
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return environ


def made(environ: dict[str, str]) -> Any:
    exporter = OtlpMetricExporter(environ, lambda _why, _is_not_taken: None)
    inner: Any = exporter._inner
    exporter.shutdown()
    return inner


@pytest.mark.parametrize("case", CASES)
def test_http(case: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    ours = made(set_all(monkeypatch, "http/protobuf", case))
    stock: Any = Http()
    for name in ("_endpoint", "_compression"):
        assert getattr(ours, name) == getattr(stock, name)
    for name in ("_headers", "_timeout"):
        assert getattr(ours._client, name) == getattr(stock._client, name)


@pytest.mark.parametrize("case", CASES)
def test_grpc(case: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    ours = made(set_all(monkeypatch, "grpc", case))
    stock: Any = Grpc()
    for name in ("_endpoint", "_insecure", "_headers", "_timeout", "_compression"):
        assert getattr(ours, name) == getattr(stock, name)
    stock.shutdown()


def test_json_goes_as_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(made(set_all(monkeypatch, "http/json", {}))) is Http


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
    filters = list(logging.getLogger(module).filters)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"cirron-otel\[otlp\]"):
        made(set_all(monkeypatch, "http/protobuf", {}))
    assert logging.getLogger(module).filters == filters


def test_a_certificate_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    case = {"ENDPOINT": "https://c:1", "METRICS_CERTIFICATE": "/nowhere.pem"}
    with pytest.raises(UsageError, match=r"names /nowhere\.pem, which cannot be read"):
        made(set_all(monkeypatch, "grpc", case))


def test_traces_variables_do_not_affect_metrics() -> None:
    environ = {PREFIX + "METRICS_ENDPOINT": "http://m:1", PREFIX + "TRACES_ENDPOINT": "http://t:2"}
    assert OtlpConfig.from_env(environ).endpoint == "t:2"
    assert OtlpConfig.from_env(environ, Signal.METRICS).endpoint == "m:1"
