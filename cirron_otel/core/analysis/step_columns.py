"""The steps of an index as the rows of one table (docs/dataframes.md).

The times are those of the report: `step_tables` has the only rule for the phases of a step.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ..records.rows import number_of
from .epochs import create_epoch_table
from .index import SpoolIndex, id_of
from .mark_series import IS_LISTED
from .step_tables import StepTimes, create_step_tables, step_times

MAX_NAMES: Final = 1000
"""The most phases with a column, and the most names of marks."""
_INT64: Final = range(-(2**63), 2**63)
_EXACT: Final = 2**53
"""Integers beyond it are not exact as doubles."""
_INTEGER: Final = re.compile(r"0|-?[1-9]\d*", re.ASCII)
_NON_FINITE: Final = {
    "nan": "nan", "inf": "inf", "-inf": "-inf", "NaN": "nan", "Infinity": "inf",
    "-Infinity": "-inf",
}  # fmt: skip
_BOOLS: Final = {"true": True, "false": False}
# Each scope with a mark, and the step that it is, or is in. A report lists phases without a name
# as `?`, together with those of this name; here both have columns.
_TABLES: Final = f"""
CREATE TABLE step_of_scope (span BLOB PRIMARY KEY, step INTEGER, is_eval INTEGER) WITHOUT ROWID;
INSERT OR IGNORE INTO step_of_scope
WITH RECURSIVE above (span, id, is_eval, level) AS (
    SELECT span, span, 0, 0 FROM (SELECT DISTINCT span FROM mark WHERE span IS NOT NULL)
    UNION ALL
    SELECT above.span, span.parent, is_eval OR span.name IS 'eval', level + 1
    FROM above JOIN span ON span.id = above.id
    WHERE span.parent IS NOT NULL AND level < 64
    AND NOT EXISTS (SELECT 1 FROM step WHERE step.id = above.id)
)
SELECT above.span, step.no, is_eval FROM above JOIN step ON step.id = above.id;
UPDATE phase SET name = ''
WHERE name = '?' AND (SELECT name FROM span WHERE span.no = phase.no) IS NOT '?';
CREATE TABLE step_mark (
    step INTEGER, name TEXT, is_eval INTEGER, value TEXT, is_text INTEGER, no INTEGER,
    PRIMARY KEY (step, name, is_eval)
) WITHOUT ROWID;
INSERT INTO step_mark
SELECT step, name, is_eval, value, is_text, no FROM (
    SELECT step, coalesce(mark.name, '') AS name, is_eval, mark.value,
        mark.is_text, mark.no,
        row_number() OVER (
            PARTITION BY step, coalesce(mark.name, ''), is_eval
            ORDER BY mark.ts_ns DESC, mark.no DESC
        ) AS place
    FROM step_of_scope JOIN mark USING (span) WHERE {IS_LISTED}
) WHERE place = 1;
"""  # noqa: S608 - a constant
_FIELDS: Final = """
SELECT step.no, span.file, session.key, step.rank, step_epoch.epoch, step.idx, step.id,
    step.start_ns, span.error, span.gpu_ns, span.memory_peak, span.device_peak,
    span.reserved_peak, span.is_peak_sampled
FROM step JOIN span USING (no) LEFT JOIN member USING (no)
LEFT JOIN session ON session.no = member.session
LEFT JOIN step_epoch ON step_epoch.parent = step.parent
ORDER BY step.start_ns, step.no
"""
_MARKS: Final = """
SELECT step.no, name, is_eval, value FROM step JOIN step_mark ON step_mark.step = step.no
ORDER BY step.start_ns, step.no
"""
_PHASE_NAMES: Final = """
SELECT name, count(gpu_ns) FROM phase GROUP BY name ORDER BY min(no) LIMIT ?
"""
_MARK_NAMES: Final = """
SELECT name, is_eval FROM step_mark GROUP BY name, is_eval ORDER BY is_eval, min(no) LIMIT ?
"""
_COUNTS: Final = """
SELECT (SELECT count(DISTINCT name) FROM phase),
    (SELECT count(*) FROM (SELECT 1 FROM step_mark GROUP BY name, is_eval))
