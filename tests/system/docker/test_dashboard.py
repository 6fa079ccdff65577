"""The job of compose.yaml runs as it stands there, through the real agent, and sends what Grafana's
dashboard asks for; and the real Tempo, as it is configured there, answers it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.kit.backends import run
from tests.kit.backends.process import free_endpoints, get
from tests.kit.backends.prometheus import Prometheus, prometheus
from tests.kit.backends.tempo import Tempo, tempo
from tests.kit.servers.otlp_sink import Sink, otlp_sink, wait_for
from tests.kit.sessions.reading import recorded

from .composed import DOCKER, Service, services

GRAFANA = services()["grafana"]
BOARD = json.loads((DOCKER / "grafana" / "training.json").read_text())
TARGETS = [target for panel in BOARD["panels"] for target in panel["targets"]]
QUERIES = [target["query"] for target in TARGETS if "query" in target]
"""TraceQL."""
EXPRESSIONS = [target["expr"] for target in TARGETS if "expr" in target]
"""PromQL."""
VARIABLES = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
ALERTS = yaml.safe_load((DOCKER / "grafana" / "alerting.yaml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
OF_ERRORS = {"cirron_errors_total"}
"""The job has no errors."""
OF_RUNS = {"cirron_status", "cirron_findings", "cirron_finding_cost_seconds"}
"""These have no rank: only `cirron-otel run` sends them (test_metric_queries.py)."""
RECIPE = DOCKER.parent / "docs" / "recipes" / "tempo.md"
OF_TORCH = {"h2d", "loss", "recompute"}
"""Phases that the hooks of torch record, and the job has not."""


def run_job(service: Service, endpoint: str, metrics: str, directory: Path) -> None:
    """Run it; `metrics` is where they go, in the place of Prometheus."""
    words = [service.local(word) for word in service.settings["entrypoint"]]
    assert words[0] == "python"
    given = dict(service.environment)
    assert given["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://otelcol:4317"
    given["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://{endpoint}"
    variable = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
    given[variable] = given[variable].replace("http://prometheus:9090", metrics)
    fast = {"EPOCHS": "2", "STEPS": "75", "SPEED": "100", "CIRRON_FLUSH_INTERVAL": "0.02",
            "OTEL_METRIC_EXPORT_INTERVAL": "20", "CIRRON_OUTPUT_DIR": str(directory)}  # fmt: skip
    subprocess.run([sys.executable, *words[1:]], env=os.environ | given | fast, check=True)


def scopes_of(directory: Path) -> set[bytes]:
    """The ids, on the wire, of all scopes that a job recorded."""
    return {bytes.fromhex(scope[:16]) for scope in recorded(directory).spans}


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus as it is configured there, except that the collector is not running."""
    config = (DOCKER / "prometheus.yaml").read_text().replace("collector:13133", "127.0.0.1:1")
    with prometheus(tmp_path_factory.mktemp("prometheus"), config) as server:
        yield server


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory, metrics: Prometheus) -> Sink:
    """What the agent hands on of both jobs."""
    folder = tmp_path_factory.mktemp("jobs")
    [endpoint] = free_endpoints(1)
    jobs = ["job-0", "job-1"]
    with (
        otlp_sink(endpoint) as sink,
        run.otelcol(run.PINS / "agent.yaml", folder, {"COLLECTOR": endpoint}) as agent,
    ):
        for name in jobs:
            run_job(services()[name], agent.otlp_grpc, metrics.url, folder / name)
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

    def test_sends_every_attribute_that_the_dashboard_queries(self, sent: Sink) -> None:
        asked = {
            found for query in QUERIES for found in re.findall(r"(resource|span)\.([\w.]+)", query)
        }
        there = {("resource", key) for resource, _ in sent.spans for key in values(resource)}
        there |= {("span", key) for _, span in sent.spans for key in values(span)}
        assert len(asked) >= 4
        assert asked <= there

    @pytest.mark.usefixtures("sent")
    def test_sends_every_metric_that_the_dashboard_asks_for(self, metrics: Prometheus) -> None:
        rules = [rule["data"][0]["model"]["expr"] for rule in RULES]
        variables = [VARIABLES[name]["query"]["query"] for name in ("rank", "mark")]
        texts = " ".join([*EXPRESSIONS, *rules, *variables])
        texts = re.sub(r"by \([^)]*\)|, \w+\)(?= |$)", "", texts)
        asked = set(re.findall(r"(?<![\w\"])((?:cirron|process)_\w+)(?=[{\[)]|$)", texts))
        own = {name for name in asked if not name.startswith("cirron_collector_")}
        assert own - OF_ERRORS - OF_RUNS <= metrics.names()
        for name in own - OF_ERRORS - OF_RUNS:
            labels = [each["metric"] for each in metrics.query(name)]
            assert {each["cirron_run_name"] for each in labels} == {"demo"}, name
            assert {each["cirron_rank"] for each in labels} == {"0", "1"}, name
        documented = (DOCKER.parent / "docs" / "collector.md").read_text()
        for name in asked - own:
            assert f"| `{name}` | counter |" in documented


