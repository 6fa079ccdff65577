"""The final summary of a job that `cirron-otel run` started: one JSON document, and a text."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .text import duration

if TYPE_CHECKING:
    from rich.table import Table

    from ...core.analysis.run_report import RunReport

SCHEMA_VERSION = 1
"""The version of the JSON document; it changes if a key is removed or changes its meaning."""
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class FinalSummary:
    """The outcome of a command, and how its processes spent their time."""

    command: str
    exit_code: int
    duration_ns: int
    trace_id: str
    report: RunReport

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object: the outcome, the diagnosis, and the report."""
        diagnosis = self.report.diagnosis
        return {
            "schema_version": SCHEMA_VERSION,
            "command": self.command,
            "exit_code": self.exit_code,
            "duration_ns": self.duration_ns,
            "trace_id": self.trace_id,
            "diagnosis": None if diagnosis is None else diagnosis.to_json(),
            "report": self.report.to_json(),
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
        from rich.console import Console

        console = Console(
            file=io.StringIO(), width=_WIDTH, highlight=False, markup=False, emoji=False,
            no_color=True,
        )  # fmt: skip
        with console.capture() as drawn:
            for part in self._parts():
                console.print(part, soft_wrap=True)
        return "\n".join(line.rstrip() for line in drawn.get().splitlines()) + "\n"

    def _parts(self) -> Iterator[str | Table]:
        """Yield the lines and tables of the text."""
        from .diagnose_text import diagnosis_parts
        from .report_text import conclusions
        from .tables import breakdown_table

        yield f"{self.command}: exit code {self.exit_code} after {duration(self.duration_ns)}"
        yield f"trace {self.trace_id}"
        if self.report.diagnosis is not None:
            yield ""
            yield from diagnosis_parts("The steps", self.report.diagnosis)
        lines = list(conclusions(self.report, has_verdict=False))
        if lines:
            yield ""
            yield from lines
        for rank in self.report.ranks:
            if rank.steps.steps.times:
                who = "the process" if rank.rank is None else f"rank {rank.rank}"
                yield f"\nThe steps of {who}:\n"
                yield breakdown_table(rank.steps)
