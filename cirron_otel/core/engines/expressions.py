"""Small expressions that several queries need, with the meaning that the index of a spool gives
them: a comparison with NULL, and the order of NULL, differ between engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import ibis

from ..analysis.breakdown import CHECKPOINT, CLOSED_SCOPES, CLOSURE_ENDS, PHASES

Value: TypeAlias = Any
"""A column expression of Ibis."""

TRUE: Value = ibis.literal(value=True)
FALSE: Value = ibis.literal(value=False)


def union_of(tables: Sequence[Any]) -> Any:
    """Return the rows of all tables, at least one, by an expression of small depth.

    A chain of hundreds of unions is deeper than Python's recursion.
    """
    if len(tables) == 1:
        return tables[0]
    middle = len(tables) // 2
    return union_of(tables[:middle]).union(union_of(tables[middle:]))


def non_negative(value: Value) -> Value:
    """Return a number, or 0 if it is negative; NULL stays NULL."""
    return ibis.ifelse(value < 0, 0, value)


def as_number(flag: Value) -> Value:
    """Return 1 if a flag is true, or else 0; not all engines cast booleans."""
    return ibis.ifelse(flag, 1, 0)


def larger(one: Value, other: Value) -> Value:
    """Return the larger number; NULL if one is NULL."""
    return ibis.cases((one < other, other), (one >= other, one))


def ascending(value: Value) -> Value:
    """Return the order by a column, NULL first."""
    return ibis.asc(value, nulls_first=True)


def duration(span: Any) -> Value:
    """Return the duration of a span, not negative; NULL without both times."""
    return non_negative(span.end_ns - span.start_ns)


def named(name: Value) -> Value:
    """Return the name under which a report lists a scope."""
    return name.nullif("").fill_null("?")


def has_name(name: Value, expected: str) -> Value:
    """Return whether a name equals a text; false for NULL."""
    return (name == expected).fill_null(FALSE)


def _is_checkpoint(name: Value) -> Value:
    return name.lower().contains(CHECKPOINT)


def is_phase(name: Value) -> Value:
    """Like `breakdown.is_phase`."""
    return (name.isin(sorted(PHASES)) | _is_checkpoint(name)).fill_null(FALSE)


def holds_phases(name: Value) -> Value:
    """Like `breakdown.holds_phases`."""
    return ~(name.isin(sorted(CLOSED_SCOPES)) | _is_checkpoint(name)).fill_null(FALSE)


def ends_closure(name: Value) -> Value:
    """Like `breakdown.ends_closure`."""
    return name.isin(sorted(CLOSURE_ENDS)).fill_null(FALSE)
