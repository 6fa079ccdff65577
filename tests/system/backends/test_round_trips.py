"""Spools of the real cirron-sdk to OTLP and back: by file, and through a real Collector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.backends import run
from tests.kit.spools.comparing import (
    assert_same,
    batches,
    cirron_otel,
    recorded,
    spans_of,
)

LAYOUTS = ("segmented", "session")
SUFFIXES = (".jsonl", ".binpb", ".json.gz", ".binpb.zst")
BROKEN = {"23_sigkill_plus_stray_tmp"}  # holds a torn .json.tmp, which is reported: exit 1


def layout_of(recording: int, suffix: int) -> str:
    """The layout of a recording in one kind of file.

    Every pair of recording, kind of file and layout occurs.
    """
    return LAYOUTS[(recording + suffix) % 2]


@pytest.mark.parametrize(
    ("spool", "suffix", "layout"),
    [
        pytest.param(spool, suffix, layout_of(number, kind), id=f"{spool.name}-{suffix}")
        for number, spool in enumerate(recorded())
        for kind, suffix in enumerate(SUFFIXES)
    ],
)
def test_recording_to_a_file_and_back(
    spool: Path, suffix: str, layout: str, tmp_path: Path
) -> None:
    file = tmp_path / f"traces{suffix}"
    code = int(spool.name in BROKEN)
    cirron_otel("convert", spool, file, "--trace-layout", layout, expected=code)
    for span in spans_of(file):
        assert len(span.trace_id) == 16
        assert any(span.trace_id)
        assert len(span.span_id) == 8
        assert any(span.span_id)
    cirron_otel("convert", file, tmp_path / "back")
    assert_same(batches(tmp_path / "back"), batches(spool))


@pytest.mark.xdist_group("recordings")  # one worker records, and none waits for it
@pytest.mark.parametrize("layout", LAYOUTS)
def test_current_sdk_recordings_round_trip_through_a_file(
    recorded_spools: list[tuple[str, Path]], layout: str, tmp_path: Path
) -> None:
    assert recorded_spools
    for number, (name, spool) in enumerate(recorded_spools):
        truth = batches(spool)
        for kind, suffix in enumerate(SUFFIXES[:2]):
            if layout_of(number, kind) != layout:
                continue
            file = tmp_path / f"{name}{suffix}"
            torn = bool(list(spool.rglob("*.json.tmp")))
            cirron_otel("convert", spool, file, "--trace-layout", layout, expected=int(torn))
            back = tmp_path / f"{name}{suffix}-back"
            cirron_otel("convert", file, f"{back}/")
            assert_same(batches(back), truth)


@pytest.fixture(scope="module")
def splitting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[run.Otelcol]:
    """One Collector for all tests: each reads what it adds to the output."""
    with run.otelcol(run.SPLIT, tmp_path_factory.mktemp("splitting")) as collector:
        yield collector


def through(
    collector: run.Otelcol, spool: Path, layout: str, protocol: str, tmp_path: Path
) -> tuple[int, int]:
    """Push a spool to a collector; returns how many spans and how many lines came out."""
    endpoint = collector.otlp_http if protocol != "grpc" else f"http://{collector.otlp_grpc}"
    told = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
    }
    output = collector.output
    before = run.end_of_lines(output)
    code = int(bool(list(spool.rglob("*.json.tmp"))))
    report = cirron_otel("export", spool, "--trace-layout", layout, expected=code, **told)
    assert report["rejected"] == 0
    lines = collector.wait_for_spans(report["accepted"], position=before)
    added = tmp_path / output.name
    added.write_bytes(output.read_bytes()[before:])
    spans = spans_of(added)
    assert len(spans) == report["accepted"]
    cirron_otel("convert", added, tmp_path / "back")
    assert_same(batches(tmp_path / "back"), batches(spool))
    return len(spans), len(lines)


@pytest.mark.backends
@pytest.mark.parametrize(
    ("layout", "protocol"),
    [("segmented", "grpc"), ("session", "http/protobuf"), ("segmented", "http/json")],
)
@pytest.mark.parametrize("spool", recorded(), ids=lambda path: path.name)
def test_recording_through_a_collector_that_splits_into_sevens(
    spool: Path, layout: str, protocol: str, splitting: run.Otelcol, tmp_path: Path
) -> None:
    spans, lines = through(splitting, spool, layout, protocol, tmp_path)
    assert lines >= spans / 7, "the collector did not split"


@pytest.mark.backends
def test_current_sdk_recordings_round_trip_through_a_collector(
    recorded_spools: list[tuple[str, Path]], splitting: run.Otelcol, tmp_path: Path
) -> None:
    for name, spool in recorded_spools:
        (tmp_path / name).mkdir()
        through(splitting, spool, "segmented", "grpc", tmp_path / name)
