"""Reads a recording through a database: one in which records are repeated, late or nested.

The result is that of the reducer, whose rules for units and parts it uses.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from ....semconv import OOM
from ...analysis.index import SpoolIndex, id_of, key_of
from ...analysis.mark_series import IS_LISTED
from ...analysis.sessions import assign_sessions
from ...analysis.summary import SessionSummary, sessions_of
from ...records.memory_marks import MemoryMark
from ...records.rows import IndexedMark, IndexedSpan, shown
from ...records.run_summary import SummaryValue
from ..relations import ABSENT, DOUBLE, INTEGER, MARK, NOTHING, TEXT, Block, Texts
from .blocks import unit_blocks
from .lanes import LaneSums
from .phases import Numbered
from .places import Place
from .tree import Extent, LastStep, ScopeTree, UnitsKey
from .unit_builder import NotedSpan, UnitBuilder

_AT_ONCE: Final = 10_000
# A step inside another step, at any depth, belongs to the outer one.
_UNITS: Final = """
CREATE TABLE step (
    no INTEGER PRIMARY KEY, id BLOB UNIQUE, parent BLOB, rank INTEGER, idx TEXT, start_ns INTEGER,
    ns INTEGER
);
INSERT INTO step SELECT no, id, parent, rank, idx, start_ns, max(end_ns - start_ns, 0) FROM span
WHERE name = 'step' AND end_ns - start_ns <= 9223372036854775807 ORDER BY no;
DELETE FROM step WHERE parent IS NOT id AND parent IN (
    WITH RECURSIVE above (parent, id) AS (
        SELECT DISTINCT parent, parent FROM step WHERE parent IS NOT NULL
        UNION
        SELECT above.parent, span.parent FROM above JOIN span ON span.id = above.id
        WHERE span.parent IS NOT NULL AND NOT EXISTS (SELECT 1 FROM step WHERE step.id = above.id)
    )
    SELECT above.parent FROM above JOIN step ON step.id = above.id
);
CREATE INDEX step_rank ON step (rank, ns);
CREATE TABLE inside (no INTEGER PRIMARY KEY, unit INTEGER);
INSERT OR IGNORE INTO inside
WITH RECURSIVE below (no, id, unit) AS (
    SELECT span.no, span.id, unit.no FROM step AS unit JOIN span
    ON span.parent = unit.id AND span.no <> unit.no
    UNION
    SELECT span.no, span.id, below.unit FROM below JOIN span ON span.parent = below.id
)
SELECT no, unit FROM below;
CREATE INDEX inside_unit ON inside (unit);
"""
_COLUMNS: Final = """
span.no, span.id, span.parent, span.name, span.idx, span.start_ns, span.end_ns, span.pid, span.rank,
span.thread_id, span.error, span.gpu_ns, span.memory_peak, span.device_peak, span.reserved_peak,
span.is_peak_sampled, span.phases_are_sums, span.origin
"""
_ALL: Final = f"SELECT {_COLUMNS} FROM span ORDER BY no"  # noqa: S608 - constants
_OF_UNITS: Final = f"""
SELECT unit.no, {_COLUMNS} FROM step AS unit JOIN span ON span.no = unit.no
UNION ALL SELECT inside.unit, {_COLUMNS} FROM inside JOIN span ON span.no = inside.no
ORDER BY 1, 2
"""  # noqa: S608 - constants
_OTHERS: Final = f"""
SELECT {_COLUMNS} FROM span
WHERE no NOT IN (SELECT no FROM step) AND no NOT IN (SELECT no FROM inside) ORDER BY no
"""  # noqa: S608 - constants
_SESSIONS: Final = """
SELECT unit.no, coalesce(member.session, -1) FROM step AS unit LEFT JOIN member USING (no)
ORDER BY 1
"""
_MARKS: Final = f"""
SELECT mark.no, coalesce(inside.unit, unit.no), a.rank, mark.name,
    'eval' IN (coalesce(a.name, ''), coalesce(b.name, ''), coalesce(c.name, '')),
    CASE 'epoch' WHEN a.name THEN a.idx WHEN b.name THEN b.idx WHEN c.name THEN c.idx END,
    mark.ts_ns, mark.value, mark.is_text, {IS_LISTED}, mark.device, a.no IS NOT NULL