def tempo_text() -> str:
    """tempo.yaml as it is, on other ports and below another folder, and quicker to show a span."""
    config = yaml.safe_load((DOCKER / "tempo.yaml").read_text())
    server, ring = config["server"], {"instance_addr": "127.0.0.1"}
    server |= {"http_listen_address": "127.0.0.1", "grpc_listen_address": "127.0.0.1",
               "http_listen_port": "QUERY", "grpc_listen_port": "QUERY_GRPC"}  # fmt: skip
    distributor, ingester = config["distributor"], config["ingester"]
    distributor["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"] = "${OTLP_GRPC}"
    distributor["ring"] |= ring
    config["querier"]["frontend_worker"]["frontend_address"] = "127.0.0.1:${QUERY_GRPC_PORT}"
    soon = {"trace_idle_period": "1s", "flush_check_period": "1s"}
    ingester |= soon
    ingester["lifecycler"] |= {"address": "127.0.0.1", "min_ready_duration": "0s"}
    config["metrics_generator"]["ring"] |= ring
    config["metrics_generator"]["processor"]["local_blocks"] |= soon
    text = yaml.safe_dump(config, sort_keys=False).replace("/var/tempo", "${DIR}")
    return re.sub(r"port: (QUERY(?:_GRPC)?)\b", r"port: ${\1_PORT}", text)


def in_the_recipe() -> list[str]:
    """The queries of docs/recipes/tempo.md."""
    return re.findall(r"^```traceql\n(.+)\n```$", RECIPE.read_text(), re.MULTILINE)


def filled(query: str) -> str:
    """With the variables of the dashboard, and times that the quick job of a test reaches."""
    return query.replace("$run", "demo").replace("$slow", "1us").replace("200ms", "1us")


@dataclass(frozen=True)
class Fed:
    """Tempo with what both jobs sent."""

    tempo: Tempo
    start_s: int

    def ask(self, query: str) -> str:
        """The answer to a query, as text, once it tells of both ranks; of a failure what it is."""
        deadline = time.monotonic() + 180
        while True:
            status, body = get(self._url(query))
            assert status == 200, body
            answer = json.loads(body)
            found = answer.get("series") or answer.get("traces") or []
            if self._is_whole(query, found):
                return json.dumps(found)
            assert time.monotonic() < deadline, f"{query}: {body[:2000]!r}"
            time.sleep(0.5)

    def _is_whole(self, query: str, found: list[dict[str, Any]]) -> bool:
        if "by (resource.cirron.rank)" in query:
            labels = {json.dumps(each["labels"]) for each in found if has_value(each)}
            return all(any(f'"intValue": "{rank}"' in text for text in labels) for rank in (0, 1))
        if "_over_time" in query or "rate()" in query:
            return any(has_value(each) for each in found)
        return len(found) >= 2  # a trace of each rank

    def _url(self, query: str) -> str:
        span = {"start": self.start_s, "end": int(time.time()) + 5}
        if "_over_time" in query or "rate()" in query:
            return f"{self.tempo.query}/api/metrics/query_range?" + urlencode(
                {"q": query, "step": "5s", **span}
            )
        return f"{self.tempo.query}/api/search?" + urlencode(
            {"q": query, "limit": 200, "spss": 100}
        )


def has_value(series: dict[str, Any]) -> bool:
    """Whether there is a number in a series, not its grid of times alone."""
    return any(sample.get("value") for sample in series["samples"])


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory, metrics: Prometheus) -> Iterator[Fed]:
    """The real Tempo with compose.yaml's settings, and the jobs' spans in it."""
    folder = tmp_path_factory.mktemp("tempo")
    with tempo(folder, tempo_text()) as running:
        start_s = int(time.time()) - 1
        for name in ("job-0", "job-1"):
            run_job(services()[name], running.otlp_grpc, metrics.url, folder / name)
        yield Fed(running, start_s)


