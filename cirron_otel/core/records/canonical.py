"""The canonical encoding of a batch."""

from __future__ import annotations

from typing import Any

import msgspec

from ... import exactjson
from .schema import Batch


def batch_bytes(batch: dict[str, Any]) -> bytes:
    """Encode a batch that consists of `exactjson` values; equal content gives equal bytes."""
    try:
        data = msgspec.json.encode(msgspec.convert(batch, Batch, strict=True))
    except (msgspec.ValidationError, UnicodeError, OverflowError, TypeError, RecursionError):
        return exactjson.dumps(batch)
    return data if exactjson.equal(exactjson.loads(data), batch) else exactjson.dumps(batch)
