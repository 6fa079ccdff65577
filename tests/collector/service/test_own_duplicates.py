"""OTLP that was born in Cirron, sent twice and split otherwise each time: each record once."""

from __future__ import annotations

import json
import random
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from cirron_otel.core.otlp.json_decode import traces_from_json
from tests.core.translator.test_lossless import split
from tests.kit.backends import run
from tests.kit.servers.serving import Serving, serving
from tests.kit.spools.comparing import batches, cirron_otel, recorded

from .test_running import post

SPOOL = next(path for path in recorded() if not list(path.rglob("*.json.tmp")))
SPLITTING = """
receivers: {otlp: {protocols: {grpc: {endpoint: "${env:OTLP_GRPC}"},
                               http: {endpoint: "${env:OTLP_HTTP}"}}}}
processors: {batch: {send_batch_size: %d, send_batch_max_size: %d, timeout: 100ms}}
exporters: {otlp: {endpoint: "%s", tls: {insecure: true}}}
extensions: {health_check: {endpoint: "${env:HEALTH}"}}
service:
  extensions: [health_check]
  telemetry: {metrics: {level: none}}
  pipelines: {traces: {receivers: [otlp], processors: [batch], exporters: [otlp]}}
"""


def records_of(spool: dict[str, Any]) -> Counter[tuple[str, str]]:
    """(kind, record without what a part of a batch cannot know) of a spool's records."""
    return Counter(
        (kind, json.dumps({k: v for k, v in record.items() if k != "mark_ids"}, sort_keys=True))
        for batch in spool.values()
        for kind in ("spans", "marks", "snapshots")
        for record in batch[kind]
    )


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> list[ResourceSpans]:
    """The spool as OTLP."""
    file = tmp_path_factory.mktemp("otlp") / "traces.jsonl"
    cirron_otel("convert", SPOOL, file)
    lines = file.read_text().splitlines()
    return [m for line in lines for m in _message(line).resource_spans]


def _message(line: str) -> TracesData:
    return traces_from_json(line.encode())[0]


def send(here: Serving, pieces: list[ResourceSpans], each: int = 1) -> None:
    for at in range(0, len(pieces), each):
        body = TracesData(resource_spans=pieces[at : at + each]).SerializeToString()
        assert post(f"{here.http}/v1/traces", body, "application/x-protobuf") == (200, b"")


ORDERS: dict[str, list[int]] = {
    "whole, then parts": [0, 3],
    "parts, then whole": [3, 0],
    "parts, then other parts": [3, 5],
    "parts of which some are missing, then others": [-3, 2, 7],
    "many": [1, 4, 0, 2],
}


@pytest.mark.parametrize(
    ("name", "is_restarted"), [*((name, False) for name in ORDERS), ("many", True)]
)
def test_split_otherwise_each_time(
    name: str, is_restarted: bool, messages: list[ResourceSpans], tmp_path: Path
) -> None:
    """0: whole; below 0: every other piece is missing."""
    sizes, shuffler = ORDERS[name], random.Random(5)
    folder = tmp_path / "data"
    here = Serving(folder)
    for number, size in enumerate(sizes):
        if number and is_restarted:
            assert here.end() == 0
            here = Serving(folder)
        pieces = split(messages, abs(size), shuffler) if size else messages
        send(here, pieces[::2] if size < 0 else pieces, 1 + number)
    assert here.end() == 0
    found, truth = batches(folder), batches(SPOOL)
    assert records_of(found) == records_of(truth)
    assert not list((folder / "state" / "intake").glob("refused-*"))


def test_same_records_from_two_tenants_are_stored_for_both(
    messages: list[ResourceSpans], tmp_path: Path
) -> None:
    body = TracesData(resource_spans=messages).SerializeToString()
    with serving(tmp_path / "data") as here:
        for tenant in ("a", "b", "a"):
            told = {"Content-Type": "application/x-protobuf", "X-Scope-OrgID": tenant}
            sent = urllib.request.Request(f"{here.http}/v1/traces", body, told)
            with urllib.request.urlopen(sent, timeout=30) as answer:
                assert answer.status == 200
        assert here.end() == 0
    one = records_of(batches(SPOOL))
    assert records_of(batches(tmp_path / "data")) == one + one


@pytest.mark.backends
def test_exported_twice_through_real_collectors_that_split_otherwise(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with serving(folder) as here:
        for size in (7, 11):
            between = tmp_path / f"otelcol{size}"
            between.mkdir()
            with run.otelcol(SPLITTING % (size, size, here.grpc), between) as collector:
                told = {
                    "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.otlp_grpc}",
                    "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                }
                assert cirron_otel("export", SPOOL, **told)["rejected"] == 0
        assert here.end() == 0
    assert records_of(batches(folder)) == records_of(batches(SPOOL))
    cirron_otel("convert", folder, tmp_path / "back.jsonl")
    cirron_otel("convert", tmp_path / "back.jsonl", tmp_path / "back")
    assert records_of(batches(tmp_path / "back")) == records_of(batches(SPOOL))
