"""With --storage the platform's tables are written, too, and convert back."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

from cirron_otel.core.targets.sql.storage import Storage
from tests.core.targets.sql.conftest import postgres_server
from tests.kit.servers.serving import serving, spans_of
from tests.kit.spools.comparing import (
    assert_same,
    batches,
    cirron_otel,
    recorded,
)

from .test_handing_on import send
from .test_running import record

__all__ = ["postgres_server"]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_stored_rows_match_the_received_spans(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    spool, url = recorded()[0], f"sqlite:///{tmp_path / 'runs.db'}"
    if kind == "postgresql":
        url = request.getfixturevalue("postgres_server").new_database()
    with serving(tmp_path / "data", "--storage", url) as here:
        send(spool, here)
        record(OTLPSpanExporter(endpoint=f"http://{here.grpc}", insecure=True), 12)
        assert here.end() == 0
    found = spans_of(tmp_path / "data")
    with Storage.open(url, create=False) as storage:
        rows = storage.database.rows('SELECT "id", "name" FROM "TraceSpan"')
        told = sorted((str(row[0]), str(row[1])) for row in rows)
    assert told == sorted((span["id"], span["name"]) for span in found)
    cirron_otel("convert", url, tmp_path / "back")
    assert_same(batches(tmp_path / "back"), batches(tmp_path / "data"))


def test_snapshot_files_are_stored_next_to_the_spool(tmp_path: Path) -> None:
    span = "ab" * 16
    with serving(tmp_path / "data") as here:
        url = f"{here.http}/v1/traces/blobs/snapshots/{span}/weights.safetensors"
        request = urllib.request.Request(url, b"x" * 100_000, method="PUT")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status in (200, 201, 204)
        head = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(head, timeout=30) as answer:
            assert answer.status == 200
        assert here.end() == 0
    file = tmp_path / "data" / "snapshots" / span / "weights.safetensors"
    assert file.read_bytes() == b"x" * 100_000
    assert file.stat().st_mode & 0o777 == 0o600
