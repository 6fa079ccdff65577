"""What holds of a spool whatever happened to the processes that wrote it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cirron_otel.core.analysis.verify import verify_spool
from cirron_otel.core.spool.paths import target_spool
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.core.spool.recovery import Recovered, recover

OWN_MARK = "cirron.overhead_ns"
SESSION = "cirron.session"


class Whole:
    """The records of a spool that is as it should be: `whole` has looked."""

    def __init__(self, batches: list[dict[str, Any]]) -> None:
        self.batches = batches
        self.spans = {span["id"]: span for batch in batches for span in batch["spans"]}
        self.marks = [
            mark for batch in batches for mark in batch["marks"] if mark["name"] != OWN_MARK
        ]

    @property
    def sessions(self) -> list[dict[str, Any]]:
        return [span for span in self.spans.values() if span["name"] == SESSION]

    def names(self) -> Counter[str]:
        """How often each name stands, sessions left out."""
        return Counter(s["name"] for s in self.spans.values() if s["name"] != SESSION)

    def numbers(self) -> list[int]:
        """The values of the marks that `agent.py` makes, each as often as it stands."""
        return sorted(mark["value"] for mark in self.marks if mark["name"] == "number")

    def of(self, pid: int) -> Whole:
        """What one process recorded."""
        return Whole([b for b in self.batches if b["spans"] and b["spans"][0]["pid"] == pid])


def batch_files(directory: Path) -> list[Path]:
    return sorted((directory / "spool").glob("*.json"))


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below, by its path."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def errors_of(directory: Path) -> list[str]:
    """What `spool verify` calls errors."""
    findings = verify_spool(SpoolReader(directory))
    return [str(finding) for finding in findings if finding.severity == "error"]


def whole(directory: Path) -> Whole:
    """See that each batch is valid, that no id stands twice, and that nothing hangs in the air."""
    assert errors_of(directory) == []
    batches = [json.loads(path.read_bytes()) for path in batch_files(directory)]
    found = list(faults(batches))
    assert found == [], found  # pytest does not show the values of this module's assertions
    return Whole(batches)


def recovered(directory: Path) -> list[Recovered]:
    """Recover; see that what there is to find is whole, and that to do so again changes nothing."""
    found = recover(target_spool(directory))
    assert [done.problem for done in found if done.problem] == []
    before = contents(directory)
    assert recover(target_spool(directory)) == []
    assert contents(directory) == before
    assert not list(directory.rglob("*.tmp"))
    return found


def faults(batches: list[dict[str, Any]]) -> Iterator[str]:
    """What is wrong in how records name each other."""
    spans = [span for batch in batches for span in batch["spans"]]
    marks = [mark for batch in batches for mark in batch["marks"]]
    by_id = {span["id"]: span for span in spans}
    yield from (f"span {i} twice" for i, n in Counter(s["id"] for s in spans).items() if n > 1)
    yield from (f"mark {i} twice" for i, n in Counter(m["id"] for m in marks).items() if n > 1)
    named: dict[str, list[str]] = {}
    for mark in sorted(marks, key=lambda mark: (mark["ts_ns"], mark["id"])):
        named.setdefault(mark["span_id"], []).append(mark["id"])
        if mark["span_id"] not in by_id:
            yield f"mark {mark['name']} on {mark['span_id']}, which is not there"
    for span in spans:
        parent = by_id.get(span["parent_id"])
        if span["name"] == SESSION:
            if span["parent_id"] is not None:
                yield f"session {span['id']} below {span['parent_id']}"
        elif parent is None:
            yield f"span {span['name']} below {span['parent_id']}, which is not there"
        if span["end_ns"] < span["start_ns"]:
            yield f"span {span['name']} ends before it begins"
        if sorted(span["mark_ids"]) != sorted(named.get(span["id"], [])):
            yield f"span {span['name']} names {span['mark_ids']}, and has {named.get(span['id'])}"
