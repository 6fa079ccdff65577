"""The temporary session index of a spool that is converted or exported once."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from ...core.placement.batch_outline import BatchOutline, read_outline
from ...core.placement.session_index import SessionIndex
from ...core.spool.reader import SpoolReader
from ...core.temporary import temporary_folder
from ...core.translator.own.encode import SEGMENTED
from ...errors import InputError, TargetError
from .progress import Progress, begin_stage


@contextlib.contextmanager
def temporary_index() -> Iterator[SessionIndex]:
    """Create an empty index, and remove it when the block ends.

    Raises TargetError if the index cannot be created, read or written; this includes failures in
    worker processes.
    """
    try:
        with temporary_folder() as folder:
            index = SessionIndex(folder / "sessions.sqlite")
            try:
                yield index
            finally:
                index.close(commit=False)
    except sqlite3.DatabaseError as error:
        raise TargetError(
            f"the temporary index cannot be used: {error};"
            " free some space, or set TMPDIR to a directory with enough space"
        ) from None


def read_sessions(
    reader: SpoolReader, index: SessionIndex, layout: str, progress: Progress | None = None
) -> int:
    """Fill the index from a spool; return the size of its batches in bytes."""
    begin_stage(progress, "finding the sessions")
    total = records = 0

    def read(name: str) -> BatchOutline | None:
        nonlocal total
        file = reader.read(name, check=False)  # the encoder reports invalid batches
        if file is None:
            return None
        total += len(file.data)
        with contextlib.suppress(InputError):
            return read_outline(file.data)
        return None

    reader.on_progress = progress
    for name in reader.names():
        batch = read(name)
        if batch is None:
            continue
        records += len(batch.spans) + len(batch.marks) + len(batch.snapshots)
        index.observe(batch, name)
    reader.on_progress = None
    size = total
    begin_stage(progress, "indexing")
    index.rescan(lambda: filter(None, map(read, reader.names())))
    if layout == SEGMENTED and records > SEGMENT_FROM:
        index.count_all(read)
    index.commit()
    return size


SEGMENT_FROM = 4000
"""In a spool with fewer records, each session has one trace in every layout."""