"""
_VALUES: Final = "SELECT name, is_eval, value, is_text FROM step_mark"


class TableColumn(NamedTuple):
    """A column of a table of scalars."""

    name: str
    type: str
    """`string`, `int64`, `double` or `bool`."""


FIXED_COLUMNS: Final = (
    TableColumn("run_id", "string"),
    TableColumn("session_id", "string"),
    TableColumn("rank", "int64"),
    TableColumn("epoch", "int64"),
    TableColumn("index", "int64"),
    TableColumn("span_id", "string"),
    TableColumn("start_ns", "int64"),
    TableColumn("duration_ns", "int64"),
    TableColumn("unattributed_ns", "int64"),
    TableColumn("error", "string"),
    TableColumn("gpu_ns", "int64"),
    TableColumn("memory_peak_bytes", "int64"),
    TableColumn("device_peak_bytes", "int64"),
    TableColumn("device_reserved_peak_bytes", "int64"),
    TableColumn("is_peak_sampled", "bool"),
)
"""The columns that every table of steps has, ahead of those of its phases and marks."""

_MarkKey = tuple[str, int]
"""The name of a mark, and whether it was created in an evaluation."""


@dataclass(slots=True)
class _ValueTypes:
    """The types of the values of a mark, in which all of them are exact."""

    is_int: bool = True
    is_double: bool = True
    is_bool: bool = True

    def add(self, value: str | None, *, is_text: bool) -> None:
        """Exclude the types that do not represent a value; `is_text` is whether it is a string."""
        if value is None:
            return
        if is_text:
            self.is_bool = self.is_int = self.is_double = False
            return
        self.is_bool = self.is_bool and value in _BOOLS
        self.is_int = self.is_int and _integer(value) is not None
        if _INTEGER.fullmatch(value):
            self.is_double = self.is_double and abs(int(value)) <= _EXACT
        else:
            is_number = value in _NON_FINITE or number_of(value) is not None
            self.is_double = self.is_double and is_number

    @property
    def type(self) -> str:
        """The first type that represents all values."""
        if self.is_int and self.is_bool:
            return "double"  # no value
        names = {"int64": self.is_int, "double": self.is_double, "bool": self.is_bool}
        return next((name for name, is_exact in names.items() if is_exact), "string")


class StepTable:
    """The steps of an index, one row each."""

    def __init__(self, index: SpoolIndex, runs: Sequence[str | None]) -> None:
        """Create the tables of the steps in an index to which `assign_sessions` was applied.

        `runs` has the id of the run of each batch, in the order in which they were added.
        """
        self._index, self._runs = index, runs
        create_step_tables(index)
        create_epoch_table(index, "step_epoch", "SELECT DISTINCT parent FROM step")
        index.script(_TABLES)
        phases = list(index.rows(_PHASE_NAMES, MAX_NAMES))
        self._phases = [name for name, _ in phases]
        self._timed = [name for name, timed in phases if timed]
        self._marks = self._mark_types()
        self.count = int(index.one("SELECT count(*) FROM step"))
        counts = next(index.rows(_COUNTS))
        self.left_out = sum(max(count - MAX_NAMES, 0) for count in counts)
        """The number of phases and of names of marks that have no column."""

    @property
    def columns(self) -> tuple[TableColumn, ...]:
        """The columns, in the order of the values of a row."""
        return (
            *FIXED_COLUMNS,
            *(TableColumn(f"phase_{name}_ns", "int64") for name in self._phases),
            *(TableColumn(f"gpu_{name}_ns", "int64") for name in self._timed),
            *(
                TableColumn(f"{'eval_' if is_eval else ''}mark_{name}", type_)
                for (name, is_eval), type_ in self._marks.items()
            ),
        )

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values of each step, in order of start."""
        marks = _MarksByStep(self._index.rows(_MARKS))
        for times, fields in zip(step_times(self._index), self._index.rows(_FIELDS), strict=True):
            values = marks.of(times.number)
            yield (
                *self._fixed(times, fields),
                *self._phase_values(times),
                *(_converted(values.get(key), type_) for key, type_ in self._marks.items()),
            )

    def _mark_types(self) -> dict[_MarkKey, str]:
        types = {key: _ValueTypes() for key in self._index.rows(_MARK_NAMES, MAX_NAMES)}
        for name, is_eval, value, is_text in self._index.rows(_VALUES):
            if (each := types.get((name, is_eval))) is not None:
                each.add(value, is_text=is_text)
        return {(key[0], key[1]): each.type for key, each in types.items()}

    def _fixed(self, times: StepTimes, fields: tuple[Any, ...]) -> tuple[Any, ...]:
        _, file, session, rank, epoch, number, key, start_ns, error, *costs, is_sampled = fields
        return (
            self._runs[file],
            None if session is None else id_of(session),
            rank,
            _integer(epoch),
            _integer(number),
            None if key is None else id_of(key),
            start_ns,
            times.ns,
            times.unattributed_ns,
            error,
            *costs,
            bool(is_sampled),
        )

    def _phase_values(self, times: StepTimes) -> Iterator[int | None]:
        totals = times.totals()
        yield from (totals.get(name) for name in self._phases)
        if self._timed:
            device: dict[str, int] = {}
            for phase in times.phases:
                if phase.gpu_ns is not None:
                    device[phase.name] = device.get(phase.name, 0) + phase.gpu_ns
            yield from (device.get(name) for name in self._timed)


class _MarksByStep:
    """The marks of steps, which are requested in the order of the rows."""

    def __init__(self, rows: Iterator[tuple[Any, ...]]) -> None:
        self._groups = itertools.groupby(rows, key=lambda row: row[0])
        self._next = next(self._groups, None)

    def of(self, number: int) -> Mapping[_MarkKey, str | None]:
        if self._next is None or self._next[0] != number:
            return {}
        values = {(name, is_eval): value for _, name, is_eval, value in self._next[1]}
        self._next = next(self._groups, None)
        return values


def _integer(text: str | None) -> int | None:
    """Return the integer of 64 bits that a text represents, or None."""
    if text is None or not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if number in _INT64 else None


def _converted(value: str | None, type_: str) -> Any:
    if value is None or type_ == "string":
        return value
    if type_ == "int64":
        return int(value)
    return _BOOLS[value] if type_ == "bool" else float(_NON_FINITE.get(value, value))
