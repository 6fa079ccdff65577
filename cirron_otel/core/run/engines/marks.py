"""The marks of an engine, each with its unit and the scopes around it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from functools import cached_property
from operator import itemgetter
from typing import Any, Final, TypeAlias

import ibis
import numpy as np

from ....semconv import OOM, OVERHEAD_NS
from ...analysis.breakdown import STEP
from ...engines.engine import PLACES, SPAN, Table
from ...engines.expanded_rows import MEMORY_NAMES, value_of
from ...engines.expressions import FALSE, as_number, has_name
from ...engines.source import OpenedRun
from ...records.digest_marks import MARK_NAMES
from ...records.memory_marks import MemoryMark, memory_mark
from ...records.rows import IndexedMark, IndexedSpan, shown
from ..load.marks import has_series
from ..relations import ABSENT, DOUBLE, INTEGER, NO_TEXT, NOTHING, STRING, TEXT, Block, Texts
from .columns import integers, tokens
from .inside import UnitScopes
from .spans import span_of

_NON_FINITE: Final = ("nan", "inf", "-inf")
_VALUE: Final = ("text", "number", "integer", "flag")
_TYPED: Final = (*_VALUE, "is_string")
_SCOPE: Final = ("no", "id", "parent", "rank", "name", "idx")
_SAMPLES: Final = (
    "SELECT file, position, kind, device, allocated, reserved, device_used, device_total,"
    " resident, memory_limit, limit_used, detail"
    " FROM sample ORDER BY file, position"
)
_MARK: Final = ("no", "span", "name", "ts_ns", *_VALUE)
_END: Final[tuple[int, Any]] = (1 << 63, None)
_Row: TypeAlias = tuple[Any, ...]
"""A row of some columns, of which the first ones are those of `_MARK`."""


class EngineMarks:
    """The marks of a run."""

    def __init__(self, run: OpenedRun, scopes: UnitScopes, texts: Texts) -> None:
        self._run, self._engine, self._relations = run, run.engine, run.relations
        self._scopes, self._texts = scopes, texts

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield the relation `mark`, in the order of the recording."""
        for batch in self._engine.record_batches(self._placed.order_by("no"), size):
            if batch.num_rows:
                yield self._block({name: batch.column(name) for name in batch.schema.names})

    def _block(self, columns: dict[str, Any]) -> Block:
        texts, no = self._texts, integers(columns["no"])
        names = tokens(columns["name"], texts)
        types, values = self._values(columns)
        return {
            "no": no,
            "unit": integers(columns["unit"]),
            "rank": integers(columns["rank"]),
            "name": names,
            "is_eval": integers(columns["is_eval"]),
            "epoch": tokens(columns["epoch"], texts),
            "ts_ns": integers(columns["ts_ns"]),
            "type": types,
            "value": values,
            "is_listed": self._is_listed(names, no),
            "device": tokens(columns["device"], texts),
            "on_scope": integers(columns["on_scope"]),
            "inner_eval": integers(columns["inner_eval"]),
        }

    def _values(self, columns: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return the types and the values of marks."""
        text = tokens(columns["text"], self._texts)
        is_string = integers(columns["is_string"]) == 1
        types = np.where(text == NO_TEXT, NOTHING, np.where(is_string, STRING, TEXT))
        values = np.where(text == NO_TEXT, ABSENT, text)
        flag = integers(columns["flag"])
        types[flag != ABSENT] = TEXT
        for value in (False, True):
            values[flag == int(value)] = self._texts.token(shown(value))
        integer = integers(columns["integer"])
        is_integer = _is_valid(columns["integer"])
        types[is_integer], values[is_integer] = INTEGER, integer[is_integer]
        is_double = _is_valid(columns["number"])
        doubles = columns["number"].fill_null(0.0).to_numpy(zero_copy_only=False)
        types[is_double] = DOUBLE
        values[is_double] = doubles.astype(np.float64).view(np.int64)[is_double]
        return types, values

    def _is_listed(self, names: np.ndarray, no: np.ndarray) -> np.ndarray:
        """Return 1 for the marks that have a series."""
        distinct, which = np.unique(names, return_inverse=True)
        named = [self._texts.text(each) for each in distinct.tolist()]
        is_listed = np.array([has_series(name) and name not in MARK_NAMES for name in named])
        is_listed = is_listed[which.reshape(-1)]
        is_memory = np.array([name in MEMORY_NAMES for name in named])[which.reshape(-1)]
        if is_memory.any():
            is_listed &= ~(is_memory & np.isin(no, self._sample_numbers))
        return is_listed.astype(np.int64)

    @cached_property
    def _placed(self) -> Table:
        """The marks with their units, the ranks of their scopes, and the scopes around them.

        Most are on units or on scopes outside of them, which need no search among all spans.
        """
        mark, engine, relations = self._run.mark, self._engine, self._relations
        is_overhead = has_name(mark.name, OVERHEAD_NS)
        is_odd = mark.text.isin(_NON_FINITE) & ~mark.is_string
        used = mark.filter(~is_overhead | is_odd.fill_null(FALSE))
        units = relations.step.mutate(name=ibis.literal(STEP)).select(*_SCOPE)
        known = units.mutate(unit=units.no, in_eval=FALSE).union(
            self._with_units(relations.others, self._scopes.deep)
        )
        rows = _joined(used, _around(known, relations.around))
        unknown = used.filter(used.span.notnull()).select("span")
        unknown = engine.store(unknown.anti_join(known, unknown.span == known.id).distinct())
        if not engine.count(unknown):
            return rows
        span = relations.span.semi_join(unknown, relations.span.id == unknown.span)
        if not engine.count(span):
            return rows
        rest = engine.store(_around(self._with_units(span, self._scopes.inside), relations.span))
        is_of_rest = rest.select("scope")
        others = used.semi_join(is_of_rest, used.span == is_of_rest.scope)
        return rows.anti_join(others, "no").union(_joined(others, rest))

    def _with_units(self, spans: Table, inside: Table | None) -> Table:
        """Return spans with the units that they are inside, or that they are."""
        spans = spans.select(*_SCOPE)
        if inside is None:
            return spans.mutate(unit=ibis.null("int64"), in_eval=FALSE)
        joined = spans.left_join(inside, spans.no == inside.no)
        in_eval = inside.in_eval.fill_null(FALSE)
        return joined.select(*(spans[name] for name in _SCOPE), inside.unit, in_eval=in_eval)

    def out_of_memory(self) -> Iterator[tuple[int, IndexedMark]]:
        """Yield the out-of-memory marks, each with its number."""
        mark = self._run.mark
        for row in self._engine.streamed(
            _plain(mark.filter(has_name(mark.name, OOM))).order_by("mark_no")
        ):
            yield row[0], _mark_of(row)

    def samples(self) -> Iterator[tuple[int, IndexedMark, MemoryMark, IndexedSpan | None]]:
        """Yield the marks about memory, each with the scope that it is on, in order."""
        if self._memory_marks is None:
            return
        marks, span = self._memory_marks, self._relations.span
        scopes = span.semi_join(marks, span.id == marks.mark_span).select(*SPAN)
        scopes = self._engine.store(scopes)
        joined = marks.left_join(scopes, marks.mark_span == scopes.id)
        rows = joined.select(marks, *(scopes[name] for name in SPAN)).order_by("mark_no")
        for row, memory in self._memory(self._engine.streamed(rows)):
            scope = row[len(_MARK) :]
            yield row[0], _mark_of(row), memory, None if scope[0] is None else span_of(scope)

    @cached_property
    def _sample_numbers(self) -> np.ndarray:
        if self._memory_marks is None:
            return np.empty(0, np.int64)
        rows = self._engine.streamed(self._memory_marks.order_by("mark_no"))
        return np.fromiter((row[0] for row, _ in self._memory(rows)), np.int64)

    @cached_property
    def _memory_marks(self) -> Table | None:
        """The marks whose names are those of memory marks; None if the run has no such mark."""
        mark = self._run.mark
        found = self._engine.store(_plain(mark.filter(mark.name.isin(MEMORY_NAMES))))
        return found if self._engine.count(found) else None

    def _memory(self, rows: Iterable[_Row]) -> Iterator[tuple[_Row, MemoryMark]]:
        """Yield the marks about memory among some, which have the order of the recording."""
        details = heapq.merge(self._attributes(), self._odd_samples(), key=itemgetter(0))
        number, detail = next(details, _END)
        for row in rows:
            while number < row[0]:
                number, detail = next(details, _END)
            if number == row[0]:
                memory = detail
                if not isinstance(detail, MemoryMark):
                    memory = memory_mark(row[2], value_of(*row[4:8]), detail)
                if memory is not None:
                    yield row, memory

    def _attributes(self) -> Iterator[tuple[int, Any]]:
        """Yield the attributes of the marks of all batches but the odd ones, by number."""
        for batch, place, attributes in self._run.files.attributes_of_marks(MEMORY_NAMES):
            yield batch * PLACES + place, attributes

    def _odd_samples(self) -> Iterator[tuple[int, Any]]:
        """Yield the marks about memory of the odd batches, by number."""
        for batch, place, *fields in self._run.index.rows(_SAMPLES):
            yield batch * PLACES + place, MemoryMark(*fields)


def _plain(mark: Table) -> Table:
    return mark.select(**{f"mark_{name}": mark[name] for name in _MARK})


def _mark_of(row: _Row) -> IndexedMark:
    _, span, name, ts_ns, *value = row[: len(_MARK)]
    return IndexedMark(span_id=span, name=name, value=value_of(*value), ts_ns=ts_ns)


def _around(scope: Table, around: Table) -> Table:
    """Return scopes with the epoch that they are in, and whether they are in an evaluation.

    `around` has the scopes around them.
    """
    second, third = around.view(), around.view()
    joined = scope.left_join(second, scope.parent == second.id)
    joined = joined.left_join(third, second.parent == third.id)
    three = (scope, second, third)
    is_eval = ibis.or_(*(has_name(each.name, "eval") for each in three))
    return joined.select(
        scope=scope.id, rank=scope.rank, unit=scope.unit, is_eval=as_number(is_eval),
        inner_eval=as_number(scope.in_eval),
        epoch=ibis.cases(*((has_name(each.name, "epoch"), each.idx) for each in three)),
    )  # fmt: skip


def _joined(mark: Table, scopes: Table) -> Table:
    """Return marks with their scopes."""
    joined = mark.left_join(scopes, mark.span == scopes.scope)
    return joined.select(
        no=mark.no, unit=scopes.unit, rank=scopes.rank, name=mark.name,
        is_eval=scopes.is_eval.fill_null(0), inner_eval=scopes.inner_eval.fill_null(0),
        epoch=scopes.epoch, ts_ns=mark.ts_ns,
        device=mark.device, on_scope=as_number(scopes.scope.notnull()),
        **{name: mark[name] for name in _TYPED},
    )  # fmt: skip


def _is_valid(column: Any) -> np.ndarray:
    found: np.ndarray = column.is_valid().to_numpy(zero_copy_only=False)
    return found
