"""The recordings of TraceML get the same verdicts from a real Jaeger and a real Tempo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.tools.cli.main import run as run_command
from tests.core.importers.traceml.recordings import frames_folder
from tests.kit.spools.comparing import spans_of

from .test_recordings import EXPECTED, check, diagnosed

pytestmark = pytest.mark.backends
LAYOUT = ("--trace-layout", "session")
Converted = tuple[Path, Counter[str]]
"""The spool of a recording, and the number of spans of each of its traces."""


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Converted]:
    """Converts each recording once for both backends."""

    @cache
    def convert(recording: str) -> Converted:
        folder = tmp_path_factory.mktemp("converted")
        spool, file = folder / "recorded", folder / "traces.binpb"
        source = f"traceml:{frames_folder(recording)}"
        assert run_command(["convert", source, str(spool), "--to", "spool"]) == 0
        assert run_command(["convert", str(spool), str(file), *LAYOUT]) == 0
        return spool, Counter(span.trace_id.hex() for span in spans_of(file))

    return convert


@pytest.mark.parametrize(
    "recording",
    [  # one worker converts a recording for both backends
        pytest.param(each, marks=pytest.mark.xdist_group(f"verdicts of {each}"))
        for each in EXPECTED
    ],
)
@pytest.mark.parametrize("backend", ["jaeger", "tempo"])
def test_a_backend(
    recording: str,
    backend: str,
    request: pytest.FixtureRequest,
    converted: Callable[[str], Converted],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: Any = request.getfixturevalue(backend)
    spool, traces = converted(recording)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{served.otlp_grpc}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert run_command(["export", str(spool), *LAYOUT]) == 0
    for trace, count in traces.items():
        served.wait_for_trace(trace, count)
    query = "&".join(f"trace={trace}" for trace in traces)
    check(diagnosed(f"{backend}:{served.query}?{query}", capsys), recording)
