"""What stands behind the spool takes real snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

import cirron_otel as ci
from tests.kit.servers.cirron_server import CirronServer
from tests.kit.servers.servers import http_receiver
from tests.kit.sessions.opened import opened
from tests.kit.spools.comparing import assert_same, cirron_otel, spans_of
from tests.kit.spools.comparing import batches as as_values

from .training import (
    GRADIENTS,
    NAMES,
    batches,
    model,
    see_it_is_right,
    snapshots,
    train,
)


@pytest.mark.parametrize("layout", ["segmented", "session"])
def test_to_otlp_and_back(layout: str, tmp_path: Path) -> None:
    with opened(tmp_path / "run", snapshots="full", segment_records=20, flush_interval=0.01):
        train(ci.watch(model()), 6)
        with torch.no_grad():
            watched = ci.watch(model())
            watched[0].weight.fill_(float("nan"))
        train(watched, 1)
    file = tmp_path / "traces.jsonl"
    cirron_otel("convert", tmp_path / "run", file, "--trace-layout", layout)
    told = [event for span in spans_of(file) for event in span.events]
    assert sum(event.name == "cirron.snapshot" for event in told) == 7 * 8
    cirron_otel("convert", file, tmp_path / "back")
    assert_same(as_values(tmp_path / "back"), as_values(tmp_path / "run"))
    files = sorted(path.name for path in (tmp_path / "back" / "spool").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "run" / "spool").iterdir())
    for name in files:  # byte for byte, as it is our own
        one = (tmp_path / "run" / "spool" / name).read_bytes()
        assert (tmp_path / "back" / "spool" / name).read_bytes() == one


@pytest.mark.parametrize("asked", ["summary", "full"])
def test_otlp_gets_snapshot_summaries_or_on_request_all_tensors(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_receiver() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        monkeypatch.setenv("CIRRON_METRICS", "false")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        options = {} if asked == "summary" else {"otlp_snapshots": asked}
        with opened(tmp_path, **options):
            train(ci.watch(model()))
            assert ci.shutdown()
    told = [
        {pair.key: pair.value for pair in event.attributes}
        for post in server.posts
        for message in TracesData.FromString(post.body).resource_spans
        for scope in message.scope_spans
        for span in scope.spans
        for event in span.events
        if event.name == "cirron.snapshot"
    ]
    names = [each["cirron.snapshot.tensor_name"].string_value for each in told]
    expected = ["*", "*.grad"] if asked == "summary" else NAMES + GRADIENTS
    assert sorted(names) == sorted(expected * 2)
    assert len(snapshots(tmp_path)) == 16


def test_snapshot_files_are_uploaded_with_their_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CIRRON_RUN_ID", raising=False)
    with CirronServer().running() as server:
        monkeypatch.setenv("CIRRON_API_KEY", "key")
        monkeypatch.setenv("CIRRON_API_ENDPOINT", server.url)
        with opened(tmp_path, snapshots="full"):
            train(ci.watch(model()))
            assert ci.shutdown()
    files = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in (tmp_path / "snapshots").rglob("*.safetensors")
    }
    assert len(files) == 4
    assert {name: bytes(data) for name, data in server.blobs.items()} == files


def test_prune_drops_the_files_with_the_last_batch_that_names_them(tmp_path: Path) -> None:
    with opened(tmp_path, snapshots="full"):
        for _ in range(2):
            train(ci.watch(model()), 1)
            assert ci.flush()
    assert len(list(tmp_path.rglob("*.safetensors"))) == 4
    first = next(batch for batch in batches(tmp_path) if batch["snapshots"])
    name = f"{first['created_ns']:020d}-{first['batch_id']}.json"
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()
               and "state" not in path.parts)  # fmt: skip
    # The flush at the start of the session may have sealed a batch without snapshots.
    older = sum(path.stat().st_size for path in (tmp_path / "spool").iterdir() if path.name <= name)
    cirron_otel("spool", "prune", tmp_path, "--max-bytes", str(size - older))
    assert not (tmp_path / "spool" / name).exists()
    assert not (tmp_path / "snapshots" / first["snapshots"][0]["span_id"]).exists()
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2
    see_it_is_right(tmp_path)
