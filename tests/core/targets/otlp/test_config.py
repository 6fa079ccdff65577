from __future__ import annotations

import logging
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
    OTLPSpanExporter as GrpcSpanExporter,
)
from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
    OTLPSpanExporter as HttpSpanExporter,
)
from opentelemetry.util.re import parse_env_headers

from cirron_otel.core.targets.otlp.config import (
    OtlpCompression,
    OtlpConfig,
    OtlpProtocol,
    parse_headers,
)
from cirron_otel.errors import UsageError
from tests.kit.examples import examples

PREFIX = "OTEL_EXPORTER_OTLP_"


def environment(**variables: str) -> dict[str, str]:
    return {PREFIX + name: value for name, value in variables.items()}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


# What both stock exporters understand, each variable with its _TRACES_ form and without.
COMMON: list[dict[str, str]] = [
    {},
    {"ENDPOINT": "http://collector:4317"},
    {"ENDPOINT": "http://collector:4318/"},
    {"ENDPOINT": "https://collector:4317"},
    {"ENDPOINT": "https://collector.example/otlp/base"},
    {"ENDPOINT": "https://collector.example/otlp/base/"},
    {"ENDPOINT": "http://collector//"},
    {"ENDPOINT": "http://[::1]:4317"},
    {"TRACES_ENDPOINT": "http://traces:4317/custom/path/"},
    {"TRACES_ENDPOINT": "http://traces:4317", "ENDPOINT": "http://other"},
    {"TRACES_ENDPOINT": "", "ENDPOINT": "http://other:1"},
    {"ENDPOINT": "http://c:1", "INSECURE": "true"},
    {"ENDPOINT": "https://c:1", "INSECURE": "true"},
    {"ENDPOINT": "http://c:1", "INSECURE": "false"},
    {"ENDPOINT": "http://c:1", "INSECURE": "FALSE", "TRACES_INSECURE": "TRUE"},
    {"ENDPOINT": "http://c:1", "INSECURE": "true", "TRACES_INSECURE": "no"},
    {"HEADERS": "api-key=secret"},
    {"HEADERS": "Api-Key=a%20b%3D%2C,x=y=z , EMPTY= "},
    {"HEADERS": "authorization=Bearer abc,bad header,=x,ok=1"},
    {"HEADERS": "a=1", "TRACES_HEADERS": "b=2"},
    {"HEADERS": "a=1", "TRACES_HEADERS": ""},
    {"HEADERS": "user-agent=mine"},
    {"TIMEOUT": "3"},
    {"TIMEOUT": "2.5", "TRACES_TIMEOUT": "0.75"},
    {"TIMEOUT": "1e2"},
    {"COMPRESSION": "gzip"},
    {"COMPRESSION": " GZip "},
    {"TRACES_COMPRESSION": "gzip", "COMPRESSION": "gzip"},
]

GRPC_ONLY: list[dict[str, str]] = [
    {"ENDPOINT": "collector:4317"},
    {"ENDPOINT": "collector:4317", "INSECURE": "true"},
    {"ENDPOINT": "unix:///run/otel.sock", "INSECURE": "true"},
    {"ENDPOINT": "dns:///collector:4317"},
    {"TRACES_TIMEOUT": "0", "TIMEOUT": "7"},
    {"TRACES_TIMEOUT": "0"},
]

HTTP_ONLY: list[dict[str, str]] = [
    {"COMPRESSION": "none"},
    {"COMPRESSION": "deflate"},
    {"COMPRESSION": "deflate", "TRACES_COMPRESSION": "none"},
    {"COMPRESSION": "brotli"},
    {"TIMEOUT": "soon"},
    {"TIMEOUT": "", "TRACES_TIMEOUT": ""},
    {"HEADERS": "content-type=text/odd"},
    {"CERTIFICATE": "/ca.pem"},
    {"CERTIFICATE": "/ca.pem", "TRACES_CERTIFICATE": "/other.pem"},
    {"CLIENT_CERTIFICATE": "/c.pem", "CLIENT_KEY": "/c.key"},
    {"CLIENT_CERTIFICATE": "/c.pem", "TRACES_CLIENT_KEY": "/c.key"},
    {"CLIENT_CERTIFICATE": "/c.pem"},
    {"CLIENT_KEY": "/c.key"},
]


