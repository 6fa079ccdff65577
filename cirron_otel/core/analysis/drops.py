"""The records that recording processes dropped, as reported in their session spans."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..spool.reader import SpoolReader
from .index import SpoolIndex
from .run_traces import records_of
from .summary import SessionSummary

PREFIX = "drops."
"""The prefix of the session attributes that count drops by reason."""
_MOST = 1000


@dataclass(slots=True)
class Drop:
    """The drops of one session for one reason."""

    session: str
    rank: int | None
    reason: str
    """A key of `health()["drops"]`."""
    count: int


def drops_of(
    index: SpoolIndex, reader: SpoolReader, sessions: Iterable[SessionSummary]
) -> list[Drop]:
    """Return the drops of the sessions, at most 1,000."""
    ranks = {each.id: each.ranks for each in sessions if each.id is not None}
    records = records_of(index, reader, list(ranks)[:_MOST])
    drops = []
    for session, record in records.items():
        attributes = record.get("attrs")
        for name, value in attributes.items() if isinstance(attributes, dict) else ():
            if name.startswith(PREFIX) and type(value) is int and value > 0:
                rank = ranks[session][0] if ranks[session] else None
                drops.append(Drop(session, rank, name.removeprefix(PREFIX)[:100], value))
    return drops[:_MOST]
