"""Stormlog's recordings through a real Collector that splits and merges, and back into files."""

from __future__ import annotations

from pathlib import Path

import pytest

from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.kit.backends import run
from tests.system.backends.test_round_trips import through

from .returning import (
    PLACES,
    files_of,
    imported,
    recorded,
    written,
)

pytestmark = pytest.mark.backends


@pytest.mark.parametrize(
    ("layout", "protocol"),
    [("segmented", "grpc"), ("session", "http/protobuf"), ("segmented", "http/json")],
)
@pytest.mark.parametrize("place", PLACES)
def test_a_recording_comes_back_from_a_collector(
    place: str, layout: str, protocol: str, splitting: run.Otelcol, tmp_path: Path
) -> None:
    path = recorded(place)
    spool, _ = imported(path, tmp_path)
    through(splitting, spool, layout, protocol, tmp_path)
    added = tmp_path / splitting.output.name
    assert written(added, path, tmp_path) == files_of(path)


def test_a_recording_is_exported_without_a_spool(splitting: run.Otelcol, tmp_path: Path) -> None:
    from tests.kit.spools.comparing import cirron_otel

    path = recorded("v039/sim_gpu")
    before = run.end_of_lines(splitting.output)
    report = cirron_otel(
        "export", f"stormlog:{path}",
        OTEL_EXPORTER_OTLP_ENDPOINT=splitting.otlp_http,
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
    )  # fmt: skip
    splitting.wait_for_spans(report["accepted"], position=before)
    added = tmp_path / "added.jsonl"
    added.write_bytes(splitting.output.read_bytes()[before:])
    convert(ConvertRequest(str(added), f"stormlog:{tmp_path}/files"))
    assert files_of(tmp_path / "files") == files_of(path)
