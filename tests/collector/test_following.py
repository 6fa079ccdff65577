"""An OTLP exporter of the collector outlives what stands in the way of its spool."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cirron_otel.collector import following
from cirron_otel.collector.exporter_options import OtlpExporter
from cirron_otel.collector.following import Following
from cirron_otel.collector.metrics import Registry
from cirron_otel.exporter.config import OtlpConfig
from cirron_otel.spool.paths import SpoolPaths


def test_a_spool_that_cannot_be_made_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following, "_AGAIN_S", 0.05)
    root = tmp_path / "data"
    root.write_text("a file stands in the way")
    exporter = OtlpExporter(endpoint="http://localhost:1")
    paths = SpoolPaths.under(root)
    at_work = Following(paths, exporter, OtlpConfig(), lambda _name: {}, Registry())
    try:
        _until(lambda: bool(caplog.records))
        assert not paths.spool.is_dir()
        root.unlink()
        _until(paths.spool.is_dir)
    finally:
        at_work.end(10.0)


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
