from __future__ import annotations

import pytest

from cirron_otel.core.config.exporters import Export, are_metrics_sent, exports_of
from cirron_otel.core.config.options import Config
from cirron_otel.core.config.resolve import resolve

OTLP, HTTP, STREAM = Export.OTLP, Export.CIRRON_HTTP, Export.EVENT_STREAM
KEY = Config(api_key="k")
RUN = Config(run_id="r")
BOTH = Config(api_key="k", run_id="r")
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317"}
TRACES_ENDPOINT = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4317"}


@pytest.mark.parametrize(
    ("config", "environ", "targets"),
    [
        (Config(), {}, ()),
        (Config(), ENDPOINT, (OTLP,)),
        (Config(), TRACES_ENDPOINT, (OTLP,)),
        (Config(), {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, ()),
        (Config(), {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://localhost"}, ()),
        (Config(), {"OTEL_TRACES_EXPORTER": "otlp"}, (OTLP,)),
        (Config(), {"OTEL_TRACES_EXPORTER": "console, otlp_proto_http"}, (OTLP,)),
        (Config(), ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, ()),
        (Config(), ENDPOINT | {"OTEL_TRACES_EXPORTER": "console"}, ()),
        (KEY, {}, (HTTP,)),
        (KEY, ENDPOINT, (OTLP, HTTP)),
        (RUN, {}, (STREAM,)),
        (BOTH, {}, (STREAM,)),
    ],
)
def test_auto(config: Config, environ: dict[str, str], targets: tuple[Export, ...]) -> None:
    assert exports_of(config, environ) == (targets, ())


@pytest.mark.parametrize(
    ("exporters", "api_key", "targets"),
    [
        ((), "k", ()),
        (("otlp",), "k", (OTLP,)),
        (("cirron",), "k", (HTTP,)),
        (("cirron", "otlp"), "k", (HTTP, OTLP)),
    ],
)
def test_explicit_exporters_override_the_environment(
    exporters: tuple[str, ...], api_key: str, targets: tuple[Export, ...]
) -> None:
    config = Config(exporters=exporters, api_key=api_key)
    for environ in ({}, {"OTEL_TRACES_EXPORTER": "none"}, ENDPOINT):
        assert exports_of(config, environ) == (targets, ())


def test_cirron_without_a_key_is_reported() -> None:
    found = exports_of(Config(exporters=("cirron", "otlp")), {})
    assert found.targets == (OTLP,)
    assert found.problems == (
        "exporters contains cirron, but there is no api_key: set CIRRON_API_KEY",
    )


@pytest.mark.parametrize(
    "variables",
    [
        {"CIRRON_API_ENDPOINT": "https:/traces.example"},
        {"CIRRON_API_ENDPOINT": ""} | {"CIRRON_INGEST_PATH": "traces here"},
    ],
)
def test_a_key_does_not_go_elsewhere_when_its_endpoint_is_wrong(variables: dict[str, str]) -> None:
    resolved = resolve(environ={"CIRRON_API_KEY": "secret", **variables})
    assert resolved.config.api_key is None
    assert exports_of(resolved.config, {}).targets == ()
    assert any("nothing is sent to Cirron" in problem for problem in resolved.problems)
    assert not any("secret" in problem for problem in resolved.problems)


@pytest.mark.parametrize("said", ["off", "false", "spool", "jaeger"])
def test_invalid_exporters_export_nothing(said: str) -> None:
    environ = {"CIRRON_EXPORTERS": said, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}
    assert exports_of(resolve(environ=environ).config, environ).targets == ()


METRICS_ENDPOINT = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://localhost:4317"}


@pytest.mark.parametrize(
    ("config", "environ", "are_sent"),
    [
        (Config(), {}, False),
        (Config(), ENDPOINT, True),
        (Config(), {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
        (Config(), TRACES_ENDPOINT, False),
        (Config(), METRICS_ENDPOINT, True),
        (Config(), {"OTEL_METRICS_EXPORTER": "otlp"}, True),
        (Config(), {"OTEL_METRICS_EXPORTER": "console, otlp_proto_grpc"}, True),
        (Config(), ENDPOINT | {"OTEL_METRICS_EXPORTER": "none"}, False),
        (Config(), METRICS_ENDPOINT | {"OTEL_METRICS_EXPORTER": "prometheus"}, False),
        (Config(), ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, True),
        (Config(metrics=False), ENDPOINT | {"OTEL_METRICS_EXPORTER": "otlp"}, False),
        (Config(exporters=()), ENDPOINT, False),
        (Config(exporters=("cirron",)), ENDPOINT, False),
        (Config(exporters=("otlp",)), {}, True),
        (Config(exporters=()), {"OTEL_METRICS_EXPORTER": "otlp"}, True),
    ],
)
def test_metrics(config: Config, environ: dict[str, str], are_sent: bool) -> None:
    assert are_metrics_sent(config, environ) == are_sent
