"""Two services with stock OpenTelemetry around them: one trace in Jaeger and in both spools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.kit.backends import run
from tests.kit.sessions.reading import SESSION, Recorded, recorded
from tests.kit.spools.comparing import cirron_otel, spans_of

from .services.trainer_counts import EPOCHS, EVENTS, STEPS

SERVICES = Path(__file__).parent / "services"
ROOT = Path(__file__).parents[3]
FAR_TRACE, FAR_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Service:
    """A service as a process of its own."""

    def __init__(self, name: str, *arguments: object, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, SERVICES / f"{name}.py", *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> Any:
        """What it says next."""
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        assert text, f"it ended with {self._process.wait(60)}"
        return json.loads(text)

    def finish(self) -> Any:
        """Have it end; its report."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        report = self.line()
        assert self._process.wait(60) == 0
        return report

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def service(name: str, *arguments: object, **environment: str) -> Iterator[Service]:
    started = Service(name, *arguments, **environment)
    try:
        yield started
    finally:
        started.kill()


def to(jaeger: run.Jaeger, **more: str) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.otlp_http,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        **more,
    }


Parents = dict[str, dict[str, str]]
"""Parent span ids by trace and span id."""


def converted(spool: Path) -> list[Span]:
    """What `cirron-otel convert` makes of a spool, and of nothing else."""
    file = spool.parent / f"{spool.name}.binpb"
    cirron_otel("convert", spool, file)
    return spans_of(file)


def parents_of(spans: list[Span]) -> Parents:
    found: Parents = defaultdict(dict)
    for span in spans:
        found[span.trace_id.hex()][span.span_id.hex()] = span.parent_span_id.hex()
    return found


def is_synthetic(span: Span) -> bool:
    return any(attribute.key == "cirron.synthetic" for attribute in span.attributes)


def shown(jaeger: run.Jaeger, truth: Parents) -> Parents:
    """What Jaeger has of these traces, once it has all of these spans."""
    return {
        trace_id: {
            span["spanId"]: span.get("parentSpanId", "")
            for span in jaeger.wait_for_trace(trace_id, parents.keys())
        }
        for trace_id, parents in truth.items()
    }


def chain(found: Recorded, span: dict[str, Any]) -> list[str]:
    """The names from a span up to the session, in Cirron's tree."""
    names = [span["name"]]
    while span["parent_id"] is not None:
        span = found.spans[span["parent_id"]]
        names.append(span["name"])
    return names


