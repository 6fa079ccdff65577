"""A summary of a spool: its sessions, ranks and processes, its record counts and its time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..analysis.summary import SessionSummary, with_processes
from ..spool.reader import SpoolReader
from .load.scopes import Scopes
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


def summarise(reader: SpoolReader) -> SpoolSummary:
    """Return the summary of a spool."""
    scopes = Scopes(reader, once=False)
    found = scopes.summaries()
    starts, ends, ranks = (
        column[column != ABSENT] for column in map(scopes.column, ("start_ns", "end_ns", "rank"))
    )
    marks = len(scopes.mark_rows)
    sessions = with_processes(found, reader.paths)
    return SpoolSummary(
        path=str(reader.paths.spool),
        files=len(scopes.places.names),
        bytes=scopes.bytes,
        skipped=reader.skipped,
        sdk_versions=sorted(scopes.sdk_versions),
        first_ns=int(starts.min()) if len(starts) else None,
        last_ns=int(ends.max()) if len(ends) else None,
        spans=len(scopes.rows),
        marks=marks,
        snapshots=scopes.snapshots,
        sessions=sessions[:_MAX_LISTED],
        session_count=len(sessions),
        ranks=np.unique(ranks)[:_MAX_LISTED].tolist(),
        marks_unattached=marks - sum(each.marks for each in found),
    )
