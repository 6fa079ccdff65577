"""The job of compose.yaml runs as it stands there, through the real agent, and sends what Grafana's
dashboard asks for.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.backends import run
from tests.backends.process import free_endpoints
from tests.integration.otlp_sink import Sink, otlp_sink, wait_for
from tests.sdk.reading import recorded

from .composed import DOCKER, Service, services

GRAFANA = services()["grafana"]
BOARD = json.loads((DOCKER / "grafana" / "training.json").read_text())
QUERIES = [target["query"] for panel in BOARD["panels"] for target in panel["targets"]]
OF_TORCH = {"h2d", "loss", "recompute"}
"""Phases that the hooks of torch record, and the job has not."""


def run_job(service: Service, agent: run.Otelcol, directory: Path) -> None:
    words = [service.local(word) for word in service.settings["entrypoint"]]
    assert words[0] == "python"
    given = dict(service.environment)
    assert given["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://otelcol:4317"
    given["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://{agent.otlp_grpc}"
    fast = {"EPOCHS": "2", "STEPS": "75", "SPEED": "100", "CIRRON_FLUSH_INTERVAL": "0.02",
            "CIRRON_OUTPUT_DIR": str(directory)}  # fmt: skip
    subprocess.run([sys.executable, *words[1:]], env=os.environ | given | fast, check=True)


def scopes_of(directory: Path) -> set[bytes]:
    """The ids, on the wire, of all scopes that a job recorded."""
    return {bytes.fromhex(scope[:16]) for scope in recorded(directory).spans}


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Sink:
    """What the agent hands on of both jobs."""
    folder = tmp_path_factory.mktemp("jobs")
    [endpoint] = free_endpoints(1)
    jobs = ["job-0", "job-1"]
    with (
        otlp_sink(endpoint) as sink,
        run.otelcol(run.PINS / "agent.yaml", folder, {"COLLECTOR": endpoint}) as agent,
    ):
        for name in jobs:
            run_job(services()[name], agent, folder / name)
        wait_for([sink], set().union(*(scopes_of(folder / name) for name in jobs)))
    return sink


@pytest.mark.backends
class TestTheJob:
    def test_sends_the_steps_of_each_rank(self, sent: Sink) -> None:
        ranks = {
            values(resource)["cirron.rank"] for resource, span in sent.spans if span.name == "step"
        }
        assert ranks == {0, 1}
        assert {values(resource)["service.name"] for resource, _ in sent.spans} == {"training"}

    def test_has_steps_that_fail(self, sent: Sink) -> None:
        failed = [s for _, s in sent.spans if s.status.code == Status.STATUS_CODE_ERROR]
        assert {span.name for span in failed} == {"backward"}
        assert failed[0].status.message == "FloatingPointError: the loss is not finite"

    def test_sends_every_name_that_the_dashboard_asks_for(self, sent: Sink) -> None:
        asked = set()
        for query in QUERIES:
            for names in re.findall(r'(?<![\w.])name =~? "([^"]+)"', query):
                asked |= set(names.split("|"))
        assert asked - OF_TORCH == asked & {span.name for _, span in sent.spans}
        documented = (DOCKER.parent / "docs" / "torch.md").read_text()
        for name in asked & OF_TORCH:
            assert f"| `{name}` |" in documented

    def test_sends_every_attribute_where_the_dashboard_looks_for_it(self, sent: Sink) -> None:
        asked = {
            found for query in QUERIES for found in re.findall(r"(resource|span)\.([\w.]+)", query)
        }
        there = {("resource", key) for resource, _ in sent.spans for key in values(resource)}
        there |= {("span", key) for _, span in sent.spans for key in values(span)}
        assert len(asked) >= 4
        assert asked <= there


def values(message: Any) -> dict[str, Any]:
    """The attributes of a resource or span."""
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value"))
        for attribute in message.attributes
    }


class TestTheDashboard:
    def test_panels_ask_a_source_that_is_provisioned(self) -> None:
        sources = yaml.safe_load((DOCKER / "grafana" / "datasources.yaml").read_text())
        types = {source["uid"]: source["type"] for source in sources["datasources"]}
        assert types == {"tempo": "tempo", "jaeger": "jaeger"}
        for panel in BOARD["panels"]:
            for asked in (panel, *panel["targets"]):
                assert types[asked["datasource"]["uid"]] == asked["datasource"]["type"]

    def test_panels_have_ids_of_their_own_and_do_not_overlap(self) -> None:
        ids = [panel["id"] for panel in BOARD["panels"]]
        assert len(set(ids)) == len(ids) >= 6
        places = [panel["gridPos"] for panel in BOARD["panels"]]
        assert all(place["x"] + place["w"] <= 24 for place in places)
        for a, b in itertools.combinations(places, 2):
            beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
            assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]

    def test_variables_are_declared_and_used(self) -> None:
        declared = {variable["name"] for variable in BOARD["templating"]["list"]}
        assert declared == {name for query in QUERIES for name in re.findall(r"\$(\w+)", query)}

    def test_grafana_finds_it_where_it_is_mounted(self) -> None:
        [provider] = yaml.safe_load((DOCKER / "grafana" / "dashboards.yaml").read_text())[
            "providers"
        ]
        board = GRAFANA.environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        assert GRAFANA.binds[board].name == "training.json"
        assert Path(board).parent == Path(provider["options"]["path"])
        provisioned = {path.rsplit("/", 2)[1] for path in GRAFANA.binds if "/provisioning/" in path}
        assert provisioned == {"datasources", "dashboards"}