@pytest.mark.parametrize("mode", ["application", "own", "processor", "late processor"])
def test_caller_and_server_agree(mode: str, jaeger: run.Jaeger, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with (
        service("server", mode, b, **to(jaeger, OTEL_SERVICE_NAME="model")) as server,
        service(
            "trainer", mode, a, f"http://127.0.0.1:{server.line()}/",
            **to(jaeger, OTEL_SERVICE_NAME="trainer"),
        ) as trainer,
    ):  # fmt: skip
        trainer.line()
        report = trainer.finish()
        served = server.finish()
    assert report["done"]
    assert served["done"]
    assert report["errors"] == served["errors"] == {}
    calls, caller = recorded(a), recorded(a)
    model = recorded(b)

    # In the caller's spool: step > client span. In the server's: session > server span > request.
    clients = [s for s in caller.spans.values() if s.get("otel", {}).get("kind") == 3]
    assert len(clients) == EPOCHS * STEPS
    assert all(chain(caller, c) == [c["name"], "step", "epoch", SESSION] for c in clients)
    requests = model.named("request")
    assert len(requests) == EPOCHS * STEPS
    by_id = {client["id"][:16]: client for client in clients}
    for request in requests:
        server_span = model.spans[request["parent_id"]]
        assert server_span["otel"]["kind"] == 2
        assert chain(model, request) == ["request", server_span["name"], SESSION]
        client = by_id.pop(model.wire_parent(server_span))
        traces = {model.trace_id(request), model.trace_id(server_span), caller.trace_id(client)}
        assert len(traces) == 1
        assert model.wire_parent(request) == server_span["id"][:16]
        assert traces <= set(report["answers"])
    decodes = [chain(model, decode)[:3] for decode in model.named("decode")]
    assert decodes == [["decode", "generate", "request"]] * EPOCHS * STEPS
    assert {m["name"]: model.spans[m["span_id"]]["name"] for m in model.marks}[
        "tokens"
    ] == "request"

    # Converted one by one, they are what Jaeger has.
    spans = converted(a) + converted(b)
    truth = parents_of([span for span in spans if mode == "own" or not is_synthetic(span)])
    found = shown(jaeger, truth)
    assert found == truth
    inside = {span_id for parents in truth.values() for span_id in parents}
    dangling = [p for parents in truth.values() for p in parents.values() if p and p not in inside]
    assert dangling == []
    assert calls.spans.keys().isdisjoint(model.spans)


def test_standalone_service_exports_all_spans_also_while_running(
    jaeger: run.Jaeger, tmp_path: Path
) -> None:
    named = to(
        jaeger, OTEL_SERVICE_NAME="nightly", OTEL_RESOURCE_ATTRIBUTES="team=vision,service.name=no"
    )
    with service("trainer", "own", tmp_path / "a", **named) as trainer:
        epoch = trainer.line()["epoch"]
        # The last epoch is open: Jaeger shows its marker, and its steps below it.
        spans = jaeger.wait_for_trace(epoch["trace_id"], 1)
        while not any(runs_for(span, "epoch", 1) for span in spans):
            spans = jaeger.wait_for_trace(epoch["trace_id"], len(spans) + 1)
        assert epoch["span_id"] not in {span["spanId"] for span in spans}
        report = trainer.finish()
    assert report["done"]
    assert report["errors"] == {}
    truth = converted(tmp_path / "a")
    assert shown(jaeger, parents_of(truth)) == parents_of(truth)
    shows = jaeger.get_trace(epoch["trace_id"])
    resource = {a["key"]: a["value"].get("stringValue") for a in shows[0]["resource"]["attributes"]}
    assert resource["service.name"] == "nightly"
    assert resource["team"] == "vision"
    events = {span["name"]: len(span.get("events", [])) for span in shows}
    assert events["foreign many"] == events["many"] == EVENTS


def runs_for(span: dict[str, Any], name: str, index: int) -> bool:
    said = {attribute["key"]: attribute["value"] for attribute in span.get("attributes", [])}
    return (
        span["name"] == "cirron.running"
        and said.get("cirron.running.name") == {"stringValue": name}
        and said.get("cirron.index") == {"intValue": str(index)}
    )


@pytest.mark.parametrize("mode", ["own", "application", "processor"])
@pytest.mark.parametrize(
    "environment",
    [
        {"TRACEPARENT": f"00-{FAR_TRACE}-{FAR_SPAN}-00"},
        {"OTEL_TRACES_SAMPLER": "always_off"},
        {"OTEL_TRACES_SAMPLER": "parentbased_always_off"},
    ],
    ids=["unsampled parent", "always_off", "parentbased_always_off"],
)
def test_unsampled_spans_are_spooled_and_not_exported(
    environment: dict[str, str], mode: str, jaeger: run.Jaeger, tmp_path: Path
) -> None:
    service_name = f"unsampled-{mode}-{len(environment)}-{abs(hash(str(environment)))}"
    told = to(jaeger, OTEL_SERVICE_NAME=service_name, **environment)
    with service("trainer", mode, tmp_path / "a", **told) as trainer:
        epoch = trainer.line()["epoch"]
        report = trainer.finish()
    assert report["done"]
    assert report["errors"] == {}
    found = recorded(tmp_path / "a")
    names = Counter(span["name"] for span in found.spans.values())
    expected = {SESSION: 1, "epoch": EPOCHS, "step": EPOCHS * STEPS, "forward": EPOCHS * STEPS,
                "many": 1}  # fmt: skip
    # A foreign span that the application's own provider does not make is none.
    assert names == expected | ({"foreign many": 1} if mode == "own" else {})
    assert len(found.marks) == EPOCHS * STEPS
    assert not any(map(found.is_sampled, found.spans.values()))
    assert jaeger.get_trace(epoch["trace_id"]) == []


def test_the_sdk_switched_off_traces_nothing(tmp_path: Path, jaeger: run.Jaeger) -> None:
    with service("trainer", "own", tmp_path / "a", **to(jaeger, OTEL_SDK_DISABLED="true")) as one:
        assert one.line()["epoch"]["trace_id"] == "0" * 32
        report = one.finish()
    assert report["enabled"] is False
    assert not (tmp_path / "a").exists()


def test_no_event_is_lost_in_the_spool(tmp_path: Path) -> None:
    with service("trainer", "own", tmp_path / "a") as trainer:
        trainer.line()
        trainer.finish()
    found = recorded(tmp_path / "a")
    for name in ("many", "foreign many"):
        numbers = [event["attributes"]["number"] for event in found.one(name)["otel"]["events"]]
        assert numbers == list(range(EVENTS))
