"""The destination of each test: every kind of target in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cirron_otel.core.spool.paths import SpoolPaths
from tests.kit.servers.servers import grpc_receiver, http_receiver

from .destinations import (
    Archive,
    Blobs,
    Destination,
    EventStream,
    OtlpGrpc,
    OtlpHttp,
    Sql,
    cirron_destination,
)
from .objects.conftest import BUCKET, aws, server  # noqa: F401 - fixtures
from .sql.conftest import postgres_server  # noqa: F401 - a fixture

KINDS = (
    "otlp http", "otlp grpc", "cirron http", "sqlite", "postgresql", "directory",
    pytest.param("s3", marks=pytest.mark.backends), "event stream", "archive",
)  # fmt: skip


@pytest.fixture
def paths(tmp_path: Path) -> SpoolPaths:
    """Return the spool whose batches are sent."""
    return SpoolPaths.under(tmp_path / "spool-root")


@pytest.fixture(params=KINDS)
def destination(
    request: pytest.FixtureRequest, paths: SpoolPaths, tmp_path: Path
) -> Iterator[Destination]:
    """Yield one destination, empty."""
    match request.param:
        case "otlp http":
            with http_receiver() as http:
                yield OtlpHttp(http)
        case "otlp grpc":
            with grpc_receiver() as grpc:
                yield OtlpGrpc(grpc)
        case "cirron http":
            with cirron_destination() as cirron:
                yield cirron
        case "sqlite":
            yield Sql(f"sqlite:///{tmp_path}/storage.sqlite")
        case "postgresql":
            postgres = request.getfixturevalue("postgres_server")
            url = postgres.new_database()
            yield Sql(url)
            postgres.drop_database(url)
        case "directory":
            yield Blobs(f"file://{tmp_path / 'store'}", paths)
        case "s3":
            request.getfixturevalue("aws")
            yield Blobs(f"s3://{BUCKET}/{tmp_path.name}/contract", paths)
        case "event stream":
            yield EventStream()
        case _:
            yield Archive(tmp_path / "archive.jsonl")
