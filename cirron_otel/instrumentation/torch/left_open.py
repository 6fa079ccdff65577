"""Phases whose end nobody told: an exception passed them by, or only what came next shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...sdk.clock import now
from ...sdk.phase import Phase, Step
from .kinds import FORWARD, OPTIMIZER, PARTIAL

if TYPE_CHECKING:
    from .tracker import Tracker


def interrupt(tracker: Tracker) -> None:
    """What was taken for a forward until now is over: something else begins."""
    while tracker.open is not None and tracker.inside & PARTIAL:
        phase, until = tracker.open, tracker.partial_until
        tracker.partial, tracker.partial_until = None, 0
        tracker.exit(phase, FORWARD, until=until)


def settle_down(tracker: Tracker) -> None:
    """A batch is fetched: what is open still was left by an exception."""
    fail_step(tracker)
    while tracker.open is not None and tracker.inside:
        before = tracker.inside
        tracker.exit(tracker.open, 0, RuntimeError("left by an exception"))
        if tracker.inside == before:
            break
    tracker.inside = 0


def fail_step(tracker: Tracker) -> None:
    """An optimizer's step that was begun never ended: it raised."""
    stepping, tracker.stepping = tracker.stepping, None
    if stepping is not None:
        tracker.exit(stepping.phase, OPTIMIZER, RuntimeError("the optimizer's step raised"))


def break_off(tracker: Tracker) -> None:
    """The session ends: what is open ends here, and the step around it not before it."""
    phase: Any = tracker.open
    while type(phase) is Phase:
        phase._until = phase._until or now()
        above = phase._above
        if isinstance(above, Step):
            above.inside.append((phase._start, phase._until))
        phase = above
