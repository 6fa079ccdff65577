"""The configurations of collector-config/ in the real OpenTelemetry Collector, between a stock SDK
and a receiver that keeps what comes.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import requests
import yaml
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from tests.kit.backends import run
from tests.kit.backends.build import PINS, binary
from tests.kit.backends.process import free_endpoints
from tests.kit.backends.tempo import TEMPO
from tests.kit.servers.otlp_sink import otlp_sink, wait_for

pytestmark = pytest.mark.backends

AGENT, GATEWAY = PINS / "agent.yaml", PINS / "gateway.yaml"
FLEET, SAMPLING = PINS / "fleet.yaml", PINS / "tail-sampling.yaml"
KAFKA_AGENT, KAFKA_CONSUMER = PINS / "kafka-agent.yaml", PINS / "kafka-consumer.yaml"
OURS = [AGENT, GATEWAY, FLEET, SAMPLING, KAFKA_AGENT]
OF_OTELCOL = [*OURS, KAFKA_CONSUMER, run.FILE, run.SPLIT, run.PROCESSORS]
SECOND = 1_000_000_000
BEGIN = 1_790_000_000 * SECOND


class SeededIds(IdGenerator):
    """The same ids in every run, so that a share of the traces is always the same traces."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def generate_span_id(self) -> int:
        return self._random.getrandbits(64) | 1

    def generate_trace_id(self) -> int:
        return self._random.getrandbits(128) | 1


class Application:
    """A stock SDK that makes traces of a session and its steps."""

    def __init__(self, seed: int = 0) -> None:
        self._memory = InMemorySpanExporter()
        provider = TracerProvider(
            id_generator=SeededIds(seed), resource=Resource({"service.name": "train"})
        )
        provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self._tracer = provider.get_tracer("tests")

    def trace(
        self,
        seconds: float = 0.1,
        name: str = "step",
        skipped: bool | None = None,
        fails: bool = False,
    ) -> Sequence[ReadableSpan]:
        """A step with a forward, and the session that holds them: the session is last."""
        self._memory.clear()
        root = self._tracer.start_span("cirron.session", start_time=BEGIN)
        attributes = {"cirron.index": 0} if skipped is None else {"skipped": skipped}
        step = self._tracer.start_span(
            name, set_span_in_context(root), attributes=attributes, start_time=BEGIN
        )
        forward = self._tracer.start_span("forward", set_span_in_context(step), start_time=BEGIN)
        if fails:
            forward.set_status(Status(StatusCode.ERROR, "out of memory"))
        forward.end(BEGIN + 1)
        step.end(BEGIN + int(seconds * SECOND))
        # Longer than every threshold: how long a trace took says nothing about its steps.
        root.end(BEGIN + 3600 * SECOND)
        return self._memory.get_finished_spans()


def ids_of(spans: Sequence[ReadableSpan]) -> set[bytes]:
    return {span.context.span_id.to_bytes(8, "big") for span in spans}


def trace_id(spans: Sequence[ReadableSpan]) -> bytes:
    return bytes(spans[0].context.trace_id.to_bytes(16, "big"))


def send(exporter: SpanExporter, *batches: Sequence[ReadableSpan]) -> set[bytes]:
    """Each in a request of its own, all acknowledged; the span ids."""
    try:
        for batch in batches:
            assert exporter.export(batch) is SpanExportResult.SUCCESS
    finally:
        exporter.shutdown()
    return set().union(*map(ids_of, batches))


def grpc_to(collector: run.Otelcol) -> SpanExporter:
    return GrpcExporter(endpoint=collector.otlp_grpc, insecure=True)


