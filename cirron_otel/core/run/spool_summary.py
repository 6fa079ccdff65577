"""A summary of a spool: its sessions, ranks and processes, its record counts and its time."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..analysis.summary import SessionSummary, with_processes
from ..records.rows import rows_of
from ..spool.reader import SpoolReader
from .load.errors import NotReducibleError
from .load.scopes import Scopes, add_version
from .load.session_counts import SessionCounts
from .load.tree import Extent, listed
from .relations import ABSENT

_MAX_LISTED = 1000


@dataclass(slots=True)
class SpoolSummary:
    """The summary of a complete spool."""

    path: str
    files: int
    bytes: int
    """The size of the batch files that were read."""
    skipped: int
    """The number of files that are not readable batches; the reader's findings give the reasons."""
    sdk_versions: list[str]
    first_ns: int | None
    last_ns: int | None
    """The earliest start and the latest end of a span."""
    spans: int
    marks: int
    snapshots: int
    sessions: list[SessionSummary]
    """The first 1,000 sessions, in order of their start."""
    session_count: int
    ranks: list[int]
    marks_unattached: int
    """The number of marks whose span is in no known session, including the `root` sentinel."""

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        return asdict(self)


@dataclass(slots=True)
class SpoolCounts:
    """The counts of a spool, however it was read."""

    files: int = 0
    bytes: int = 0
    sdk_versions: set[str] = field(default_factory=set)
    total: Extent = field(default_factory=Extent)
    sessions: list[SessionSummary] = field(default_factory=list)


def summarise(reader: SpoolReader) -> SpoolSummary:
    """Return the summary of a spool."""
    try:
        counts = counted(reader)
    except NotReducibleError:
        counts = read_counts(reader)
    total = counts.total
    attached = sum(each.marks for each in counts.sessions)
    sessions = with_processes(counts.sessions, reader.paths)
    return SpoolSummary(
        path=str(reader.paths.spool),
        files=counts.files,
        bytes=counts.bytes,
        skipped=reader.skipped,
        sdk_versions=sorted(counts.sdk_versions),
        first_ns=total.first_ns,
        last_ns=total.last_ns,
        spans=total.spans,
        marks=total.marks,
        snapshots=total.snapshots,
        sessions=sessions[:_MAX_LISTED],
        session_count=len(sessions),
        ranks=listed(total.ranks),
        marks_unattached=total.marks - attached,
    )


def counted(reader: SpoolReader) -> SpoolCounts:
    """Count the records without keeping them. Raises NotReducibleError if that is impossible."""
    found, counts = SpoolCounts(), SessionCounts()
    for batch in reader:
        rows = rows_of(batch.data)
        found.files += 1
        found.bytes += len(batch.data)
        add_version(found.sdk_versions, rows)
        counts.add(rows, batch.data)
    found.total, found.sessions = counts.total, counts.finish()
    return found


def read_counts(reader: SpoolReader) -> SpoolCounts:
    """Count the records of any spool, which are read into columns."""
    scopes = Scopes(reader, once=False)
    starts, ends, ranks = (
        column[column != ABSENT] for column in map(scopes.column, ("start_ns", "end_ns", "rank"))
    )
    total = Extent(
        len(scopes.rows),
        int(starts.min()) if len(starts) else None,
        int(ends.max()) if len(ends) else None,
        set(np.unique(ranks).tolist()),
        marks=len(scopes.mark_rows),
        snapshots=scopes.snapshots,
    )
    return SpoolCounts(
        len(scopes.places.names), scopes.bytes, scopes.sdk_versions, total, scopes.summaries()
    )
