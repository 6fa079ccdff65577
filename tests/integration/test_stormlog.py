"""Stormlog's recordings through a real Collector that splits and merges, and back into files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.backends import run
from tests.integration.test_round_trips import through
from tests.stormlog.real_recordings import record_oom
from tests.stormlog.returning import PLACES, files_of, imported, recorded, written

pytestmark = pytest.mark.backends


@pytest.fixture(scope="module")
def splitting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[run.Otelcol]:
    """One Collector for all tests, which sends batches of seven spans."""
    with run.otelcol(run.SPLIT, tmp_path_factory.mktemp("splitting")) as collector:
        yield collector


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


@pytest.mark.parametrize("version", ["0.3.9", "0.4.3"])
def test_a_recording_made_now_comes_back_from_a_collector(
    version: str, splitting: run.Otelcol, tmp_path: Path
) -> None:
    """A sink and the bundle of an error for lack of memory."""
    path = tmp_path / "recording"
    path.mkdir()
    record_oom(version, path)
    spool, report = imported(path, tmp_path)
    assert report.duplicates
    through(splitting, spool, "segmented", "grpc", tmp_path)
    assert written(tmp_path / splitting.output.name, path, tmp_path) == files_of(path)


def test_a_recording_is_exported_without_a_spool(splitting: run.Otelcol, tmp_path: Path) -> None:
    from tests.integration.spools import cirron_otel

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
