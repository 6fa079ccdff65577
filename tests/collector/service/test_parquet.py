"""The columnar tables as a target of collectors, in a directory and in a real bucket."""

from __future__ import annotations

import logging
import os
import random
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from cirron_otel.collector.service.metrics import Registry
from cirron_otel.collector.service.options import ParquetOptions
from cirron_otel.collector.service.parquet_sender import ParquetSender
from cirron_otel.collector.service.retention import TableUpkeep
from cirron_otel.core.columns.layout import EMPTY_GROUP
from cirron_otel.core.columns.places import open_tables
from cirron_otel.core.columns.reading import ColumnsReader
from cirron_otel.core.columns.schema import BATCHES
from cirron_otel.core.columns.target import ColumnsTarget
from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.delivery.errors import MisconfiguredError
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.targets.sql.ownership import DEFAULT_CONTEXT
from tests.core.columns.helpers import add, of_run, stored
from tests.kit.backends.versitygw import Versitygw, versitygw
from tests.kit.servers.away import until
from tests.kit.servers.serving import Serving, serving
from tests.kit.spools.made import EPOCH_NS, encoded, made, span

from .configs import options
from .test_running import post

pytestmark = pytest.mark.timeout(1800)

BUCKET = "tables"
DAY_NS = 86_400 * 10**9
SPANS = 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versitygw]:
    with versitygw(tmp_path_factory.mktemp("versitygw")) as running:
        running.make_bucket(BUCKET)
        yield running


PLACES = ["directory", pytest.param("s3", marks=pytest.mark.backends)]


def place_of(request: pytest.FixtureRequest, folder: Path) -> tuple[str, dict[str, str]]:
    """The URL of tables in a directory or a bucket, by the parameter, and its variables."""
    if request.param == "directory":
        return str(folder / "tables"), {}
    variables = request.getfixturevalue("server").environment()
    return f"s3://{BUCKET}/{folder.name}", variables


