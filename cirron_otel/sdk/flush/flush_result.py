"""The data that all records of a session share, and the result of a flush."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...core.spool.oom_kills import OomKillCounter
from ..tracing.buffers import MarkEntry
from ..tracing.scope import Scope
from ..tracing.traces import Segments
from .batch_text import BatchText
from .rows import SpanRow


@dataclass(slots=True)
class SessionOrigin:
    """The data that all records of a session share."""

    pid: int
    rank: int | None
    session: Scope
    segments: Segments
    resource: dict[str, Any]
    """The batch's `otel.resource.attributes`."""
    oom_kills: OomKillCounter | None = None
    """The OOM kills in the process's cgroup when the session began; None if unknown."""

    def set_resource(self, attributes: dict[str, Any]) -> None:
        """Set the resource attributes of all later batches."""
        self.resource = attributes

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.session.id or ""


@dataclass(slots=True)
class RecordCounts:
    """Numbers of records of each kind."""

    spans: int = 0
    marks: int = 0
    snapshots: int = 0

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.spans or self.marks or self.snapshots)

    def add(self, spans: int, marks: int, snapshots: int) -> None:
        """Add the records of a batch."""
        self.spans += spans
        self.marks += marks
        self.snapshots += snapshots


@dataclass(slots=True)
class FlushResult:
    """The result of one flush."""

    batches: list[BatchText] = field(default_factory=list)
    open: list[SpanRow] = field(default_factory=list)
    """Records of the open scopes."""
    closed: list[SpanRow] = field(default_factory=list)
    """Records in `batches` whose spans were open at an earlier flush or are around an open scope,
    or that an earlier batch refers to."""
    ended: list[Scope] = field(default_factory=list)
    """The scopes in `batches`, if the builder is set to retain them."""
    points: list[MarkEntry] = field(default_factory=list)
    """The marks in `batches`, if the builder is set to retain them."""
    is_noted: bool = False
    """Whether the builder's state includes this result."""
    is_sealed: bool = False
    """Whether the sealer has taken the batches."""

    def forget(self) -> None:
        """Release the records: they are sealed, and all sinks have seen them."""
        self.batches, self.open, self.closed = [], [], []
        self.ended, self.points = [], []
