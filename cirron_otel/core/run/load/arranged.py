"""Reads a recording whose records are repeated, late or inside each other.

All its records are read into columns first. The result is that of the reducer, whose rules for
units, parts and marks it uses.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from ....semconv import OVERHEAD_NS
from ...analysis.breakdown import FORWARD, STEP
from ...analysis.summary import SessionSummary
from ...records.memory_marks import MemoryMark
from ...records.rows import IndexedMark, IndexedSpan
from ...records.run_summary import SummaryValue
from ...spool.reader import BatchFile
from ..relations import ABSENT, INTEGER, NO_TEXT, TEXT, Block, Texts
from .blocks import unit_blocks
from .marks import EPOCH, EVAL
from .phases import Numbered
from .places import Place
from .records import Records
from .tree import Extent, LastStep, ScopeTree, UnitsKey
from .unit_builder import NotedSpan, UnitBuilder
from .usage import MARKS, summed

_AT_ONCE: Final = 10_000


class ArrangedRecording:
    """The relations of a recording, from its records in columns."""

    def __init__(
        self, batches: Iterable[BatchFile], texts: Texts, wanted_unit: str | None = None
    ) -> None:
        """Read the records; `wanted_unit` is the name of the units of another service, if chosen.

        Raises the errors of reading them, and TargetError for a full disk.
        """
        self.texts = texts
        self._records = records = Records(batches, texts, wanted_unit)
        self._unit, self._in_eval = self._units()
        self.built = UnitBuilder(texts)
        self.sums = records.sums
        rows = records.rows
        for first in range(0, len(rows), _AT_ONCE):
            some = rows[first : first + _AT_ONCE].tolist()
            self.sums.add([records.span(row) for row in some])
        records.count_recorded(self.sums)
        ordered = rows[np.argsort(self._unit[rows], kind="stable")]
        waiting: dict[str | None, list[Numbered]] = {}
        for unit, of_unit in itertools.groupby(ordered, key=self._unit.__getitem__):
            by_parent: dict[str | None, list[Numbered]] = waiting if unit < 0 else {}
            for row in of_unit:
                if row != unit:
                    span = records.span(int(row))
                    by_parent.setdefault(span.parent_id, []).append((int(row) + 1, span))
            if unit >= 0:
                span = records.span(int(unit))
                inside = by_parent.pop(span.id, [])
                self.built.add(int(unit) + 1, span, inside, by_parent)
        self.tree = ScopeTree(waiting)

    def _units(self) -> tuple[np.ndarray, np.ndarray]:
        """Return each scope's unit, and whether an evaluation inside the unit contains the scope.

        A unit is the outermost step; -1 means none. A unit and an evaluation contain themselves.
        """
        records, token = self._records, self.texts.token
        count, is_counted = len(records.id), np.zeros(len(records.id), bool)
        is_counted[records.rows] = True
        names, starts, ends = (records.column(each) for each in ("name", "start_ns", "end_ns"))
        is_too_long = (ends >= 0) & (starts < 0) & (ends - starts < 0)
        is_timed = is_counted & (starts != ABSENT) & (ends != ABSENT) & ~is_too_long
        places = np.arange(count)
        unit = np.append(np.where(is_timed & (names == token(STEP)), places, -1), -1)
        above = np.where((records.above < 0) | (records.above == places), count, records.above)
        above = np.append(above, count)
        direct = above
        for _ in range(count.bit_length() + 1):
            unit = np.where(unit[above] >= 0, unit[above], unit)
            above = above[above]
        is_unit = unit[:-1] == places
        for row in np.flatnonzero(is_unit & (above[:-1] != count)).tolist():
            is_unit[row] = not _is_in_cycle(row, direct)
        is_unit = np.append(is_unit, False)
        unit = np.where((unit >= 0) & is_unit[unit], unit, -1)
        in_eval = np.append(names == token(EVAL), False)
        if in_eval.any():
            # The chains end at the units, because there may be a cycle above a unit.
            in_eval &= unit >= 0
            above = np.where(is_unit | (unit < 0), count, direct)
            for _ in range(count.bit_length() + 1):
                in_eval |= in_eval[above]
                above = above[above]
        return unit, in_eval

    @property
    def unit_name(self) -> str:
        """The recorded name of most units."""
        return self._records.unit_name

    @property
    def noted(self) -> list[NotedSpan]:
        """The spans inside units that figures need."""
        return self.built.noted

    @property
    def extents(self) -> dict[UnitsKey, Extent]:
        """The extents of the units, with what is inside them, by parent and process."""
        return self.built.extents

    def unit_blocks(self, *, by_rank: bool = True) -> Iterator[tuple[Block, Block]]:
        """Yield the units by rank, start and number, or by start, and their parts in order."""
        return unit_blocks(self.built.units, self.built.parts, by_rank=by_rank)

    def mark_blocks(self) -> Iterator[Block]:
        """Yield the relation `mark`, in the order of the recording."""
        records, token = self._records, self.texts.token
        names, idx, ranks = (
            np.append(records.column(each), none)
            for each, none in (("name", ABSENT), ("idx", NO_TEXT), ("rank", ABSENT))
        )
        above = np.append(records.above, -1)
        not_finite = [token(each) for each in ("nan", "inf", "-inf")]
        for first in range(0, len(records.mark_rows), _AT_ONCE):
            rows = records.mark_rows[first : first + _AT_ONCE]
            column = {each: records.mark_column(each)[rows] for each in _MARK_COLUMNS}
            is_odd = (column["type"] == TEXT) & np.isin(column["value"], not_finite)
            is_due = (column["name"] != token(OVERHEAD_NS)) | is_odd
            scope = records.first_by_id[records.mark_scope[rows]]
            chain = scope, above[scope], above[above[scope]]
            epoch = np.full(len(rows), NO_TEXT)
            for each in reversed(chain):
                epoch = np.where(names[each] == token(EPOCH), idx[each], epoch)
            unit = self._unit[scope]
            block = column | {
                "no": rows + 1,
                "unit": np.where(unit < 0, ABSENT, unit + 1),
                "rank": ranks[scope],
                "is_eval": np.any([names[each] == token(EVAL) for each in chain], axis=0),
                "epoch": epoch,
                "on_scope": scope >= 0,
                "inner_eval": self._in_eval[scope],
            }
            yield {name: values[is_due].astype(np.int64) for name, values in block.items()}

    def sessions(self) -> list[SessionSummary]:
        """Return all sessions in order of their start; those without an id come last."""
        return self._records.summaries()

    def session_of(self, number: int, units: UnitsKey | None) -> str | None:  # noqa: ARG002
        """Return the id of the session of a span with a number."""
        session = int(self._records.session[number - 1])
        return None if session < 0 else self._records.sessions[session].key

    def unit_sessions(self, units: Block) -> np.ndarray:
        """Return the number of the session of each unit; -1 for one without a session."""
        sessions: np.ndarray = self._records.session[units["no"] - 1]
        return sessions

    def unit_files(self, units: Block) -> list[str]:
        """Return the name of the batch of each unit."""
        rows = [self._records.recorded_row(no - 1) for no in units["no"].tolist()]
        return self._records.places.files_of(np.array(rows, np.int64))

    def last_step(self, session: str) -> LastStep | None:
        """Return the step of a session that started last."""
        records = self._records
        number = [each.key for each in records.sessions].index(session)
        rows = records.rows[records.session[records.rows] == number]
        rows = rows[records.column("name")[rows] == self.texts.token(STEP)]
        if not len(rows):
            return None
        last = rows[np.lexsort((rows, records.column("start_ns")[rows]))[-1]]
        outer = last if self._unit[last] < 0 else self._unit[last]
        index = self.texts.text(int(records.column("idx")[last]))
        return LastStep(index, records.id_of(int(records.parent[outer])))

    def unit_tokens(self) -> int | None:
        """Return the sum of the tokens of requests; None if there are none.

        The marks of a request count, or else its attributes, or else those of the scopes inside.
        """
        records, above = self._records, self._records.above
        if self.unit_name == STEP:
            return None
        of_unit: dict[int, int] = {}
        for row, tokens in records.usage.items():
            unit = int(self._unit[row])
            if unit >= 0 and unit != row and int(above[row]) not in records.usage:
                of_unit[unit] = of_unit.get(unit, 0) + tokens
        of_unit |= {row: n for row, n in records.usage.items() if self._unit[row] == row}
        of_unit |= self._marked_tokens()
        return sum(of_unit.values()) if of_unit else None

    def _marked_tokens(self) -> dict[int, int]:
        """Return the tokens of the units that have marks with them."""
        records, names = self._records, {self.texts.token(each): each for each in MARKS}
        rows = records.mark_rows
        scope = records.first_by_id[records.mark_scope[rows]]
        is_due = np.isin(records.mark_column("name")[rows], list(names)) & (scope >= 0)
        is_due &= (records.mark_column("type")[rows] == INTEGER) & (self._unit[scope] == scope)
        marks: dict[int, dict[str, int]] = {}
        columns = (records.mark_column(each)[rows[is_due]] for each in ("name", "value"))
        for unit, name, value in zip(scope[is_due], *columns, strict=True):
            marks.setdefault(int(unit), {})[names[int(name)]] = max(int(value), 0)
        found = {}
        for unit, each in marks.items():
            parts = summed(each.get(name) for name in MARKS[1:])
            found[unit] = each.get(MARKS[0], parts or 0)
        return found

    def samples(self) -> Iterator[tuple[int, IndexedMark, MemoryMark, IndexedSpan | None]]:
        """Yield the marks about memory, each with the scope that it is on."""
        records = self._records
        for no, mark, memory, _ in records.marks.samples:
            if records.is_kept[no]:
                row = int(records.first_by_id[records.mark_scope[no - 1]])
                yield no, mark, memory, None if row < 0 else records.span(row)

    def out_of_memory(self) -> Iterator[tuple[int, IndexedMark]]:
        """Yield the out-of-memory marks, each with its number."""
        records = self._records
        return (each for each in records.marks.out_of_memory if records.is_kept[each[0]])

    def summary_values(self) -> list[SummaryValue]:
        """Return the figures of a run of which only a summary was imported."""
        return self._records.summary

    def place_of(self, number: int) -> Place | None:
        """Return the place of the record of the span with a number."""
        return self._records.places.of(self._records.recorded_row(number - 1))

    def first_forward(self) -> int | None:
        """Return the number of the first forward pass with an id."""
        records = self._records
        names = records.column("name")[records.rows]
        is_forward = (names == self.texts.token(FORWARD)) & (records.id[records.rows] >= 0)
        found = records.rows[is_forward]
        return int(found[0]) + 1 if len(found) else None

    def files(self) -> list[str]:
        """Return the names of the batches."""
        return self._records.places.names


_MARK_COLUMNS: Final = ("name", "ts_ns", "type", "value", "is_listed", "device")


def _is_in_cycle(row: int, above: np.ndarray) -> bool:
    """Return whether a scope is around itself; `above` has the scope around each scope."""
    seen: set[int] = set()
    at = int(above[row])
    while at != row and at not in seen:
        seen.add(at)
        at = int(above[at])
    return at == row
