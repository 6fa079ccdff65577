"""Long runs in the real Tempo, at the limits that it comes with, and in the real Jaeger.

Tempo answers with success to spans that it throws away: only what it shows can be believed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit.backends import run
from tests.kit.backends.tempo import TEMPO, Tempo, tempo
from tests.kit.sessions.processes import environment
from tests.kit.spools.comparing import cirron_otel, spans_of

pytestmark = [
    pytest.mark.backends,
    pytest.mark.slow,
    pytest.mark.xdist_group("many steps"),
]

PROGRAM = Path(__file__).with_name("many_steps.py")
STEPS = 15_000
"""With the spans of so many in a single trace, Tempo loses some."""
SPANS_OF_A_STEP = 4
SLOWLY = "{rate_limit_bytes: 1000000, burst_size_bytes: 1000000}"


@dataclass(frozen=True)
class Run:
    """A run that is over."""

    directory: Path
    traces: dict[str, set[str]]
    """The span ids of each trace, as the spool has them."""

    @property
    def spans(self) -> int:
        """How many there are."""
        return sum(map(len, self.traces.values()))


def trained(directory: Path, steps: int, endpoint: str, **variables: str) -> Run:
    """So many steps, sent to an endpoint by nothing but OpenTelemetry's own variables."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(steps)],
        cwd=directory,
        env=environment(
            OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, CIRRON_SHUTDOWN_TIMEOUT="300", **variables
        ),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    file = directory / "spool.binpb"
    layout = variables.get("CIRRON_TRACE_LAYOUT", "segmented")
    cirron_otel("convert", directory, file, "--trace-layout", layout)
    traces: dict[str, set[str]] = defaultdict(set)
    for span in spans_of(file):
        traces[span.trace_id.hex()].add(span.span_id.hex())
    found = Run(directory, traces)
    assert found.spans >= steps * SPANS_OF_A_STEP
    return found


def thrown_away(backend: Tempo) -> float:
    """Spans that Tempo took and does not keep: what is above its rate it refuses and gets again."""
    name = "tempo_discarded_spans_total"
    return backend.metric(name) - backend.metric(name, 'reason="rate_limited"')


def assert_whole(backend: run.Jaeger | Tempo, sent: Run) -> None:
    """Every span of every trace is shown, once."""
    for trace, spans in sent.traces.items():
        shown = [span["spanId"] for span in backend.wait_for_trace(trace, spans)]
        assert len(shown) == len(spans)
        assert set(shown) == spans


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Path]]:
    """STEPS steps in Tempo's blocks: the run, and Tempo's directory."""
    work = tmp_path_factory.mktemp("long")
    (work / "tempo").mkdir()
    with tempo(work / "tempo") as backend:
        sent = trained(work, STEPS, f"http://{backend.otlp_grpc}")
        assert backend.metric("tempo_distributor_spans_received_total") == sent.spans
        assert thrown_away(backend) == 0
        backend.flush()
    yield sent, work / "tempo"
    shutil.rmtree(work)


def test_tempo_has_every_span_of_a_long_run_in_its_blocks(long_run: tuple[Run, Path]) -> None:
    sent, directory = long_run
    assert len(sent.traces) > STEPS * SPANS_OF_A_STEP / 4100, "a chain of traces"
    shutil.rmtree(directory / "wal")
    with tempo(directory) as backend:
        assert_whole(backend, sent)


def test_jaeger_has_every_span_of_a_long_run(
    long_run: tuple[Run, Path], jaeger: run.Jaeger
) -> None:
    sent, _ = long_run
    to_jaeger = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{jaeger.otlp_grpc}"}
    assert cirron_otel("export", sent.directory, **to_jaeger)["accepted"] == sent.spans
    assert_whole(jaeger, sent)


def test_tempo_would_lose_spans_of_a_single_trace(tmp_path: Path) -> None:
    (tmp_path / "tempo").mkdir()
    with tempo(tmp_path / "tempo") as backend:
        endpoint = f"http://{backend.otlp_grpc}"
        sent = trained(tmp_path, STEPS, endpoint, CIRRON_TRACE_LAYOUT="session")
        assert len(sent.traces) == 1
        assert thrown_away(backend) > 0
        ((trace, spans),) = sent.traces.items()
        assert 0 < len(backend.get_trace(trace)) < len(spans)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_no_span_is_lost_if_tempo_rate_limits_requests(tmp_path: Path, protocol: str) -> None:
    # Less than a request of ours may hold, and less a second than the run makes.
    config = f"{TEMPO.read_text()}overrides: {{defaults: {{ingestion: {SLOWLY}}}}}\n"
    (tmp_path / "tempo").mkdir()
    with tempo(tmp_path / "tempo", config) as backend:
        endpoint = f"http://{backend.otlp_grpc}" if protocol == "grpc" else backend.otlp_http
        sent = trained(tmp_path, 6_000, endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
        assert backend.metric("tempo_discarded_spans_total", 'reason="rate_limited"') > 0
        assert thrown_away(backend) == 0
        assert_whole(backend, sent)
