"""The relations of a run: the contract between the engines and the figures.

A reader turns the spans and marks of a recording into relations. Figures read them in blocks of
rows. A block is a mapping from the name of a column to an array; all arrays of a block have the
same length.

Texts are tokens: numbers that `Texts` translates. A missing integer is `ABSENT`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from ...ids import is_id
from ..records.rows import shown

Block: TypeAlias = Mapping[str, np.ndarray]
"""Some rows of a relation, column by column."""
ABSENT: Final = -(2**63)
"""A missing integer. No time, rank or size of a recording is this number."""
INT64: Final = range(ABSENT + 1, 2**63)
"""The integers of a relation."""
NO_TEXT: Final = -1
"""The token of a missing text."""
MOST_LEVELS: Final = 64
"""The maximum number of scopes around a scope among which its epoch is searched."""
_MOST_DIGITS: Final = 17
_MOST_DIGITAL: Final = 10**_MOST_DIGITS
_HALVES: Final = struct.Struct(">qq")

UNIT: Final[Mapping[str, str]] = {
    "no": "int64", "id_high": "int64", "id_low": "int64", "parent": "int64", "rank": "int64",
    "pid": "int64", "thread": "int64", "idx": "int64", "start_ns": "int64", "ns": "int64",
    "gpu_ns": "int64", "error": "int64",
    "memory_peak": "int64", "device_peak": "int64", "reserved_peak": "int64", "flags": "int64",
    "training": "int64", "parts": "int64",
}  # fmt: skip
"""One row for each unit: a step that is not inside another one.

`no` orders all spans of the recording. `id_high` and `id_low` are the halves of the id; of any
other text they are `ABSENT` and its token. `parent` is the token of the parent's id; `idx` and
`error` are tokens. `flags` is a sum of `SAMPLED`, `SUMS` and `SUMMARY`. `training` is the number of
the training within its process, from 0. `parts` is the number of rows that the unit has in the
relation `part`."""
SAMPLED: Final = 1
"""The flag of a unit whose peaks are the largest samples, and not exact."""
SUMS: Final = 2
"""The flag of a unit of which only the sums of its phases are recorded."""
SUMMARY: Final = 4
"""The flag of a unit that an export budget sent as a summary."""

PART: Final[Mapping[str, str]] = {
    "unit": "int64", "no": "int64", "name": "int64", "ns": "int64", "gpu_ns": "int64",
    "start_ns": "int64", "wall_ns": "int64",
}  # fmt: skip
"""One row for each phase or own scope of a unit.

`ns` and `gpu_ns` do not include the time of the phases inside it, `wall_ns` does. `unit` is the
`no` of the unit. `name` is `NO_TEXT` for a scope without a name, which reports list
as `?`. The rows have the order of the units, and of `no` within a unit."""


MARK: Final[Mapping[str, str]] = {
    "no": "int64", "unit": "int64", "rank": "int64", "name": "int64", "is_eval": "int64",
    "epoch": "int64", "ts_ns": "int64", "type": "int64", "value": "int64", "is_listed": "int64",
    "device": "int64", "on_scope": "int64", "inner_eval": "int64",
}  # fmt: skip
"""One row for each mark that figures use.

`unit` is the `no` of the unit around the mark. `name` and `epoch` are tokens. `is_eval` is 1 if the
mark's scope, or one of the two scopes around it, is an evaluation; `inner_eval` if the mark's scope
is, or any scope around it inside the unit. `is_listed` is 0 for a mark that has no series. `device`
is the token of the device that a reading is of, or of a training's name. `on_scope` is 1 if the
mark's scope is recorded. `value` depends on `type`: it is the bits of a double, an integer, or a
token."""
NOTHING: Final = 0
"""The type of a mark without a value."""
DOUBLE: Final = 1
INTEGER: Final = 2
TEXT: Final = 3
"""The type of a value that is neither a number of 64 bits nor a string, as text."""
STRING: Final = 4
"""The type of a string."""


def known(value: int) -> int | None:
    """Return an integer of a relation; None for a missing one."""
    return None if value == ABSENT else value


def integer_of(value: Any) -> int:
    """Return a value as an integer of a relation; `ABSENT` for any other value."""
    return ABSENT if value is None or value not in INT64 else value


@dataclass(slots=True)
class Texts:
    """The texts of a run and their tokens.

    The token of a number in decimal digits is that number, so that the indexes of a million steps
    take no memory.
    """

    _numbers: dict[str, int] = field(default_factory=dict)
    _texts: list[str] = field(default_factory=list)

    def token(self, text: str | None) -> int:
        """Return the token of a text; a new text gets a new one."""
        if text is None:
            return NO_TEXT
        found = self._numbers.get(text)
        if found is not None:
            return found
        if (
            text.isdecimal()
            and text.isascii()
            and len(text) <= _MOST_DIGITS
            and (text[0] != "0" or text == "0")
        ):
            return int(text)
        number = -2 - len(self._texts)
        self._texts.append(text)
        self._numbers[text] = number
        return number

    def token_of(self, value: Any) -> int:
        """Return the token of a value as text for display (`shown`)."""
        if type(value) is int and 0 <= value < _MOST_DIGITAL:
            return value
        if type(value) is str:
            found = self._numbers.get(value)
            if found is not None:
                return found
        return self.token(shown(value))

    def text(self, token: int) -> str | None:
        """Return the text of a token."""
        if token == NO_TEXT:
            return None
        return str(token) if token >= 0 else self._texts[-2 - token]

    def halves(self, id_: str | None) -> tuple[int, int]:
        """Return the columns `id_high` and `id_low` of an id."""
        if id_ is not None and is_id(id_):
            high, low = _HALVES.unpack(bytes.fromhex(id_))
            if high != ABSENT:
                return high, low
        return ABSENT, self.token(id_)

    def id_of(self, high: int, low: int) -> str | None:
        """Return the id from its halves."""
        return self.text(low) if high == ABSENT else _HALVES.pack(high, low).hex()


def listed(parts: Block, texts: Texts) -> Block:
    """Return parts with the names under which reports list them."""
    names = parts["name"]
    return {**parts, "name": np.where(names == NO_TEXT, texts.token("?"), names)}


def rows(block: Block, *columns: str) -> Iterator[tuple[int, ...]]:
    """Yield the rows of some columns of a block as Python integers."""
    return zip(*(block[name].tolist() for name in columns), strict=True)
