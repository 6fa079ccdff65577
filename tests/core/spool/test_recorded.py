"""Spools that the real cirron-sdk records on the spot: read, verified, converted, all of them."""

from __future__ import annotations

from pathlib import Path

from cirron_otel import exactjson
from cirron_otel.core.analysis.verify import verify_spool
from cirron_otel.core.run.spool_summary import summarise
from cirron_otel.core.run.trees import build_trees
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.translator.own.platform import from_platform, to_platform
from cirron_otel.core.translator.own.wire_proto import from_proto, parse, to_proto

Spools = list[tuple[str, Path]]


def test_unbroken_recordings_have_no_errors(recorded_spools: Spools) -> None:
    for name, root in recorded_spools:
        errors = {f.code for f in verify_spool(SpoolReader(root)) if f.severity == "error"}
        # A forked child goes on with the spans of its parent's process: their ids come twice.
        # A killed process may leave a batch half written.
        allowed = {"fork": {"repeated-id"}, "killed": {"torn"}}.get(name.partition("-")[2], set())
        assert errors <= allowed, name


def test_every_span_is_in_the_summary_and_in_the_tree(recorded_spools: Spools) -> None:
    for name, root in recorded_spools:
        spans = [
            span for batch in SpoolReader(root) for span in exactjson.loads(batch.data)["spans"]
        ]
        found = summarise(SpoolReader(root))
        assert found.spans == sum(session.spans for session in found.sessions) == len(spans), name
        assert build_trees(SpoolReader(root)).shown == len(spans), name


def test_every_batch_comes_back_from_a_spool_from_protobuf_and_from_the_platform(
    recorded_spools: Spools, tmp_path: Path
) -> None:
    for name, root in recorded_spools:
        writer = SpoolWriter(tmp_path / name, max_bytes=None)
        for batch in SpoolReader(root):
            assert writer.write(batch.data).name == batch.name
            truth = exactjson.loads(batch.data)
            message = parse(to_proto(truth).SerializeToString())
            assert exactjson.equal(from_proto(message), truth), batch.name
            assert exactjson.equal(from_platform(to_platform(truth)), truth), batch.name
        copies = [(copy.name, copy.data) for copy in SpoolReader(tmp_path / name)]
        assert copies == [(batch.name, batch.data) for batch in SpoolReader(root)]