def with_environment(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in environment(**variables).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("variables", COMMON + GRPC_ONLY, ids=str)
def test_grpc_is_read_as_the_stock_exporter_reads_it(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_environment(monkeypatch, variables)
    stock: Any = GrpcSpanExporter()
    try:
        ours = OtlpConfig.from_env()
        assert ours.protocol is OtlpProtocol.GRPC
        assert ours.endpoint == stock._endpoint
        assert ours.insecure == stock._insecure
        assert tuple(ours.headers.items()) == stock._headers
        assert ours.timeout == stock._timeout
        compression = {
            grpc.Compression.NoCompression: OtlpCompression.NONE,
            grpc.Compression.Gzip: OtlpCompression.GZIP,
        }
        assert ours.compression is compression[stock._compression]
    finally:
        stock.shutdown()


@pytest.mark.parametrize("variables", COMMON + HTTP_ONLY, ids=str)
def test_http_is_read_as_the_stock_exporter_reads_it(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_environment(monkeypatch, variables)
    monkeypatch.setenv(PREFIX + "PROTOCOL", "http/protobuf")
    stock: Any = HttpSpanExporter()
    try:
        ours = OtlpConfig.from_env()
        assert ours.protocol is OtlpProtocol.HTTP_PROTOBUF
        assert ours.endpoint == stock._endpoint
        assert ours.timeout == stock._client._timeout
        assert ours.compression.value == stock._compression.value
        sent = {
            "content-type": "application/x-protobuf",
            "user-agent": stock._client._headers["user-agent"],
            **ours.headers,
        }
        if ours.compression is not OtlpCompression.NONE:
            sent["Content-Encoding"] = ours.compression
        assert sent == stock._client._headers
        session = stock._client._transport._session
        assert (ours.certificate or True) == session.verify
        pair = (ours.client_certificate, ours.client_key)
        assert (pair if all(pair) else ours.client_certificate) == session.cert
    finally:
        stock.shutdown()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, OtlpProtocol.GRPC),
        ({"PROTOCOL": "grpc"}, OtlpProtocol.GRPC),
        ({"PROTOCOL": " http/protobuf "}, OtlpProtocol.HTTP_PROTOBUF),
        ({"PROTOCOL": "http/json"}, OtlpProtocol.HTTP_JSON),
        ({"PROTOCOL": "grpc", "TRACES_PROTOCOL": "http/protobuf"}, OtlpProtocol.HTTP_PROTOBUF),
        ({"PROTOCOL": "http/protobuf", "TRACES_PROTOCOL": ""}, OtlpProtocol.HTTP_PROTOBUF),
    ],
)
def test_protocol(variables: dict[str, str], expected: OtlpProtocol) -> None:
    assert OtlpConfig.from_env(environment(**variables)).protocol is expected


def test_specification_is_followed_if_the_stock_grpc_exporter_fails() -> None:
    assert OtlpConfig.from_env(environment(COMPRESSION="none")).compression is OtlpCompression.NONE
    assert OtlpConfig.from_env(environment(COMPRESSION="")).compression is OtlpCompression.NONE
    assert OtlpConfig.from_env(environment(ENDPOINT="")).endpoint == "localhost:4317"
    config = OtlpConfig.from_env(environment(INSECURE="", TRACES_INSECURE=""))
    assert config.insecure
    config = OtlpConfig.from_env(
        environment(TRACES_CERTIFICATE="a", CLIENT_KEY="b", CLIENT_CERTIFICATE="c")
    )
    assert (config.certificate, config.client_key, config.client_certificate) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"PROTOCOL": "http"}, "OTEL_EXPORTER_OTLP_PROTOCOL is 'http': expected grpc"),
        ({"TRACES_PROTOCOL": "x"}, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'x'"),
        ({"TIMEOUT": "soon"}, "OTEL_EXPORTER_OTLP_TIMEOUT is 'soon': expected a number"),
        ({"TIMEOUT": "0"}, "OTEL_EXPORTER_OTLP_TIMEOUT is 0: expected more than 0 seconds"),
        ({"TIMEOUT": "nan"}, "expected more than 0 seconds"),
        ({"TIMEOUT": "-1", "PROTOCOL": "http/json"}, "expected more than 0 seconds"),
        ({"COMPRESSION": "deflate"}, "expected gzip or none for gRPC"),
        (
            {"ENDPOINT": "collector:4318", "PROTOCOL": "http/protobuf"},
            "not an http:// or https:// URL",
        ),
        ({"TRACES_ENDPOINT": "http://", "PROTOCOL": "http/json"}, "not an http:// or https:// URL"),
        ({"ENDPOINT": "http://[::1"}, "OTEL_EXPORTER_OTLP_ENDPOINT is not a URL"),
    ],
    ids=str,
)
def test_wrong_values_are_usage_errors(variables: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        OtlpConfig.from_env(environment(**variables))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ignored_values_are_reported_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        config = OtlpConfig.from_env(
            environment(
                PROTOCOL="http/protobuf",
                HEADERS='ok=1,s3cret "value" here',
                TIMEOUT="soon",
                COMPRESSION="brotli",
            )
        )
    assert dict(config.headers) == {"ok": "1"}
    assert [w.split(" ")[0].rstrip(":") for w in config.warnings] == [
        PREFIX + "HEADERS",
        PREFIX + "TIMEOUT",
        PREFIX + "COMPRESSION",
    ]
    assert "s3cret" not in repr(config) + " ".join(config.warnings) + caplog.text


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({"ENDPOINT": "http://me:pass@c:4317"}, "c:4317"),
        (
            {"TRACES_ENDPOINT": "https://me:pass@c/p?key=1#x", "PROTOCOL": "http/json"},
            "https://c/p",
        ),
    ],
)
def test_the_shown_endpoint_has_no_secrets(variables: dict[str, str], shown: str) -> None:
    assert OtlpConfig.from_env(environment(**variables)).shown_endpoint == shown


@settings(max_examples=examples(500), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=12),
            st.text('ab=% ,;"\t%20é', max_size=12),
            st.builds("{}={}".format, st.text("aB-", min_size=1), st.text("v%204 =;", max_size=8)),
        ),
        max_size=4,
    )
)
def test_headers_are_parsed_as_otel_python_parses_them(entries: list[str]) -> None:
    text = ",".join(entries)
    assert parse_headers(text)[0] == dict(parse_env_headers(text, liberal=True))
