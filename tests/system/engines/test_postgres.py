"""A report by PostgreSQL is equal to the one in Python, and leaves nothing in the database."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.columns.writing import WriterLimits
from cirron_otel.core.engines.unsupported import NeedsPythonError
from tests.core.columns.helpers import add, add_with_killed_compaction
from tests.kit.backends.postgres import PASSWORD, Postgres
from tests.kit.backends.process import free_endpoints
from tests.kit.examples import examples
from tests.kit.generators.run_spools import run_spool
from tests.kit.generators.trees import hostile, random_spool, training
from tests.kit.spools.recorded import own_spool
from tests.tools.conftest import environment

from . import documents
from . import relations as described
from .documents import Files, in_engine, in_python
from .test_command import command
from .test_report import RECORDINGS, files_of

psycopg = pytest.importorskip("psycopg")

pytestmark = pytest.mark.xdist_group("engines-postgres")


def in_postgres(
    files: Files, folder: Path, url: str, names: tuple[str, ...] = documents.ALL
) -> dict[str, Any]:
    add(folder, files, WriterLimits())
    return of_tables(folder, url, names)


def of_tables(folder: Path, url: str, names: tuple[str, ...] = documents.ALL) -> dict[str, Any]:
    from cirron_otel.core.engines.postgres_engine import postgres

    return in_engine(folder, postgres(url), names)


def relations(url: str) -> list[tuple[Any, ...]]:
    """All tables and views of a database."""
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT oid, relname FROM pg_class ORDER BY oid").fetchall()


@pytest.fixture
def url_in_english(postgres_server: Postgres) -> Iterator[str]:
    """A database whose order of texts is not that of their bytes."""
    url = postgres_server.new_database()
    name = url.rpartition("/")[2] + "_en"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en'"
        )
        [(is_smaller,)] = psycopg.connect(url + "_en").execute("SELECT 'a' < 'B'").fetchall()
        assert is_smaller
    yield url + "_en"
    postgres_server.drop_database(url + "_en")
    postgres_server.drop_database(url)


@pytest.mark.parametrize("name", documents.ALL)
def test_postgres_documents_equal_python_and_leave_no_relations(
    name: str, postgres_url: str, tmp_path: Path
) -> None:
    """The recordings of which DuckDB computes the other documents, as one recording."""
    spools = [
        spool
        for number, spool in enumerate(RECORDINGS.values())
        if documents.of_postgres(number) == (name,)
    ]
    assert len(spools) >= 3
    files = [file for spool in spools for file in files_of(spool)]
    before = relations(postgres_url)
    expected = in_python(files, tmp_path / "s", (name,))
    assert in_postgres(files, tmp_path / "c", postgres_url, (name,)) == expected
    assert relations(postgres_url) == before


@pytest.mark.hypothesis
@pytest.mark.parametrize(("seed", "name"), [(0, "comparison"), (1, "report"), (5, "diagnosis")])
def test_random_trees(seed: int, name: str, postgres_url: str, tmp_path: Path) -> None:
    files, names = random_spool(seed), documents.some(name)
    expected = in_python(files, tmp_path / "s", names)
    assert in_postgres(files, tmp_path / "c", postgres_url, names) == expected


def test_batches_in_two_groups_count_once(postgres_url: str, tmp_path: Path) -> None:
    files = training(ranks=2, steps=20, seed=1)
    add_with_killed_compaction(tmp_path / "c", files)
    expected = in_python(files, tmp_path / "s", documents.EACH_QUERY)
    assert of_tables(tmp_path / "c", postgres_url, documents.EACH_QUERY) == expected


def test_texts_are_data_and_are_ordered_by_their_bytes(url_in_english: str, tmp_path: Path) -> None:
    files, names = hostile(), documents.EACH_QUERY
    expected = in_python(files, tmp_path / "s", names)
    assert len(expected["report"]["marks"]) == 12
    assert in_postgres(files, tmp_path / "c", url_in_english, names) == expected


def relations_of_postgres(files: Files, folder: Path, url: str) -> dict[str, Any]:
    from cirron_otel.core.engines.postgres_engine import postgres

    add(folder, files, WriterLimits())
    return described.in_engine(folder, postgres(url))


def test_the_relations_of_recordings_are_equal(postgres_url: str, tmp_path: Path) -> None:
    files = [file for spool in RECORDINGS.values() for file in files_of(spool)]
    expected = described.in_columns(files, tmp_path / "s")
    assert relations_of_postgres(files, tmp_path / "c", postgres_url) == expected


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", [2, 3, 5, *range(100, 100 + examples(20, 0))])
def test_the_relations_of_runs_are_equal(seed: int, postgres_url: str, tmp_path: Path) -> None:
    files = described.storable(run_spool(seed))
    if described.has_other_units(files):
        with pytest.raises(NeedsPythonError):
            relations_of_postgres(files, tmp_path / "c", postgres_url)
        return
    expected = described.in_columns(files, tmp_path / "s")
    assert relations_of_postgres(files, tmp_path / "c", postgres_url) == expected


def test_texts_of_relations_are_their_originals(url_in_english: str, tmp_path: Path) -> None:
    expected = described.in_columns(hostile(), tmp_path / "s")
    assert relations_of_postgres(hostile(), tmp_path / "c", url_in_english) == expected


def test_tables_of_the_same_names_are_not_touched(postgres_url: str, tmp_path: Path) -> None:
    files = training(ranks=1, steps=5)
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE span (a int); CREATE TABLE part_1 (a int)")
        connection.execute("INSERT INTO span VALUES (7)")
        connection.execute(
            "CREATE FUNCTION lower(text) RETURNS text AS 'SELECT ''x''' LANGUAGE sql"
        )
    expected = in_python(files, tmp_path / "s", documents.EACH_QUERY)
    assert in_postgres(files, tmp_path / "c", postgres_url, documents.EACH_QUERY) == expected
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT * FROM span").fetchall() == [(7,)]
        assert connection.execute("SELECT * FROM part_1").fetchall() == []


def in_json(tmp_path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    env = environment(XDG_CACHE_HOME=str(tmp_path / "cache"))
    return command(*arguments, "--json", cwd=tmp_path, env=env)


def report(tmp_path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return in_json(tmp_path, "report", own_spool("07_ranks", tmp_path), *arguments)


@pytest.mark.parametrize(
    "arguments",
    [("report", "07_ranks"), ("diagnose", "18_http_wire"),
     ("diff", "01_torch_basic", "18_http_wire")],
)  # fmt: skip
def test_the_commands(arguments: tuple[str, ...], postgres_url: str, tmp_path: Path) -> None:
    name, *spools = arguments
    sources = [own_spool(each, tmp_path) for each in spools]
    expected = in_json(tmp_path, name, *sources)
    done = in_json(tmp_path, name, *sources, "--engine", postgres_url)
    assert (done.stdout, done.stderr, done.returncode) == (expected.stdout, expected.stderr, 0)


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, *messages: str) -> None:
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    for message in messages:
        assert message in done.stderr
    assert done.stderr.count("\n") == 1
    for secret in (PASSWORD, "p%40ss", "secret"):
        assert secret not in done.stderr


def test_denied_temporary_tables_or_writes_give_a_one_line_error(
    postgres_server: Postgres, postgres_url: str, tmp_path: Path
) -> None:
    database = postgres_url.rpartition("/")[2]
    role = f"reader{os.getpid()}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        connection.execute(f"REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC")
        try:
            done = report(
                tmp_path, "--engine", postgres_server.url(database, user=role, password="secret")
            )
            assert_one_line(
                done, 5, "cannot create temporary tables", "GRANT TEMPORARY ON DATABASE"
            )
        finally:
            connection.execute(f"DROP ROLE {role}")
        connection.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    done = report(tmp_path, "--engine", postgres_url)
    assert_one_line(done, 5, "read-only transaction", "use a writable server")


def test_servers_and_urls_that_are_wrong_are_one_line(
    postgres_server: Postgres, tmp_path: Path
) -> None:
    [closed] = free_endpoints(1)
    for url, code, message in (
        (f"postgresql://u:secret@{closed}/d", 5, f"postgresql://{closed}/d cannot be used"),
        (postgres_server.url("postgres", password="secret"), 5, "authentication failed"),
        ("postgresql://u:secret/@h/d", 2, "use postgresql://USER@HOST/DATABASE"),
        ("postgresql://u:secret@h/d?wrong=1", 2, "is not a usable URL"),
        ("mysql://u:secret@h/d", 2, "expected python, duckdb, postgresql://HOST/DATABASE or"),
    ):
        assert_one_line(report(tmp_path, "--engine", url), code, message)
