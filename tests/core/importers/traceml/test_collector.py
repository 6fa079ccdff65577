"""TraceML's recordings through a real Collector that splits and merges, and back into frames."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.backends import run
from tests.kit.spools.comparing import assert_same, batches
from tests.system.backends.test_round_trips import through

from .recordings import (
    CASES,
    files_of,
    frames_folder,
    imported,
    written,
)

pytestmark = pytest.mark.backends


@pytest.mark.parametrize(
    ("layout", "protocol"),
    [("segmented", "grpc"), ("session", "http/protobuf"), ("segmented", "http/json")],
)
@pytest.mark.parametrize("case", CASES)
def test_a_recording_comes_back_from_a_collector(
    case: str, layout: str, protocol: str, splitting: run.Otelcol, tmp_path: Path
) -> None:
    from cirron_otel.tools.convert.convert import ConvertRequest, convert

    spool, _ = imported(frames_folder(case), tmp_path)
    through(splitting, spool, layout, protocol, tmp_path)
    added = tmp_path / splitting.output.name
    files, report = written(added, tmp_path)
    assert report.exit_code == 0
    assert files == files_of(frames_folder(case))
    convert(ConvertRequest(str(added), f"{tmp_path}/back/"))
    assert_same(batches(tmp_path / "back"), batches(spool))