FROM mark LEFT JOIN span AS a ON a.id = mark.span LEFT JOIN span AS b ON b.id = a.parent
LEFT JOIN span AS c ON c.id = b.parent LEFT JOIN step AS unit ON unit.no = a.no
LEFT JOIN inside ON inside.no = a.no
WHERE mark.name IS NOT 'cirron.overhead_ns' OR mark.value IN ('nan', 'inf', '-inf')
ORDER BY mark.no
"""  # noqa: S608 - constants
_OUT_OF_MEMORY: Final = "SELECT no, span, value, ts_ns FROM mark WHERE name = ? ORDER BY no"
_FIRST_FORWARD: Final = "SELECT min(no) FROM span WHERE name = 'forward' AND id IS NOT NULL"
_PLACE: Final = (
    "SELECT file.name, span.position FROM span JOIN file ON file.no = span.file WHERE span.no = ?"
)
_SESSION_OF: Final = "SELECT session.key FROM member JOIN session ON session.no = member.session"
_OF_SPAN: Final = f"{_SESSION_OF} WHERE member.no = ?"
_LAST_STEP: Final = """
SELECT span.idx, CASE WHEN inside.no IS NULL THEN span.parent ELSE unit.parent END FROM session
JOIN member ON member.session = session.no JOIN span ON span.no = member.no
LEFT JOIN inside ON inside.no = span.no LEFT JOIN step AS unit ON unit.no = inside.unit
WHERE session.key = ? AND span.name = 'step' ORDER BY span.start_ns DESC, span.no DESC LIMIT 1
"""
_SAMPLES: Final = f"""
SELECT mark.no, mark.span, mark.name, mark.value, mark.ts_ns, sample.kind, sample.device,
    sample.allocated, sample.reserved, sample.device_used, sample.device_total, sample.detail,
    {_COLUMNS}
