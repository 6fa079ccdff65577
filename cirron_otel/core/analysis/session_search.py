"""The search for the sessions of batches that name none, such as those of cirron-sdk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, Self

from ..spool.reader import BatchFile
from .index import SpoolIndex
from .run_batch import STEP_NAMES, RunBatchOutline
from .sessions import assign_sessions


class OutlinedBatch(NamedTuple):
    """A batch by its outline; its content is needed only if it names neither session nor trace."""

    name: str
    outline: RunBatchOutline
    content: Callable[[], BatchFile]


class BatchOfSession(NamedTuple):
    """The spans of a batch that belong to one session and one rank."""

    session: int
    """The number of the session."""
    key: bytes | None
    """The key of the session's id (`key_of`); None if no session of the process is recorded."""
    state: str
    """The state of the session in the index."""
    batch: str
    start_ns: int | None
    end_ns: int | None
    rank: int | None
    spans: int
    steps: int


class SessionSearch(Protocol):
    """A context manager to which all batches without a session are added, in their order."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def add(self, batch: OutlinedBatch) -> None:
        """Add a batch."""

    def search(self) -> None:
        """Find the sessions of the spans and marks of all batches; at most once."""

    def of_spans(self) -> Iterable[BatchOfSession]:
        """Return the spans by session, batch and rank, in the order of these three."""

    def of_marks(self) -> Iterable[tuple[int, str]]:
        """Return pairs of a session's number and the name of a batch with its marks."""


class IndexSearch:
    """The search in a temporary index of all records."""

    def __init__(self) -> None:
        self._index = SpoolIndex()
        self._names: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._index.connection.close()

    def add(self, batch: OutlinedBatch) -> None:
        """Add a batch."""
        self._index.add(batch.content())
        self._names.append(batch.name)

    def search(self) -> None:
        """Find the sessions. Raises TargetError if there is no disk space."""
        assign_sessions(self._index.ready())

    def of_spans(self) -> Iterator[BatchOfSession]:
        """Yield the spans by session, batch and rank."""
        for number, key, state, file, *rest in self._index.rows(_SPANS):
            yield BatchOfSession(number, key, state, self._names[file], *rest)

    def of_marks(self) -> Iterator[tuple[int, str]]:
        """Yield the batches with marks of a session."""
        for number, file in self._index.rows(_MARKS):
            yield number, self._names[file]


_SPANS = f"""
SELECT session.no, session.key, session.state, span.file, min(span.start_ns), max(span.end_ns),
    span.rank, count(*), sum(span.name IN {STEP_NAMES})
FROM member JOIN span USING (no) JOIN session ON session.no = member.session
GROUP BY session.no, span.file, span.rank ORDER BY session.no, span.file, span.rank
"""  # noqa: S608 - constants
_MARKS = """
SELECT DISTINCT member.session, mark.file
FROM mark JOIN span ON span.id = mark.span JOIN member ON member.no = span.no
"""
