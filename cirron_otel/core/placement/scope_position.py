"""The position of a scope: its session, its depth, and the scope that decides its segment."""

from __future__ import annotations

from typing import NamedTuple

from ..translator.typed import TypedBatch
from .batch_outline import BatchOutline


class ScopePosition(NamedTuple):
    """The position of a scope: its session, depth, and the child or grandchild that contains it."""

    session: str
    depth: int
    unit: tuple[int, str] | None
    """(start_ns, id) of the scope that decides its segment; None means the first segment."""


Outline = BatchOutline | TypedBatch
"""A batch in either of the forms from which its records are placed."""


class Ancestor(NamedTuple):
    """A scope on the path from a record up to its session."""

    name: str
    number: int | None


Row = tuple[str, ...]
"""A scope's row in the index (see `session_index`)."""


def position_of(row: Row, above: ScopePosition | None) -> ScopePosition:
    """Return the position of a recorded scope.

    `row` has the path from it to the topmost scope of its batch. `above` is the position of that
    scope's parent, or the position above it if it has no parent; None for a session.
    """
    rel, topmost = int(row[2]), (int(row[4]), row[3])
    second = (int(row[6]), row[5]) if row[5] is not None else topmost
    if above is None or above.session == row[3]:  # the topmost scope is the session
        return ScopePosition(row[3], rel - 1, second if rel > 1 else None)
    if above.depth == 0:
        return ScopePosition(above.session, rel, second)
    if above.depth == 1:
        return ScopePosition(above.session, rel + 1, topmost)
    return ScopePosition(above.session, above.depth + rel, above.unit)
