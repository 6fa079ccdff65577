"""The texts that users wrote during a session, which a timeline shows beside Stormlog's markers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ....ids import is_id
from ....semconv import PLACE
from ...records.memory_marks import STORMLOG, kind_of
from .marks import KEY


class Annotation(NamedTuple):
    """A mark whose value is a text."""

    session_id: str
    """The session's id in Stormlog's form."""
    time_ns: int
    name: str
    text: str
    scope_id: str

    @property
    def label(self) -> str:
        """The mark's name and text."""
        return f"{self.name}: {self.text}"


def annotations_of(batch: Mapping[str, Any]) -> Iterator[Annotation]:
    """Yield the text marks of a batch that names its session; other batches have none."""
    session_id = _session_of(batch)
    marks = batch.get("marks")
    if session_id is None or not isinstance(marks, list):
        return
    for mark in marks:
        if not isinstance(mark, Mapping):
            continue
        name, text, time_ns = mark.get("name"), mark.get("value"), mark.get("ts_ns")
        if not isinstance(name, str) or not isinstance(text, str) or type(time_ns) is not int:
            continue
        if kind_of(name) is None and not name.startswith(STORMLOG) and name != PLACE:
            yield Annotation(session_id, time_ns, name, text, str(mark.get("span_id")))


def _session_of(batch: Mapping[str, Any]) -> str | None:
    """Return the session of a batch of our own or of an imported one, in Stormlog's form."""
    imported = batch.get(KEY)
    fields = imported.get("session") if isinstance(imported, Mapping) else None
    if isinstance(fields, Mapping) and isinstance(fields.get("session_id"), str):
        return str(fields["session_id"])
    otel = batch.get("otel")
    session = otel.get("session") if isinstance(otel, Mapping) else None
    return str(uuid.UUID(session)) if isinstance(session, str) and is_id(session) else None