def set_all(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    place, variables = place_of(request, tmp_path)
    set_all(monkeypatch, variables)
    return place


def configured(tmp_path: Path, place: str, **keys: Any) -> list[str]:
    """The arguments of a collector that writes tables."""
    parquet = {"url": place, "roll_s": 0.2} | keys.pop("parquet", {})
    tree = {"parquet": parquet, "drain_s": 150} | keys  # a busy machine needs more than usual
    path = tmp_path / f"collector-{len(list(tmp_path.glob('*.yaml')))}.yaml"
    path.write_text(yaml.safe_dump(tree))
    return ["--config", str(path)]


def exported(run: str = "r", size: int = 0) -> tuple[bytes, set[str]]:
    """A request with spans of a run, and the ids of these."""
    message, ids = ResourceSpans(), set()
    run_id = message.resource.attributes.add(key="cirron.run.id")
    run_id.value.string_value = run
    trace_id = os.urandom(16)
    for _ in range(SPANS):
        span_id = os.urandom(8)
        span = message.scope_spans.add().spans.add(trace_id=trace_id, span_id=span_id, name="s")
        span.start_time_unix_nano = EPOCH_NS
        span.end_time_unix_nano = EPOCH_NS + 5
        if size:
            span.attributes.add(key="noise").value.string_value = os.urandom(size // 2).hex()
        ids.add(span_id.hex())
    return TracesData(resource_spans=[message]).SerializeToString(), ids


def send(here: Serving, body: bytes) -> None:
    """Send a request until it is acknowledged."""
    kind = "application/x-protobuf"
    until(lambda: post(f"{here.http}/v1/traces", body, kind)[0] == 200)


def counted(place: str) -> Counter[str]:
    """How often each span is in the tables, by the id of OTLP."""
    spans = ColumnsReader(place).rows("spans", columns=["id"])
    return Counter(each[:16] for each in spans.column("id").to_pylist())


def written(place: str) -> int:
    """The number of groups."""
    store = open_tables(place)
    return sum(1 for group in store.groups(BATCHES) if group != EMPTY_GROUP)


def test_acknowledged_is_stored_once_whatever_is_killed(tmp_path: Path, place: str) -> None:
    chance, acknowledged = random.Random(1), set[str]()
    arguments = configured(tmp_path, place)
    for _ in range(4):
        with serving(tmp_path / "data", *arguments) as here:
            for _ in range(chance.randrange(3, 9)):
                body, ids = exported(str(chance.randrange(2)))
                send(here, body)
                acknowledged |= ids
            if chance.random() < 0.5:
                known = written(place)
                until(lambda known=known: written(place) > known)  # type: ignore[misc]
            here.kill()
    with serving(tmp_path / "data", *arguments) as here:
        assert here.end() == 0
    assert counted(place) == Counter(acknowledged)


@dataclass
class Pair:
    """Two collectors' exit codes, the place they wrote to, and the ids that were sent."""

    place: str
    variables: dict[str, str]
    """The environment variables with which the place can be read."""
    codes: list[int]
    spans: list[str]
    """The spans of requests, each of which went to one of the two."""
    batches: list[str]
    """The names of Cirron's batches, each of which went to both."""


@pytest.fixture(scope="module", params=PLACES)
def pair_of_collectors(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    place, variables = place_of(request, folder)
    sent = [exported() for _ in range(20)]
    files = [of_run(1, batch_id=f"{n:032x}") for n in range(10)]
    first, second = configured(folder, place), configured(folder, place)
    with pytest.MonkeyPatch.context() as patch:
        set_all(patch, variables)
        with serving(folder / "a", *first) as one, serving(folder / "b", *second) as other:
            for number, (body, _) in enumerate(sent):
                send(one if number % 2 else other, body)
            for _, data in files:
                for here in (one, other):
                    assert post(f"{here.http}/v1/traces", data, "application/json")[0] == 202
            codes = [one.end(), other.end()]
    spans = [each for _, ids in sent for each in ids]
    return Pair(place, variables, codes, spans, [name for name, _ in files])


@pytest.fixture
def pair(pair_of_collectors: Pair, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Both collectors' results, with the variables of the place set during a test."""
    set_all(monkeypatch, pair_of_collectors.variables)
    return pair_of_collectors


def test_two_collectors_write_into_one_place(pair: Pair) -> None:
    """Each writes what it received into the same partition, also at the same moment."""
    assert pair.codes == [0, 0]
    times = counted(pair.place)
    assert {each: times[each] for each in pair.spans} == dict.fromkeys(pair.spans, 1)
    assert times.total() == len(pair.spans) + 3 * len(pair.batches)


def test_a_batch_of_cirron_at_two_collectors_is_stored_once(pair: Pair) -> None:
    """In a bucket it may be in two groups, of which the first one counts."""
    assert pair.codes == [0, 0]
    names = ColumnsReader(pair.place).rows(BATCHES, columns=["name"]).column("name").to_pylist()
    assert sorted(name for name in names if name in pair.batches) == pair.batches
    rows = ColumnsReader(pair.place).rows("spans", columns=["id"]).num_rows
    assert rows - len(pair.spans) == 30


def test_a_request_at_two_collectors_is_stored_once(tmp_path: Path, place: str) -> None:
    """In other batches, in another order, and while one of the two is killed."""
    sent = [exported(str(n % 2)) for n in range(12)]
    first, second = configured(tmp_path, place), configured(tmp_path, place)
    with serving(tmp_path / "b", *second) as other:
        with serving(tmp_path / "a", *first) as one:
            for number in range(6):
                send(one, sent[number][0])
                send(other, sent[11 - number][0])
            until(lambda: written(place) > 0)
            one.kill()
        with serving(tmp_path / "a", *first) as one:
            for number in range(6):
                send(one, sent[11 - number][0])
                send(other, sent[number][0])
            assert [one.end(), other.end()] == [0, 0]
    assert counted(place) == Counter(each for _, ids in sent for each in ids)
    assert ColumnsReader(place).rows(BATCHES).num_rows == 12


def test_files_are_written_at_a_size_or_at_the_end(tmp_path: Path) -> None:
    place = str(tmp_path / "tables")
    rare = configured(tmp_path, place, parquet={"roll_s": 3600, "roll_bytes": "100KB"})
    with serving(tmp_path / "data", *rare) as here:
        body, ids = exported()
        send(here, body)
        until(lambda: list((tmp_path / "data" / "spool").glob("*.json")))
        more, others = exported(size=40_000)
        assert not list(Path(place).rglob("*.parquet"))
        send(here, more)
        until(lambda: Path(place).exists() and written(place) > 0)
        last, rest = exported()
        send(here, last)
        assert here.end() == 0
    assert counted(place) == Counter(ids | others | rest)


def test_a_full_spool_does_not_wait_for_the_age(tmp_path: Path) -> None:
    place = str(tmp_path / "tables")
    rare = configured(
        tmp_path,
        place,
        parquet={"roll_s": 3600, "roll_bytes": "256MiB"},
        limits={"request_bytes": "1MiB", "journal_bytes": "33MiB", "in_flight_bytes": "4MiB"},
        spool={"max_bytes": "13MiB"},
    )
    acknowledged = set[str]()
    with serving(tmp_path / "data", *rare) as here:
        for _ in range(60):
            body, ids = exported(size=100_000)
            send(here, body)
            acknowledged |= ids
        assert here.end() == 0
    assert counted(place) == Counter(acknowledged)


def test_the_owner_of_a_header(tmp_path: Path) -> None:
    """As in the database: the header of the sender comes before the resource."""
    place = str(tmp_path / "tables")
    keys = {"storage": {"context": {"workspace": "w", "run": "of the context"}}}
    with serving(tmp_path / "data", *configured(tmp_path, place, **keys)) as here:
        message = TracesData(resource_spans=[ResourceSpans()])
        scope = message.resource_spans[0].scope_spans.add()
        scope.spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="s")
        send(here, message.SerializeToString())
        assert here.end() == 0
    [session] = ColumnsReader(place).rows("sessions").to_pylist()
    assert (session["workspace_id"], session["run_id"]) == ("w", "of the context")


def kept(place: str, upkeep: TableUpkeep, configuration: Any) -> list[str]:
    """The names of the batches after an upkeep."""
    upkeep.start(configuration.parquet, is_clock_trusted=True)
    until(lambda: not upkeep.is_running)
    return [name for name, _ in stored(place)]


def test_old_days_are_removed_and_the_others_compacted(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = [of_run(day, batch_id=f"{n:032x}") for day in range(2) for n in range(3)]
    for file in files:
        add(place, [file])
    keys = {"url": place, "retention_days": 1}
    most = options(tmp_path, {"parquet": keys | {"retention_share": 0.5}})
    upkeep = TableUpkeep(most)
    with caplog.at_level(logging.WARNING):
        assert len(kept(place, upkeep, most)) == 6
    assert "6 of 6 batches in the columnar tables are from before" in caplog.text
    assert "set parquet.retention_confirmed to" in caplog.text
    assert written(place) == 2
    moment = datetime.fromtimestamp((EPOCH_NS // DAY_NS + 1) * DAY_NS // 10**9, UTC).isoformat()
    confirmed = options(tmp_path, {"parquet": keys | {"retention_confirmed": moment}})
    assert kept(place, upkeep, confirmed) == [name for name, _ in files[3:]]
    everything = options(tmp_path, {"parquet": keys | {"retention_share": 1}})
    assert kept(place, upkeep, everything) == []
    assert written(place) == 0


def test_unwritable_parquet_directory_is_reported_and_batches_stay(tmp_path: Path) -> None:
    """A directory that cannot be written is reported, and the batches stay in the spool."""
    (tmp_path / "file").write_text("x")
    arguments = configured(tmp_path, str(tmp_path / "file"), drain_s=1)
    with serving(tmp_path / "data", *arguments) as here:
        body, _ = exported()
        send(here, body)
        assert here.end() == 7
    log = here.log.read_text()
    assert "file cannot be written: Not a directory" in log
    assert "1 batches are not delivered to parquet" in log


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def of_another_version(path: Path) -> None:
    rows = pq.ParquetFile(path).read()
    pq.write_table(rows.replace_schema_metadata({"cirron.columns": "9"}), path)


@pytest.mark.parametrize(
    ("damage", "message"), [(cut, "magic bytes"), (of_another_version, "format version 9")]
)
@pytest.mark.parametrize("is_first", [True, False], ids=["at the start", "later"])
def test_damaged_tables_are_an_error_of_the_configuration(
    damage: Callable[[Path], None], message: str, *, is_first: bool, tmp_path: Path
) -> None:
    place = tmp_path / "tables"
    files = [of_run(1, batch_id=f"{n:032x}") for n in range(3)]
    add(place, files[:1])
    target = ColumnsTarget(str(place), 1 << 20, lambda _: DEFAULT_CONTEXT)
    if is_first:
        path = place / "batches" / EMPTY_GROUP.path
    else:
        target.send([SealedBatch(*of_run(2, "other"))])
        path = next((place / "batches" / "run=r").rglob("*.parquet"))
    intact = path.read_bytes()
    damage(path)
    for _ in range(2):
        with pytest.raises(MisconfiguredError, match=f"{path} cannot be read: .*{message}"):
            target.send([SealedBatch(*files[1])])
    path.write_bytes(intact)
    target.send([SealedBatch(*files[1])])
    assert files[1][0] in [name for name, _ in stored(place)]


def metrics(here: Serving) -> str:
    """The samples of failed deliveries."""
    with urllib.request.urlopen(f"{here.http}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return "\n".join(line for line in lines if "export_failures" in line)


def test_a_collector_reports_damaged_tables(tmp_path: Path) -> None:
    place = tmp_path / "tables"
    add(place, [of_run(1)])
    path = place / "batches" / EMPTY_GROUP.path
    cut(path)
    arguments = configured(tmp_path, str(place), drain_s=1)
    with serving(tmp_path / "data", *arguments) as here:
        send(here, exported()[0])
        until(lambda: f"{path} cannot be read" in here.log.read_text())
        until(lambda: 'reason="misconfigured"' in metrics(here))
        assert 'reason="unreachable"' not in metrics(here)
        assert here.end() == 7
    assert "1 batches are not delivered to parquet" in here.log.read_text()


def test_batches_count_as_waiting_while_their_group_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delivery has them before the sender no longer holds them."""
    waiting: list[int] = []
    notify = ParquetSender._notify

    def counted(sender: ParquetSender, names: list[str]) -> None:
        if names:
            waiting.append(sender.progress().waiting)
        notify(sender, names)
        if names:
            waiting.append(sender.progress().waiting)

    monkeypatch.setattr(ParquetSender, "_notify", counted)
    target = ColumnsTarget(str(tmp_path / "tables"), 1024, lambda _: DEFAULT_CONTEXT)
    limits = ParquetOptions(url=str(tmp_path / "tables"), roll_s=60)
    sender = ParquetSender(SpoolPaths.under(tmp_path), target, limits, Registry(), None)
    sender.stored([SpoolWriter(tmp_path).write(encoded(made(1, spans=[span(1)]))).name])
    assert sender.progress().waiting >= 1
    sender.finish(60)
    assert len(waiting) == 2
    assert min(waiting) >= 1
