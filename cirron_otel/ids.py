"""Identity: the rules that derive OTLP ids from Cirron ids, and Cirron ids from OTLP ids.

The rule (docs/otlp-mapping.md, "Identity"): **id = span_id ‖ trace_id[8:16]**. A Cirron id is 16
bytes, written as 32 lower-case hex digits; the OTLP span id is its first half, its second half is
the lower half of the trace id. If the rule cannot restore an id, an attribute contains the id.
"""

from __future__ import annotations

import hashlib
import re

_ID = re.compile(r"[0-9a-f]{32}")
_matches_id = _ID.fullmatch
_ZERO_SPAN = "0" * 16
_ZERO_TRACE = "0" * 32
INT64_LIMIT = 2**63
"""The exclusive upper bound of signed 64-bit integers, the type of nanosecond timestamps."""
SHORT_ID_DIGITS = 8
"""Output for people shows this many digits of a run's id."""


def is_id(value: object) -> bool:
    """Return whether `value` has the shape of a Cirron id: 32 lower-case hex digits."""
    return isinstance(value, str) and _matches_id(value) is not None


def digest(*parts: str | bytes | int) -> bytes:
    """Return the SHA-256 (32 bytes) of the parts, each as UTF-8 text, joined by NUL bytes.

    This is the pinned serialisation of every derived id. Integers are written in decimal, bytes in
    lower-case hex, and lone surrogates in their three-byte encoding.
    """
    texts = [part.hex() if isinstance(part, bytes) else str(part) for part in parts]
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).digest()


def span_id_for(cirron_id: str) -> bytes:
    """Return the 8-byte span id that represents a Cirron id in OTLP: never zero."""
    if is_id(cirron_id) and not cirron_id.startswith(_ZERO_SPAN):
        return bytes.fromhex(cirron_id[:16])
    return digest(cirron_id)[:8]


def trace_id_for(session_id: str) -> bytes:
    """Return the 16-byte trace id of a session that did not join another trace.

    It is the session's own id, or a digest if that is not a valid trace id.
    """
    if is_id(session_id) and session_id != _ZERO_TRACE:
        return bytes.fromhex(session_id)
    return digest(session_id)[:16]


def segment_trace_id(session_id: str, unit_id: str, number: int, trace_id: bytes) -> bytes:
    """Return the trace id of a session's segment: `number` ≥ 1, opened by the scope `unit_id`.

    The lower half is that of the session's own trace, so that the rule holds across segments.
    """
    return digest(session_id, unit_id, number)[:8] + trace_id[8:]


def derive_id(span_id: bytes, trace_id: bytes) -> str:
    """Return the Cirron id of a span of any service, derived from its OTLP ids."""
    return (span_id + trace_id[8:16]).hex()


def uuid4_shaped(sha256: bytes) -> str:
    """Return 32 hex digits derived from a digest, with the version and variant bits of a UUID4."""
    raw = bytearray(sha256[:16])
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return raw.hex()
