"""docs/joining.md: one trace from the orchestrator to the SQL statement, and the ways back."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.core.targets.sql.storage import Storage
from tests.conftest import leave_out
from tests.kit.backends import postgres as pg
from tests.kit.backends import run
from tests.kit.backends.build import missing
from tests.kit.backends.postgres import postgres
from tests.kit.backends.tempo import Tempo, tempo

from .joined import (
    EPOCHS,
    EXAMPLE,
    PAGE,
    PHASES,
    ROOT,
    STEPS,
    Example,
    block,
    blocks,
    example,
    until,
)
from .test_services import converted, is_synthetic, parents_of

pytestmark = [pytest.mark.backends, pytest.mark.torch, pytest.mark.slow]
UP = ["GET /features", "GET", "data_load", "step", "epoch", "cirron.session", "nightly training"]
CLIENT, SERVER = 3, 2
SLOW_NS = 200_000_000
"""From how long on a span is slow in the queries of the page."""
Span = dict[str, Any]


@dataclass
class Finished:
    """The example after a run, with everything up but the service."""

    example: Example
    jaeger: run.Jaeger
    tempo: Tempo
    trace_id: str
    spans: dict[str, Span]
    """The trace in Jaeger, by span id."""

    def way(self, span: Span) -> list[Span]:
        """What is above a span, up to the root."""
        found = []
        while above := span.get("parentSpanId"):
            span = self.spans[above]
            found.append(span)
        return found

    def named(self, name: str) -> list[Span]:
        some = [span for span in self.spans.values() if span["name"] == name]
        return sorted(some, key=lambda span: int(span["startTimeUnixNano"]))

    def slow_statements(self) -> list[Span]:
        some = self.named("SELECT")
        return [each for each in some if "pg_sleep" in told(each)["db.statement"]]

    def slow_requests(self) -> list[Span]:
        """The requests that the page's queries find: on a busy machine, also other ones."""
        return [each for each in self.named("GET /features") if took(each) > SLOW_NS]

    def percents(self) -> dict[tuple[int, int], int]:
        """The percentage of each step's time that its request took, by epoch and number."""
        found = {}
        for request in self.named("GET"):
            [(epoch, step, step_id)] = self.steps_of([request])
            found[epoch, step] = 100 * took(request) // took(self.spans[step_id])
        return found

    def steps_of(self, spans: list[Span]) -> list[tuple[int, int, str]]:
        """The epoch, the number and the id of the step above each span, in that order."""
        found = []
        for span in spans:
            step, epoch = [each for each in self.way(span) if each["name"] in ("step", "epoch")]
            found.append((number(epoch), number(step), step["spanId"]))
        return found


def told(span: Span) -> dict[str, Any]:
    """A span's attributes."""
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


def took(span: Span) -> int:
    """How long a span took, in ns."""
    return int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])


def number(span: Span) -> int:
    return int(told(span)["cirron.index"])


def service_of(span: Span) -> str:
    attributes = span["resource"]["attributes"]
    [name] = [each["value"]["stringValue"] for each in attributes if each["key"] == "service.name"]
    return str(name)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    if reason := missing("tempo") or pg.missing():
        leave_out(reason)
    folder = tmp_path_factory.mktemp("example")
    (folder / "tempo").mkdir()
    with postgres() as server, run.jaeger(folder) as jaeger, tempo(folder / "tempo") as traces:
        about = {"jaeger": jaeger.otlp_grpc, "tempo": traces.otlp_grpc}
        query = jaeger.query.removeprefix("http://")
        with example(folder, server, query=query, **about) as made, made.collector():
            with made.service(), made.job() as job:
                trace_id = job.trace_id()
            recorded = {span.span_id.hex() for span in converted(made.directory / ".cirron")}
            # All of it, and long before a collector would give up to wait for a span's parent.
            jaeger.wait_for_trace(trace_id, recorded, seconds=45)

            def others() -> int:
                """How many are not the trainer's, which also announces its open scopes."""
                shown = jaeger.get_trace(trace_id)
                return sum(service_of(span) != "trainer" for span in shown)

            until(lambda: others() == 1 + 2 * STEPS * EPOCHS + EPOCHS, seconds=45)
            by_id = {span["spanId"]: span for span in jaeger.get_trace(trace_id)}
            yield Finished(made, jaeger, traces, trace_id, by_id)


