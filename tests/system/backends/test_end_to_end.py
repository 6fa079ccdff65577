"""Training runs in the real Jaeger and the real Tempo: every span of the spool is there, as it is.

What the spool holds is brought onto the wire by `cirron-otel convert`, another process than the
one that trained: what the backends show is compared with that.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import format_span_id, format_trace_id

from tests.kit.backends import run
from tests.kit.backends.tempo import Tempo, tempo
from tests.kit.sessions.processes import environment

from .backends_shown import (
    Shown,
    Spans,
    in_spool,
    plain,
)

pytestmark = [
    pytest.mark.backends,
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.xdist_group("end to end"),
]

HERE = Path(__file__).parent
RANKS = 2
TO_BOTH = """
receivers: {otlp: {protocols: {grpc: {endpoint: "${env:OTLP_GRPC}"}}}}
exporters:
  otlp_grpc/jaeger: {endpoint: "${env:JAEGER}", tls: {insecure: true}}
  otlp_grpc/tempo: {endpoint: "${env:TEMPO}", tls: {insecure: true}}
extensions: {health_check: {endpoint: "${env:HEALTH}"}}
service:
  extensions: [health_check]
  pipelines: {traces: {receivers: [otlp], exporters: [otlp_grpc/jaeger, otlp_grpc/tempo]}}
  telemetry: {metrics: {level: none}}
"""


@dataclass(frozen=True)
class Run:
    """A training run that is over, and where it was sent."""

    spool: Spans
    caller: tuple[str, str]
    """The scheduler's span that it was started in: trace id and span id."""
    jaeger: run.Jaeger
    tempo: Tempo
    directory: Path
    """Tempo's."""

    @property
    def traces(self) -> dict[str, set[str]]:
        """The ids of the run's spans in each trace."""
        found: dict[str, set[str]] = defaultdict(set)
        for trace, span_id in (*self.spool, self.caller):
            found[trace].add(span_id)
        return found


def schedule(endpoint: str, directory: Path, *command: str) -> tuple[str, str]:
    """Run a command within a span of a scheduler with the stock SDK, which goes to `endpoint` too.

    The run's traces go there by nothing but OpenTelemetry's own variable.
    """
    provider = TracerProvider(resource=Resource({"service.name": "scheduler"}))
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=True)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("tests").start_as_current_span("job") as span:
        context = span.get_span_context()
        caller = format_trace_id(context.trace_id), format_span_id(context.span_id)
        done = subprocess.run(
            [sys.executable, *command],
            cwd=directory,
            env=environment(
                OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{endpoint}",
                CIRRON_SEGMENT_RECORDS="40",
                TRACEPARENT=f"00-{caller[0]}-{caller[1]}-01",
                CUDA_VISIBLE_DEVICES="",
                OMP_NUM_THREADS="1",
            ),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    provider.shutdown()
    assert done.returncode == 0, done.stderr[-3000:]
    return caller


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, jaeger: run.Jaeger) -> Iterator[Run]:
    """Two ranks under torchrun, sent to Jaeger and to Tempo at once."""
    work = tmp_path_factory.mktemp("ddp")
    (work / "otelcol").mkdir()
    (work / "tempo").mkdir()
    with ExitStack() as stack:
        behind = stack.enter_context(tempo(work / "tempo"))
        there = {"JAEGER": jaeger.otlp_grpc, "TEMPO": behind.otlp_grpc}
        with run.otelcol(TO_BOTH, work / "otelcol", there) as both:
            torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")
            caller = schedule(both.otlp_grpc, work, *torchrun, str(HERE / "ddp_run.py"))
        # It has handed on everything: it ended in good order.
        yield Run(in_spool(work, work / "spool.jsonl"), caller, jaeger, behind, work / "tempo")


def differences(truth: Spans, shown: Spans) -> list[str]:
    """What is not the same, in words."""
    found = [f"missing: {truth[key].name} {key}" for key in truth.keys() - shown.keys()]
    found += [f"not in the spool: {shown[key].name} {key}" for key in shown.keys() - truth.keys()]
    for key in truth.keys() & shown.keys():
        for field, true, is_shown in zip(Shown._fields, truth[key], shown[key], strict=True):
            if true != is_shown:
                found.append(f"{truth[key].name}.{field}: {is_shown} for {true}")
    return found


def assert_whole(trained: Run, shown: Spans) -> None:
    """Every span of the run as the spool has it, each parent and each linked span among them."""
    own = {key: span for key, span in shown.items() if key != trained.caller}
    assert not differences(trained.spool, own)[:10]
    assert shown[trained.caller].name == "job"
    for span in own.values():
        assert not span.parent or (span.trace, span.parent) in shown, span
        for trace, id, _, _ in span.links:
            assert (trace, id) in shown, span


def test_run_has_the_expected_spans_traces_and_links(trained: Run) -> None:
    names = Counter(span.name for span in trained.spool.values())
    assert names["cirron.session"] == RANKS
    assert names["epoch"] == RANKS * 2
    steps = RANKS * 2 * 12
    for phase in ("step", "data_load", "forward", "loss", "backward", "optimizer_step"):
        assert names[phase] == steps
    assert len(trained.traces) > 2 * RANKS, "a chain of traces each"
    sessions = [span for span in trained.spool.values() if span.name == "cirron.session"]
    assert {(span.trace, span.parent) for span in sessions} == {trained.caller}
    # So many segments in one batch are too long for its header: their carrier is a root, too.
    own = [span for span in trained.spool.values() if span.name != "cirron.batch"]
    roots = Counter(span.trace for span in own if not span.parent)
    assert trained.caller[0] not in roots
    assert roots == dict.fromkeys(trained.traces.keys() - {trained.caller[0]}, 1)
    began = min(span.start for span in sessions)
    assert min(span.start for span in trained.spool.values()) == began, "nothing from 1970"
    linked = [link for span in trained.spool.values() for link in span.links]
    assert {span.status[0] for span in trained.spool.values() if span.name == "clean_up"} == {2}
    assert len(linked) > RANKS * 2


def test_jaeger_shows_every_span_of_the_spool(trained: Run) -> None:
    shown = [
        span
        for trace, ids in trained.traces.items()
        for span in trained.jaeger.wait_for_trace(trace, ids)
    ]
    assert_whole(trained, plain(shown))


def test_tempo_shows_every_span_of_the_spool_from_its_blocks(trained: Run) -> None:
    live = [
        span
        for trace, ids in trained.traces.items()
        for span in trained.tempo.wait_for_trace(trace, ids)
    ]
    assert_whole(trained, plain(live))
    trained.tempo.flush()
    assert trained.tempo.metric("tempo_discarded_spans_total") == 0
    trained.tempo.process.kill()
    shutil.rmtree(trained.directory / "wal")
    with tempo(trained.directory) as again:
        stored = [
            span
            for trace, ids in trained.traces.items()
            for span in again.wait_for_trace(trace, ids)
        ]
    assert_whole(trained, plain(stored))
