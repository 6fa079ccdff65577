"""The seam of storage: a third kind of storage, of a test, behind the code that uses storages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import pytest

from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.targets.sql.ownership import DEFAULT_CONTEXT, OwnerContext
from cirron_otel.core.targets.sql.source import copy_to_spool
from cirron_otel.core.targets.sql.store import (
    STORES,
    BatchStore,
    Expired,
    Retained,
    Select,
    WriteResult,
    open_store,
)
from cirron_otel.core.targets.sql.target import StorageTarget
from cirron_otel.core.targets.sql.url import SCHEMES, Location
from cirron_otel.tools.convert.tables import SOURCES
from tests.kit.spools.comparing import RECORDED, assert_same, batches

from .helpers import files

CONTENTS: dict[str, dict[str, bytes]] = {}
"""By URL: the batches of each storage."""


class MemoryStore(BatchStore):
    """Batches in a dict."""

    def __init__(self, location: Location) -> None:
        """Open the storage, and create it if it does not exist."""
        self._shown = location.shown
        self._batches = CONTENTS.setdefault(location.url, {})

    @property
    def shown(self) -> str:
        """The URL."""
        return self._shown

    def write(
        self, batches: Sequence[SealedBatch], context: OwnerContext = DEFAULT_CONTEXT
    ) -> WriteResult:
        """Store batches."""
        del context
        before = len(self._batches)
        self._batches.update(batches)
        new = len(self._batches) - before
        return WriteResult(new, len(batches) - new, 0)

    def batches(self, select: Select = Select()) -> Iterator[tuple[str, bytes]]:  # noqa: B008
        """Yield the batches."""
        del select
        return iter(sorted(self._batches.items()))

    def expired(self, older_than_ns: int) -> Expired:
        """Nothing expires."""
        del older_than_ns
        return Expired(0, len(self._batches))

    def retain(self, older_than_ns: int) -> Retained:
        """Nothing expires."""
        del older_than_ns
        return Retained(0, 0)

    def run_of_span(self, workspace_id: str, span_id: str) -> str | None:
        """No runs are known."""
        del workspace_id, span_id
        return None

    def set_blob_uris(self, name: str, data: bytes | None, uris: Mapping[int, str]) -> bool:
        """No rows are stored."""
        del data, uris
        return name in self._batches

    def interrupt(self) -> None:
        """Every call returns at once."""

    def close(self) -> None:
        """Keep the content."""

    def abandon(self) -> None:
        """Keep the content."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_memory(location: Location, *, create: bool) -> BatchStore:
    """Open a storage of this module."""
    del create
    return MemoryStore(location)


def locate(url: str) -> Location:
    """Locate a storage of this module."""
    return Location(url, url, url, "memory")


@pytest.fixture
def memory_url(monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty storage in memory."""
    monkeypatch.setitem(STORES, "memory", f"{__name__}:open_memory")
    monkeypatch.setitem(SCHEMES, "memory:", locate)
    CONTENTS.clear()
    return "memory:one"


def test_a_third_kind_of_storage_needs_a_row_and_no_change(memory_url: str, tmp_path: Path) -> None:
    spool = RECORDED / "01_torch_basic"
    target = StorageTarget(memory_url)
    target.send(files(sorted(spool.rglob("*.json"))))
    target.close()
    copied = copy_to_spool(memory_url, tmp_path)
    assert copied.batches == len(batches(spool))
    assert_same(batches(tmp_path), batches(spool))


def test_every_kind_of_storage_is_a_source(tmp_path: Path) -> None:
    assert STORES.keys() <= SOURCES.keys()
    with open_store(f"sqlite:///{tmp_path}/new.sqlite") as store:
        assert (store.shown, list(store.batches())) == (f"sqlite:///{tmp_path}/new.sqlite", [])
