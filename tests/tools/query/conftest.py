"""The command as a process, and backends to which no other test sends the same recordings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.backends import run as backends
from tests.kit.backends.tempo import Tempo
from tests.kit.backends.tempo import tempo as running_tempo
from tests.tools.conftest import run  # noqa: F401 - a fixture

_MEMORY = "memory: {max_traces: 100000}"
_BADGER = (
    'badger: {ephemeral: false, directories: {keys: "${env:DIR}/keys",'
    ' values: "${env:DIR}/values"}}'
)


@pytest.fixture(scope="session")
def jaeger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[backends.Jaeger]:
    """One Jaeger in memory."""
    with backends.jaeger(tmp_path_factory.mktemp("jaeger-read-back")) as backend:
        yield backend


@pytest.fixture(scope="session")
def tempo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tempo]:
    """One Tempo, at its default limits."""
    with running_tempo(tmp_path_factory.mktemp("tempo-read-back")) as backend:
        yield backend


@pytest.fixture(scope="session")
def jaeger_on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[backends.Jaeger]:
    """One Jaeger with Badger: spans in Jaeger's own model, as in all of its storages on disk."""
    config = backends.JAEGER.read_text()
    assert _MEMORY in config
    directory = tmp_path_factory.mktemp("jaeger-on-disk")
    with backends.jaeger(directory, config.replace(_MEMORY, _BADGER)) as backend:
        yield backend
