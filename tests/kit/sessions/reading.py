"""What stands in a spool after a session, by id and by name."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SESSION = "cirron.session"
OWN_MARK = "cirron.overhead_ns"


@dataclass
class Recorded:
    """All records of a spool."""

    spans: dict[str, dict[str, Any]] = field(default_factory=dict)
    marks: list[dict[str, Any]] = field(default_factory=list)
    batches: list[dict[str, Any]] = field(default_factory=list)

    def one(self, name: str) -> dict[str, Any]:
        """The only span of that name."""
        (found,) = self.named(name)
        return found

    def named(self, name: str) -> list[dict[str, Any]]:
        """Every span of that name, in order of start."""
        some = [span for span in self.spans.values() if span["name"] == name]
        return sorted(some, key=lambda span: span["start_ns"])

    def parent(self, span: dict[str, Any]) -> str | None:
        """The name of a span's parent, which is recorded or a session."""
        parent_id = span["parent_id"]
        if parent_id in {batch["otel"]["session"] for batch in self.batches}:
            return SESSION
        return None if parent_id is None else str(self.spans[parent_id]["name"])

    def edges(self) -> dict[str, str | None]:
        """Each span's name with its parent's; names are unique."""
        found = {span["name"]: self.parent(span) for span in self.spans.values()}
        assert len(found) == len(self.spans), "two spans of one name"
        found.pop(SESSION, None)
        return found

    def trace_id(self, span: dict[str, Any]) -> str:
        """The OpenTelemetry trace that a span stands in."""
        own = span.get("otel", {}).get("trace_id")
        if own is not None:
            return str(own)
        return str(self._otel(span)["trace_id"])

    def is_sampled(self, span: dict[str, Any]) -> bool:
        """Whether it is exported: its own flags say so, else its batch."""
        own = span.get("otel", {}).get("flags")
        return bool(self._otel(span).get("sampled", True) if own is None else own & 1)

    def _otel(self, span: dict[str, Any]) -> dict[str, Any]:
        (batch,) = (b for b in self.batches if any(s["id"] == span["id"] for s in b["spans"]))
        otel: dict[str, Any] = batch["otel"]
        return otel

    def wire_parent(self, span: dict[str, Any]) -> str:
        """OpenTelemetry's parent span id."""
        return str(span.get("otel", {}).get("parent_span_id", (span["parent_id"] or "")[:16]))


def recorded(directory: Path) -> Recorded:
    """Everything below `directory`; no id is there twice."""
    found = Recorded()
    for path in sorted((directory / "spool").glob("*.json")):
        batch = json.loads(path.read_bytes())
        found.batches.append(batch)
        found.marks += [mark for mark in batch["marks"] if mark["name"] != OWN_MARK]
        for span in batch["spans"]:
            assert span["id"] not in found.spans
            found.spans[span["id"]] = span
    return found
