"""Records that a session dropped, counted by reason."""

from __future__ import annotations

import logging
from operator import sub

from ...core.spool.writer import SpoolWriter
from ..flush.flush_builder import FlushBuilder
from ..flush.sealer import Sealer
from ..snapshots.recorder import Snapshots
from ..tracing import buffers as buf
from ..tracing.detail_sampling import DetailSampler
from ..tracing.scope import Scope, drops

logger = logging.getLogger("cirron_otel")

DROPS = "drops."
"""Prefix of the session's attributes that count dropped records, one for each reason."""
LEFT = ("scopes_left_at_exit", "marks_left_at_exit", "snapshots_left_at_exit")
"""The reasons for drops at the end of the process."""
THINNED = "scopes_thinned"
"""The reason for drops that an option requests; drops for all other reasons are unwanted."""


def process_drops() -> tuple[int, int, int]:
    """Return this process's drops: scopes and marks (buffer full), and scopes (too deep)."""
    return (*buf.dropped(), drops.too_deep)


class DropCounts:
    """Collects the drop counts of one session from the components that drop records."""

    def __init__(
        self,
        collector: FlushBuilder,
        sealer: Sealer,
        writer: SpoolWriter,
        snapshots: Snapshots | None,
        thinner: DetailSampler | None,
    ) -> None:
        """Start counting now, so that drops of earlier sessions of the process are excluded."""
        self._collector, self._sealer, self._writer = collector, sealer, writer
        self._snapshots, self._thinner = snapshots, thinner
        self._before = process_drops()

    def by_reason(self) -> dict[str, int]:
        """Return how many records the session has dropped so far, by reason."""
        sealer, collector, snapshots = self._sealer, self._collector, self._snapshots
        scopes, marks, deep = map(sub, process_drops(), self._before)
        left = collector.left
        without_record = collector.snapshots_lost + (snapshots.lost if snapshots else 0)
        return {
            "scopes_buffer_full": scopes,
            "scopes_too_deep": deep,
            "scopes_without_record": collector.spans_lost,
            "foreign_spans": collector.foreign_dropped,
            "marks_buffer_full": marks,
            "marks_without_value_or_scope": collector.marks_lost,
            "spans_spool_unwritable": sealer.dropped_spans,
            "marks_spool_unwritable": sealer.dropped_marks,
            "snapshots_without_record": without_record,
            "snapshots_spool_unwritable": sealer.dropped_snapshots,
            **dict(zip(LEFT, (left.spans, left.marks, left.snapshots), strict=True)),
            "batches_set_aside": sealer.set_aside,
            "snapshot_files": snapshots.files_dropped if snapshots is not None else 0,
            "batches_evicted": self._writer.drops.batches,
            THINNED: self._thinner.thinned if self._thinner is not None else 0,
        }

    def record_in(self, session: Scope) -> None:
        """Set an attribute of the session for each reason, so that a report can show the drops."""
        for reason, count in self._unwanted():
            session.attrs[DROPS + reason] = count  # the session may have ended

    def warn(self) -> None:
        """Log a warning if records were dropped for a reason that no option requests.

        Those that the exit left are reported by `handle.show_left`.
        """
        counts = ", ".join(
            f"{number:,} {reason}" for reason, number in self._unwanted() if reason not in LEFT
        )
        if counts:
            logger.warning(
                "cirron-otel: dropped while recording: %s; the data in the spool is incomplete",
                counts,
            )

    def _unwanted(self) -> list[tuple[str, int]]:
        counts = self.by_reason().items()
        return [(reason, number) for reason, number in counts if number and reason != THINNED]
