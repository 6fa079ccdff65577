"""Iceberg tables in a catalog in SQLite or PostgreSQL, in a directory or in a bucket."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cirron_otel import exactjson
from cirron_otel.core.columns.batch_rows import rows_of
from cirron_otel.core.columns.iceberg_catalog import parse_catalog
from cirron_otel.core.columns.iceberg_reading import IcebergReader
from cirron_otel.core.columns.iceberg_writing import IcebergWriter
from cirron_otel.core.columns.packed import arrow_rows
from cirron_otel.core.columns.reading import StoredBatch
from cirron_otel.core.columns.schema import TABLES
from cirron_otel.core.columns.writing import WriterLimits
from cirron_otel.errors import EndpointError, InputError, TargetError, UsageError
from cirron_otel.tools.cli.main import run as run_command
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.conftest import leave_out
from tests.kit.backends import postgres
from tests.kit.environments import Environment, EnvironmentUnavailableError
from tests.kit.spools.comparing import assert_same, batches
from tests.kit.spools.recorded import SPOOLS

from .helpers import of_run

pytestmark = pytest.mark.timeout(1800)

FEW = WriterLimits(group_bytes=8_000)

# For each commit: a process that is killed before it.
_KILLED_AT_EACH_COMMIT = """
import json, os, signal, sys
from tests.core.columns.test_iceberg import WriterLimits, add, some
results, last = [], -1
while True:
    last += 1
    child = os.fork()
    if not child:
        from pyiceberg.catalog.sql import SqlCatalog
        commit, step = SqlCatalog.commit_table, 0
        def counted(*arguments, **keywords):
            global step
            if step == last:
                os.kill(os.getpid(), signal.SIGKILL)
            step += 1
            return commit(*arguments, **keywords)
        SqlCatalog.commit_table = counted
        add(f"sqlite:///{sys.argv[1]}/{last}.db", some(), WriterLimits())
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    results.append(status)
    if status != -signal.SIGKILL:
        break
print(json.dumps(results))
"""

DUCKDB = Environment("peers/duckdb-iceberg", Path(__file__).parent / "pins" / "duckdb-iceberg.txt")
_IN_DUCKDB = """
import json, pathlib, sys
import duckdb, duckdb_extension_avro, duckdb_extension_iceberg
engine = duckdb.connect()
engine.execute("SET enable_progress_bar = false")  # it is on with `python -c`, on stdout
for package in (duckdb_extension_avro, duckdb_extension_iceberg):
    [extension] = pathlib.Path(package.__path__[0]).rglob("*.duckdb_extension")
    engine.execute(f"LOAD '{extension}'")
query = "SELECT run_id, count(*), any_value(attributes['mode'].string_value) FROM iceberg_scan(?)"
print(json.dumps(engine.execute(query + " GROUP BY 1 ORDER BY 1", sys.argv[1:]).fetchall()))
"""


@pytest.fixture(params=["sqlite", pytest.param("s3", marks=pytest.mark.backends), "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A catalog without tables."""
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres_server")
        yield f"{server.new_database()}?warehouse={tmp_path / 'warehouse'}"
        return
    catalog = f"sqlite:///{tmp_path / 'catalog.db'}"
    if request.param == "s3":
        catalog += f"?warehouse={request.getfixturevalue('bucket_place').replace(' ', '-')}"
    yield catalog


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[postgres.Postgres]:
    with postgres.postgres() as server:
        yield server


def some(number: int = 4) -> list[tuple[str, bytes]]:
    return [of_run(n % 2, str(n % 2), batch_id=f"{n:032x}") for n in range(number)]


def add(url: str, files: list[tuple[str, bytes]], limits: WriterLimits = FEW) -> int:
    with IcebergWriter(url, limits) as writer:
        return sum(writer.add(arrow_rows(rows_of(*file))) for file in files)


def assert_in_catalog(url: str, files: list[tuple[str, bytes]]) -> None:
    """Those batches, and no others, come back; each row is there once."""
    reader = IcebergReader(url)
    found = {}
    for batch in reader.batches():
        assert isinstance(batch, StoredBatch), batch
        assert batch.name not in found
        found[batch.name] = batch.data
    reader.close()
    assert sorted(found) == sorted(name for name, _ in files)
    for name, data in files:
        assert exactjson.equal(exactjson.loads(found[name]), exactjson.loads(data))


def test_a_recording_comes_back(url: str, tmp_path: Path) -> None:
    spool, target = SPOOLS / "01_torch_basic", f"iceberg:{url}"
    first = convert(ConvertRequest(str(spool), target))
    assert (first.exit_code, first.unchanged) == (0, 0)
    again = convert(ConvertRequest(str(spool), target))
    assert (again.exit_code, again.unchanged, again.bytes_written) == (0, again.batches, 0)
    back = convert(ConvertRequest(target, str(tmp_path / "back")))
    assert back.exit_code == 0
    assert_same(batches(tmp_path / "back"), batches(spool))


def test_bytes_written_equal_the_data_file_sizes(tmp_path: Path) -> None:
    report = convert(
        ConvertRequest(str(SPOOLS / "01_torch_basic"), f"iceberg:sqlite:///{tmp_path}/c.db")
    )
    files = list(tmp_path.rglob("*.parquet"))
    assert report.written == len(files) > 2
    assert report.bytes_written == sum(file.stat().st_size for file in files) > 0


