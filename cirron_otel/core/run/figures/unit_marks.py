"""The last mark of each name of each unit: a fold over blocks of the relation `mark`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from ...records.rows import number_of
from ..load.blocks import ranges
from ..load.columns import Columns
from ..relations import ABSENT, DOUBLE, INTEGER, NO_TEXT, NOTHING, TEXT, Block, Texts
from .series import value_of

MarkKey: TypeAlias = tuple[int, int]
"""The token of a mark's name, and whether it was created in an evaluation inside the unit."""
_UNIT, _NAME, _EVAL, _TIME, _NO, _TYPE, _VALUE = range(7)
_COLUMNS: Final = ("unit", "name", "inner_eval", "ts_ns", "no", "type", "value")
_AT_ONCE: Final = 1 << 16
_INT64: Final = range(-(2**63), 2**63)
_EXACT: Final = 2**53
"""Integers beyond it are not exact as doubles."""
_DIGITS: Final = re.compile(r"0|-?[1-9]\d*", re.ASCII)
_NON_FINITE: Final = frozenset({"nan", "inf", "-inf", "NaN", "Infinity", "-Infinity"})
_BOOLS: Final = {"true": True, "false": False}
_TYPES: Final = frozenset({"int64", "double", "bool"})
_CONVERSIONS: Final[Mapping[str, Callable[[str], Any]]] = {
    "int64": int, "double": float, "bool": _BOOLS.__getitem__, "string": str,
}  # fmt: skip


class UnitMarksFold:
    """The last mark of each name on each unit, or on a scope inside it.

    Those in evaluations inside the unit are apart. The name of a mark without a name is empty.
    """

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._rows = Columns("unit_mark")
        self._table: Any = None
        self._places = self._units = np.zeros(0, np.int64)
        """The rows of the last marks in the table, and their units, in the order of the units."""

    def add(self, block: Block) -> None:
        """Add marks, in any order."""
        is_due = (block["is_listed"] == 1) & (block["unit"] != ABSENT)
        table = np.stack([block[name][is_due] for name in _COLUMNS], axis=1)
        table[table[:, _NAME] == NO_TEXT, _NAME] = self._texts.token("")
        self._rows.append(table[_last(table)])

    def types(self) -> dict[MarkKey, str]:
        """Return the type of the values of each name, after the last block.

        The type represents all values exactly. The names are in the order of their first marks,
        those of evaluations last.
        """
        self._table = table = self._rows.table()
        self._places = _last(table)
        self._units = table[self._places, _UNIT]
        firsts: dict[MarkKey, int] = {}
        types: dict[MarkKey, frozenset[str]] = {}
        for first in range(0, len(self._places), _AT_ONCE):
            some = table[self._places[first : first + _AT_ONCE]]
            for key, of_key in _by_key(some):
                no = int(some[of_key, _NO].min())
                firsts[key] = min(firsts.get(key, no), no)
                types[key] = types.get(key, _TYPES) & _exact_types(self._texts, some[of_key])
        order = sorted(firsts, key=lambda key: (key[1], firsts[key]))
        return {key: _first_of(types[key]) for key in order}

    def columns(self, units: Block, types: Mapping[MarkKey, str]) -> Iterator[list[Any]]:
        """Yield the values of units by name, in the order of `types`, after the last block."""
        begins = np.searchsorted(self._units, units["no"])
        counts = np.searchsorted(self._units, units["no"], side="right") - begins
        of_unit = np.repeat(np.arange(len(counts)), counts)
        some = self._table[self._places[ranges(begins, counts)]]
        by_key, nowhere = dict(_by_key(some)), np.zeros(0, np.int64)
        for key, type_ in types.items():
            values: list[Any] = [None] * len(counts)
            places = by_key.get(key, nowhere)
            for unit, value in zip(
                of_unit[places].tolist(), _converted(self._texts, some[places], type_), strict=True
            ):
                values[unit] = value
            yield values


def _last(table: Any) -> np.ndarray:
    """Return the places of the last mark of each unit and name, in the order of the units."""
    order = np.lexsort([table[:, each] for each in (_NO, _TIME, _EVAL, _NAME, _UNIT)])
    is_last = np.arange(len(order)) == len(order) - 1
    for key in (_UNIT, _NAME, _EVAL):
        column = table[:, key][order]
        is_last[:-1] |= column[1:] != column[:-1]
    found: np.ndarray = order[is_last]
    return found


def _by_key(table: np.ndarray) -> Iterator[tuple[MarkKey, np.ndarray]]:
    """Yield the places of the rows with each name, those of evaluations apart."""
    keys = table[:, [_NAME, _EVAL]]
    order = np.lexsort(keys.T)
    is_new = (keys[order[1:]] != keys[order[:-1]]).any(axis=1)
    for places in np.split(order, np.flatnonzero(is_new) + 1):
        if len(places):
            name, is_eval = keys[places[0]].tolist()
            yield (name, is_eval), places


def _exact_types(texts: Texts, marks: np.ndarray) -> frozenset[str]:
    """Return the types that represent the values of marks exactly, apart from strings."""
    found = _TYPES
    for kind in np.unique(marks[:, _TYPE]).tolist():
        values = marks[marks[:, _TYPE] == kind, _VALUE]
        if kind == INTEGER:
            is_exact = bool(((values >= -_EXACT) & (values <= _EXACT)).all())
            found &= {"int64", "double"} if is_exact else {"int64"}
        elif kind == TEXT:
            for token in np.unique(values).tolist():
                found &= set(_types_of_text(texts.text(token) or ""))
        elif kind != NOTHING:
            found &= {"double"} if kind == DOUBLE else set()
    return found


def _first_of(types: frozenset[str]) -> str:
    """Return the first of the types that represent all values; `double` if there is no value."""
    order = ("double",) if types == _TYPES else ("int64", "double", "bool")
    return next((each for each in order if each in types), "string")


def _types_of_text(value: str) -> Iterator[str]:
    """Yield the types that represent a value that is not a string."""
    if value in _BOOLS:
        yield "bool"
    if integer_of(value) is not None:
        yield "int64"
    is_large = _DIGITS.fullmatch(value) is not None and abs(int(value)) > _EXACT
    if value in _NON_FINITE or (number_of(value) is not None and not is_large):
        yield "double"


def integer_of(text: str | None) -> int | None:
    """Return the integer of 64 bits that a text represents, or None."""
    if text is None or not _DIGITS.fullmatch(text):
        return None
    number = int(text)
    return number if number in _INT64 else None


def _converted(texts: Texts, marks: Any, type_: str) -> Any:
    """Return the values of marks, which a type represents."""
    kinds, values = marks[:, _TYPE], marks[:, _VALUE]
    if type_ == "double" and (kinds == DOUBLE).all():
        return values.copy().view(np.float64).tolist()
    if type_ == "int64" and (kinds == INTEGER).all():
        return values.tolist()
    convert, pairs = _CONVERSIONS[type_], zip(kinds.tolist(), values.tolist(), strict=True)
    found = (value_of(texts, kind, value) for kind, value in pairs)
    return [None if text is None else convert(text) for text in found]
