"""The fast path for the lines of Stormlog's segments.

A line takes it if writing its parsed form again gives the same bytes. That proves that no value was
changed, no key repeated and no field is missing, so that the line follows from its mark.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import msgspec
import orjson

from .marks import LINES, PREFIX, text_of
from .replay import PHASE_ENTER, PHASE_EXIT

_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_MOST_CACHED: Final = 4096
_MOST_TEMPLATES: Final = 8
BOUNDARIES: Final = frozenset({PHASE_ENTER, PHASE_EXIT})
SCOPE: Final = "phase_scope"


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


class _MarkAttributes(msgspec.Struct, omit_defaults=True, gc=False):
    """The attributes of a mark in the order of `ATTRIBUTES`; None is absent."""

    device_id: int
    allocator_reserved_bytes: int | None = None
    allocator_active_bytes: int | None = None
    allocator_inactive_bytes: int | None = None
    allocator_change_bytes: int | None = None
    device_used_bytes: int | None = None
    device_free_bytes: int | None = None
    device_total_bytes: int | None = None
    collector: str | None = None
    sampling_interval_ms: int | None = None
    context: str | None = None
    metadata: msgspec.Raw | None = None


class _MarkText(msgspec.Struct, gc=False):
    """A mark without its ids."""

    name: str
    value_type: str
    value: int | str
    attrs: _MarkAttributes
    ts_ns: int
    kind: str = "point"


_decode = msgspec.json.Decoder(list[FastLine]).decode
_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines
_format = msgspec.json.format


class Metadata:
    """The metadata of a record."""

    __slots__ = ("_others", "has_origin", "json", "scope")

    def __init__(
        self, others: dict[str, Any], compact: msgspec.Raw | None, scope: Any, has_origin: bool
    ) -> None:
        self._others = others
        self.scope = scope
        """The value of `phase_scope`, None without one."""
        self.json = compact
        """Compact JSON; None for an empty object."""
        self.has_origin = has_origin

    @property
    def values(self) -> dict[str, Any]:
        """The members."""
        return self._others if self.scope is None else self._others | {SCOPE: self.scope}


class _Template(NamedTuple):
    """The metadata of boundaries that have all but the phase scope in common."""

    before: bytes
    after: bytes
    compact_before: bytes
    compact_after: bytes
    others: dict[str, Any]
    has_origin: bool


class LineParser:
    """Parses lines, and caches the metadata that many records have in common."""

    def __init__(self) -> None:
        self._metadata: dict[bytes, Metadata | None] = {}
        self._latest: tuple[bytes, Metadata | None] = b"", None
        self._templates: list[_Template] = []
        """The latest ones, the one that was used last in front."""
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
        kind, texts = line.event_type, self._texts
        if kind not in texts or line.collector not in texts:
            if not kind.strip() or not line.collector.strip():
                return None
            if len(texts) >= _MOST_CACHED:
                texts.clear()
            texts |= {kind, line.collector}
        total = line.device_total_bytes
        if total is not None and (
            (line.device_used_bytes or 0) > total or (line.device_free_bytes or 0) > total
        ):
            return None
        key = bytes(line.metadata)
        if key == self._latest[0]:
            return self._latest[1]
        if kind in BOUNDARIES:
            return self._of_boundary(key)
        metadata = self._metadata.get(key)
        if metadata is None and key not in self._metadata:
            if len(self._metadata) >= _MOST_CACHED:
                self._metadata.clear()
            metadata = self._metadata[key] = _metadata_of(key)
        self._latest = key, metadata
        return metadata

    def _of_boundary(self, raw: bytes) -> Metadata | None:
        """Return the metadata of a boundary, of which often only the phase scope is new."""
        for template in self._templates:
            before, after = template[0], template[1]
            if raw.startswith(before) and raw.endswith(after):
                text = raw[len(before) : -len(after)]
                found = _canonical(text)
                if found is not None:
                    scope, compact = found
                    compact = template.compact_before + compact + template.compact_after
                    return Metadata(
                        template.others, msgspec.Raw(compact), scope, template.has_origin
                    )
        metadata = _metadata_of(raw)
        if metadata is not None and type(metadata.scope) is dict:
            self._learn(raw, metadata)
        return metadata

    def _learn(self, raw: bytes, metadata: Metadata) -> None:
        """Note the text around the phase scope, if the scope's text is only in one place."""
        scope = text_of(metadata.scope, LINES)
        compact = orjson.dumps(metadata.scope, option=orjson.OPT_SORT_KEYS)
        around, compact_around = raw.split(scope), bytes(metadata.json or b"").split(compact)
        if len(around) == len(compact_around) == 2:
            others = {key: value for key, value in metadata.values.items() if key != SCOPE}
            template = _Template(
                around[0], around[1], compact_around[0], compact_around[1], others,
                metadata.has_origin,
            )  # fmt: skip
            self._templates = [template, *self._templates[: _MOST_TEMPLATES - 1]]


def _canonical(raw: bytes) -> tuple[dict[str, Any], bytes] | None:
    """Return an object and its compact JSON if `raw` is its text in a line of Stormlog's.

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
    return values, compact


def _metadata_of(raw: bytes) -> Metadata | None:
    """Return the metadata if `raw` is its text in a line of Stormlog's, else None."""
    found = _canonical(raw)
    if found is None:
        return None
    values, compact = found
    has_origin = "origin_phase_scope_id" in values or "origin_thread_id" in values
    return Metadata(values, msgspec.Raw(compact) if values else None, values.get(SCOPE), has_origin)


def mark_texts(lines: list[FastLine], metadata: list[Metadata]) -> list[str]:
    """Return the JSON of the marks of lines as `MarkWriter.write` does, in one call."""
    marks = [
        _MarkText(
            PREFIX + line.event_type,
            "string" if line.allocator_allocated_bytes is None else "int",
            line.event_type
            if line.allocator_allocated_bytes is None
            else line.allocator_allocated_bytes,
            _MarkAttributes(
                line.device_id, line.allocator_reserved_bytes, line.allocator_active_bytes,
                line.allocator_inactive_bytes, line.allocator_change_bytes, line.device_used_bytes,
                line.device_free_bytes, line.device_total_bytes, line.collector,
                line.sampling_interval_ms, line.context, values.json,
            ),
            line.timestamp_ns,
        )
        for line, values in zip(lines, metadata, strict=True)
    ]  # fmt: skip
    return _encode_lines(marks).decode().split("\n")[:-1]


def event_of(line: FastLine, metadata: Metadata) -> dict[str, Any]:
    """Return the canonical form of a fast line."""
    event = msgspec.structs.asdict(line)
    event["metadata"] = metadata.values
    return event