def test_batches_are_added_once(url: str) -> None:
    assert add(url, some(3)) == 3
    assert add(url, some(5)) == 2
    assert_in_catalog(url, some(5))


def test_pyiceberg_and_duckdb_can_read_the_tables(tmp_path: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    add(f"sqlite:///{tmp_path}/c.db", some(), WriterLimits())
    place = parse_catalog(f"sqlite:///{tmp_path}/c.db")
    catalog = SqlCatalog("cirron", uri=place.uri, warehouse=place.warehouse)
    assert sorted(catalog.list_tables("cirron")) == sorted(("cirron", table) for table in TABLES)
    spans = catalog.load_table("cirron.spans")
    rows = spans.scan(row_filter="run_id = '1'", selected_fields=("run_id", "index")).to_arrow()
    assert rows.num_rows == 6
    assert set(rows.column("run_id").to_pylist()) == {"1"}
    assert spans.scan().to_duckdb("spans").execute("SELECT count(*) FROM spans").fetchall() == [
        (12,)
    ]


def test_duckdb_reads_the_tables(tmp_path: Path) -> None:
    """With its extension `iceberg`, from packages of the release that they are for."""
    from pyiceberg.catalog.sql import SqlCatalog

    add(f"sqlite:///{tmp_path}/c.db", some(), WriterLimits())
    spans = SqlCatalog("cirron", uri=f"sqlite:///{tmp_path}/c.db").load_table("cirron.spans")
    try:
        python = DUCKDB.make()
    except EnvironmentUnavailableError as error:
        leave_out(str(error))
    place = spans.metadata_location.removeprefix("file://")
    command = [str(python), "-c", _IN_DUCKDB, place]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [["0", 6, "train"], ["1", 6, "train"]]


def test_a_writer_that_is_killed_at_any_commit(tmp_path: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    command = [sys.executable, "-c", _KILLED_AT_EACH_COMMIT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    results = json.loads(done.stdout)
    assert results[-1] == 0
    assert results[:-1] == [-signal.SIGKILL] * (len(results) - 1)
    assert len(results) == 7  # two of the batches, and four of other tables
    for step in range(len(results)):
        url = f"sqlite:///{tmp_path}/{step}.db"
        add(url, some(), WriterLimits())
        assert_in_catalog(url, some())
        place = parse_catalog(url)
        spans = SqlCatalog("cirron", uri=place.uri).load_table("cirron.spans").scan().to_arrow()
        assert spans.num_rows == 12


def test_one_writer_at_a_time(url: str) -> None:
    with (
        IcebergWriter(url),
        pytest.raises(TargetError, match="another process writes the tables of cirron"),
    ):
        IcebergWriter(url)
    add(url, some(1))
    assert_in_catalog(url, some(1))


def test_each_namespace_has_separate_tables(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    add(f"{url}?namespace=a", some(1))
    add(f"{url}?namespace=b", some(2))
    assert_in_catalog(f"{url}?namespace=a", some(1))
    with pytest.raises(InputError, match=r"has no table cirron\.spans: expected tables"):
        IcebergReader(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://host/db", "the storage URL has the unknown scheme 'mysql'"),
        ("postgresql://u:sesame@host/db", "postgresql://host/db has no warehouse: add ?warehouse="),
    ],
)
def test_urls_that_are_wrong(
    url: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.json").write_bytes(of_run(1)[1])
    for arguments in (
        ["convert", str(tmp_path / "one.json"), f"iceberg:{url}"],
        ["convert", f"iceberg:{url}", str(tmp_path / "back")],
    ):
        assert run_command(arguments) == UsageError.exit_code
        message = capsys.readouterr().err
        assert words in message
        assert "sesame" not in message
        assert message.count("\n") == 1


def test_catalogs_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.json").write_bytes(of_run(1)[1])
    (tmp_path / "other.db").write_text("no database, but more than a hundred bytes" * 10)
    for url in (
        f"sqlite:///{tmp_path}/other.db",
        "postgresql://u:sesame@127.0.0.1:9/db?warehouse=w",
    ):
        for arguments in (
            ["convert", str(tmp_path / "one.json"), f"iceberg:{url}"],
            ["convert", f"iceberg:{url}", str(tmp_path / "back")],
        ):
            assert run_command(arguments) == EndpointError.exit_code
            message = capsys.readouterr().err
            assert "cannot be used: " in message
            assert "sesame" not in message
            assert message.count("\n") == 1


@pytest.mark.parametrize("warehouse", ["gs://bucket/x", "https://host/x", "hdfs://host/x"])
def test_another_kind_of_warehouse_is_wrong_usage(warehouse: str) -> None:
    with pytest.raises(UsageError, match=r"expected a directory or s3://BUCKET/PREFIX"):
        parse_catalog(f"catalog.db?warehouse={warehouse}")
    assert parse_catalog("catalog.db?warehouse=s3://b/x").warehouse == "s3://b/x"


@pytest.mark.parametrize("namespace", ["a.b/../c", "..", "a.", "a b", "/x", "é"])
def test_another_form_of_namespace_is_wrong_usage(namespace: str) -> None:
    with pytest.raises(UsageError, match="namespace"):
        parse_catalog(f"catalog.db?namespace={namespace}")
