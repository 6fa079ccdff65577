"""docs/joining.md, "Outages": the network breaks in the middle of the run."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.conftest import leave_out
from tests.kit.backends import postgres as pg
from tests.kit.backends import run
from tests.kit.backends.postgres import Postgres, postgres
from tests.kit.backends.process import Process
from tests.kit.servers.serving import spans_of

from .joined import (
    EPOCHS,
    PHASES,
    STEPS,
    Example,
    Job,
    example,
    until,
)
from .test_services import converted, is_synthetic

pytestmark = [pytest.mark.backends, pytest.mark.torch, pytest.mark.slow]
BATCHES = STEPS * EPOCHS
SERVED = "GET /features"
GIVEN_UP, RETRIED = "Failed to export", "Transient error"
"""In the log of the service: its SDK has dropped a batch, and it will send one again."""
IMPATIENT = {"OTEL_BSP_SCHEDULE_DELAY": "200", "OTEL_EXPORTER_OTLP_TIMEOUT": "5"}
"""A service's stock SDK sends every 200 ms, and gives a batch up after five seconds."""
PROMPT = {"OTEL_BSP_SCHEDULE_DELAY": "200"}
"""A stock SDK sends every 200 ms. It gives nothing up that a busy machine delays."""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    if reason := pg.missing():
        leave_out(reason)
    with postgres() as running:
        yield running


Shown = dict[str, dict[str, Any]]
"""Spans by their id, as Jaeger tells of them."""


def shown(jaeger: run.Jaeger, trace_id: str) -> Shown:
    return {span["spanId"]: span for span in jaeger.get_trace(trace_id)}


def check_training(job: Job) -> None:
    """It trained as it does with nothing in its way."""
    losses = [float(loss) for loss in job.losses()]
    assert len(losses) == BATCHES
    assert sum(losses[STEPS:]) < sum(losses[:STEPS])
    assert "left out" not in job.said()


def check_whole(jaeger: run.Jaeger, trace_id: str, made: Example) -> Shown:
    """Every span of the job's spool is in Jaeger, with its parent; what Jaeger has."""
    spans = converted(made.directory / ".cirron")
    truth = {s.span_id.hex(): s.parent_span_id.hex() for s in spans if not is_synthetic(s)}
    assert Counter(span.name for span in spans)["step"] == BATCHES
    # The orchestrator's span is the parent of the job's session. It ends last.
    wanted = truth.keys() | set(truth.values()) - {""}
    found = {span["spanId"]: span for span in jaeger.wait_for_trace(trace_id, wanted)}
    assert {span_id: found[span_id].get("parentSpanId", "") for span_id in truth} == truth
    # Whatever the service kept hangs on it.
    above = {span["parentSpanId"] for span in found.values() if span["name"] == SERVED}
    assert above <= truth.keys()
    return found


def names_above(found: Shown, span_id: str) -> list[str]:
    """The names from the parent of a span up to the root."""
    names = []
    while span_id := found[span_id].get("parentSpanId", ""):
        names.append(found[span_id]["name"])
    return names


def lost(found: Shown) -> set[int]:
    """The requests, counted from 0, of which the service's SDK lost the span."""
    clients = [span for span in found.values() if span["name"] == "GET"]
    clients.sort(key=lambda span: int(span["startTimeUnixNano"]))
    assert len(clients) == BATCHES
    served = {span["parentSpanId"] for span in found.values() if span["name"] == SERVED}
    return {number for number, span in enumerate(clients) if span["spanId"] not in served}


def gives_up(service: Process) -> bool:
    """Whether the last that a service's log has of its batches is that one is given up."""
    lines = [
        line for line in service.tail(1000).splitlines() if GIVEN_UP in line or RETRIED in line
    ]
    return bool(lines) and GIVEN_UP in lines[-1]


