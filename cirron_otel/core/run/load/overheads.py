"""The time of tracing itself, by the marks `cirron.overhead_ns`.

The mark on a scope includes the time inside the scope's children, but the mark on a session does
not. So a mark counts unless the scope around its scope has such a mark too and is not a session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....semconv import SESSION
from ...records.rows import IndexedSpan
from ..relations import ABSENT
from .columns import Columns
from .errors import NotReducibleError
from .hashes import IdHashes, are_in, hashes_of
from .lanes import LaneSums


class Overheads:
    """Sums the marks of batches in the order of the recording, in bounded memory."""

    def __init__(self) -> None:
        self._rows = Columns("overhead")
        """The times by the hash of the scope around, and by the rank of the batch's first span."""
        self._marked = IdHashes()
        """The scopes with marks, apart from sessions."""

    def add(self, spans: Sequence[IndexedSpan], times: Mapping[str | None, int]) -> None:
        """Add the times of a batch, ns, by scope.

        Raises NotReducibleError if the scope of a mark is not in the batch.
        """
        sums: dict[str | None, int] = {}
        marked = []
        found = 0
        for span in spans:
            ns = times.get(span.id)
            if ns is None or span.id is None:
                continue
            found += 1
            if span.name != SESSION:
                marked.append(span.id)
            sums[span.parent_id] = sums.get(span.parent_id, 0) + ns
        if found != len(times):
            raise NotReducibleError("a time of tracing is not in the batch of its scope")
        for id_ in marked:
            sums.pop(id_, None)  # the time inside it includes these
        self._marked.add(marked)
        rank = ABSENT if spans[0].rank is None else spans[0].rank
        for around, ns in zip(hashes_of(sums).tolist(), sums.values(), strict=True):
            self._rows.add((around, rank, ns))

    def finish(self, sums: LaneSums) -> None:
        """Add the sums to those of the ranks. Raises NotReducibleError if a scope occurs twice."""
        marked = self._marked.ordered()
        for block in self._rows.blocks():
            is_inside = are_in(marked, block["around"])
            for rank, ns in zip(
                block["rank"][~is_inside].tolist(), block["ns"][~is_inside].tolist(), strict=True
            ):
                sums.add_overhead(None if rank == ABSENT else rank, ns)
