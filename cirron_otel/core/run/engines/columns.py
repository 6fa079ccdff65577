"""Columns of Arrow as the 64-bit integers of relations."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..relations import ABSENT, NO_TEXT, Texts

_DIGITS: Final = 32
"""The length of an id."""
_NUMBER: Final = "^(0|[1-9][0-9]{0,16})$"
"""The texts whose token is the number itself."""
_HEX: Final = np.full(256, 255, np.uint8)
"""The values of hexadecimal digits in lower case; 255 for any other byte."""
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16, dtype=np.uint8)


def integers(column: pa.Array) -> np.ndarray:
    """Return integers or flags; `ABSENT` for a missing one."""
    if pa.types.is_null(column.type):
        return np.full(len(column), ABSENT)
    column = pc.cast(column, pa.int64())
    if column.null_count:
        column = pc.fill_null(column, ABSENT)
    found: np.ndarray = column.to_numpy(zero_copy_only=False)
    return found


def tokens(column: pa.Array, texts: Texts) -> np.ndarray:
    """Return the tokens of texts."""
    encoded = column.dictionary_encode()
    values = encoded.dictionary
    is_number = pc.match_substring_regex(values, _NUMBER).to_numpy(zero_copy_only=False)
    of_values = np.empty(len(values) + 1, np.int64)
    of_values[-1] = NO_TEXT  # the index of a missing text is -1
    numbers = pc.cast(values.filter(pa.array(is_number)), pa.int64())
    of_values[:-1][is_number] = numbers.to_numpy(zero_copy_only=False)
    others = values.filter(pa.array(~is_number)).to_pylist()
    of_values[:-1][~is_number] = [texts.token(each) for each in others]
    places = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    found: np.ndarray = of_values[places]
    return found


def halves(column: pa.Array, texts: Texts) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns `id_high` and `id_low` of ids."""
    is_long = pc.fill_null(pc.equal(pc.binary_length(column), _DIGITS), fill_value=False)
    is_id = np.array(is_long.to_numpy(zero_copy_only=False))
    both = np.empty((len(column), 2), np.int64)
    nibbles = _HEX[_bytes_of(column.filter(is_long)).reshape(-1, _DIGITS)]
    is_hex = (nibbles < 16).all(axis=1)
    is_id[is_id] = is_hex
    pairs = nibbles[is_hex].reshape(-1, _DIGITS // 2, 2)
    joined = (pairs[:, :, 0] << 4) | pairs[:, :, 1]
    both[is_id] = np.ascontiguousarray(joined).view(">i8")
    is_id &= both[:, 0] != ABSENT
    for place in np.flatnonzero(~is_id).tolist():
        both[place] = texts.halves(column[place].as_py())
    return both[:, 0], both[:, 1]


def _bytes_of(column: pa.Array) -> np.ndarray:
    """Return the bytes of all texts of a column without missing ones."""
    text = pc.cast(column, pa.string())
    _, offsets, data = text.buffers()
    if data is None or not len(text):
        return np.empty(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[text.offset : text.offset + len(text) + 1]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
