"""Session ids of Cirron for the session ids of Stormlog."""

from __future__ import annotations

import uuid

from ....ids import digest


def session_hex(session_id: str) -> str:
    """Return the Cirron id of a session: the digits of its UUID, or else a digest."""
    try:
        parsed = uuid.UUID(session_id)
    except (ValueError, AttributeError):
        parsed = None
    if parsed is not None and str(parsed) == session_id:
        return parsed.hex
    return digest("stormlog-session", session_id)[:16].hex()
