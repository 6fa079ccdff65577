"""Criteria for selecting records: sessions (or prefixes of their ids), ranks, epochs, names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from ...errors import UsageError
from ...ids import is_id

_RANGE = re.compile(r"(-?\d{1,18})(?:\.\.(-?\d{1,18}))?")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){0,3}(-[0-9a-f]{0,12})?")
_MAX_LISTED = 10
"""The maximum number of session ids that an error lists for an ambiguous prefix."""
_USE = "use session=ID, rank=N, rank=A..B, epoch=N, epoch=A..B or name=NAME"


@dataclass(frozen=True, slots=True)
class Selection:
    """The criteria for records; an empty criterion matches all records."""

    sessions: frozenset[str] = frozenset()
    ranks: tuple[tuple[int, int], ...] = ()
    """Inclusive ranges of ranks."""
    epochs: tuple[tuple[int, int], ...] = ()
    """Inclusive ranges of epoch numbers."""
    names: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, expressions: Iterable[str]) -> Selection:
        """Parse `KEY=VALUE` expressions; a key that is given twice matches either value.

        Raises UsageError for an invalid expression.
        """
        values: dict[str, list[str]] = {"session": [], "rank": [], "epoch": [], "name": []}
        for expression in expressions:
            key, equals, value = expression.partition("=")
            if not equals or key not in values or not value:
                raise UsageError(f"cannot select by {expression!r}: {_USE}")
            values[key].append(value)
        return cls(
            frozenset(map(_without_dashes, values["session"])),
            tuple(_range("rank", value) for value in values["rank"]),
            tuple(_range("epoch", value) for value in values["epoch"]),
            frozenset(values["name"]),
        )

    def with_sessions(self, known: Collection[str]) -> Selection:
        """Return the selection with each unique prefix of a `known` session id replaced by the id.

        Raises UsageError if a prefix matches several ids.
        """
        return replace(self, sessions=frozenset(_session(value, known) for value in self.sessions))

    @property
    def has_prefixes(self) -> bool:
        """Whether a value may be a prefix of a session id."""
        return not all(map(is_id, self.sessions))

    def __bool__(self) -> bool:
        return bool(self.sessions or self.ranks or self.epochs or self.names)


def _range(key: str, text: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise UsageError(f"cannot select by {key}={text}: {_USE}")
    low = int(match[1])
    return low, int(match[2]) if match[2] is not None else low


def _without_dashes(session: str) -> str:
    """Return the Cirron id of a session that is named by its UUID, or by the start of it."""
    return session.replace("-", "") if _UUID.fullmatch(session) else session


def _session(value: str, known: Collection[str]) -> str:
    if value in known:
        return value
    fitting = sorted(session for session in known if session.startswith(value))
    if len(fitting) > 1:
        listed = ", ".join(ascii(session)[1:-1] for session in fitting[:_MAX_LISTED])
        more = f" and {len(fitting) - _MAX_LISTED} more" if len(fitting) > _MAX_LISTED else ""
        raise UsageError(f"session={value} matches {len(fitting)} sessions: {listed}{more}")
    return fitting[0] if fitting else value
