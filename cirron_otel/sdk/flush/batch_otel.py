"""The batch-level fields of a flush's batches: their session, their trace, and open scopes."""

from __future__ import annotations

from typing import Any

from ..tracing.clock import wall
from ..tracing.scope import NO_SESSION, Scope
from ..tracing.traces import UNIT_DEPTH, Trace
from .drain import Drained, FlushChanges
from .flush_result import SessionOrigin
from .json_attributes import text_of
from .span_rows import recorded_above


class BatchOtel:
    """Makes the `otel` objects of batches."""

    def __init__(self, origin: SessionOrigin, *, announces_open: bool) -> None:
        """With `announces_open`, batches contain open sessions and epochs."""
        self._origin, self._announces_open = origin, announces_open

    def base(self) -> dict[str, Any]:
        """Return the `otel` fields that are the same in every batch of the session."""
        session = self._origin.session
        otel: dict[str, Any] = {"session": self._origin.session_id}
        if session._trace.trace_id.hex() != otel["session"]:
            otel["session_trace_id"] = session._trace.trace_id.hex()
        otel["trace_id"] = session._trace.trace_id.hex()
        otel["resource"] = {"attributes": self._origin.resource}
        if not session._trace.is_sampled:
            otel["sampled"] = False
        return otel

    def of_flush(
        self,
        drained: Drained,
        default: Trace,
        ids: dict[Scope, list[str]],
        is_split: bool,
        change: FlushChanges,
        announced: set[Scope],
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the `otel` objects of a flush's first batch and of the later ones.

        `ids` contains the scopes with marks. If such a scope's own record may be in another batch,
        or does not exist yet, the result includes the scope's trace id. `announced` contains the
        open scopes that earlier batches contain; those of this flush are added in `change`.
        """
        otel = self.base()
        otel["trace_id"] = default.trace_id.hex()
        brief = dict(otel)
        units = {scope for scope in drained.open if scope._depth <= UNIT_DEPTH}
        running = [
            scope
            for scope, flushes in (drained.open.items() if self._announces_open else ())
            if scope in units and (flushes or not scope._depth) and scope not in announced
        ]
        if running:
            otel["running"] = [self._running(scope, default) for scope in running]
        change.announced = (announced & units) | set(running)
        change.segments = list(self._origin.segments.new)
        if change.segments:
            otel["segments"] = [opened.record() for opened in change.segments]
        outside = {
            scope.id or "": scope._trace.trace_id.hex()
            for scope in ids
            if scope._trace is not default
            and scope._id
            and (is_split or scope in drained.open or scope in drained.late)
            and scope._trace.trace_id != default.trace_id
        }
        outside |= {
            each.scope.id or "": each.scope._trace.trace_id.hex()
            for each in drained.snapshots  # their scope may have ended earlier
            if each.scope._id and each.scope._trace.trace_id != default.trace_id
        }
        if outside:
            otel["traces"] = brief["traces"] = outside
        return otel, brief

    def _running(self, scope: Scope, default: Trace) -> dict[str, Any]:
        parent = recorded_above(scope)
        record: dict[str, Any] = {
            "id": scope.id,
            "name": text_of(scope._name),
            "index": scope._index if type(scope._index) is int else None,
            "start_ns": wall(scope._start),
            "parent_id": parent.id if parent is not NO_SESSION and scope._depth else None,
        }
        if scope._trace.trace_id != default.trace_id:
            record["trace_id"] = scope._trace.trace_id.hex()
        return record
