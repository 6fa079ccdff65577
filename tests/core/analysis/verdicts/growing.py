"""A spool that grows while it is followed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .records import Rank


class GrowingSpool:
    """A spool into which the batches of one rank of a run are written, a few steps in each."""

    def __init__(self, folder: Path, rank: int = 0, world_size: int = 2) -> None:
        self.folder, self.records, self.count = folder / "spool", Rank(rank, pid=os.getpid()), 0
        self.folder.mkdir(parents=True, exist_ok=True)
        self.rank, self.world_size = rank, world_size

    def write(
        self,
        steps: int,
        phases: dict[str, Any],
        loss: float | str | None = None,
        unit: str = "step",
    ) -> None:
        """Write a batch with these steps, and a mark at the end of each one."""
        self.records.spans.clear()
        marks = len(self.records.marks)
        for _ in range(steps):
            step = self.records.step(self.count, phases)
            self.records.spans[-1]["name"] = unit
            self.count += 1
            if loss is not None:
                self.records.at -= 1
                self.records.mark("loss", loss, step)
                self.records.at += 1
        self._seal(self.records.spans, self.records.marks[marks:])

    def end(self, error: str | None = None) -> None:
        """Write the session."""
        self.records.spans.clear()
        spans, _ = self.records.records()
        if error is not None:
            spans[-1]["otel"] = {"status": {"code": 2, "message": error}}
        self._seal(spans, [])

    def _seal(self, spans: list[dict[str, Any]], marks: list[dict[str, Any]]) -> None:
        session = f"{self.rank:032x}"
        name = f"{self.records.at:020d}-{os.urandom(16).hex()}.json"
        batch = {
            "schema_version": 1, "sdk_version": "x", "batch_id": name[21:53],
            "created_ns": self.records.at, "spans": spans, "marks": marks, "snapshots": [],
            "otel": {"session": session, "resource": {"attributes": {
                "cirron.run.id": "1" * 32, "cirron.world_size": self.world_size,
            }}},
        }  # fmt: skip
        (self.folder / name).write_text(json.dumps(batch))


CALM, SLOW = {"forward": 10}, {"data_load": 10, "forward": 10}