def test_the_collector_is_killed_and_comes_back(
    jaeger: run.Jaeger, server: Postgres, tmp_path: Path
) -> None:
    gone, back = 8, 16
    about = {"jaeger": jaeger.otlp_grpc, "variables": IMPATIENT}
    with example(tmp_path, server, **about) as made, contextlib.ExitStack() as stack:
        stops = stack.enter_context(made.stops(gone, back))
        collector = stack.enter_context(made.collector())
        service = stack.enter_context(made.service())
        job = stack.enter_context(made.job())
        stops.wait_for(gone)
        stored = made.directory / "traces"
        until(lambda: [s["name"] for s in spans_of(stored)].count(SERVED) == gone)
        collector.kill()
        before = service.tail(1000).count(GIVEN_UP)  # the collector may have stored such a batch
        stops.go_on(gone)
        stops.wait_for(back)
        assert len(job.losses()) == back
        until(lambda: service.tail(1000).count(GIVEN_UP) > before)
        time.sleep(2)  # the spans that waited behind that batch are given up, too
        until(lambda: gives_up(service))
        collector = stack.enter_context(made.collector())
        stops.go_on(back)
        trace_id = job.trace_id()
        service.stop()
        check_training(job)
        check_whole(jaeger, trace_id, made)
        # The service sends after the job: what it has is there as soon as its last request is.
        until(lambda: BATCHES - 1 not in lost(shown(jaeger, trace_id)))
        found = shown(jaeger, trace_id)
        assert lost(found)
        assert lost(found) <= set(range(gone, back))
        assert "nightly training" in {span["name"] for span in found.values()}
        collector.kill()  # a stop waits 30 s for the second backend, which does not run here


def test_the_backend_hangs_for_a_while(
    jaeger: run.Jaeger, server: Postgres, tmp_path: Path
) -> None:
    hung, back = 8, 16
    direct = {"collector_address": jaeger.otlp_http.removeprefix("http://")}
    with (
        example(tmp_path, server, variables=IMPATIENT, **direct) as made,
        made.stops(hung, back) as stops,
        made.service() as service,
        made.job() as job,
    ):
        stops.wait_for(hung)
        os.kill(jaeger.process.pid, signal.SIGSTOP)
        try:
            stops.go_on(hung)
            stops.wait_for(back)
            assert len(job.losses()) == back
            until(lambda: GIVEN_UP in service.tail(1000))
        finally:
            os.kill(jaeger.process.pid, signal.SIGCONT)
        stops.go_on(back)
        trace_id = job.trace_id()
        service.stop()
        check_training(job)
        check_whole(jaeger, trace_id, made)
        until(lambda: BATCHES - 1 not in lost(shown(jaeger, trace_id)))
        assert lost(shown(jaeger, trace_id)) <= set(range(back))


def test_service_errors_are_recorded_on_the_steps_that_met_them(
    jaeger: run.Jaeger, server: Postgres, tmp_path: Path
) -> None:
    killed = 30
    direct = {"collector_address": jaeger.otlp_http.removeprefix("http://")}
    with example(tmp_path, server, variables=PROMPT, **direct) as made:
        with psycopg.connect(made.database) as connection:
            connection.execute("DELETE FROM features WHERE id = 200")
        with (
            made.stops(killed) as stops,
            made.service() as service,
            made.job("cirron-otel run -- python train.py") as job,
        ):
            stops.wait_for(killed)
            service.kill()
            trace_id = job.trace_id()
        said = Counter(re.findall(r"^batch left out: (\w+)$", job.said(), re.MULTILINE))
        assert said.keys() == {"HTTPError", "ConnectionError"}
        assert said["ConnectionError"] == BATCHES - killed
        assert said.total() + len(job.losses()) == BATCHES
        spans = converted(made.directory / ".cirron")
        found = check_whole(jaeger, trace_id, made)
    steps = [span for span in spans if span.name == "step"]
    way = names_above(found, steps[0].span_id.hex())
    assert way == ["epoch", "cirron.session", "cirron.job", "cirron.session", "nightly training"]
    below: dict[bytes, list[Span]] = defaultdict(list)
    for span in spans:
        below[span.parent_span_id].append(span)
    met: Counter[str] = Counter()
    for step in steps:
        phases = {span.name: span for span in below[step.span_id]}
        load = phases["data_load"]
        [client] = below[load.span_id]
        if load.status.code == Status.STATUS_CODE_ERROR:
            assert phases.keys() == {"data_load"}
            assert client.status.code == Status.STATUS_CODE_ERROR
            [event] = [each for each in load.events if each.name == "exception"]
            [kind] = [a.value.string_value for a in event.attributes if a.key == "exception.type"]
            met[kind.rpartition(".")[2]] += 1
        else:
            assert phases.keys() == set(PHASES)
            assert client.status.code == Status.STATUS_CODE_UNSET
    assert met == said
