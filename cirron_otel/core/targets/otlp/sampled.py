"""Select the sampled part of a batch: the spool contains everything, OTLP endpoints get this part.

The batches of an unsampled session have `"sampled": false` in their `otel`. A span whose sampling
differs from its session's has its own `flags` (docs/otlp-mapping.md, "Sampling").
"""

from __future__ import annotations

from typing import Any

from .... import exactjson

_KNOWN, _SAMPLED = 0x100, 0x1
_HINTS = (b'"sampled":false', b'"flags":')


def sampled_part(data: bytes) -> bytes | None:
    """Return the sampled part of a batch, or None if nothing is left.

    `data` is a batch in the form that the SDK writes. Most batches need no change and are returned
    unparsed. Raises InputError if the batch has to be parsed and is not JSON.
    """
    if not any(hint in data for hint in _HINTS):
        return data
    batch = exactjson.loads(data)
    if not isinstance(batch, dict):
        return data
    otel = _object(batch.get("otel"))
    default = otel.get("sampled") is not False
    spans = _objects(batch.get("spans"))
    dropped = {span.get("id") for span in spans if not _is_sampled(span, default)}
    if default and not dropped:
        return data
    inside = {span.get("id") for span in spans} - dropped
    batch["spans"] = [span for span in spans if span.get("id") in inside]
    for key in ("marks", "snapshots"):
        batch[key] = [
            record
            for record in _objects(batch.get(key))
            if record.get("span_id") in inside or (default and record.get("span_id") not in dropped)
        ]
    if not any(batch[key] for key in ("spans", "marks", "snapshots")):
        return None
    if not default:
        # The session's segment links and markers of open scopes belong to the unsampled part.
        batch["otel"] = {k: v for k, v in otel.items() if k not in ("running", "segments")}
    return exactjson.dumps(batch)


def _is_sampled(span: dict[str, Any], default: bool) -> bool:
    flags = _object(span.get("otel")).get("flags")
    if isinstance(flags, int) and flags & _KNOWN:
        return bool(flags & _SAMPLED)
    return default


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
