"""What is to be known of all scopes of a flush before their records are made."""

from __future__ import annotations

from operator import attrgetter

from .scope import Scope
from .traces import Trace

_end = attrgetter("_end")


def sort_scopes(ended: list[Scope]) -> None:
    """By the time of their end; those of the same time are sorted by id when they are records."""
    ended.sort(key=_end)


def default_trace(ended: list[Scope], current: Trace) -> Trace:
    """The trace in which most of the scopes stand, or about that: the others say theirs.

    `ended` are sorted by time, and traces follow each other: the one in the middle will do.
    """
    trace = ended[len(ended) // 2]._trace if ended else current
    return current if trace.is_apart else trace  # its flags are the session's


def unpacked(halves: bytearray, low: str) -> list[str]:
    """Ids of which only the first halves were kept."""
    text = halves.hex()
    return [text[at : at + 16] + low for at in range(0, len(text), 16)]
