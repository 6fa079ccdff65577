"""Read the digests that a run has left in its spool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from cirron_otel.core.records.digest_marks import DigestMark, Layouts, TensorDigest, digest_mark


class Digest(NamedTuple):
    """A digest, the span that it is attached to, and the records of its tensors."""

    mark: DigestMark
    span: dict[str, Any]
    tensors: dict[str, TensorDigest]

    @property
    def key(self) -> tuple[int, str, int]:
        return self.mark.step, self.mark.quantity, self.mark.occurrence


def digests(directory: Path) -> list[Digest]:
    """The digests of a spool, in the order of the marks."""
    batches = [json.loads(f.read_bytes()) for f in sorted((directory / "spool").glob("*.json"))]
    spans = {span["id"]: span for batch in batches for span in batch["spans"]}
    marks = [mark for batch in batches for mark in batch["marks"]]
    layouts, found = Layouts(), []
    for mark in sorted(marks, key=lambda each: int(each["ts_ns"])):
        digest = digest_mark(mark["name"], mark["value"], mark["attrs"])
        if digest is not None:
            records = [] if digest.tensors is None else layouts.unpack(digest.tensors)
            assert records is not None
            span = spans.get(mark["span_id"], {})
            found.append(Digest(digest, span, {each.name: each for each in records}))
    return found


def values(directory: Path) -> dict[tuple[int, str, int], str]:
    """The digests by step, quantity and occurrence."""
    found = digests(directory)
    by_key = {each.key: each.mark.digest for each in found}
    assert len(by_key) == len(found)
    return by_key


def first_difference(one: Path, other: Path) -> tuple[int, str, int] | None:
    """The first digest, in the order of the marks, that two runs do not have in common."""
    ours, theirs = values(one), values(other)
    for key, digest in ours.items():
        if theirs.get(key) != digest:
            return key
    return next((key for key in theirs if key not in ours), None)
