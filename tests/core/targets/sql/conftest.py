"""Both databases, really there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cirron_otel.core.targets.sql.storage import Storage
from tests.conftest import leave_out

for _name in [name for name in os.environ if name.startswith("PG")]:
    del os.environ[_name]

DIALECTS = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[object]:
    """One server for all tests of a worker."""
    try:
        from tests.kit.backends.postgres import missing, postgres
    except ImportError as error:
        leave_out(f"psycopg cannot be imported ({error}): pip install 'cirron-otel[postgres]'")
    if reason := missing():
        leave_out(reason)
    with postgres() as server:
        yield server


@pytest.fixture(params=DIALECTS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/storage.sqlite"
        return
    yield from _database(request)


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of an empty database of PostgreSQL."""
    yield from _database(request)


def _database(request: pytest.FixtureRequest) -> Iterator[str]:
    server = request.getfixturevalue("postgres_server")
    url = server.new_database()
    yield url
    server.drop_database(url)


@pytest.fixture
def storage(url: str) -> Iterator[Storage]:
    """An empty storage."""
    with Storage.open(url) as storage:
        yield storage


@pytest.fixture(scope="session", params=DIALECTS)
def shared_storage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Storage]:
    """One storage for many examples, each of which leaves it empty."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('storage')}/storage.sqlite"
        with Storage.open(url) as storage:
            # No power cut is meant here, and each example would wait for the disk.
            storage.database.run("PRAGMA synchronous=OFF")
            yield storage
        return
    for url in _database(request):
        with Storage.open(url) as storage:
            yield storage
