"""The table in docs/backends.md lists what each backend keeps, checked with the real backends."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.tools.query.address import parse_address
from cirron_otel.tools.query.backend import Backend, BackendTrace
from cirron_otel.tools.query.client import QueryClient
from cirron_otel.tools.query.jaeger import Jaeger
from cirron_otel.tools.query.tempo import Tempo
from tests.kit.backends.tempo import Tempo as RunningTempo

from .backends import STORAGES, Store
from .kept import PIECES, first

pytestmark = pytest.mark.backends

DOCUMENT = Path(__file__).parents[3] / "docs" / "backends.md"
_ROW = re.compile(r"^\| ([^|]+) \| (yes|no) \| (yes|no) \| (yes|no) \|$", re.MULTILINE)
SECONDS = 30


def told() -> dict[str, tuple[str, ...]]:
    """Return the table: yes or no for each piece, for Jaeger in memory, on disk, and Tempo."""
    return {row[0].strip(): row[1:] for row in _ROW.findall(DOCUMENT.read_text())}


def test_the_table_has_each_piece_once() -> None:
    assert list(told()) == [piece.name for piece in PIECES]
    assert len(_ROW.findall(DOCUMENT.read_text())) == len(PIECES)


@pytest.mark.parametrize("storage", STORAGES)
def test_backends_preserve_exactly_the_fields_in_the_table(
    storage: str, request: pytest.FixtureRequest
) -> None:
    store = Store(storage, request.getfixturevalue(storage.replace(" ", "_")))
    made = [(piece, piece.made()) for piece in PIECES]
    store.send(message for _, message in made)
    address = parse_address(store.address("session=none"), {})
    with QueryClient(address) as client:
        backend: Backend = (Tempo if storage == "tempo" else Jaeger)(address, client)
        for _, message in made:
            came(backend, message)
        if isinstance(store.backend, RunningTempo):
            store.backend.flush()
        found = {}
        for piece, message in made:
            trace = came(backend, message)
            same = repr(piece.look(message)) == repr(piece.look(trace.data))
            found[piece.name] = "yes" if same else "no"
    column = STORAGES.index(storage)
    assert found == {name: row[column] for name, row in told().items()}


def came(backend: Backend, message: TracesData) -> BackendTrace:
    """Return the trace once it is there, requested as `convert` does, without adjustments."""
    deadline = time.monotonic() + SECONDS
    while True:
        trace = backend.trace(first(message)[2].trace_id)
        if trace is not None:
            return trace
        assert time.monotonic() < deadline, "the trace does not come"
        time.sleep(0.05)
