"""The sessions that have begun and have sealed no batch yet, as batches without records."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from ... import exactjson
from ...errors import InputError
from .journal import journal_path, read_journal
from .owner import batch_id_of, is_alive, owners
from .paths import SpoolPaths, file_name
from .reader import BatchFile


def begun_sessions(paths: SpoolPaths, sealed: Collection[str]) -> Iterator[tuple[BatchFile, int]]:
    """Yield a batch without records for each running process that is not in `sealed`.

    With it, the time at which the process's session began, Unix ns.

    `sealed` are the owners of the batches in the spool. The batch has the header that the first
    batch of the process will have. It is made from the process's journal, and is in no file.
    """
    for owner in owners(paths):
        if owner in sealed or not is_alive(paths, owner):
            continue
        try:
            journal = read_journal(paths, owner)
        except InputError:
            continue
        if journal is None:
            continue
        written, batch_id = journal.state.written_ns, batch_id_of(owner, bytes(10))
        batch: dict[str, Any] = {
            "schema_version": 1, "sdk_version": journal.exact.get("sdk_version"),
            "batch_id": batch_id, "created_ns": written,
            "spans": [], "marks": [], "snapshots": [], "otel": journal.exact.get("otel"),
        }  # fmt: skip
        data = exactjson.dumps(batch)
        start_ns = min((each.start_ns for each in journal.state.open), default=written)
        yield BatchFile(file_name(written, batch_id), journal_path(paths, owner), data), start_ns
