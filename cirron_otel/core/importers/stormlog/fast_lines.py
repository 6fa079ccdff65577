"""The fast path for the lines of Stormlog's segments.

A line takes it if writing its parsed form again gives the same bytes. That proves that no value was
changed, no key repeated and no field is missing, so that the line follows from its mark.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
import orjson

from .marks import LINES, text_of

_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_MOST_CACHED: Final = 4096


class FastLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A record, its fields in the order of Stormlog's lines."""

    allocator_active_bytes: _Natural | None
    allocator_allocated_bytes: _Natural | None
    allocator_change_bytes: _Integer | None
    allocator_inactive_bytes: _Natural | None
    allocator_reserved_bytes: _Natural | None
    collector: str
    context: str | None
    device_free_bytes: _Natural | None
    device_id: _Integer
    device_total_bytes: _Natural | None
    device_used_bytes: _Natural | None
    event_type: str
    host: str
    job_id: str | None
    local_rank: int
    metadata: msgspec.Raw
    pid: int
    rank: int
    sampling_interval_ms: _Natural
    schema_version: int
    session_id: str
    timestamp_ns: _Natural
    world_size: int

    @property
    def session(self) -> tuple[Any, ...]:
        """The values of `SESSION_FIELDS`, which are still to be checked."""
        return (self.schema_version, self.session_id, self.pid, self.host, self.job_id, self.rank,
                self.local_rank, self.world_size)  # fmt: skip

    @property
    def counters(self) -> tuple[int | None, ...]:
        """The values of `COUNTERS`."""
        return (self.device_id, self.allocator_reserved_bytes, self.allocator_active_bytes,
                self.allocator_inactive_bytes, self.allocator_change_bytes, self.device_used_bytes,
                self.device_free_bytes, self.device_total_bytes)  # fmt: skip


_decode = msgspec.json.Decoder(list[FastLine]).decode
_encode = msgspec.json.Encoder().encode
_format = msgspec.json.format


class Metadata:
    """The metadata of a record."""

    __slots__ = ("has_origin", "json", "values")

    def __init__(self, values: dict[str, Any], compact: str) -> None:
        self.values = values
        self.json = compact
        """Compact JSON; "" for an empty object."""
        self.has_origin = "origin_phase_scope_id" in values or "origin_thread_id" in values


class LineParser:
    """Parses lines, and caches the metadata that many records have in common."""

    def __init__(self) -> None:
        self._metadata: dict[bytes, Metadata | None] = {}
        self._texts: set[str] = set()

    def parse_block(self, raws: list[bytes]) -> list[FastLine] | None:
        """Return the records of lines; None if any of them needs the exact parser."""
        try:
            parsed = _decode(b"[" + b",".join(raws) + b"]")
            text = _format(_encode(parsed), indent=0)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None
        # Equal texts prove that each line is one record, which its parsed form gives back.
        return parsed if text == b"[" + b", ".join(raws) + b"]" and text.isascii() else None

    def metadata_of(self, line: FastLine) -> Metadata | None:
        """Return the metadata of a valid record; None if it needs the exact parser."""
        if line.schema_version == 3:
            if (
                line.allocator_allocated_bytes is None
                or line.allocator_reserved_bytes is None
                or line.allocator_change_bytes is None
                or line.device_used_bytes is None
            ):
                return None
        elif line.schema_version != 4:
            return None
        texts = self._texts
        if line.event_type not in texts or line.collector not in texts:
            if not line.event_type.strip() or not line.collector.strip():
                return None
            if len(texts) >= _MOST_CACHED:
                texts.clear()
            texts |= {line.event_type, line.collector}
        total = line.device_total_bytes
        if total is not None and (
            (line.device_used_bytes or 0) > total or (line.device_free_bytes or 0) > total
        ):
            return None
        key = bytes(line.metadata)
        metadata = self._metadata.get(key)
        if metadata is None and key not in self._metadata:
            if len(self._metadata) >= _MOST_CACHED:
                self._metadata.clear()
            metadata = self._metadata[key] = _metadata_of(key)
        return metadata


def _metadata_of(raw: bytes) -> Metadata | None:
    """Return the metadata if `raw` is its text in a line of Stormlog's, else None.

    The spaces between its values are known to be right, since the line's text was compared.
    """
    try:
        values = orjson.loads(raw)
        compact = orjson.dumps(values, option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None
    if type(values) is not dict:
        return None
    # The strings of both texts have the same spaces, so that only the rest is compared.
    if compact.translate(None, b" ") != raw.translate(None, b" "):
        try:
            if text_of(values, LINES) != raw:
                return None
        except (TypeError, ValueError, RecursionError):
            return None
    return Metadata(values, compact.decode() if values else "")
