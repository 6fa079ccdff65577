"""Shorten texts for indexed columns: an entry of a PostgreSQL index has at most 2,704 bytes."""

from __future__ import annotations

import hashlib

from ...records.columns import clean

MAX_KEY_BYTES = 200
_KEPT = 40


def bounded(value: str) -> str:
    """Return a short text unchanged, and a long one as its beginning and its digest.

    Equal texts stay equal.
    """
    if len(value) * 4 <= MAX_KEY_BYTES:
        return clean(value)
    data = value.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_KEY_BYTES:
        return clean(value)
    return f"{clean(value[:_KEPT])}…{hashlib.sha256(data).hexdigest()}"