def test_one_trace_from_the_orchestrator_to_the_statement(finished: Finished) -> None:
    statements = finished.named("SELECT")
    assert len(statements) == STEPS * EPOCHS + EPOCHS
    for statement in statements:
        way = finished.way(statement)
        assert [span["name"] for span in way] == UP
        request, client, *_, session, root = way
        assert (statement["kind"], request["kind"], client["kind"]) == (CLIENT, SERVER, CLIENT)
        assert told(request)["http.url"] == told(client)["http.url"]
        services = [service_of(span) for span in (statement, *way)]
        assert services == ["features"] * 2 + ["trainer"] * 5 + ["orchestrator"]
        assert session["resource"] != root["resource"]
    # A request a step, answered in the order of the steps.
    requests = finished.named("GET /features")
    numbers = [(number(epoch), number(step))
               for _, _, step, epoch, *_ in map(finished.way, requests)]  # fmt: skip
    assert numbers == [(epoch, step) for epoch in range(EPOCHS) for step in range(STEPS)]
    # The parts of a step that no service knows of are where they always are.
    for name in PHASES[1:]:
        ways = [[span["name"] for span in finished.way(each)] for each in finished.named(name)]
        assert ways == [UP[3:]] * STEPS * EPOCHS


def test_the_spool_of_the_job_converts_to_the_same(finished: Finished) -> None:
    spans = converted(finished.example.directory / ".cirron")
    truth = parents_of([span for span in spans if not is_synthetic(span)])
    assert list(truth) == [finished.trace_id]
    trainers = {
        span_id: span.get("parentSpanId", "")
        for span_id, span in finished.spans.items()
        if service_of(span) == "trainer" and "cirron.synthetic" not in told(span)
    }
    assert truth[finished.trace_id] == trainers


def test_a_slow_service_shows_in_the_data_load_of_its_step(finished: Finished) -> None:
    [slept] = re.findall(r"SLOW_SECONDS=(\S+)", PAGE)
    statements = finished.slow_statements()
    assert len(statements) == EPOCHS
    for statement in statements:
        spans = [statement, *finished.way(statement)][:5]
        # Each lies in the next, from the statement to the step, and is as long.
        for inner, outer in pairwise(spans):
            assert int(outer["startTimeUnixNano"]) <= int(inner["startTimeUnixNano"])
            # A server's span may end a moment after the client has its answer.
            if service_of(inner) == service_of(outer):
                assert int(inner["endTimeUnixNano"]) <= int(outer["endTimeUnixNano"])
        *_, load, step = spans
        assert took(load) >= took(statement) >= float(slept) * 10**9
        phases = [s for s in finished.spans.values() if s.get("parentSpanId") == step["spanId"]]
        assert Counter(span["name"] for span in phases) == dict.fromkeys(PHASES, 1)
        assert max(phases, key=took) is load


def test_jaeger_leads_from_a_slow_request_to_its_step(finished: Finished) -> None:
    printed = finished.example.run(block("curl -fsSG http://localhost:16686"))
    lines = [line.partition("  ")[2] for line in printed.splitlines()]
    [shown] = [text for text in blocks("text") if re.match(r"\d+ ms  GET", text)]
    assert {line.partition("  ")[2] for line in shown.splitlines()} <= set(lines)
    said = re.findall(r"step (\d+)  <  epoch (\d+)", printed)
    steps = [(epoch, step) for epoch, step, _ in finished.steps_of(finished.slow_requests())]
    assert [(int(epoch), int(step)) for step, epoch in said] == steps
    assert len(lines) == len(steps)


