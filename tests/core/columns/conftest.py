"""Places for tables: a directory, and a prefix in a bucket of the real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.backends.versitygw import Versitygw, versitygw

BUCKET = "tables"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versitygw]:
    with versitygw(tmp_path_factory.mktemp("versitygw")) as running:
        running.make_bucket(BUCKET)
        yield running


@pytest.fixture
def bucket_place(server: Versitygw, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A prefix without objects; the environment leads to the server."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{tmp_path.name}/of tests"


@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.backends)])
def any_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place for tables."""
    if request.param == "directory":
        return str(tmp_path / "tables")
    place: str = request.getfixturevalue("bucket_place")
    return place
