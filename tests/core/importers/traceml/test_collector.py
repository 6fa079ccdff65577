"""TraceML's recordings through a real Collector that splits and merges, and back into frames."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.backends import run
from tests.system.backends.test_round_trips import through

from .recordings import (
    CASES,
    beginning,
    files_of,
    frames_folder,
    imported,
    written,
)

pytestmark = pytest.mark.backends
WAYS = [("segmented", "grpc"), ("session", "http/protobuf"), ("segmented", "http/json")]


@pytest.mark.parametrize(("layout", "protocol"), WAYS)
@pytest.mark.parametrize("case", CASES)
def test_a_recording_comes_back_from_a_collector(
    case: str, layout: str, protocol: str, splitting: run.Otelcol, tmp_path: Path
) -> None:
    """One way for the complete recording; the other ways for its beginning."""
    is_complete = WAYS[CASES.index(case) % len(WAYS)] == (layout, protocol)
    recording = frames_folder(case) if is_complete else beginning(case, tmp_path)
    spool, _ = imported(recording, tmp_path)
    through(splitting, spool, layout, protocol, tmp_path)  # compares the batches
    files, report = written(tmp_path / splitting.output.name, tmp_path)
    assert report.exit_code == 0
    assert files == files_of(recording)
