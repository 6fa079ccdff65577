from __future__ import annotations

import json
import platform
import socket

import pytest
from opentelemetry.sdk.resources import Resource

from cirron_otel import exactjson
from cirron_otel.core.config.options import Config
from cirron_otel.sdk.session.identity import Identity
from cirron_otel.sdk.session.resource import batch_attributes, resource_of

SESSION = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", raising=False)


def attributes(config: Config | None = None, identity: Identity | None = None) -> dict[str, object]:
    return batch_attributes(resource_of(config or Config(), identity or Identity()))


def test_everything_of_the_stock_resource_is_there() -> None:
    stock = set(Resource.create().attributes)
    assert "telemetry.sdk.version" in stock
    assert stock <= set(attributes())


def test_host_and_interpreter() -> None:
    found = attributes()
    assert found["host.name"] == socket.gethostname()
    assert found["process.runtime.name"] == platform.python_implementation().lower()
    assert found["process.runtime.version"] == platform.python_version()


def test_service_name_defaults_to_cirron() -> None:
    assert attributes()["service.name"] == "cirron"


def test_the_service_as_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=first")
    assert attributes()["service.name"] == "first"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "second")
    assert attributes()["service.name"] == "second"


def test_attributes_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "team=vision%20lab,host.name=mine,cirron.run.id=theirs,cirron.model.id=m"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", said)
    found = attributes(Config(run_id="ours"))
    assert found["team"] == "vision lab"
    assert found["host.name"] == "mine"
    assert found["cirron.run.id"] == "ours"
    assert found["cirron.model.id"] == "m"


def test_the_ids_of_the_options() -> None:
    names = ("workspace", "run", "pipeline", "deployment", "model")
    config = Config(
        workspace_id="workspace", run_id="run", pipeline_id="pipeline", deployment_id="deployment",
        model_id="model",
    )  # fmt: skip
    found = attributes(config)
    assert {name: found[f"cirron.{name}.id"] for name in names} == {name: name for name in names}
    assert not {f"cirron.{name}.id" for name in names} & set(attributes())


def test_the_place_in_the_job() -> None:
    found = attributes(identity=Identity(3, 1, 4, "nightly", 1, 2, "torchrun"))
    assert {key: found[key] for key in found if key.startswith("cirron.")} == {
        "cirron.world_size": 4,
        "cirron.local_rank": 1,
        "cirron.node_rank": 1,
        "cirron.job.id": "nightly",
        "cirron.restart_count": 2,
    }
    alone = {key: value for key, value in attributes().items() if key.startswith("cirron.")}
    assert alone == {"cirron.world_size": 1}


def test_batch_attributes_omit_fields_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "process")
    resource = resource_of(Config(), Identity(rank=3, world_size=4), SESSION)
    assert resource.attributes["cirron.rank"] == 3
    assert resource.attributes["cirron.session.id"] == SESSION
    assert "process.pid" in resource.attributes
    found = batch_attributes(resource)
    assert not {"process.pid", "cirron.rank", "cirron.session.id"} & set(found)
    assert "process.executable.name" in found


def test_workspace_key_is_not_an_attribute() -> None:
    assert "sesame" not in str(attributes(Config(api_key="sesame")))


def test_every_value_is_plain_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "not.utf8=\udcff")
    resource = resource_of(Config(), Identity(job_id="\udcff")).merge(
        Resource(
            {
                "list": ["a", "b"],
                "numbers": (1, 2.5),
                "nan": float("nan"),
                "infinite": float("-inf"),
                "large": 2**64,
                "largest": 2**63 - 1,
                "flag": True,
                "bytes": b"\xff\x00",
            }
        )
    )
    found = batch_attributes(resource)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert exactjson.loads(exactjson.dumps(found)) == found
    expected = {
        "list": ["a", "b"],
        "numbers": [1, 2.5],
        "nan": "nan",
        "infinite": "-inf",
        "large": str(2**64),
        "largest": 2**63 - 1,
        "flag": True,
        "bytes": "/wA=",
        "not.utf8": "?",
        "cirron.job.id": "?",
    }
    assert {key: found.get(key) for key in expected} == expected