def validate(program: str, config: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [binary(program), "validate", "--config", config],
        env=os.environ | {"DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )


class TestEveryConfiguration:
    @pytest.mark.parametrize("config", OF_OTELCOL, ids=lambda path: path.stem)
    def test_is_valid_for_the_real_program(self, config: Path, tmp_path: Path) -> None:
        done = validate("otelcol", config, tmp_path)
        assert done.returncode == 0, done.stderr

    def test_jaegers_is_too(self, tmp_path: Path) -> None:
        assert validate("jaeger", run.JAEGER, tmp_path).returncode == 0

    def test_an_unknown_key_is_not(self, tmp_path: Path) -> None:
        wrong = tmp_path / "wrong.yaml"
        wrong.write_text(AGENT.read_text().replace("queue_size:", "queue_sizes:"))
        assert "queue_sizes" in validate("otelcol", wrong, tmp_path).stderr

    @pytest.mark.parametrize("config", OURS, ids=lambda path: path.stem)
    def test_listens_on_loopback_by_default(self, config: Path) -> None:
        for name in ("HEALTH", "OTLP_GRPC", "OTLP_HTTP"):
            assert re.findall(rf"\$\{{env:{name}([^}}]*)\}}", config.read_text()) == [
                {"HEALTH": ":-127.0.0.1:13133", "OTLP_GRPC": ":-127.0.0.1:4317"}.get(
                    name, ":-127.0.0.1:4318"
                )
            ]

    def test_takes_the_overlay_of_the_readme(self, tmp_path: Path) -> None:
        [text] = re.findall(r"```yaml\n(.*?)```", (PINS / "README.md").read_text(), re.DOTALL)
        overlay = tmp_path / "tls.yaml"
        overlay.write_text(text)
        shown = subprocess.run(
            [binary("otelcol"), "print-config", "--mode=unredacted",
             "--config", AGENT, "--config", overlay],
            env=os.environ | {"DIR": str(tmp_path), "TOKEN": "sesame"},
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert shown.returncode == 0, shown.stderr
        exporter = yaml.safe_load(shown.stdout)["exporters"]["otlp_grpc"]
        assert not exporter["tls"].get("insecure", False)
        assert exporter["tls"]["ca_file"] == "/etc/otelcol/ca.pem"
        assert exporter["headers"] == [{"name": "authorization", "value": "Bearer sesame"}]

    def test_the_readme_names_the_variables_that_they_take(self) -> None:
        configs = [*OF_OTELCOL, run.JAEGER, TEMPO]
        taken = {
            name for path in configs for name in re.findall(r"\$\{(?:env:)?(\w+)", path.read_text())
        }
        rows = re.findall(r"^\| `([A-Z_`, ]+)` \|", (PINS / "README.md").read_text(), re.MULTILINE)
        assert {name for row in rows for name in re.findall(r"\w+", row)} == taken

    def test_all_have_been_seen_here(self) -> None:
        others = {run.JAEGER.name, TEMPO.name, "manifest.yaml"}
        there = {path.name for path in PINS.glob("*.yaml")}
        assert there == others | {path.name for path in OF_OTELCOL}


class TestAgent:
    def test_hands_on_spans_and_logs_of_both_protocols(self, tmp_path: Path) -> None:
        application = Application()
        [endpoint] = free_endpoints(1)
        logs = ExportLogsServiceRequest()
        group = logs.resource_logs.add().scope_logs.add()
        group.log_records.add(event_name="loss").body.double_value = 0.5
        with (
            otlp_sink(endpoint) as sink,
            run.otelcol(AGENT, tmp_path, {"COLLECTOR": endpoint}) as agent,
        ):
            sent = send(grpc_to(agent), application.trace())
            http = HttpExporter(endpoint=f"{agent.otlp_http}/v1/traces")
            sent |= send(http, application.trace())
            assert post(agent, "logs", logs.SerializeToString()) == 200
            wait_for([sink], sent)
            deadline = time.monotonic() + 180
            while not sink.records and time.monotonic() < deadline:
                time.sleep(0.02)
        assert sink.ids() == sent
        assert [record.event_name for record in sink.records] == ["loss"]
        [resource] = {span_resource.SerializeToString() for span_resource, _ in sink.spans}
        assert b"train" in resource

    def test_loses_nothing_acknowledged_when_it_is_killed(self, tmp_path: Path) -> None:
        application = Application()
        [endpoint] = free_endpoints(1)
        settings = {"COLLECTOR": endpoint}
        acknowledged: set[bytes] = set()
        for _ in range(2):  # the second one starts with a queue, and nobody to send it to
            with run.otelcol(AGENT, tmp_path, settings) as agent:
                batches = [application.trace() for _ in range(30)]
                acknowledged |= send(grpc_to(agent), *batches)
                agent.process.kill()
        queue = tmp_path / "queue"
        assert all(path.stat().st_mode & 0o077 == 0 for path in [queue, *queue.iterdir()])
        with otlp_sink(endpoint) as sink, run.otelcol(AGENT, tmp_path, settings):
            wait_for([sink], acknowledged)
        assert sink.ids() == acknowledged
        # Merged on the way: less requests than came in.
        assert sink.trace_requests < 60

    def test_a_kill_while_it_sends_loses_nothing_either(self, tmp_path: Path) -> None:
        application = Application()
        [endpoint] = free_endpoints(1)
        settings = {"COLLECTOR": endpoint}
        with otlp_sink(endpoint) as sink:
            with run.otelcol(AGENT, tmp_path, settings) as agent:
                acknowledged = send(grpc_to(agent), *(application.trace() for _ in range(100)))
                agent.process.kill()
            with run.otelcol(AGENT, tmp_path, settings):
                wait_for([sink], acknowledged)

    def test_a_full_queue_is_refused_and_not_acknowledged(self, tmp_path: Path) -> None:
        [endpoint] = free_endpoints(1)
        settings = {"COLLECTOR": endpoint, "QUEUE_BYTES": "2000000"}
        data = TracesData()
        data.resource_spans.add().scope_spans.add().spans.add(
            trace_id=b"t" * 16, span_id=b"s" * 8, name="step" * 200_000
        )
        answers = []
        with run.otelcol(AGENT, tmp_path, settings) as agent:
            for _ in range(10):
                answer = post(agent, "traces", data.SerializeToString())
                answers.append(answer)
        # Room for two; the sender is told to come again, and keeps what it has.
        assert answers == [200, 200, *[503] * 8]


def post(collector: run.Otelcol, signal: str, body: bytes) -> int:
    answer = requests.post(
        f"{collector.otlp_http}/v1/{signal}",
        body,
        headers={"Content-Type": "application/x-protobuf"},
        timeout=30,
    )
    return answer.status_code


def test_the_gateway_sends_all_to_both_and_waits_for_neither(tmp_path: Path) -> None:
    application = Application()
    ours, theirs = free_endpoints(2)
    settings = {"COLLECTOR": ours, "BACKEND": theirs}
    with run.otelcol(GATEWAY, tmp_path, settings) as gateway:
        with otlp_sink(ours) as collector:
            early = send(grpc_to(gateway), *(application.trace() for _ in range(10)))
            wait_for([collector], early)  # while the backend is away
        late = send(grpc_to(gateway), *(application.trace() for _ in range(10)))
        with otlp_sink(theirs) as backend:
            wait_for([backend], early | late)  # while the collector is away
        gateway.process.kill()
    with otlp_sink(ours) as again, run.otelcol(GATEWAY, tmp_path, settings):
        wait_for([again], late)
    assert collector.ids() == early
    assert backend.ids() == early | late


class TestFleet:
    def test_all_spans_of_a_trace_go_to_one_member(self, tmp_path: Path) -> None:
        application = Application()
        one, two = free_endpoints(2)
        traces = [application.trace() for _ in range(40)]
        settings = {"FLEET": f"[{one}, {two}]"}
        with (
            otlp_sink(one) as first,
            otlp_sink(two) as second,
            run.otelcol(FLEET, tmp_path, settings) as balancer,
        ):
            # Each trace in three requests, and every request with spans of all traces.
            parts = [[trace[part] for trace in traces] for part in range(3)]
            wait_for([first, second], send(grpc_to(balancer), *parts))
        assert first.by_trace().keys().isdisjoint(second.by_trace())
        assert first.by_trace() | second.by_trace() == {trace_id(t): ids_of(t) for t in traces}
        # 40 in a hash ring: neither is left out.
        assert min(len(first.by_trace()), len(second.by_trace())) >= 5

    def test_spans_queued_for_a_dead_member_reach_it_or_another(self, tmp_path: Path) -> None:
        application = Application()
        one, two = free_endpoints(2)
        both, alone = {"FLEET": f"[{one}, {two}]"}, {"FLEET": f"[{one}]"}
        traces = [application.trace() for _ in range(20)]
        with otlp_sink(one) as first:
            with run.otelcol(FLEET, tmp_path, both) as balancer:
                sent = send(grpc_to(balancer), *traces)
                assert sent  # acknowledged, with one member away
                with otlp_sink(two) as second:
                    wait_for([first, second], sent)
                assert second.spans
                more = send(grpc_to(balancer), *(application.trace() for _ in range(20)))
                balancer.process.kill()
            assert more - first.ids(), "nothing waits for the member that is away"
            with run.otelcol(FLEET, tmp_path, alone):
                wait_for([first], more)


class TestTailSampling:
    def kept(
        self, tmp_path: Path, percent: int, traces: Sequence[Sequence[ReadableSpan]]
    ) -> dict[bytes, set[bytes]]:
        """What passes; each trace comes in two requests, its forward first and by itself."""
        [endpoint] = free_endpoints(1)
        settings = {"BACKEND": endpoint, "KEEP_PERCENT": str(percent), "SLOW_STEP_MS": "750",
                    "DECISION_WAIT": "1s"}  # fmt: skip
        with otlp_sink(endpoint) as sink:
            with run.otelcol(SAMPLING, tmp_path, settings) as sampler:
                forwards = [trace[0] for trace in traces]
                others = [span for trace in traces for span in trace[1:]]
                sent = send(grpc_to(sampler), forwards, others)
            # It decided on all that was left when it ended, and what it had not sent is on disk: a
            # trace that comes behind it, and another end, say that nothing more is to come.
            last = Application(seed=1).trace(fails=True)
            with run.otelcol(SAMPLING, tmp_path, settings) as sampler:
                wait_for([sink], send(grpc_to(sampler), last))
        assert sink.ids() <= sent | ids_of(last)
        found = sink.by_trace()
        assert found.pop(trace_id(last)) == ids_of(last)
        return found

    def test_keeps_slow_failed_and_skipped_traces_complete(self, tmp_path: Path) -> None:
        make = Application().trace
        keep = [
            make(seconds=0.75),
            make(seconds=30),
            make(fails=True),
            make(skipped=True),
        ]
        drop = [
            make(seconds=0.749),
            make(skipped=False),
            make(seconds=30, name="evaluate"),
            make(skipped=True, name="evaluate"),
        ]
        found = self.kept(tmp_path, 0, [*drop, *keep])
        assert found == {trace_id(trace): ids_of(trace) for trace in keep}

    def test_keeps_a_share_of_the_other_traces_complete(self, tmp_path: Path) -> None:
        application = Application()
        traces = {trace_id(t): t for t in (application.trace() for _ in range(400))}
        found = self.kept(tmp_path, 25, list(traces.values()))
        assert 70 <= len(found) <= 130
        assert found == {one: ids_of(traces[one]) for one in found}
