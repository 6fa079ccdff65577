"""What our own SDK records, to OTLP and back: by file, through a real Collector, and sent live."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.backends import run
from tests.kit.servers.server import OtlpServer
from tests.kit.spools.comparing import (
    assert_same,
    batches,
    cirron_otel,
    spans_of,
)
from tests.tools.conftest import environment

from .test_round_trips import LAYOUTS, through

PROGRAM = Path(__file__).with_name("own_run.py")


def record(directory: Path, **variables: str) -> Path:
    command = [sys.executable, str(PROGRAM), str(directory)]
    done = subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with OtlpServer() as server:  # a run that sends as it goes names its open scopes
        return record(tmp_path_factory.mktemp("own") / "run", **server.environ)


def test_recorded_spool_contains_every_feature_to_convert(spool: Path) -> None:
    found = [*batches(spool).values()]
    otel = [batch["otel"] for batch in found]
    spans = [span for batch in found for span in batch["spans"]]
    assert any("segments" in each for each in otel)
    assert any("running" in each for each in otel)
    assert any("traces" in each for each in otel)
    assert {each["session_trace_id"] for each in otel} == {"0af7651916cd43dd8448eb211c80319c"}
    kinds = {key for span in spans for key in span.get("otel", {})}
    assert {"kind", "status", "links", "events", "trace_id", "parent_span_id", "scope"} <= kinds


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("suffix", [".jsonl", ".binpb.zst"])
def test_to_a_file_and_back(spool: Path, suffix: str, layout: str, tmp_path: Path) -> None:
    file = tmp_path / f"traces{suffix}"
    cirron_otel("convert", spool, file, "--trace-layout", layout)
    cirron_otel("convert", file, tmp_path / "back")
    assert_same(batches(tmp_path / "back"), batches(spool))


@pytest.mark.parametrize(
    ("layout", "protocol"),
    [("segmented", "grpc"), ("session", "http/protobuf"), ("segmented", "http/json")],
)
def test_through_a_collector_that_splits_into_sevens(
    spool: Path, layout: str, protocol: str, otelcol_split: run.Otelcol, tmp_path: Path
) -> None:
    spans, lines = through(otelcol_split, spool, layout, protocol, tmp_path)
    assert lines >= spans / 7, "the collector did not split"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_live_spans_equal_spans_converted_later(
    protocol: str, otelcol_split: run.Otelcol, tmp_path: Path
) -> None:
    endpoint = otelcol_split.otlp_http
    if protocol == "grpc":
        endpoint = f"http://{otelcol_split.otlp_grpc}"
    spool = record(
        tmp_path / "run",
        OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
        OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
    )
    file = tmp_path / "later.binpb"
    cirron_otel("convert", spool, file)
    later = {(span.trace_id, span.span_id): span for span in spans_of(file)}
    otelcol_split.wait_for_spans(len(later))
    live = {(span.trace_id, span.span_id): span for span in spans_of(otelcol_split.output)}
    assert live.keys() == later.keys()
    for key, span in later.items():
        assert live[key].name == span.name
        assert live[key].parent_span_id == span.parent_span_id
    cirron_otel("convert", otelcol_split.output, tmp_path / "back")
    assert_same(batches(tmp_path / "back"), batches(spool))
