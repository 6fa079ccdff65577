"""A final summary, schema 1.4 to 1.9, as a span with marks by rank, and documents verbatim."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterator
from typing import Any, Final

import orjson

from ....errors import InputError
from ....ids import digest
from ..sealing import ImportedBatch
from .batch_parts import FrameText, batches_of
from .numbers import identifier, number, time_ns
from .sample_rows import plain_object

SPAN_NAME: Final = "traceml.summary"
OLDEST, NEWEST = 1.4, 1.9
_SECTIONS: Final = ("system", "process", "step_time", "step_memory")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_PART: Final = 200_000


def is_summary(document: Any) -> bool:
    """Return whether a JSON document has the form of a final summary, of any version."""
    return (
        isinstance(document, dict)
        and "schema_version" in document
        and any(isinstance(document.get(section), dict) for section in _SECTIONS)
    )


def check_version(document: dict[str, Any]) -> None:
    """Raise InputError unless the version of a summary is supported."""
    version = number(document.get("schema_version"))
    if version is None or not OLDEST <= version <= NEWEST:
        raise InputError(
            f"a final summary of version {document.get('schema_version')!r:.40}:"
            f" expected {OLDEST} to {NEWEST}"
        )


def summary_batches(name: str, data: bytes, document: dict[str, Any]) -> Iterator[ImportedBatch]:
    """Yield the batches of a summary: a span, its marks, and the document."""
    session = digest("traceml-summary", data)[:16].hex()
    start_ns, end_ns = _times(document)
    meta = document.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    attrs = {"source": "traceml", "traceml.schema_version": document["schema_version"]}
    attrs |= {f"traceml.{key}": value for key, value in plain_object(meta).items()}
    marks: list[dict[str, Any]] = []
    for section in _SECTIONS:
        content = document.get(section)
        if isinstance(content, dict):
            attrs |= _window(section, content)
            _add_marks(marks, session, section, content, end_ns)
    span = {
        "id": session, "name": SPAN_NAME, "parent_id": None, "index": None, "start_ns": start_ns,
        "end_ns": end_ns, "cpu_ns": None, "gpu_ns": None, "memory_peak_bytes": None,
        "thread_id": None, "pid": None, "rank": None, "attrs": attrs,
        "mark_ids": [mark["id"] for mark in sorted(marks, key=lambda mark: mark["id"])],
    }  # fmt: skip
    size = identifier(meta.get("world_size"))
    attributes = {} if size is None else {"cirron.world_size": size}
    otel = {"session": session, "resource": {"attributes": attributes}}
    yield from batches_of([span], marks, document_parts([(name, data)]), otel, {}, {})


def document_parts(documents: list[tuple[str, bytes]]) -> list[FrameText]:
    """Return documents for the list `documents` of a batch, in parts that fit into one."""
    found = []
    for name, data in documents:
        try:
            key, text = "text", data.decode()
        except UnicodeDecodeError:
            key, text = "base64", base64.b64encode(data).decode()
        parts = [text[at : at + _PART] for at in range(0, len(text), _PART)] or [""]
        for index, part in enumerate(parts):
            entry = {"name": name, "part": index, "parts": len(parts), key: part}
            found.append(FrameText(0, orjson.dumps(entry)))
    return found


def _times(document: dict[str, Any]) -> tuple[int, int]:
    """Return the start and the end of the summarized run, Unix nanoseconds."""
    window = document.get("analysis_window")
    if isinstance(window, dict):
        start, end = time_ns(window.get("start_ts_s")), time_ns(window.get("end_ts_s"))
        if start is not None and end is not None and start <= end:
            return start, end
    end_ns = 0
    generated = document.get("generated_at")
    if isinstance(generated, str):
        try:
            moment = datetime.datetime.fromisoformat(generated)
        except ValueError:
            moment = None
        if moment is not None:
            moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
            end_ns = max(0, (moment - _EPOCH) // datetime.timedelta(microseconds=1) * 1000)
    duration = number(document.get("duration_s"))
    seconds = duration if duration is not None and 0 <= duration < 1e9 else 0
    return max(0, end_ns - round(seconds * 1e9)), end_ns


def _window(section: str, content: dict[str, Any]) -> dict[str, Any]:
    whole = content.get("global")
    window = whole.get("window") if isinstance(whole, dict) else None
    if not isinstance(window, dict):
        return {}
    values = plain_object(window).items()
    return {f"traceml.{section}.{key}": value for key, value in values if value is not None}


def _add_marks(
    marks: list[dict[str, Any]], session: str, section: str, content: dict[str, Any], ts_ns: int
) -> None:
    """Add a mark for each metric of each rank, or of each node."""
    groups = content.get("groups")
    groups = groups if isinstance(groups, dict) else {}
    rows = groups.get("rows")
    for group, row in rows.items() if isinstance(rows, dict) else ():
        metrics = row.get("metrics") if isinstance(row, dict) else None
        identity = row.get("identity") if isinstance(row, dict) else None
        attrs = plain_object(identity) if isinstance(identity, dict) else {}
        attrs = {key: value for key, value in attrs.items() if value is not None}
        if groups.get("by") == "global_rank":
            rank = identifier(attrs.pop("global_rank", None))
            if rank is None and group.isdecimal() and len(group) < 10:
                rank = int(group)
            attrs |= {} if rank is None else {"rank": rank}
        for name, value in metrics.items() if isinstance(metrics, dict) else ():
            figure = number(value)
            if figure is None:
                continue
            key = f"traceml.{section}.{name}"
            mark_id = digest("traceml-summary-mark", session, key, group)[:16].hex()
            is_whole = type(figure) is int and -(2**63) <= figure < 2**63
            marks.append({
                "id": mark_id, "span_id": session, "name": key,
                "value_type": "int" if is_whole else "float",
                "value": figure if is_whole else float(figure), "attrs": dict(attrs),
                "ts_ns": ts_ns, "kind": "summary",
            })  # fmt: skip
