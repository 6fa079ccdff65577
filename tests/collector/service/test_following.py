"""An OTLP exporter of the collector goes on in spite of trouble with its spool."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cirron_otel.collector.service import otlp_sender
from cirron_otel.collector.service.exporter_options import OtlpExporter
from cirron_otel.collector.service.metrics import EXPORT_REJECTED_SPANS, Registry
from cirron_otel.collector.service.otlp_sender import OtlpSender
from cirron_otel.core.records.problems import ReadingProblem
from cirron_otel.core.spool.dead_letters import dead_letters
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.core.spool.state import make_state
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.targets.otlp.config import OtlpConfig, OtlpProtocol
from tests.kit.servers.servers import Answer, http_receiver
from tests.kit.spools.made import encoded, made, span

from .endpoints import http_endpoint


def test_spool_that_cannot_be_created_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp_sender, "_AGAIN_S", 0.05)
    root = tmp_path / "data"
    root.write_text("a file stands in the way")
    exporter = OtlpExporter(endpoint="http://localhost:1")
    paths = SpoolPaths.under(root)
    at_work = OtlpSender(paths, exporter, OtlpConfig(), lambda _name: {}, Registry())
    try:
        _until(lambda: bool(caplog.records))
        assert not paths.spool.is_dir()
        root.unlink()
        _until(paths.spool.is_dir)
    finally:
        at_work.end(10.0)


def test_refused_batch_that_cannot_be_stored_delays_no_other(tmp_path: Path) -> None:
    """Until there is a directory for it the others are sent; then it becomes a dead letter."""
    writer = SpoolWriter(tmp_path)
    spans = [span(number, name=f"span-{number}") for number in range(3)]
    names = [writer.write(encoded(made(n, spans=[each]))).name for n, each in enumerate(spans)]
    paths = writer.paths
    make_state(paths.state)
    blocked = paths.state / "dead-letters"
    blocked.write_text("a file is in the way")
    with http_endpoint(lambda _, name: 400 if name == "span-0" else 200) as endpoint:
        exporter = OtlpExporter(endpoint=endpoint.url, protocol="http/protobuf")
        config = OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, endpoint.url)
        at_work = OtlpSender(paths, exporter, config, lambda _name: (), Registry())
        try:
            _until(lambda: len(set(endpoint.names())) == 2)
            blocked.unlink()
            _until(lambda: [each.name for each in dead_letters(paths)] == names[:1])
        finally:
            at_work.end(10.0)
    assert sorted(endpoint.names()) == ["span-1", "span-2"]


def test_rejected_spans_are_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = SpoolWriter(tmp_path)
    writer.write(encoded(made(1, spans=[span(1), span(2)])))
    registry = Registry()
    answer = Answer(
        body=b'{"partialSuccess":{"rejectedSpans":"1","errorMessage":"too old"}}',
        headers={"Content-Type": "application/json"},
    )
    with http_receiver(answer) as server:
        exporter = OtlpExporter(endpoint=server.url)
        config = OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, server.url)
        at_work = OtlpSender(writer.paths, exporter, config, lambda _name: (), registry)
        try:
            _until(lambda: "1 spans were rejected, and are not sent again: too old" in caplog.text)
            assert registry.totals()[EXPORT_REJECTED_SPANS] == [((at_work.name,), [1])]
        finally:
            at_work.end(10.0)


def test_every_evicted_batch_is_counted(tmp_path: Path) -> None:
    """Findings are counted, not kept: any number of batches may leave the spool."""
    paths = SpoolWriter(tmp_path).paths
    at_work = OtlpSender(paths, OtlpExporter(endpoint=""), OtlpConfig(), lambda _: (), Registry())
    at_work.end(10.0)
    for number in range(5):
        at_work._stats.skip(ReadingProblem(f"{number}.json", "evicted", "gone"))
        assert at_work.progress().evicted == number + 1
    at_work._stats.skip(ReadingProblem("5.json", "not-json", "damaged"))
    assert [at_work.lacks("5.json"), at_work.lacks("6.json")] == [False, True]


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