@pytest.mark.backends
@pytest.mark.slow
class TestTempo:
    @pytest.mark.parametrize("query", QUERIES)
    def test_answers_the_dashboard(self, fed: Fed, query: str) -> None:
        found = fed.ask(filled(query))
        selected = re.search(r"select\(([^)]*)\)", query)
        for name in selected[1].split(", ") if selected else []:
            assert json.dumps(re.sub(r"^(span|resource)\.", "", name)) in found

    @pytest.mark.parametrize("query", in_the_recipe())
    def test_answers_the_queries_of_its_recipe(self, fed: Fed, query: str) -> None:
        assert fed.ask(filled(query))

    def test_queries_distinguish_integers_from_doubles_as_documented(self, fed: Fed) -> None:
        query = '{ event:name = "loss" && event.cirron.mark.value > '
        assert fed.ask(query + "1.0 }")
        status, body = get(fed._url(query + "1 }"))
        assert (status, json.loads(body)["traces"]) == (200, [])


def values(message: Any) -> dict[str, Any]:
    """The attributes of a resource, a span or a point."""
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value"))
        for attribute in message.attributes
    }


class TestTheDashboard:
    def test_sources_are_variables_so_that_it_can_be_imported(self) -> None:
        sources = yaml.safe_load((DOCKER / "grafana" / "datasources.yaml").read_text())
        types = {source["uid"]: source["type"] for source in sources["datasources"]}
        assert types == {each: each for each in ("tempo", "jaeger", "prometheus")}
        chosen = {
            f"${{{v['name']}}}": v["query"] for v in VARIABLES.values() if v["type"] == "datasource"
        }
        assert set(chosen.values()) <= set(types.values())
        for panel in BOARD["panels"]:
            for asked in (panel, *panel["targets"]):
                assert chosen[asked["datasource"]["uid"]] == asked["datasource"]["type"]
        for name in ("run", "rank", "mark"):
            source = VARIABLES[name]["datasource"]
            assert chosen[source["uid"]] == source["type"]
        assert "id" not in BOARD  # of one installation

    def test_mark_panel_repeats_for_each_mark(self) -> None:
        [panel] = [panel for panel in BOARD["panels"] if "repeat" in panel]
        assert panel["repeat"] == "mark"
        assert 'cirron_mark_name=~"$mark"' in panel["targets"][0]["expr"]

    def test_every_panel_shows_the_chosen_run(self) -> None:
        for query in QUERIES:
            assert 'resource.cirron.run.name =~ "$run"' in query
        for expression in EXPRESSIONS:
            if "cirron_collector_" in expression:
                continue
            assert 'cirron_run_name=~"$run"' in expression
            if not any(name in expression for name in OF_RUNS):
                assert 'cirron_run_name=~"$run", cirron_rank=~"$rank"' in expression

    def test_the_run_is_chosen_among_those_in_tempo(self) -> None:
        asked = VARIABLES["run"]["query"]
        assert (asked["type"], asked["label"]) == (1, "cirron.run.name")  # 1: the values of a label

    def test_rules_ask_a_source_that_is_provisioned(self) -> None:
        sources = yaml.safe_load((DOCKER / "grafana" / "datasources.yaml").read_text())
        uids = {source["uid"] for source in sources["datasources"]} | {"__expr__"}
        assert len({rule["uid"] for rule in RULES}) == len(RULES) == 4
        for rule in RULES:
            ids = [each["refId"] for each in rule["data"]]
            assert rule["condition"] == ids[-1] == rule["data"][-1]["model"]["refId"]
            assert rule["data"][-1]["model"]["expression"] in ids
            for each in rule["data"]:
                assert each["datasourceUid"] in uids
                assert each["refId"] == each["model"]["refId"]
            labels = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
            [by] = re.findall(r"(?:sum|max) by \(([^)]+)\)", rule["data"][0]["model"]["expr"])
            assert labels <= set(by.split(", "))

    def test_panel_ids_are_unique_and_panels_do_not_overlap(self) -> None:
        ids = [panel["id"] for panel in BOARD["panels"]]
        assert len(set(ids)) == len(ids) >= 6
        places = [panel["gridPos"] for panel in BOARD["panels"]]
        assert all(place["x"] + place["w"] <= 24 for place in places)
        for a, b in itertools.combinations(places, 2):
            beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
            assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]

    def test_variables_are_declared_and_used(self) -> None:
        texts = json.dumps([BOARD["panels"], [VARIABLES[name] for name in ("run", "rank", "mark")]])
        assert set(VARIABLES) == set(re.findall(r"\$\{?(?!__)(\w+)", texts)) - {"$__all"}

    def test_grafana_provisions_the_dashboard_from_its_mount_path(self) -> None:
        [provider] = yaml.safe_load((DOCKER / "grafana" / "dashboards.yaml").read_text())[
            "providers"
        ]
        board = GRAFANA.environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        assert GRAFANA.binds[board].name == "training.json"
        assert Path(board).parent == Path(provider["options"]["path"])
        provisioned = {path.rsplit("/", 2)[1] for path in GRAFANA.binds if "/provisioning/" in path}
        assert provisioned == {"datasources", "dashboards", "alerting"}
