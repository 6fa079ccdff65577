"""The records of a recording in columns, for trees and traces, which show single scopes.

They are read in one pass. Columns of more than 4 MiB are in temporary files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from ....semconv import SESSION
from ...analysis.sessions import HANG_ON_SESSIONS, FoundSession, SessionFinder, closed_session
from ...analysis.summary import SessionSummary
from ...records.rows import IndexedBatch, IndexedMark, IndexedSpan, rows_of, shown
from ...records.step_summaries import ExpandedSpan, expand, may_have_summaries
from ...spool.reader import BatchFile
from ..relations import ABSENT, NO_TEXT, SAMPLED, SUMMARY, SUMS, Texts, integer_of, known
from .columns import SCHEMAS, Columns
from .marks import typed_value
from .places import Places

_MOST_VERSIONS: Final = 100
_MOST_LISTED: Final = 1000
_SUMMARISED: Final = ("start_ns", "end_ns", "rank", "pid")
_NO_ROWS: Final = np.zeros(0, np.int64)
_DERIVED: Final = ("first_by_id", "above", "tops", "_by_id", "_by_parent", "_marks_by_scope")
"""The properties that depend on the scopes."""


class Scopes:
    """The scopes of a recording, with their marks and snapshots.

    A scope is identified by its row. Ids are numbers, in which -1 is a missing id.
    """

    def __init__(
        self, batches: Iterable[BatchFile], *, once: bool, texts: Texts | None = None
    ) -> None:
        """Read the records of some batches.

        With `once`, only the first one of repeated records counts, and a complete step replaces its
        summary. Raises the errors of reading the batches, and TargetError if there is no disk
        space.
        """
        self.texts = Texts() if texts is None else texts
        self.sdk_versions: set[str] = set()
        """The versions of the recorders, at most 100."""
        self.bytes = 0
        """The size of the batches."""
        self.places = Places()
        self._has_summaries = False
        columns = [Columns(name) for name in ("scope", "scope_mark", "scope_snapshot")]
        spans, marks, snapshots = columns
        for batch in batches:
            self._add(batch, *columns)
        self._spans, self._marks = spans.table(), marks.table()
        ids = [spans.taken("id_high", "id_low"), spans.taken("parent_high", "parent_low")]
        ids += [each.taken("scope_high", "scope_low") for each in (marks, snapshots)]
        ids.append(spans.taken("origin_high", "origin_low") if self._has_summaries else ids[0][:0])
        self._ids, (self.id, self.parent, self.mark_scope, snapshot_scope, origin) = _numbered(ids)
        self._high = self._ids[:, 0].copy()
        self.rows, self.mark_rows = (np.arange(len(each)) for each in (self._spans, self._marks))
        if once:
            self._remove_repeated(origin)
        self.recorded = self.rows
        """The recorded scopes that count."""
        self._shape()
        self.snapshots, self._snapshot_scope = snapshots.count, snapshot_scope
        for each in columns:
            each.release()

    @cached_property
    def _by_id(self) -> _Groups:
        return _Groups(self.id, self.rows)

    @cached_property
    def _by_parent(self) -> _Groups:
        return _Groups(self.parent, self.rows, self.column("start_ns"))

    @cached_property
    def _marks_by_scope(self) -> _Groups:
        return _Groups(self.mark_scope, self.mark_rows, self.mark_column("ts_ns"))

    @cached_property
    def _snapshots_by_scope(self) -> _Groups:
        return _Groups(self._snapshot_scope, np.arange(self.snapshots))

    def _shape(self) -> None:
        """Change scopes to the canonical form, of which only figures are computed."""

    def _add(self, batch: BatchFile, spans: Columns, marks: Columns, snapshots: Columns) -> None:
        rows, name = self._read(batch), shown(batch.name) or ""
        self.bytes += len(batch.data)
        add_version(self.sdk_versions, rows)
        found: Sequence[IndexedSpan] = rows.spans
        positions = None
        if may_have_summaries(batch.data):
            expanded = expand(rows)
            positions, found = [each[0] for each in expanded], [each[1] for each in expanded]
        has_summaries = any(isinstance(each, ExpandedSpan) for each in found)
        self._has_summaries |= has_summaries
        self.places.add(name, spans.count, positions)
        spans.add_all([self._span(each) for each in found])
        marks.add_all([self._mark(each, has_summaries) for each in rows.marks])
        halves = self.texts.halves
        snapshots.add_all([halves(each.span_id) for each in rows.snapshots])

    def _read(self, batch: BatchFile) -> IndexedBatch:
        return rows_of(batch.data)

    def _span(self, span: IndexedSpan) -> tuple[int, ...]:
        texts = self.texts
        origin = span.origin if isinstance(span, ExpandedSpan) else None
        flags, training = SUMMARY * (origin is not None), 0
        peaks: tuple[int | None, int | None] = None, None
        if span.has_attributes:
            flags |= SUMS * span.phases_are_sums | SAMPLED * span.is_peak_sampled
            peaks, training = span.device_peaks, span.training
        return (
            *texts.halves(span.id), *texts.halves(span.parent_id), *texts.halves(origin),
            texts.token_of(span.name), texts.token_of(span.index), integer_of(span.start_ns),
            *map(integer_of, (span.end_ns, span.rank, span.pid, span.thread_id)),
            NO_TEXT if span.otel is None else texts.token_of(span.error),
            flags, *map(integer_of, (span.gpu_ns, span.memory_peak_bytes, *peaks)), training,
        )  # fmt: skip

    def _mark(self, mark: IndexedMark, has_summaries: bool) -> tuple[int, ...]:
        texts, noted = self.texts, self._noted(mark)
        return (
            *texts.halves(mark.span_id), *texts.halves(mark.id), texts.token_of(mark.name),
            *typed_value(texts, mark), texts.token_of(mark.kind), integer_of(mark.ts_ns),
            has_summaries, *noted,
        )  # fmt: skip

    def _noted(self, mark: IndexedMark) -> tuple[int, int]:  # noqa: ARG002
        """Return the columns `is_listed` and `device` of a mark, which only figures need."""
        return 0, NO_TEXT

    def _remove_repeated(self, origin: np.ndarray) -> None:
        if self._has_summaries:
            is_complete = np.zeros(len(self._ids) + 1, bool)
            is_complete[self.id[origin < 0]] = True
            is_complete[-1] = False
            self.rows = self.rows[~is_complete[origin]]
        self.rows = _first(self.id, self.rows)
        _, (ids,) = _numbered([self._marks[:, 2:4]])
        is_summary = self.mark_column("has_summaries") != 0
        is_replaced = is_summary & (ids >= 0) & np.isin(ids, ids[~is_summary])
        self.mark_rows = _first(ids, self.mark_rows[~is_replaced])

    def replace(
        self,
        table: np.ndarray,
        *,
        ids: np.ndarray,
        id_: np.ndarray,
        parent: np.ndarray,
        aliases: Mapping[int, int],
        rows: np.ndarray,
        found: tuple[list[FoundSession], np.ndarray],
    ) -> None:
        """Replace the scopes and their sessions; new scopes have some of the new `ids`.

        `aliases` has the numbers of ids that count as others, whose content and marks they have.
        """
        alias = np.arange(len(self._ids) + len(ids) + 1)
        alias[list(aliases)] = list(aliases.values())
        alias[-1] = -1
        for _ in range(len(aliases).bit_length() + 1):
            alias = alias[alias]
        self._spans, self._ids = table, np.concatenate([self._ids, ids])
        self._high = self._ids[:, 0].copy()
        self.id, self.parent, self.rows = id_, alias[parent], rows
        self.mark_scope = alias[self.mark_scope]
        for name in _DERIVED:
            self.__dict__.pop(name, None)
        self.__dict__["_found"] = found

    @property
    def table(self) -> np.ndarray:
        """The columns of all scopes, also of those that do not count."""
        table: np.ndarray = self._spans
        return table

    @property
    def id_count(self) -> int:
        """The number of distinct ids."""
        return len(self._ids)

    @property
    def last_id(self) -> tuple[int, int]:
        """The halves of the last id in their order; zeros without ids."""
        high, low = self._ids[-1].tolist() if len(self._ids) else (0, 0)
        return high, low

    def column(self, name: str) -> np.ndarray:
        """Return a column of the scopes, also of those that do not count."""
        return _column(self._spans, "scope", name)

    def mark_column(self, name: str) -> np.ndarray:
        """Return a column of the marks, also of those that do not count."""
        return _column(self._marks, "scope_mark", name)

    def values(self, row: int) -> list[int]:
        """Return the columns of a scope from `name` on."""
        found: list[int] = self._spans[row, 6:].tolist()
        return found

    def id_of(self, number: int) -> str | None:
        """Return an id from its number."""
        return None if number < 0 else self.texts.id_of(*self._ids[number].tolist())

    def number_of(self, id_: str | None) -> int:
        """Return the number of an id; -1 if no record has it."""
        if id_ is None:
            return -1
        high, low = self.texts.halves(id_)
        first, last = (int(np.searchsorted(self._high, high, side)) for side in ("left", "right"))
        place = first + int(np.searchsorted(self._ids[first:last, 1], low))
        return place if place < last and self._ids[place, 1] == low else -1

    def with_half(self, high: int) -> list[str]:
        """Return the ids of scopes whose first half is `high`."""
        first, last = (int(np.searchsorted(self._high, high, side)) for side in ("left", "right"))
        numbers = [each for each in range(first, last) if len(self.with_id(each))]
        return [self.id_of(each) or "" for each in numbers]

    def with_id(self, number: int) -> np.ndarray:
        """Return the scopes with an id, in the order of the recording."""
        return self._by_id.of(number)

    def inside(self, number: int) -> np.ndarray:
        """Return the scopes directly inside the one with an id, in the order of their start."""
        return self._by_parent.of(number)

    def marks_on(self, number: int) -> np.ndarray:
        """Return the rows of the marks on the scope with an id, in the order of time."""
        return self._marks_by_scope.of(number)

    def mark(self, row: int) -> tuple[int, ...]:
        """Return the name, the type, the value, the kind and the time of a mark."""
        return tuple(self._marks[row, 4:9].tolist())

    def snapshots_on(self, number: int) -> int:
        """Return the number of snapshots of the scope with an id."""
        return len(self._snapshots_by_scope.of(number))

    @cached_property
    def first_by_id(self) -> np.ndarray:
        """The first scope with each id, preferably a topmost one; -1 for none."""
        first = np.full(len(self._ids) + 1, -1)
        for rows in (self.rows[::-1], self.tops[::-1]):
            first[self.id[rows]] = rows
        first[-1] = -1
        return first

    @cached_property
    def above(self) -> np.ndarray:
        """The scope around each scope; -1 for a topmost one."""
        above = np.full(len(self._spans), -1)
        above[self.rows] = self.first_by_id[self.parent[self.rows]]
        return above

    @cached_property
    def tops(self) -> np.ndarray:
        """The topmost scopes: those without a parent, and those whose parent is not recorded."""
        is_recorded = np.zeros(len(self._ids) + 1, bool)
        is_recorded[self.id[self.rows]] = True
        is_recorded[-1] = False
        tops: np.ndarray = self.rows[~is_recorded[self.parent[self.rows]]]
        return tops

    @cached_property
    def _found(self) -> tuple[list[FoundSession], np.ndarray]:
        """The sessions, and the number of the session of each scope; -1 in a cycle of parents."""
        text = self.texts.text
        closed, opened, tops = [], [], []
        for row in self.tops.tolist():
            token, _, start, end, _, process, _, error, *_ = self.values(row)
            name, start_ns, pid = text(token), known(start), known(process)
            id_, parent = self.id_of(int(self.id[row])), self.id_of(int(self.parent[row]))
            if parent is not None and name in HANG_ON_SESSIONS:
                opened.append(FoundSession(parent, "unfinished", pid, start_ns, None))
            elif parent is None and name == SESSION:
                parent = id_
                if id_ is not None:
                    closed.append(closed_session(id_, pid, start_ns, known(end), text(error)))
            tops.append((row, parent, pid, start_ns or 0))
        finder = SessionFinder(closed, opened)
        of_top = np.full(len(self._spans), -1)
        for row, parent, pid, begun_ns in tops:
            of_top[row] = finder.of_top(parent, pid, begun_ns)
        above = np.where(self.above < 0, np.arange(len(of_top)), self.above)
        for _ in range(len(above).bit_length()):
            above = above[above]
        return finder.sessions, of_top[above]

    @property
    def sessions(self) -> list[FoundSession]:
        """The sessions; the number of one is its place."""
        return self._found[0]

    @property
    def session(self) -> np.ndarray:
        """The number of the session of each scope; -1 in a cycle of parents."""
        return self._found[1]

    def first_files(self) -> dict[str, str]:
        """Return the name of the first batch with a scope of each session, by the session's id."""
        numbers, first = np.unique(self.session[self.rows], return_index=True)
        names = zip(numbers.tolist(), self.places.files_of(self.rows[first]), strict=True)
        keys = ((self.sessions[number].key, name) for number, name in names if number >= 0)
        return {key: name for key, name in keys if key is not None}

    def sessions_of_ids(self) -> dict[str | None, str]:
        """Return the id of the session of each scope with an id."""
        keys = [each.key for each in self.sessions] + [None]
        numbers = zip(self.id[self.rows].tolist(), self.session[self.rows].tolist(), strict=True)
        pairs = ((self.id_of(id_), keys[session]) for id_, session in numbers if id_ >= 0)
        return {id_: key for id_, key in pairs if key is not None}

    def summaries(self) -> list[SessionSummary]:
        """Return all sessions in order of their start; those without an id come last."""
        groups, counts = _Groups(self.session, self.recorded), self._session_counts()
        found = []
        for number, (each, (marks, snapshots)) in enumerate(
            zip(self.sessions, counts, strict=True)
        ):
            rows = groups.of(number)
            starts, ends, ranks, pids = (
                column[column != ABSENT]
                for column in (self.column(name)[rows] for name in _SUMMARISED)
            )
            of_key = self.column("error")[self.with_id(self.number_of(each.key))]
            errors = of_key[of_key != NO_TEXT]
            found.append(SessionSummary(
                each.key, each.state, self.texts.text(int(errors[-1])) if len(errors) else None,
                int(starts.min()) if len(starts) else None, int(ends.max()) if len(ends) else None,
                len(rows), marks, snapshots,
                *(np.unique(every)[:_MOST_LISTED].tolist() for every in (ranks, pids)),
            ))  # fmt: skip
        return sorted(found, key=lambda each: (each.id is None, each.start_ns or 0, each.id or ""))

    def _session_counts(self) -> list[tuple[int, int]]:
        """Return the numbers of marks and of snapshots of each session."""
        by_scope = np.full(len(self._ids) + 1, -1)
        for number, each in enumerate(self.sessions):
            by_scope[self.number_of(each.key)] = number
        by_scope[-1] = -1
        is_recorded = self.first_by_id >= 0
        by_scope[is_recorded] = self.session[self.first_by_id[is_recorded]]
        counts = [
            np.bincount(by_scope[scopes] + 1, minlength=len(self.sessions) + 1)[1:].tolist()
            for scopes in (self.mark_scope[self.mark_rows], self._snapshot_scope)
        ]
        return list(zip(*counts, strict=True))


