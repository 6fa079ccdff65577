"""Generated batches for tests of export budgets, and what is left of a batch in an export."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.spool.paths import file_name
from cirron_otel.core.spool.reader import BatchFile
from tests.kit.spools.reports import reported

Record = dict[str, Any]
START_NS, MS = 1_795_000_000_000_000_000, 1_000_000
SESSION = "5e55105e55105e551111222233334444"
_NAMES = (
    "data_load", "forward", "backward", "optimizer_step", "micro_step", "mine", "checkpoint",
    "eval",
)  # fmt: skip


def _random_id(rng: random.Random) -> str:
    return f"{rng.getrandbits(64) or 1:016x}{SESSION[16:]}"


class GeneratedRank:
    """A rank with steps of any shape: nested scopes, failures, marks, snapshots, other threads."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.at_ns = START_NS
        self._number = 0
        self._epoch = _random_id(self._rng)

    def batch(self, steps: int, usual_ms: int = 50, scopes: int = 6) -> SealedBatch:
        """Return a batch with this many steps, after the previous one."""
        rng = self._rng
        spans: list[Record] = []
        marks: list[Record] = []
        for _ in range(steps):
            self._step(spans, marks, usual_ms, scopes)
        snapshots = []
        if spans and rng.random() < 0.1:
            snapshots.append({
                "id": _random_id(rng), "span_id": rng.choice(spans)["id"], "tensor_name": "w",
                "shape": [1], "dtype": "float32", "mode": "stats", "stats": None, "blob_uri": None,
                "ts_ns": self.at_ns, "attrs": {},
            })  # fmt: skip
        self.at_ns += MS
        batch_id = f"{rng.getrandbits(128):032x}"
        batch = {
            "schema_version": 1, "sdk_version": "0.3.0+cirron-otel", "batch_id": batch_id,
            "created_ns": self.at_ns,
            "spans": sorted(spans, key=lambda span: (span["end_ns"], span["id"])),
            "marks": marks, "snapshots": snapshots,
            "otel": {"session": SESSION, "trace_id": SESSION},
        }  # fmt: skip
        return SealedBatch(file_name(self.at_ns, batch_id), json.dumps(batch).encode())

    def _span(self, name: str, parent: str | None, start_ns: int, end_ns: int) -> Record:
        rng = self._rng
        return {
            "id": _random_id(rng), "name": name, "parent_id": parent, "index": None,
            "start_ns": start_ns, "end_ns": end_ns, "cpu_ns": None,
            "gpu_ns": rng.choice([None, None, 7]), "memory_peak_bytes": None, "thread_id": 1,
            "pid": 1, "rank": 0, "attrs": rng.choice([{}, {}, {"k": [1, None, "é"]}]),
            "mark_ids": [],
        }  # fmt: skip

    def _step(self, spans: list[Record], marks: list[Record], usual_ms: int, scopes: int) -> None:
        rng = self._rng
        length = round(usual_ms * MS * rng.choice([1, 1, 1, 1, 1.1, 0.9, 3]))
        step = self._span("step", self._epoch, self.at_ns, self.at_ns + length)
        step["index"] = self._number
        inside = [step]
        for _ in range(rng.randrange(scopes + 1)):
            parent = rng.choice(inside) if rng.random() < 0.4 else step
            start = rng.randrange(parent["start_ns"], parent["end_ns"] + 1)
            end = rng.randrange(start, parent["end_ns"] + 1)
            name = "step" if rng.random() < 0.03 else rng.choice(_NAMES)
            inside.append(self._span(name, parent["id"], start, end))
        for span in inside:
            if rng.random() < 0.01:
                span["otel"] = {"status": {"code": 2, "message": "failed"}}
            elif rng.random() < 0.01:
                span["otel"] = {"kind": 3}
            if rng.random() < 0.3:
                mark = {
                    "id": _random_id(rng), "span_id": span["id"], "name": "loss",
                    "value_type": "float", "value": rng.random(), "attrs": {},
                    "ts_ns": span["end_ns"], "kind": "point",
                }  # fmt: skip
                marks.append(mark)
                span["mark_ids"].append(mark["id"])
        if rng.random() < 0.05:  # a scope without a parent in the batch
            inside.append(self._span("forward", _random_id(rng), self.at_ns, self.at_ns + 5))
        spans += inside
        self.at_ns += length
        self._number += 1


def stated(batch: SealedBatch, value: object) -> SealedBatch:
    """Return a batch that lists steps to summarise."""
    document = json.loads(batch.data)
    document["otel"]["summarised"] = value
    text = json.dumps(document, separators=(",", ":"))
    return SealedBatch(batch.name, text.encode())


def files(batches: Iterable[SealedBatch]) -> list[BatchFile]:
    """Return batches as a reader yields them."""
    return [BatchFile(batch.name, Path(batch.name), batch.data) for batch in batches]


def report_json(batches: Iterable[SealedBatch]) -> Record:
    """Return the report of batches, with steps of the same length in the order of time.

    The number of summaries is left out.
    """
    report = reported(files(batches)).to_json()
    report.pop("summarised_steps")
    report["slowest_steps"].sort(key=lambda step: (-step["duration_ns"], step["start_ns"]))
    return report
