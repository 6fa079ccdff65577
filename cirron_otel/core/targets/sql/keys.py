"""Texts that stand in an index: PostgreSQL's hold no entry of more than 2,704 bytes."""

from __future__ import annotations

import hashlib

from ...records.columns import clean

MAX_KEY_BYTES = 200
_KEPT = 40


def bounded(value: str) -> str:
    """The text itself, or, of a longer one, its beginning and its digest: equal ones stay equal."""
    if len(value) * 4 <= MAX_KEY_BYTES:
        return clean(value)
    data = value.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_KEY_BYTES:
        return clean(value)
    return f"{clean(value[:_KEPT])}…{hashlib.sha256(data).hexdigest()}"