def add_version(versions: set[str], rows: IndexedBatch) -> None:
    """Add the version of the recorder of a batch to some versions, at most 100."""
    if rows.sdk_version is not None and len(versions) < _MOST_VERSIONS:
        versions.add(shown(rows.sdk_version) or "")


class _Groups:
    """Rows by a number, in the order of a column, or else of the rows."""

    def __init__(self, numbers: np.ndarray, rows: np.ndarray, *order: np.ndarray) -> None:
        numbers = numbers[rows]
        places = np.lexsort((*(each[rows] for each in order), numbers))
        self._rows, self._numbers = rows[places], numbers[places]

    def of(self, number: int) -> np.ndarray:
        """Return the rows with a number; none for -1."""
        if number < 0:
            return _NO_ROWS
        first, last = np.searchsorted(self._numbers, (number, number + 1))
        return self._rows[first:last]


def _numbered(columns: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the distinct ids of some columns, and the number of each id in each column.

    Empty the list of the columns, so that their memory can be used.
    """
    ends = np.cumsum([len(each) for each in columns])
    every = np.concatenate(columns)
    columns.clear()
    order = np.lexsort((every[:, 1], every[:, 0]))
    is_new = np.zeros(len(every), bool)
    is_new[:1] = True
    for half in every.T:
        ordered = half[order]
        is_new[1:] |= ordered[1:] != ordered[:-1]
    ordered = np.cumsum(is_new)
    ordered -= 1
    numbers = np.empty(len(every), np.int64)
    numbers[order] = ordered
    numbers[(every[:, 0] == ABSENT) & (every[:, 1] == NO_TEXT)] = -1
    return every[order[is_new]], np.split(numbers, ends[:-1])


def _first(ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the rows without those whose id an earlier row has."""
    order = np.argsort(ids[rows], kind="stable")
    ordered = ids[rows][order]
    is_first = np.ones(len(rows), bool)
    is_first[order[1:]] = (ordered[1:] != ordered[:-1]) | (ordered[1:] < 0)
    return rows[is_first]


def _column(table: np.ndarray, relation: str, name: str) -> np.ndarray:
    return table[:, tuple(SCHEMAS[relation]).index(name)]
