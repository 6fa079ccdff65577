"""What came in goes on: OTLP to a real OpenTelemetry Collector, batches to another of ours."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

from tests.kit.backends import run
from tests.kit.backends.process import free_endpoints
from tests.kit.servers.serving import Serving, serving, spans_of
from tests.kit.spools.comparing import (
    assert_same,
    batches,
    cirron_otel,
    recorded,
)

from .test_running import record

BROKEN = {"23_sigkill_plus_stray_tmp"}


def configuration(folder: Path, *exporters: str) -> str:
    """A configuration file with these exporters, each a line of YAML."""
    path = folder / "collector.yaml"
    path.write_text("exporters:\n" + "".join(f"  - {each}\n" for each in exporters))
    return str(path)


def send(spool: Path, here: Serving) -> int:
    """Post every batch of a spool, as an SDK does; how many they are."""
    count = 0
    for path in sorted(spool.rglob("spool/*.json")):
        request = urllib.request.Request(
            f"{here.http}/v1/traces", path.read_bytes(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 202
            assert json.loads(answer.read())["batch_id"]
        count += 1
    return count


@pytest.mark.backends
def test_stock_spans_through_us_into_a_real_collector(tmp_path: Path) -> None:
    (tmp_path / "otelcol").mkdir()
    with run.otelcol(run.FILE, tmp_path / "otelcol") as behind:
        to = f"{{type: otlp, endpoint: 'http://{behind.otlp_grpc}', protocol: grpc}}"
        with serving(tmp_path / "data", "--config", configuration(tmp_path, to)) as here:
            record(OTLPSpanExporter(endpoint=f"http://{here.grpc}", insecure=True), 25)
            behind.wait_for_spans(25)
            assert here.end() == 0
        spans = run.spans_of(
            [json.loads(line) for line in behind.output.read_text().splitlines() if line]
        )
    assert sorted(span["name"] for span in spans) == sorted(f"s{n}" for n in range(25))
    ours = {span["id"][:16]: span for span in spans_of(tmp_path / "data")}
    for span in spans:
        kept = ours[span["spanId"]]
        assert int(span["startTimeUnixNano"]) == kept["start_ns"]
        assert span["scope"]["version"] == "1.0"
        assert [event["name"] for event in span["events"]] == ["e"]


@dataclass(frozen=True)
class Delivered:
    """The recordings after their way through a collector of ours and a real one, in one pass."""

    spool: dict[str, Any]
    """The batches in the spool of our collector, by name."""
    back: dict[str, Any]
    """The batches converted back from the output of the real collector."""


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> Delivered:
    """Posted as the SDK posts it, out as OTLP, through a real Collector, and converted back."""
    folder = tmp_path_factory.mktemp("recordings")
    (folder / "otelcol").mkdir()
    with run.otelcol(run.FILE, folder / "otelcol") as behind:
        to = f"{{type: otlp, endpoint: '{behind.otlp_http}', protocol: http/protobuf}}"
        with serving(folder / "data", "--config", configuration(folder, to)) as here:
            for spool in recorded():
                assert send(spool, here)
            assert here.end() == 0
        cirron_otel("convert", behind.output, folder / "back")
    return Delivered(batches(folder / "data"), batches(folder / "back"))


@pytest.mark.backends
@pytest.mark.parametrize("spool", recorded(), ids=lambda path: path.name)
def test_a_recording_of_cirron_sdk_through_us_and_back(spool: Path, delivered: Delivered) -> None:
    truth = batches(spool)
    for found in (delivered.spool, delivered.back):
        assert_same({name: found[name] for name in truth if name in found}, truth)


@pytest.mark.backends
def test_only_the_recorded_batches_are_delivered(delivered: Delivered) -> None:
    names = [name for spool in recorded() for name in batches(spool)]
    assert len(names) == len(set(names))
    assert delivered.spool.keys() == delivered.back.keys() == set(names)


def test_from_one_of_ours_to_the_next(tmp_path: Path) -> None:
    """By both ways on: OTLP, and batches. What is behind was away at first."""
    spool = recorded()[0]
    grpc, http = free_endpoints(2)
    ways = (
        f"{{type: otlp, endpoint: 'http://{grpc}', protocol: grpc}}",
        f"{{type: cirron, endpoint: 'http://{http}', api_key: k}}",
    )
    for way in ways:
        folder = tmp_path / way[7:11]
        folder.mkdir()
        with serving(folder / "data", "--config", configuration(folder, way)) as here:
            send(spool, here)
            record(OTLPSpanExporter(endpoint=f"http://{here.grpc}", insecure=True), 3)
            behind = Serving(folder / "behind", "--grpc", grpc, "--http", http)
            assert here.end() == 0
            assert behind.end() == 0
        found, truth = batches(folder / "behind"), batches(folder / "data")
        if "cirron" in way:
            assert_same(found, truth)
        sent = sorted(span["id"] for span in spans_of(folder / "data"))
        assert sorted(span["id"] for span in spans_of(folder / "behind")) == sent
