"""What a collector leaves undelivered at its end is logged, pushed, and in its exit code."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from tests.kit.backends.process import free_endpoints
from tests.kit.servers.serving import serving

from .endpoints import http_endpoint
from .test_metrics import Received, http_server  # noqa: F401 - a fixture
from .test_running import request

COUNT = 3


def test_undelivered_batches_are_logged_counted_and_sent_on_restart(
    tmp_path: Path,
    http_server: Received,  # noqa: F811
) -> None:
    (away,) = free_endpoints(1)
    config, log = tmp_path / "collector.yaml", tmp_path / "data.log"

    def configure(endpoint: str, push: str, *protocols: str) -> tuple[str, ...]:
        each = (f"{{type: otlp, endpoint: '{endpoint}', protocol: {name}}}" for name in protocols)
        config.write_text(
            "drain_s: 3\n"
            f"exporters: [{', '.join(each)}]\n"
            f"metrics: {{otlp: {{endpoint: '{push}', protocol: http/protobuf}}}}\n"
        )
        return "--config", str(config), "--storage", f"sqlite:///{tmp_path}/rows.db"

    dead = f"http://{away}"
    two = configure(dead, http_server.endpoint, "http/protobuf", "grpc")  # of one name
    with serving(tmp_path / "data", *two) as here:
        for number in range(COUNT):
            headers = {
                "Content-Type": "application/x-protobuf",
                "X-Scope-OrgID": f"tenant-{number}",  # one batch each
            }
            body = request(f"span-{number}")
            sent = urllib.request.Request(f"{here.http}/v1/traces", body, headers)
            with urllib.request.urlopen(sent, timeout=30) as answer:
                assert answer.status == 200
        assert here.end() == 7
    waiting = {
        point.attributes[0].value.string_value: point.as_double or point.as_int
        for resource in http_server.requests[-1].resource_metrics
        for metric in resource.scope_metrics[0].metrics
        if metric.name == "cirron_collector_queue_requests"
        for point in metric.gauge.data_points
    }
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    left = [line["message"] for line in lines if "not delivered" in line["message"]]
    assert len(left) == 1  # the database has everything
    assert f"{2 * COUNT} batches are not delivered to otlp {dead}" in left[0]
    assert waiting[f"otlp {dead}"] == 2 * COUNT
    with http_endpoint(lambda *_: 200) as endpoint:
        with serving(tmp_path / "data", *configure(endpoint.url, dead, "http/protobuf")) as here:
            assert here.end() == 0  # by one last try, if it was not sent before
        assert sorted(endpoint.names()) == [f"span-{number}" for number in range(COUNT)]
