"""Close phases whose end was not reported.

Either an exception prevented the report, or the end becomes known only with the next call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...tracing.clock import now
from ...tracing.phase import Phase, Step, restore_context
from ...tracing.state import CONTEXT, SPAN_KEY
from .kinds import FORWARD, OPTIMIZER, PARTIAL

if TYPE_CHECKING:
    from .tracker import Tracker


def end_partial_forward(tracker: Tracker) -> None:
    """Close a partial forward, because another phase begins."""
    while tracker.open is not None and tracker.inside & PARTIAL:
        phase, until = tracker.open, tracker.partial_until
        tracker.partial, tracker.partial_until = None, 0
        tracker.exit(phase, FORWARD, until=until)


def close_abandoned(tracker: Tracker) -> None:
    """Close the phases that an exception left open, because a batch is fetched."""
    fail_step(tracker)
    while tracker.open is not None and tracker.inside:
        before = tracker.inside
        tracker.exit(tracker.open, 0, RuntimeError("left by an exception"))
        if tracker.inside == before:
            break
    tracker.inside = 0


def fail_step(tracker: Tracker) -> None:
    """Close an optimizer step that never ended, because it raised."""
    stepping, tracker.stepping = tracker.stepping, None
    if stepping is not None:
        tracker.leave_closure()
        tracker.exit(stepping.phase, OPTIMIZER, RuntimeError("the optimizer's step raised"))


def end_open_phases(tracker: Tracker) -> None:
    """End the open phases at the end of the session; their step must not end before them."""
    phase: Any = tracker.open
    while type(phase) is Phase:
        phase._until = phase._until or now()
        if CONTEXT.get().get(SPAN_KEY) is phase:
            restore_context(phase)  # no hook may be left that does it at the end of the call
        parent_scope = phase._above
        if isinstance(parent_scope, Step):
            parent_scope.inside.append((phase._start, phase._until))
        phase = parent_scope
