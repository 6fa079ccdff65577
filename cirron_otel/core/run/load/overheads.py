"""The time of tracing itself, by the marks `cirron.overhead_ns`.

The mark on a scope includes the time inside the scope's children, but the mark on a session does
not. So a mark counts unless the scope around its scope has such a mark too and is not a session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....semconv import SESSION
from ...records.rows import IndexedSpan
from .errors import NotReducibleError
from .hashes import IdHashes, contains
from .lanes import LaneSums


class Overheads:
    """Sums the marks of batches in the order of the recording, in bounded memory."""

    def __init__(self) -> None:
        self._sums: dict[str | None, dict[int | None, int]] = {}
        """The times by the scope around, and by the rank of the batch's first span."""
        self._marked = IdHashes()
        """The scopes with marks, apart from sessions."""

    def add(self, spans: Sequence[IndexedSpan], times: Mapping[str | None, int]) -> None:
        """Add the times of a batch, ns, by scope.

        Raises NotReducibleError if the scope of a mark is not in the batch.
        """
        sums, rank = self._sums, spans[0].rank
        marked = []
        found = 0
        for span in spans:
            ns = times.get(span.id)
            if ns is None or span.id is None:
                continue
            found += 1
            if span.name != SESSION:
                marked.append(span.id)
            around = sums.get(span.parent_id)
            if around is None:
                sums[span.parent_id] = {rank: ns}
            else:
                around[rank] = around.get(rank, 0) + ns
        if found != len(times):
            raise NotReducibleError("a time of tracing is not in the batch of its scope")
        for id_ in marked:
            sums.pop(id_, None)  # the time inside it includes these
        self._marked.add(marked)

    def finish(self, sums: LaneSums) -> None:
        """Add the sums to those of the ranks. Raises NotReducibleError if a scope occurs twice."""
        marked = self._marked.ordered()
        for parent, ranks in self._sums.items():
            if parent is None or not contains(marked, parent):
                for rank, ns in ranks.items():
                    sums.add_overhead(rank, ns)
