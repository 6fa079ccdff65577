"""Journals and batches as the recording SDK writes them, by hand."""

from __future__ import annotations

import json
from typing import Any

from cirron_otel.core.spool.owner import Owner, batch_id_of
from cirron_otel.core.spool.paths import file_name

from .made import (
    EPOCH_NS,
    encoded,
    made,
    span,
    span_id,
)

SESSION = span_id(1)
WRITTEN_NS = EPOCH_NS + 50_000


def open_span(number: int, parent: int | None, **changes: Any) -> dict[str, Any]:
    """A span that has not ended."""
    return span(number, parent, **{"end_ns": 0, **changes})


def journal(
    prefix: str,
    opened: list[dict[str, Any]],
    closed: list[dict[str, Any]] | None = None,
    **changes: Any,
) -> bytes:
    """The journal of an owner in which these scopes are open."""
    told: dict[str, Any] = {
        "version": 1,
        "owner": prefix,
        "session": SESSION,
        "pid": 1,
        "rank": 0,
        "written_ns": WRITTEN_NS,
        "sdk_version": "0.3.0+cirron-otel.0.1.0",
        "otel": {"session": SESSION, "trace_id": SESSION},
        "next_batch": None,
        "open": opened,
        "closed": closed or [],
    }
    return json.dumps(told | changes).encode()


def sealed(owner: Owner | str, number: int, **changes: Any) -> tuple[bytes, str]:
    """A batch of an owner, and its file name."""
    prefix = owner if isinstance(owner, str) else owner.prefix
    batch = made(number, batch_id=batch_id_of(prefix, number.to_bytes(10, "big")), **changes)
    return encoded(batch), file_name(batch["created_ns"], batch["batch_id"])
