"""What a spool says without what differs from run to run: trees to compare, and to look into."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cirron_otel.semconv import (
    CONFIGURATION,
    CPU_WAIT_NS,
    DDP_COMMUNICATION,
    DDP_COMPUTE,
    DDP_EXPOSED,
    GRAD_NORM,
    LOSS,
    PLACE,
    TRAINING,
)

OVERHEAD = "cirron.overhead_ns"
OWN_MARKS = frozenset({
    OVERHEAD, CPU_WAIT_NS, DDP_COMMUNICATION, DDP_COMPUTE, DDP_EXPOSED, PLACE, TRAINING,
    *CONFIGURATION
})  # fmt: skip
"""The names of marks that the hooks make, and not the program."""
HOOK_MARKS = frozenset({LOSS, GRAD_NORM})
"""The names of marks that the hooks make unless the program makes them."""
_HOOK_SCOPES = ("backward", "clip_grad")
SESSION = "cirron.session"


@dataclass
class Node:
    """A span with its marks, in order of time, and its children, in order of their start."""

    record: dict[str, Any]
    marks: list[dict[str, Any]] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)

    @property
    def name(self) -> Any:
        return self.record["name"]

    def find(self, name: str) -> list[Node]:
        """Every span of that name below, and itself, from the top."""
        own = [self] if self.name == name else []
        return own + [found for child in self.children for found in child.find(name)]

    def one(self, name: str) -> Node:
        """The only span of that name."""
        (found,) = self.find(name)
        return found

    def mark(self, name: str) -> dict[str, Any]:
        """The only mark of that name on this very span."""
        (found,) = [mark for mark in self.marks if mark["name"] == name]
        return found

    @property
    def values(self) -> list[tuple[Any, Any]]:
        """Names and values of the user's marks on this very span."""
        return [(m["name"], m["value"]) for m in self.marks if m["name"] not in OWN_MARKS]


@dataclass
class Spool:
    """All batches of a spool, as trees."""

    batches: list[dict[str, Any]]
    roots: list[Node]
    """Sessions, and spans whose parent is not there or is null."""
    outside: list[dict[str, Any]]
    """Marks of no session: `"root"`."""
    lost: list[dict[str, Any]]
    """Marks whose span is not there."""

    @property
    def session(self) -> Node:
        """The only session."""
        (found,) = self.sessions
        return found

    @property
    def sessions(self) -> list[Node]:
        return [root for root in self.roots if root.name == SESSION]

    @property
    def spans(self) -> list[dict[str, Any]]:
        return [span for batch in self.batches for span in batch["spans"]]

    @property
    def marks(self) -> list[dict[str, Any]]:
        return [mark for batch in self.batches for mark in batch["marks"]]

    @property
    def program_marks(self) -> list[dict[str, Any]]:
        """The marks that the program or its trainer made, in order of their times."""
        names = {span["id"]: span["name"] for span in self.spans}
        return sorted(
            (
                mark
                for mark in self.marks
                if mark["name"] not in OWN_MARKS
                and not (mark["name"] in HOOK_MARKS and names.get(mark["span_id"]) in _HOOK_SCOPES)
            ),
            key=lambda mark: int(mark["ts_ns"]),
        )


def read_spool(directory: Path) -> Spool:
    """The spool in `directory`, which holds `spool/`."""
    files = sorted((directory / "spool").glob("*.json"))
    batches = [json.loads(file.read_bytes()) for file in files]
    spans = [span for batch in batches for span in batch["spans"]]
    nodes = {span["id"]: Node(span) for span in spans}
    assert len(nodes) == len(spans), "an id stands twice"
    roots, outside, lost = [], [], []
    for node in sorted(nodes.values(), key=lambda node: node.record["start_ns"]):
        parent = nodes.get(node.record["parent_id"])
        (roots if parent is None else parent.children).append(node)
    marks = [mark for batch in batches for mark in batch["marks"]]
    for mark in sorted(marks, key=lambda mark: mark["ts_ns"]):
        owner = nodes.get(mark["span_id"])
        if owner is not None:
            owner.marks.append(mark)
        else:
            (outside if mark["span_id"] == "root" else lost).append(mark)
    return Spool(batches, roots, outside, lost)
