"""A collector as users meet it: started by its command, stock exporters in front."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

from cirron_otel.core.otlp.files import read_messages
from cirron_otel.core.otlp.formats import Encoding, Format
from cirron_otel.semconv import FOREIGN_BATCH
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.kit.servers.away import until
from tests.kit.servers.serving import Serving, serving, spans_of


def record(exporter: SpanExporter, count: int, prefix: str = "s") -> None:
    """So many spans of a stock SDK, exported one by one."""
    provider = TracerProvider(resource=Resource({"service.name": "shop"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test", "1.0")
    for number in range(count):
        with tracer.start_as_current_span(f"{prefix}{number}", attributes={"n": number}) as span:
            span.add_event("e", {"x": 1.5})
    provider.shutdown()


def post(url: str, body: bytes, kind: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, body, {"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def request(name: str = "one", count: int = 1) -> bytes:
    message = ResourceSpans()
    scope = message.scope_spans.add()
    for number in range(count):
        identity = number.to_bytes(8, "big", signed=False)[:-1] + b"\1"
        scope.spans.add(trace_id=b"t" * 16, span_id=identity, name=name, end_time_unix_nano=5)
    return TracesData(resource_spans=[message]).SerializeToString()


def test_both_transports_into_one_spool(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with serving(folder) as here:
        record(GrpcExporter(endpoint=f"http://{here.grpc}", insecure=True), 30, "g")
        record(HttpExporter(endpoint=f"{here.http}/v1/traces"), 30, "h")
        assert here.end() == 0
    spans = spans_of(folder)
    names = sorted(span["name"] for span in spans)
    assert names == sorted([f"g{n}" for n in range(30)] + [f"h{n}" for n in range(30)])
    assert all(span["attrs"]["n"] == int(span["name"][1:]) for span in spans)
    assert not list((folder / "state" / "intake").glob("refused-*"))


def test_received_requests_convert_back_to_the_same_otlp(tmp_path: Path) -> None:
    """Through the spool and back to OTLP: the very messages."""
    sent = [request(f"r{number}", 3) for number in range(5)]
    folder, target = tmp_path / "data", tmp_path / "out.binpb"
    with serving(folder) as here:
        for body in sent:
            assert post(f"{here.http}/v1/traces", body, "application/x-protobuf") == (200, b"")
        assert here.end() == 0
    convert(ConvertRequest(str(folder), str(target), target_format="otlp-proto"))
    with target.open("rb") as stream:
        found = [
            each.SerializeToString()
            for message in read_messages(stream, Format(Encoding.PROTO))
            for each in TracesData.FromString(message.data).resource_spans
            if not any(attribute.key == FOREIGN_BATCH for attribute in each.resource.attributes)
        ]
    wanted = [each.SerializeToString() for body in sent for each in _resources(body)]
    assert sorted(found) == sorted(wanted)


def _resources(body: bytes) -> Any:
    return TracesData.FromString(body).resource_spans


def test_cirron_batches_are_stored_unchanged(tmp_path: Path) -> None:
    batch = {
        "schema_version": 1, "sdk_version": "0.3.0", "batch_id": "ab" * 16, "created_ns": 7,
        "spans": [], "marks": [], "snapshots": [], "extra": "\ud800",
    }  # fmt: skip
    body = json.dumps(batch).encode()
    folder = tmp_path / "data"
    with serving(folder) as here:
        for _ in range(2):  # the second is a duplicate
            status, answer = post(f"{here.http}/v1/traces", body, "application/json")
            assert (status, json.loads(answer)["batch_id"]) == (202, "ab" * 16)
        assert here.end() == 0
    (path,) = (folder / "spool").iterdir()
    assert (path.name, path.read_bytes()) == (f"{7:020d}-{'ab' * 16}.json", body)


def test_a_request_that_comes_again_is_stored_once(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    body = request("again", 4)
    for _ in range(2):  # over a restart, too
        with serving(folder) as here:
            for _ in range(3):
                assert post(f"{here.http}/v1/traces", body, "application/x-protobuf")[0] == 200
            assert here.end() == 0
    assert len(spans_of(folder)) == 4


def test_tenants_are_stored_separately(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with serving(folder) as here:
        for tenant in ("a", "b"):
            told = urllib.request.Request(
                f"{here.http}/v1/traces",
                request(),
                {"Content-Type": "application/x-protobuf", "X-Scope-OrgID": tenant},
            )
            with urllib.request.urlopen(told, timeout=30) as answer:
                assert answer.status == 200
        assert here.end() == 0
    assert len(spans_of(folder)) == 2


BAD: dict[str, tuple[bytes | Callable[[], bytes], str, int]] = {
    "no protobuf": (b"\xff\xff", "application/x-protobuf", 400),
    "no JSON": (b"{", "application/json", 400),
    "neither": (b"[]", "application/json", 400),
    "a batch of another version": (b'{"schema_version":2,"batch_id":"x"}', "application/json", 400),
    "spans that are none": (b'{"resourceSpans":[{"scopeSpans":5}]}', "application/json", 400),
    "too many elements": (partial(request, "", 200_001), "application/x-protobuf", 413),
    "text": (b"hello", "text/plain", 415),
}


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with serving(tmp_path_factory.mktemp("collector") / "data") as here:
        yield here


@pytest.mark.parametrize(("body", "kind", "status"), BAD.values(), ids=BAD)
def test_bad_input_is_refused(
    collector: Serving, body: bytes | Callable[[], bytes], kind: str, status: int
) -> None:
    data = body() if callable(body) else body
    assert post(f"{collector.http}/v1/traces", data, kind)[0] == status


def test_it_is_healthy_and_counts(collector: Serving) -> None:
    assert post(f"{collector.http}/v1/traces", request(), "application/x-protobuf")[0] == 200
    for path in ("/health", "/ready"):
        with urllib.request.urlopen(collector.http + path, timeout=30) as answer:
            assert answer.status == 200
    with urllib.request.urlopen(f"{collector.http}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert 'cirron_collector_received_requests_total{signal="traces",transport="http"}' in text


def test_an_address_that_is_taken(collector: Serving, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="cannot listen"):
        Serving(tmp_path / "data", "--http", collector.http.removeprefix("http://"))


def test_two_on_one_spool(collector: Serving) -> None:
    with pytest.raises(AssertionError, match="another"):
        Serving(collector.folder)


@pytest.mark.parametrize("is_used", [False, True])
def test_nothing_to_do_costs_nothing(is_used: bool, tmp_path: Path) -> None:
    """Neither process turns in circles: processor time is what is asked for, and no wall time."""
    with serving(tmp_path / "data") as here:
        if is_used:
            assert post(f"{here.http}/v1/traces", request(), "application/x-protobuf")[0] == 200
        translator = here.translator()
        assert translator is not None
        processes = here.process.pid, translator
        until(lambda: all(map(_rests, processes)))  # they have begun, and done what came
        before = [_processor_s(each) for each in processes]
        time.sleep(2.0)
        after = [_processor_s(each) for each in processes]
    assert [late - early < 0.5 for early, late in zip(before, after, strict=True)] == [True, True]


def _rests(pid: int) -> bool:
    """Whether a process uses less than a tenth of a processor for a while."""
    before = _processor_s(pid)
    time.sleep(0.5)
    return _processor_s(pid) - before < 0.05


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
