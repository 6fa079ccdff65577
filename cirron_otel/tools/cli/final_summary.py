"""The final summary of a job that `cirron-otel run` started: one JSON document, and a text."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..present.formatting import duration

if TYPE_CHECKING:
    from ..present.document import Document

SCHEMA_VERSION = 2
"""The version of the JSON document; it changes if a key is removed or changes its meaning."""


@dataclass(frozen=True, slots=True)
class FinalSummary:
    """The outcome of a command, and how its processes spent their time."""

    command: str
    exit_code: int
    duration_ns: int
    trace_id: str
    document: Document

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object: the outcome, and the document of the run."""
        return {
            "schema_version": SCHEMA_VERSION,
            "command": self.command,
            "exit_code": self.exit_code,
            "duration_ns": self.duration_ns,
            "trace_id": self.trace_id,
            "document": self.document.to_json(),
        }

    def write(self, path: Path) -> tuple[Path, Path]:
        """Write the JSON document to `path` and the text to a file next to it; return both paths.

        Raises TargetError if a file cannot be written.
        """
        from ...core.otlp.replacing import replacing

        text_path = path.with_suffix(".txt")
        with replacing(path) as file:
            file.write(json.dumps(self.to_json(), indent=2).encode("ascii") + b"\n")
        with replacing(text_path) as file:
            file.write(self._text().encode())
        return path, text_path

    def _text(self) -> str:
        from ..present.text import document_parts, plain_lines

        lines = [
            f"{self.command}: exit code {self.exit_code} after {duration(self.duration_ns)}",
            f"trace {self.trace_id}",
            "",
            *plain_lines(document_parts(self.document, full=True)),
        ]
        return "\n".join(lines) + "\n"
