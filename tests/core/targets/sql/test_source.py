"""A storage as the source of a conversion; URLs; what importing costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from cirron_otel import exactjson
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.core.targets.sql.source import copy_to_spool
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.core.targets.sql.store import Select
from cirron_otel.core.targets.sql.url import is_storage_url, parse_url
from cirron_otel.errors import EndpointError, InputError, UsageError
from tests.kit.backends.process import free_endpoints
from tests.kit.spools.made import made, span
from tests.kit.spools.recorded import ALL_BATCHES
from tests.tools.conftest import COMMAND

from .helpers import files, sealed


def test_a_storage_becomes_the_spool_that_it_came_from(url: str, tmp_path: Path) -> None:
    batches = files({path.name: path for path in ALL_BATCHES}.values())
    with Storage.open(url) as storage:
        storage.write(batches)
    copy = copy_to_spool(url, tmp_path / "out")
    assert (copy.batches, copy.renamed) == (len(batches), [])
    found = {file.name: file.data for file in SpoolReader(tmp_path / "out")}
    assert sum(map(len, found.values())) == copy.bytes
    assert set(found) == {batch.name for batch in batches}
    for batch in batches:
        assert exactjson.equal(exactjson.loads(found[batch.name]), exactjson.loads(batch.data))
    assert copy_to_spool(url, tmp_path / "out").batches == len(batches)


def test_two_batches_of_one_name_are_both_there(url: str, tmp_path: Path) -> None:
    batches = [sealed(made(1, spans=[span(n)]), "x.json") for n in (1, 2)]
    with Storage.open(url) as storage:
        storage.write(batches[:1])
        storage.write(batches[1:])
    copy = copy_to_spool(url, tmp_path)
    [(name, other)] = copy.renamed
    assert name == "x.json"
    assert other.startswith("x.")
    found = {file.name: file.data for file in SpoolReader(tmp_path / "spool")}
    assert found == {"x.json": batches[0].data, other: batches[1].data}


def test_a_part(url: str, tmp_path: Path) -> None:
    with Storage.open(url) as storage:
        storage.write([sealed(made(n, spans=[span(n)])) for n in (1, 2)])
    name = sealed(made(2)).name
    assert copy_to_spool(url, tmp_path, Select(name=name)).batches == 1
    assert [file.name for file in SpoolReader(tmp_path)] == [name]


def test_an_empty_storage_is_an_empty_spool(url: str, tmp_path: Path) -> None:
    Storage.open(url).close()
    assert copy_to_spool(url, tmp_path / "out").batches == 0
    assert list(SpoolReader(tmp_path / "out")) == []


def test_a_damaged_batch_is_an_input_error(url: str, tmp_path: Path) -> None:
    with Storage.open(url) as storage:
        storage.write([sealed(made(1, spans=[span(1)]))])
        storage.database.run("""UPDATE "TraceSpan" SET "extra" = 'nonsense'""")
    with pytest.raises(InputError, match=r"stored batch .*000000001\.json' is damaged"):
        copy_to_spool(url, tmp_path)


def test_missing_database_or_server_is_an_error(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        copy_to_spool(url, tmp_path)
    [endpoint] = free_endpoints(1)
    with pytest.raises(EndpointError, match=endpoint):
        copy_to_spool(f"postgresql://{endpoint}/db", tmp_path)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a/b.db", "sqlite:///a/b.db"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("postgresql://h/d", "postgresql://h/d"),
        ("postgres://u:p@h:5/d?sslmode=require&password=p", "postgresql://h:5/d"),
        ("postgresql://u:p%40x@[::1]:5/d", "postgresql://[::1]:5/d"),
        ("postgresql:///d?host=/run/postgresql", "postgresql:///run/postgresql/d"),
        ("postgresql://u@a:1,b:2/d", "postgresql://a:1,b:2/d"),
    ],
)
def test_urls(url: str, shown: str) -> None:
    assert is_storage_url(url)
    location = parse_url(url)
    assert location.shown == shown
    assert "p@" not in repr(location)


def test_a_key_is_of_the_place_and_not_of_who_comes() -> None:
    key = parse_url("postgresql://u:p@h:5/d").key
    assert parse_url("postgresql://v:q@h:5/d").key == key
    assert parse_url("postgresql://h:5/d?password=x&user=y").key == key
    others = ["postgresql://h:6/d", "postgresql://h:5/e", "sqlite:///d",
              "postgresql://h:5/d?options=-csearch_path%3Dx"]  # fmt: skip
    assert len({key, *(parse_url(other).key for other in others)}) == 5


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://", "sqlite:///", "sqlite:x", "sqlite:///:memory:", "sqlite:///x?mode=ro",
        "mysql://u:secret@h/d", "spool", "postgresql://u:sec/ret@h/d", "postgresql://[::1/d",
    ],
)  # fmt: skip
def test_invalid_storage_urls_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="use sqlite:///FILE") as caught:
        parse_url(url)
    assert "sec" not in str(caught.value)


def test_paths_are_not_storage_urls() -> None:
    assert not any(map(is_storage_url, ("spool", "/a/b", "./sqlite/x.json", "s3://b", "-")))


@pytest.mark.parametrize(
    "command", [["report"], ["report", "--json"], ["diff"], ["diff", "--json"]]
)
def test_no_command_shows_a_password(postgres_url: str, command: list[str]) -> None:
    Storage.open(postgres_url).close()
    sources = [postgres_url] * (1 + (command[0] == "diff"))
    done = subprocess.run([COMMAND, *command, *sources], capture_output=True, text=True, check=True)
    location = parse_url(postgres_url)
    assert location.shown in done.stdout
    assert location.secrets
    for secret in (*location.secrets, quote(location.secrets[0], safe="")):
        assert secret not in done.stdout + done.stderr


def output_of(script: str) -> str:
    return subprocess.check_output([sys.executable, "-c", script], text=True)


def test_the_driver_is_imported_only_when_it_is_needed(tmp_path: Path) -> None:
    script = (
        "import sys, cirron_otel.core.targets.sql.storage as s;"
        f"s.Storage.open('sqlite:///{tmp_path}/x.db').close();"
        "print([n for n in ('psycopg', 'grpc', 'requests', 'sqlalchemy') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_without_the_driver_the_extra_is_named() -> None:
    script = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from cirron_otel.core.targets.sql.storage import Storage\n"
        "try: Storage.open('postgresql://h/d')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("MissingExtraError")
    assert "cirron-otel[postgres]" in done.stdout