FROM sample JOIN mark ON mark.file = sample.file AND mark.position = sample.position
LEFT JOIN span ON span.id = mark.span ORDER BY mark.no
"""  # noqa: S608 - constants


class StoredSpan(IndexedSpan):
    """A span of a database, whose attributes are columns."""

    error: str | None = None
    device_peaks: tuple[int | None, int | None] = (None, None)
    is_peak_sampled: bool = False
    phases_are_sums: bool = False
    is_summary: bool = False

    @property
    def has_attributes(self) -> bool:
        """Whether the span may have peaks."""
        return True


def stored_span(row: Sequence[Any], id_: str | None, parent: str | None) -> StoredSpan:
    """Return the span of a row, from the column `name` on."""
    (name, idx, start_ns, end_ns, pid, rank, thread_id, error, gpu_ns, memory_peak, device_peak,
     reserved_peak, is_sampled, are_sums, origin) = row  # fmt: skip
    return StoredSpan(
        id_, parent, name, idx, start_ns, end_ns, pid, rank, thread_id, gpu_ns, memory_peak,
        otel=None if error is None else {}, error=error, device_peaks=(device_peak, reserved_peak),
        is_peak_sampled=bool(is_sampled), phases_are_sums=bool(are_sums),
        is_summary=origin is not None,
    )  # fmt: skip


class IndexedRecording:
    """The relations of the recording in an index from `run_index`."""

    def __init__(self, index: SpoolIndex, texts: Texts) -> None:
        """Read the units and the scopes. Raises TargetError if there is no disk space."""
        self.index: SpoolIndex = index
        self.texts = texts
        assign_sessions(index)
        index.script(_UNITS)
        self.built = UnitBuilder(texts)
        self._sessions: np.ndarray | None = None
        self.sums = LaneSums()
        spans = (_span(row)[1] for row in index.rows(_ALL))
        while some := list(itertools.islice(spans, _AT_ONCE)):
            self.sums.add(some)
        groups = itertools.groupby(index.rows(_OF_UNITS), key=lambda row: row[0])
        for unit, rows in groups:
            self._add_unit(unit, [_span(row[1:]) for row in rows])
        waiting: dict[str | None, list[Numbered]] = {}
        for row in index.rows(_OTHERS):
            number, span = _span(row)
            waiting.setdefault(span.parent_id, []).append((number, span))
        self.tree = ScopeTree(waiting)

    def _add_unit(self, unit: int, spans: Iterable[Numbered]) -> None:
        by_parent: dict[str | None, list[Numbered]] = {}
        own: IndexedSpan | None = None
        for number, span in spans:
            if number == unit:
                own = span
            else:
                by_parent.setdefault(span.parent_id, []).append((number, span))
        if own is not None:
            inside = by_parent.pop(own.id, [])
            self.built.add(unit, own, inside, by_parent)

    @property
    def noted(self) -> list[NotedSpan]:
        """The spans inside units that figures need."""
        return self.built.noted

    @property
    def extents(self) -> dict[UnitsKey, Extent]:
        """The extents of the units, with what is inside them, by parent and process."""
        return self.built.extents

    def unit_blocks(self) -> Iterator[tuple[Block, Block]]:
        """Yield the units by rank, start and number, and the parts of these units in order."""
        return unit_blocks(self.built.units, self.built.parts)

    def session_of(self, number: int, units: UnitsKey | None) -> str | None:  # noqa: ARG002
        """Return the id of the session of a span with a number."""
        key = self.index.one(_OF_SPAN, number)
        return None if key is None else id_of(key)

    def last_step(self, session: str) -> LastStep | None:
        """Return the step of a session that started last."""
        row = next(self.index.rows(_LAST_STEP, key_of(session)), None)
        if row is None:
            return None
        index, parent = row
        return LastStep(index, None if parent is None else id_of(parent))

    def out_of_memory(self) -> Iterator[tuple[int, IndexedMark]]:
        """Yield the out-of-memory marks, each with its number."""
        for no, key, value, ts_ns in self.index.rows(_OUT_OF_MEMORY, OOM):
            span_id = None if key is None else id_of(key)
            yield no, IndexedMark(span_id=span_id, name=OOM, value=value, ts_ns=ts_ns)

    def summary_values(self) -> Iterator[SummaryValue]:
        """Yield the figures of a run of which only a summary was imported."""
        rows = self.index.rows("SELECT name, rank, value FROM summary")
        yield from ((name, rank, value) for name, rank, value in rows)

    def place_of(self, number: int) -> Place | None:
        """Return the place of the record of the span with a number."""
        row = next(self.index.rows(_PLACE, number), None)
        return None if row is None else Place(*row)

    def first_forward(self) -> int | None:
        """Return the number of the first forward pass with an id."""
        found: int | None = self.index.one(_FIRST_FORWARD)
        return found

    def files(self) -> Iterator[str]:
        """Yield the names of the batches."""
        for (name,) in self.index.rows("SELECT name FROM file ORDER BY no"):
            yield name

    def is_recorded(self, id_: str) -> bool:
        """Return whether a span with this id is recorded."""
        return bool(self.index.one("SELECT EXISTS (SELECT 1 FROM span WHERE id = ?)", key_of(id_)))

    def sessions(self) -> list[SessionSummary]:
        """Return all sessions in order of their start; those without an id come last."""
        return sessions_of(self.index)

    def unit_sessions(self, units: Block) -> np.ndarray:
        """Return the number of the session of each unit; -1 for one without a session."""
        if self._sessions is None:
            rows = list(self.index.rows(_SESSIONS))
            self._sessions = np.array(rows, np.int64).reshape(-1, 2)
        places = np.searchsorted(self._sessions[:, 0], units["no"])
        found: np.ndarray = self._sessions[places, 1]
        return found

    def mark_blocks(self) -> Iterator[Block]:
        """Yield the relation `mark`, in the order of the recording."""
        rows = self.index.rows(_MARKS)
        while some := list(itertools.islice(rows, _AT_ONCE)):
            table = np.array([self._mark(row) for row in some], np.int64)
            yield {name: table[:, at] for at, name in enumerate(MARK)}

    def _mark(self, row: tuple[Any, ...]) -> tuple[int, ...]:
        no, unit, rank, name, is_eval, epoch, ts_ns, value, is_text, is_listed, device, on = row
        token = self.texts.token
        return (
            no, _known(unit), _known(rank), token(name), is_eval, token(epoch), _known(ts_ns),
            *self._value(value, is_text=bool(is_text)), int(bool(is_listed)), token(device), on,
        )  # fmt: skip

    def _value(self, text: str | None, *, is_text: bool) -> tuple[int, int]:
        if text is None:
            return NOTHING, ABSENT
        if not is_text:
            with contextlib.suppress(ValueError):
                number = int(text)
                if str(number) == text and -(2**63) < number < 2**63:
                    return INTEGER, number
            with contextlib.suppress(ValueError):
                double = float(text)
                if math.isfinite(double) and shown(double) == text:
                    return DOUBLE, int(np.float64(double).view(np.int64))
        return TEXT, self.texts.token(text)

    def samples(self) -> Iterator[tuple[int, IndexedMark, MemoryMark, IndexedSpan | None]]:
        """Yield the marks about memory, each with the scope that it is on."""
        for no, key, name, value, ts_ns, *memory_and_span in self.index.rows(_SAMPLES):
            memory = MemoryMark(*memory_and_span[:7])
            row = memory_and_span[7:]
            span_id = None if key is None else id_of(key)
            mark = IndexedMark(span_id=span_id, name=name, value=value, ts_ns=ts_ns)
            yield no, mark, memory, None if row[0] is None else _span(row)[1]


def _span(row: Sequence[Any]) -> Numbered:
    no, id_, parent, *rest = row
    ids = (None if key is None else id_of(key) for key in (id_, parent))
    return no, stored_span(rest, *ids)


def _known(value: int | None) -> int:
    return ABSENT if value is None else value
