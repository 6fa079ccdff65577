"""Build the batches of everything that is not sealed when a process has to end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .assembly import Emit
from .batch_text import BatchText
from .drain import BufferDrain, Drained
from .flush_builder import FlushBuilder, add_ids
from .scope_rows import default_trace, sort_scopes, span_order
from .span_rows import recorded_above


class RestBuilder(FlushBuilder):
    """A flush builder that can also hand out the rest; no flush follows that."""

    def take_rest(self) -> tuple[list[BatchText], Drained, Drained]:
        """Take everything that is in no sealed batch, and end all open scopes.

        Returns finished batches, the other records, and the scopes that were open, with their
        marks. No flush follows.
        """
        self.ownership.check()
        left, first = self.latest, self._drained
        batches: list[BatchText] = []
        if left is not None and not left.is_sealed:
            batches = left.batches
            if not left.is_noted:
                self._note(left)
                first = None
        taken = Drained([], [], [], {}, {}, {}, is_last=True)
        if first is not None:
            taken.ended, taken.marks = [*first.ended], [*first.marks]
            taken.foreign, taken.snapshots = [*first.foreign], [*first.snapshots]
            self._open, self._drained = first.open, None
            self._drain.clear()
        last = self._take(is_last=True, is_portion=False)
        open_before = set(self._closed)
        ended = [*taken.ended, *last.ended]
        taken.ended = [scope for scope in ended if scope not in open_before]
        taken.foreign += last.foreign
        ending = {begun.seen for _, begun in taken.foreign}
        for key, begun in list(self._foreign.open.items()):
            if begun.seen in ending:
                self._foreign.open.pop(key, None)
        taken.marks += last.marks
        taken.snapshots += last.snapshots
        # The interpreter's last garbage collections are faster without the records.
        self._drain, self._open, self.latest = BufferDrain(), {}, None
        closing = Drained([], [], [], {}, {}, {}, is_last=True)
        closing.ended = [scope for scope in ended if scope in open_before]
        marks, taken.marks = taken.marks, []
        for entry in marks:
            scope: Any = entry[0] if entry[0]._id else recorded_above(entry[0])
            (closing if scope in open_before else taken).marks.append(entry)
        self._closed = []
        return batches, taken, closing

    def assemble_rest(
        self, drained: Drained, emit: Emit, checkpoint: Callable[[], None], *, has_open: bool
    ) -> None:
        """Build batches of records from `take_rest`, without marks of the SDK's own time.

        It may be called for one part of the records after the other, in the order of time. With
        `has_open`, the open spans of other libraries are ended and included. Raises TimeOverError
        if `checkpoint` does, once the batch that was begun is passed to `emit`.
        """
        self.ownership.check()
        self._assembly.checkpoint = checkpoint
        self._assembly.omit_overhead()
        drained.is_last = has_open
        change = self._change = self._unchanged()
        sort_scopes(drained.ended)
        default = default_trace(drained.ended, self._origin.segments.trace)
        foreign = sorted(self._foreign_rows(drained, default), key=span_order)
        snapshots = self._snapshot_rows(drained, change)
        self._add_figures(drained, change)
        try:
            _, ids = self._assembly.assemble(
                drained.ended, drained.marks, foreign, default, change,
                lambda ids, is_split: self.otel.of_flush(
                    drained, default, ids, is_split, change, self._announced
                ),
                set(), snapshots, emit,
            )  # fmt: skip
            add_ids(change, ids)
            self._mark_ids = change.mark_ids
        finally:
            self._apply(change)