def test_tempo_leads_from_a_slow_request_to_its_step(finished: Finished) -> None:
    finished.tempo.wait_for_trace(finished.trace_id, finished.spans.keys())
    finished.tempo.flush()
    up, down = (" ".join(text.split()) for text in blocks("text", "{"))
    [found] = finished.tempo.wait_for_search(up)
    steps = {span["spanID"]: told(span) for span in found["spanSet"]["spans"]}
    assert {(span_id, int(said["cirron.index"])) for span_id, said in steps.items()} == {
        (span_id, step) for _, step, span_id in finished.steps_of(finished.slow_requests())
    }
    assert {said["service.name"] for said in steps.values()} == {"trainer"}
    [found] = finished.tempo.wait_for_search(down)
    statements = {span["spanID"] for span in found["spanSet"]["spans"]}
    assert statements == {
        span["spanId"] for span in finished.named("SELECT") if took(span) > SLOW_NS
    }
    assert statements >= {span["spanId"] for span in finished.slow_statements()}
    [alone] = re.findall(r"`(\{[^`]*\})`", PAGE)
    [found] = finished.tempo.wait_for_search(" ".join(alone.split()))
    assert found["traceID"] == finished.trace_id
    assert found["spanSet"]["matched"] == len(finished.slow_requests())


def check_sql(rows: Any, finished: Finished) -> None:
    """Both statements of the page, by what runs them."""
    slow, waited = blocks("sql")
    truth = sorted(finished.steps_of(finished.slow_requests()))
    found = [tuple(row) for row in rows(slow)]
    assert sorted((row[3], row[4]) for row in found) == [step[:2] for step in truth]
    slept = {step[:2] for step in finished.steps_of(finished.slow_statements())}
    assert len(slept) == EPOCHS
    [session] = finished.named("cirron.session")
    [own_id] = [
        each["value"]["stringValue"]
        for each in session["resource"]["attributes"]
        if each["key"] == "cirron.run.id"
    ]
    for taken, run_id, rank, epoch, step, lasted in found:
        assert (run_id, rank) == (own_id, 0)
        assert lasted >= taken >= (600 if (epoch, step) in slept else 200)
    # On a busy machine, other steps may have waited for a larger part of their time.
    percents = finished.percents()
    most = [tuple(row) for row in rows(waited)]
    assert [row[3] for row in most] == sorted(percents.values(), reverse=True)[:10]
    assert all(percents[row[:2]] == row[3] for row in most)


def test_sql_leads_from_a_slow_request_to_its_step(finished: Finished, tmp_path: Path) -> None:
    path = finished.example.directory / "joined.db"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        # It is stored beside being sent on.
        found = finished.slow_requests()
        until(lambda: len(database.execute(blocks("sql")[0]).fetchall()) == len(found))
        check_sql(lambda statement: database.execute(statement).fetchall(), finished)
    database.close()


def test_the_same_sql_on_postgresql(finished: Finished) -> None:
    with Storage.open(finished.example.database) as storage:
        reader = SpoolReader(str(finished.example.directory / "traces"))
        storage.write([SealedBatch(batch.name, batch.data) for batch in reader])
        check_sql(storage.database.rows, finished)


def test_a_span_may_have_no_kind_and_an_attribute_no_value() -> None:
    """Jaeger leaves out what has the value of its absence, as protobuf's JSON does."""
    times = {"startTimeUnixNano": "1000000", "endTimeUnixNano": "300000000"}
    above = {"traceId": "1", "spanId": "2", "name": "step", **times}
    slow = {"traceId": "1", "spanId": "3", "parentSpanId": "2", "name": "GET /features", **times}
    attributes = [{"key": "empty", "value": {}}]
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "features"}}]}
    spans = [above, {**slow, "kind": SERVER, "attributes": attributes}]
    groups = [{"resource": resource, "scopeSpans": [{"spans": spans}]}]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "slow_requests.py"), "features", "200"],
        input=json.dumps({"result": {"resourceSpans": groups}}), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("299 ms  GET /features  <  step\n", "")


def test_example_requirements_match_the_tested_versions_and_extras() -> None:
    """It is what we test with; what is ours and what is not is in the project's own file."""
    lines = (EXAMPLE / "requirements.txt").read_text().splitlines()
    required = [Requirement(line) for line in lines]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for each in required:
        assert each.specifier.contains(version(each.name), prereleases=True), each
        if each.name == "cirron-otel":
            assert each.extras <= set(extras["optional-dependencies"])
