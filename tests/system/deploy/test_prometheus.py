"""deploy/prometheus: the collector is scraped, and the alerts use metrics that it has."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from cirron_otel.collector.service.metrics import METRICS, MetricKind

from .test_kubernetes import COLLECTOR, ROOT, container, pod

FOLDER = ROOT / "deploy" / "prometheus"
RULES = yaml.safe_load((FOLDER / "rules.yaml").read_text())
ALERTS: list[dict[str, Any]] = [
    rule for group in RULES["spec"]["groups"] for rule in group["rules"]
]
_SELECTOR = re.compile(r"(cirron_collector_\w+|up)(?:\{([^}]*)\})?")
_OF_PROMETHEUS = {"instance", "job"}


def known() -> dict[str, set[str]]:
    """The labels of each metric, by the name that Prometheus gets."""
    suffixes = {MetricKind.COUNTER: "_total"}
    return {each.name + suffixes.get(each.kind, ""): set(each.labels) for each in METRICS}


def test_the_pod_monitor_selects_the_collectors_and_their_port() -> None:
    monitor = yaml.safe_load((FOLDER / "podmonitor.yaml").read_text())
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    assert monitor["spec"]["selector"]["matchLabels"] == pod(COLLECTOR)["metadata"]["labels"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {each["name"] for each in container(COLLECTOR)["ports"]}
    assert endpoint["path"] == "/metrics"


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_alert_uses_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    selectors = _SELECTOR.findall(rule["expr"])
    assert selectors
    labels = set(_OF_PROMETHEUS)
    for name, matchers in selectors:
        if name == "up":
            continue
        assert name in known()
        labels |= known()[name]
        assert set(re.findall(r"(\w+)(?:=~|!~|!=|=)", matchers)) <= known()[name]
    used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert used <= labels
    if "sum by" in rule["expr"]:
        [kept] = re.findall(r"sum by \(([^)]*)\)", rule["expr"])
        assert used <= set(kept.split(", "))
    assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_alerts_have_different_names() -> None:
    names = [rule["alert"] for rule in ALERTS]
    assert len(set(names)) == len(names)
    assert RULES["kind"] == "PrometheusRule"
