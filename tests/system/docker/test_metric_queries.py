"""The queries of docs/metrics.md answer their questions in a real Prometheus and a real Tempo.

Prometheus also answers those of the dashboard and of the alert rules.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.kit.backends.process import get
from tests.kit.backends.prometheus import Prometheus, prometheus
from tests.kit.backends.run import POLL_SECONDS, WAIT_SECONDS
from tests.kit.backends.tempo import Tempo, tempo

from .composed import DOCKER
from .programs import two_ranks as job
from .test_dashboard import EXPRESSIONS, RULES, tempo_text

ROOT = Path(__file__).parents[3]
QUERY = re.compile(r"^\*\*(.+?)\*\*.*?^```(promql|traceql)\n(.+?)\n```$", re.MULTILINE | re.DOTALL)
SECTION = (
    (ROOT / "docs" / "metrics.md").read_text().partition("\n## Queries\n")[2].partition("\n## ")[0]
)
QUERIES = {title: (language, query) for title, language, query in QUERY.findall(SECTION)}

pytestmark = [pytest.mark.backends, pytest.mark.slow]


@dataclass(frozen=True)
class Servers:
    """Both servers, with the data of the job."""

    tempo: Tempo
    prometheus: Prometheus
    start_s: int

    def ask(self, title: str, is_complete: Callable[[Any], bool]) -> Any:
        """The answer to a query of the document, once it is complete: data arrives with a delay."""
        language, query = QUERIES[title]
        deadline = time.monotonic() + WAIT_SECONDS
        while not is_complete(found := self._answer(language, query)):
            assert time.monotonic() < deadline, f"{query}: {found}"
            time.sleep(POLL_SECONDS)
        return found

    def _answer(self, language: str, query: str) -> Any:
        if language == "promql":
            return self.prometheus.query(query)
        span = {"start": self.start_s, "end": int(time.time()) + 5}
        url = f"{self.tempo.query}/api/metrics/query_range?"
        status, body = get(url + urlencode({"q": query, "step": "1s", **span}))
        assert status == 200, body
        return [
            ({label["key"]: _value(label["value"]) for label in each["labels"]},
             [sample["value"] for sample in each["samples"] if sample.get("value")])
            for each in json.loads(body).get("series", [])
        ]  # fmt: skip


def _value(value: dict[str, str]) -> Any:
    ((kind, text),) = value.items()
    return int(text) if kind == "intValue" else text


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Both servers, with the settings of compose.yaml, except that no collector is scraped."""
    config = (DOCKER / "prometheus.yaml").read_text().replace("collector:13133", "127.0.0.1:1")
    folders = [tmp_path_factory.mktemp(name) for name in ("tempo", "prometheus", "job")]
    with tempo(folders[0], tempo_text()) as traces, prometheus(folders[1], config) as metrics:
        start_s = int(time.time()) - 1
        environment = {
            "CIRRON_RUN_NAME": "demo",
            "CIRRON_OUTPUT_DIR": str(folders[2]),
            "CIRRON_FLUSH_INTERVAL": "0.05",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{traces.otlp_grpc}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": metrics.otlp_metrics,
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf",
            "OTEL_METRIC_EXPORT_INTERVAL": "100",
        }
        command = [sys.executable, "-m", "cirron_otel", "run", "--", sys.executable, job.__file__]
        subprocess.run(command, env=os.environ | environment, check=True, capture_output=True)
        yield Servers(traces, metrics, start_s)


def test_every_query_of_the_document_has_a_test() -> None:
    assert list(QUERIES) == ["Slowest step", "Slow rank", "Loss curve", "Time between steps"]


def test_slowest_step_is_the_planted_one(servers: Servers) -> None:
    def is_there(found: Any) -> bool:
        return any(labels["span.global_step"] == job.SLOWEST for labels, _ in found)

    found = servers.ask("Slowest step", is_there)
    slowest = max(found, key=lambda each: max(each[1]))
    assert slowest[0]["span.global_step"] == job.SLOWEST
    assert max(slowest[1]) > 5e8


def test_slow_rank_is_the_planted_one_although_its_steps_take_no_longer(servers: Servers) -> None:
    (found,) = servers.ask("Slow rank", lambda found: len(found) == 1)
    assert found["metric"]["cirron_rank"] == str(job.SLOW_RANK)
    lengths = servers.prometheus.wait_for(
        'cirron_step_duration_seconds_sum{cirron_run_name="demo"}', job.RANKS
    )
    low, high = sorted(float(each["value"][1]) for each in lengths)
    assert high < 1.2 * low


def test_loss_curve_has_the_losses_of_the_steps(servers: Servers) -> None:
    def is_complete(found: Any) -> bool:
        return len(found) == job.RANKS and all(samples for _, samples in found)

    found = servers.ask("Loss curve", is_complete)
    assert sorted(labels["resource.cirron.rank"] for labels, _ in found) == [0, 1]
    for _, samples in found:
        assert max(samples) <= job.loss(0)
        assert min(samples) >= job.loss(job.STEPS - 1)
        assert samples == sorted(samples, reverse=True)
        assert len(samples) > 1


def test_time_between_steps_is_the_planted_gap(servers: Servers) -> None:
    found = servers.ask("Time between steps", lambda found: len(found) == job.RANKS)
    for each in found:
        assert job.GAP_S * 0.8 < float(each["value"][1]) < job.GAP_S * 3


def test_points_have_the_rank_and_the_run_of_their_resource(
    servers: Servers,
) -> None:
    for name in ("cirron_units_total", "cirron_mark_loss_ratio", "cirron_global_step"):
        found = servers.prometheus.wait_for(name, job.RANKS)
        assert {each["metric"]["cirron_rank"] for each in found} == {"0", "1"}
        assert {each["metric"]["cirron_run_name"] for each in found} == {"demo"}
    (status,) = servers.prometheus.wait_for("cirron_status")
    assert "cirron_rank" not in status["metric"]
    assert status["metric"]["cirron_run_name"] == "demo"


def test_findings_are_those_of_the_job(servers: Servers) -> None:
    kinds = {
        each["metric"]["cirron_finding_kind"]
        for each in servers.prometheus.wait_for("cirron_findings > 0")
    }
    assert "COMPUTE_STRAGGLER" in kinds


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_prometheus_answers_the_dashboard(servers: Servers, expression: str) -> None:
    values = {"$__rate_interval": "10m", "$run": "demo", "$rank": ".*", "$mark": "loss"}
    query = re.sub("|".join(map(re.escape, values)), lambda found: values[found[0]], expression)
    found = servers.prometheus.query(query)
    assert found or query.endswith(") > 0"), "without drops, the panel of drops is empty"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["uid"]))
def test_prometheus_evaluates_the_alert_rules(servers: Servers, rule: dict[str, Any]) -> None:
    found = servers.prometheus.query(rule["data"][0]["model"]["expr"])
    assert found
    labels = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert all(labels <= each["metric"].keys() for each in found)
