"""A directory and the real S3 server as stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cirron_otel.core.targets.objects import BlobStore, open_store
from tests.kit.backends.versitygw import Versitygw, versitygw

BUCKET = "snapshots"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versitygw]:
    """One for all tests of a worker, which have prefixes of their own."""
    with versitygw(tmp_path_factory.mktemp("versitygw")) as running:
        running.make_bucket(BUCKET)
        yield running


@pytest.fixture
def aws(server: Versitygw, monkeypatch: pytest.MonkeyPatch) -> Versitygw:
    """The server, with the environment that leads there."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.backends)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that is empty."""
    if request.param == "directory":
        return f"file://{tmp_path / 'store'}"
    request.getfixturevalue("aws")
    return f"s3://{BUCKET}/{tmp_path.name}/of tests"


@pytest.fixture
def store(url: str) -> BlobStore:
    return open_store(url)
