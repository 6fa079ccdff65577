"""Traces through a real Collector that splits and merges, and back into files."""

from __future__ import annotations

from pathlib import Path

import pytest

from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.kit.backends import run
from tests.kit.spools.comparing import cirron_otel
from tests.system.backends.test_round_trips import through

from .test_round_trips import restored, spool_of
from .traces import (
    CLEAN,
    FILES,
    ODD,
    SMALL,
    chain,
    damaged_copies,
    is_trace,
    trace,
)

pytestmark = pytest.mark.backends
WAYS = [("segmented", "grpc"), ("session", "http/protobuf"), ("segmented", "http/json")]


@pytest.mark.parametrize(("layout", "protocol"), WAYS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_comes_back_from_a_collector(
    path: Path, layout: str, protocol: str, splitting: run.Otelcol, tmp_path: Path
) -> None:
    spool = tmp_path / "imported"
    convert(ConvertRequest(f"dgrr:{path}", str(spool)))
    through(splitting, spool, layout, protocol, tmp_path)
    added = tmp_path / splitting.output.name
    report = convert(ConvertRequest(str(added), f"dgrr:{tmp_path}/out.dgrr"))
    assert report.exit_code == 0
    assert (tmp_path / "out.dgrr").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("third", range(3), ids=["-".join(way) for way in WAYS])
def test_damaged_and_long_traces_come_back_from_a_collector(
    third: int, splitting: run.Otelcol, tmp_path: Path
) -> None:
    """Every third damaged copy in each way."""
    layout, protocol = WAYS[third]
    copies = sorted({copy for copy in damaged_copies(SMALL) if is_trace(copy)})
    files = {*copies[third::3], ODD, SMALL, trace(chain(2_500))}
    spool = spool_of(sorted(files), tmp_path / "imported")
    through(splitting, spool, layout, protocol, tmp_path)
    (tmp_path / "work").mkdir()
    assert restored(tmp_path / "back", tmp_path / "work") == files


def test_a_trace_is_exported_without_a_spool(splitting: run.Otelcol, tmp_path: Path) -> None:
    before = run.end_of_lines(splitting.output)
    report = cirron_otel(
        "export", f"dgrr:{CLEAN}",
        OTEL_EXPORTER_OTLP_ENDPOINT=splitting.otlp_http,
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
    )  # fmt: skip
    splitting.wait_for_spans(report["accepted"], position=before)
    added = tmp_path / "added.jsonl"
    added.write_bytes(splitting.output.read_bytes()[before:])
    convert(ConvertRequest(str(added), f"dgrr:{tmp_path}/out.dgrr"))
    assert (tmp_path / "out.dgrr").read_bytes() == CLEAN.read_bytes()
