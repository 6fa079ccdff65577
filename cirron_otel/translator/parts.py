"""A part of a batch, where the others never came: stored under a hash of its own.

Such a batch has a `batch_id` made of its content and, in `otel.part`, the header it came with, so
that it never overwrites another part and still finds the others when they meet again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import exactjson
from ..ids import digest, uuid4_shaped
from .header import LISTS, Counts
from .values import is_int

Record = dict[str, Any]

PART = "part"
_MISSING_SYNTHETIC = "missing_synthetic"


@dataclass(frozen=True, slots=True)
class Part:
    """What the header of the whole batch said, where it is not what the part says."""

    spans: int
    marks: int
    snapshots: int
    missing_synthetic: int
    file: str | None = None
    """The whole batch's file, where its id and time do not give the name."""

    def counts(self, synthetic: int) -> Counts:
        """The counts of the whole batch; `synthetic` synthetic spans go with this part."""
        return Counts(self.spans, self.marks, self.snapshots, synthetic + self.missing_synthetic)


def part_of(whole: Record, counts: Counts, synthetic: int, file: str | None) -> Record:
    """The batch to store for what has come of `whole`, of which `counts` says the full size."""
    part: Record = {key: getattr(counts, key) for key in LISTS}
    part[_MISSING_SYNTHETIC] = max(0, counts.synthetic - synthetic)
    if "batch_id" in whole:
        part["batch_id"] = whole["batch_id"]
    if file is not None:
        part["file"] = file
    otel = whole.get("otel")
    if "otel" in whole and not (isinstance(otel, dict) and otel):
        part["otel"] = otel
    batch = dict(whole)
    batch["otel"] = (dict(otel) if isinstance(otel, dict) else {}) | {PART: part}
    batch["batch_id"] = _hash(batch)
    return batch


def _hash(batch: Record) -> str:
    """A hash over the part as compact JSON with sorted keys, its `batch_id` left out."""
    content = {key: value for key, value in batch.items() if key != "batch_id"}
    return uuid4_shaped(digest("part", exactjson.dumps_sorted(content)))


def whole_of(batch: Record) -> tuple[Record, Part | None]:
    """The batch as its header had it and its `Part`; (batch, None) for one that is no part."""
    otel = batch.get("otel")
    told = otel.get(PART) if isinstance(otel, dict) else None
    if not isinstance(otel, dict) or not isinstance(told, dict):
        return batch, None
    fields = (*LISTS, _MISSING_SYNTHETIC)
    values = [told.get(field) for field in fields]
    file = told.get("file")
    if set(told) - {"batch_id", "otel", "file"} != set(fields):
        return batch, None
    if not all(is_int(v, 0) for v in values) or not isinstance(file, str | None):
        return batch, None
    if batch.get("batch_id") != _hash(batch):
        return batch, None
    whole = dict(batch)
    whole.pop("batch_id")
    if "batch_id" in told:
        whole["batch_id"] = told["batch_id"]
    rest = {key: value for key, value in otel.items() if key != PART}
    whole.pop("otel")
    if rest:
        whole["otel"] = rest
    elif "otel" in told:
        whole["otel"] = told["otel"]
    return whole, Part(*values, file)  # type: ignore[arg-type,call-arg]
