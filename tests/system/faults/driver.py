"""Runs collectors against an endpoint with mixed answers, and checks where each span is."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psycopg
import yaml
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from cirron_otel.core.columns.reading import ColumnsReader
from cirron_otel.core.spool.dead_letters import dead_letters
from cirron_otel.core.spool.paths import SpoolPaths
from tests.kit.servers.away import until
from tests.kit.servers.serving import Serving, serving, spans_of

from .endpoint import PARTIAL, PASSING, Mix, MixedEndpoint, mixed_endpoint

TENANT = "x-scope-orgid"
CLIENTS = 3
_LARGE = 5_000_000
"""The size of a request that exceeds the limit of OTLP over gRPC, bytes."""
_TARGETS = 3
"""The database, the tables and the exporter."""
_RESENDS = (429, 502, 503, 504)
_REJECTED = "cirron_collector_export_rejected_spans_total"
_DEAD_LETTERS = "cirron_collector_dead_letters_total"


@dataclass(frozen=True)
class Plan:
    """The parameters that a seed determines."""

    seed: int
    members: int
    """The number of collectors that share the endpoint, the database and the tables."""
    mix: Mix
    tenants: int
    """The number of tenants, each with a lane of its own; 0 if no header is forwarded."""
    requests: int
    """The number of requests of each client."""
    spans: int
    """The maximum number of spans in a request."""
    has_large: bool
    """Whether each client sends one request above 4 MiB."""
    kills: int
    """The number of times that a collector is killed. Its counters are lost then, so no span is
    rejected in a partial success."""

    @classmethod
    def drawn(cls, seed: int, members: int) -> Plan:
        """Return the plan of a seed."""
        draw = Random(f"plan {seed}")
        kills = draw.choice((0, 0, 1))
        possible = [kind for kind in PASSING if not (kills and kind == PARTIAL)]
        mix = Mix(
            seed,
            tuple(draw.sample(possible, draw.randint(1, len(possible)))),
            draw.randint(1, 4),
            draw.choice((0.15, 0.3, 0.5)),
            draw.choice((0.0, 0.0, 0.01, 0.03)),
            draw.choice((0.0, 0.0, 0.01, 0.03)),
            tuple(draw.choice((3, 8, 20, 10**9)) for _ in range(draw.randint(1, 3))),
        )
        return cls(
            seed,
            members,
            mix,
            draw.choice((0, 0, 2, 5, 12)),
            draw.randint(4, 12),
            draw.choice((5, 20, 60)),
            draw.random() < 0.2,
            kills,
        )

    def request(self, client: int, number: int) -> tuple[bytes, list[str]]:
        """Return a request of a client, and the names of its spans."""
        draw = Random(f"request {self.seed} {client} {number}")
        message, names = ResourceSpans(), list[str]()
        is_large = self.has_large and number == 1
        count = 40 if is_large else draw.randint(1, self.spans)
        for each in range(count):
            name = f"{client}.{number}.{each}"
            span = message.scope_spans.add().spans.add(
                trace_id=draw.randbytes(16), span_id=draw.randbytes(8), name=name
            )
            span.start_time_unix_nano = time.time_ns()
            span.end_time_unix_nano = span.start_time_unix_nano + 5
            if is_large:
                noise = draw.randbytes(_LARGE // count // 2).hex()
                span.attributes.add(key="noise").value.string_value = noise
            names.append(name)
        return TracesData(resource_spans=[message]).SerializeToString(), names


class Client(threading.Thread):
    """Sends its requests, each until a collector acknowledges it."""

    def __init__(self, number: int, plan: Plan, urls: list[str]) -> None:
        """`urls` are the addresses of the collectors; the caller may change them."""
        super().__init__(daemon=True)
        self._number, self._plan, self._urls = number, plan, urls
        self.acknowledged: list[str] = []
        self.problem = ""

    def run(self) -> None:
        plan = self._plan
        for number in range(plan.requests):
            body, names = plan.request(self._number, number)
            member = self._number + number
            tenant = f"t{member % plan.tenants}" if plan.tenants else "t"
            while not self._is_acknowledged(self._urls[member % len(self._urls)], body, tenant):
                if self.problem:
                    return
                time.sleep(0.05)
                member += 1
            self.acknowledged += names

    def _is_acknowledged(self, url: str, body: bytes, tenant: str) -> bool:
        headers = {"Content-Type": "application/x-protobuf", TENANT: tenant}
        try:
            request = urllib.request.Request(f"{url}/v1/traces", body, headers)
            with urllib.request.urlopen(request, timeout=30):
                return True
        except urllib.error.HTTPError as error:
            if error.code not in _RESENDS:
                self.problem = f"a request was answered with {error.code}"
        except OSError:
            pass  # the collector was killed
        return False


@dataclass
class Outcome:
    """The places of the spans after a run."""

    plan: Plan
    seconds: float = 0.0
    exit_codes: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    spools: list[Counter[str]] = field(default_factory=list)
    database: Counter[str] = field(default_factory=Counter)
    tables: Counter[str] = field(default_factory=Counter)
    endpoint: MixedEndpoint | None = None
    letters: list[set[str]] = field(default_factory=list)
    """The spans of each dead letter."""
    counted_letters: int = 0
    counted_rejected: int = 0
    logs: str = ""

    def only_rejected(self) -> set[str]:
        """Return the spans that a partial success rejected and that are nowhere else."""
        assert self.endpoint is not None
        accepted, in_letters = self.endpoint.accepted.keys(), set().union(*self.letters)
        return self.endpoint.rejected.keys() - accepted - in_letters

    def errors(self) -> list[str]:
        """Return a line for each broken rule; none if all is as it must be."""
        assert self.endpoint is not None
        endpoint, wanted = self.endpoint, self.acknowledged
        lines = list(self.problems)
        if any(self.exit_codes):
            lines.append(f"exit codes {self.exit_codes}")
        spool = set().union(*self.spools)
        lines += _missing("spool", wanted - spool)
        for name, times in (
            *((f"spool {number}", times) for number, times in enumerate(self.spools)),
            ("database", self.database),
            ("tables", self.tables),
        ):
            lines += _missing(f"{name}, twice:", {each for each in times if times[each] > 1})
        lines += _missing("database", wanted - self.database.keys())
        lines += _missing("tables", wanted - self.tables.keys())
        in_letters, rejected = set().union(*self.letters), self.only_rejected()
        lines += _missing(
            "endpoint", wanted - endpoint.accepted.keys() - in_letters - endpoint.rejected.keys()
        )
        if len(rejected) > self.counted_rejected:
            lines.append(f"{len(rejected)} spans rejected, {self.counted_rejected} counted")
        if rejected and "spans were rejected, and are not sent again" not in self.logs:
            lines.append("no log line about rejected spans")
        if not self.plan.kills and self.counted_letters != len(self.letters):
            lines.append(f"{len(self.letters)} dead letters, {self.counted_letters} counted")
        if self.letters and "permanently: " not in self.logs:
            lines.append("no log line about dead letters")
        wrong = [each for each in self.letters if not each & endpoint.refused]
        if wrong:
            lines.append(f"{len(wrong)} dead letters without a refused span")
        return lines

    def __str__(self) -> str:
        assert self.endpoint is not None
        plan, sent = self.plan, self.endpoint.answers
        answers = ", ".join(f"{kind} {number}" for kind, number in sorted(sent.items()))
        return (
            f"seed {plan.seed}, {plan.members} members, {plan.tenants} tenants, {plan.kills} kills:"
            f" {len(self.acknowledged)} spans acknowledged, {len(self.letters)} dead letters,"
            f" {len(self.endpoint.rejected)} rejected; {answers}; {self.seconds:.1f} s"
        )


def _missing(where: str, names: set[str]) -> list[str]:
    return [f"{where} {len(names)} spans: {sorted(names)[:5]}"] if names else []


def run(folder: Path, plan: Plan, database: str) -> Outcome:
    """Run a plan. `database` is the URL of an empty database."""
    begun, outcome = time.monotonic(), Outcome(plan)
    tables = folder / "tables"
    with mixed_endpoint(plan.mix) as endpoint, contextlib.ExitStack() as stack:
        outcome.endpoint = endpoint
        config = _config(folder, plan, endpoint, database, tables)
        folders = [folder / f"member-{number}" for number in range(plan.members)]

        def start(each: Path) -> Serving:
            return stack.enter_context(serving(each, "--config", str(config)))

        members = [start(each) for each in folders]
        urls = [member.http for member in members]
        clients = [Client(number, plan, urls) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for number in range(plan.kills):
            until(lambda: any(client.acknowledged for client in clients))
            victim = number % plan.members
            members[victim].kill()
            members[victim] = start(folders[victim])
            urls[victim] = members[victim].http
        for client in clients:
            client.join(120)
            outcome.problems += [client.problem] if client.problem else []
            outcome.problems += ["a client has not ended"] if client.is_alive() else []
            outcome.acknowledged.update(client.acknowledged)
        try:
            until(lambda: _are_in_spools(outcome, folders) and all(map(_is_delivered, members)))
        except AssertionError:
            outcome.problems.append("not everything was delivered in time")
        outcome.letters = _letters(folders)
        with contextlib.suppress(AssertionError):  # `errors` reports the difference
            until(lambda: _are_counted(outcome, members), 10.0)
        outcome.exit_codes = [member.end() for member in members]
        outcome.logs = "".join(member.log.read_text() for member in members)
    _look(outcome, folders, database, tables)
    outcome.seconds = time.monotonic() - begun
    return outcome


def _are_counted(outcome: Outcome, members: list[Serving]) -> bool:
    """Read the counters; return whether they include everything: they may be a second old."""
    totals = sum(map(_counters, members), Counter[str]())
    outcome.counted_letters, outcome.counted_rejected = totals[_DEAD_LETTERS], totals[_REJECTED]
    is_complete = outcome.counted_rejected >= len(outcome.only_rejected())
    return is_complete and (
        outcome.plan.kills > 0 or outcome.counted_letters >= len(outcome.letters)
    )


def _letters(folders: list[Path]) -> list[set[str]]:
    """Return the spans of each dead letter."""
    found = []
    for paths in map(SpoolPaths.under, folders):
        for letter in dead_letters(paths):
            path = paths.state / "dead-letters" / letter.key / letter.name
            found.append({span["name"] for span in json.loads(path.read_bytes())["spans"]})
    return found


def _config(folder: Path, plan: Plan, endpoint: MixedEndpoint, database: str, tables: Path) -> Path:
    exporter = {
        "type": "otlp", "protocol": "http/protobuf", "endpoint": endpoint.url, "timeout_s": 0.7,
    } | ({"headers_from": [TENANT]} if plan.tenants else {})  # fmt: skip
    tree = {
        "receivers": {"headers": {"pass": [TENANT]}},
        "storage": {"url": database},
        "parquet": {"url": str(tables), "roll_s": 0.5},
        "exporters": [exporter],
        "drain_s": 60,
    }
    path = folder / "collector.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def _metrics(member: Serving) -> list[tuple[str, float]]:
    with urllib.request.urlopen(f"{member.http}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
    return [(name, float(value)) for name, _, value in samples]


def _are_in_spools(outcome: Outcome, folders: list[Path]) -> bool:
    """Whether each acknowledged span is in a spool. The metrics do not count the requests that a
    killed collector left in its journal."""
    found = {span["name"] for folder in folders for span in spans_of(folder)}
    return outcome.acknowledged <= found


def _is_delivered(member: Serving) -> bool:
    """Whether no request waits to be stored, and each target has all batches."""
    waiting = dict(_metrics(member))
    stages = ("disk", "translation")
    if any(waiting.get(f'cirron_collector_queue_requests{{queue="{each}"}}', 1) for each in stages):
        return False
    try:
        return not _lacking(member)
    except sqlite3.OperationalError:  # a file that is being created
        return False


def _lacking(member: Serving) -> bool:
    """Whether a target's cursor lacks a batch in the spool. Metrics may be seconds old."""
    paths = SpoolPaths.under(member.folder)
    batches = {each.name for each in paths.spool.glob("*.json")}
    cursors = list(paths.state.glob("cursor-*.sqlite"))
    if batches and len(cursors) < _TARGETS:
        return True
    for path in cursors:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as cursor:
            done = {os.fsdecode(row[0]) for row in cursor.execute("SELECT name FROM batch")}
        if batches - done:
            return True
    return False


def _counters(member: Serving) -> Counter[str]:
    totals: Counter[str] = Counter()
    for name, value in _metrics(member):
        if "exporter=" in name:
            totals[name.partition("{")[0]] += int(value)
    return totals


def _look(outcome: Outcome, folders: list[Path], database: str, tables: Path) -> None:
    """Read all stores."""
    outcome.spools = [Counter(span["name"] for span in spans_of(each)) for each in folders]
    query = 'SELECT "name" FROM "TraceSpan"'
    if database.startswith("sqlite:///"):
        with contextlib.closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as rows:
            outcome.database = Counter(row[0] for row in rows.execute(query))
    else:
        with psycopg.connect(database) as server:
            outcome.database = Counter(row[0] for row in server.execute(query.encode()))
    names = ColumnsReader(str(tables)).rows("spans", columns=["name"]).column("name")
    outcome.tables = Counter(names.to_pylist())


def database_url(folder: Path) -> str:
    """Return the URL of a new SQLite database."""
    return f"sqlite:///{os.fspath(folder)}/rows.db"
