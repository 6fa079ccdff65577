"""After an error of ours: what is open is closed as it stands, and the next loop starts anew.

A KeyboardInterrupt that is raised in the code of a hook is one of these errors.

Half of a change may have been made when something raised, so nothing that a tracker holds is
trusted any more. What was recorded stays, below what it hangs on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opentelemetry.context.context import Context

from ...sdk.clock import now
from ...sdk.errors import record_error
from ...sdk.phase import Phase
from ...sdk.state import CONTEXT, SCOPE_KEY, SPAN_KEY
from .left_open import break_off

if TYPE_CHECKING:
    from .tracker import Tracker

_HOOKS = __name__.rpartition(".")[0]


def is_abandoned(tracker: Tracker) -> bool:
    """Whether no hook that could close the open scopes is still running around the caller's hook.

    A KeyboardInterrupt may be raised in the code of a hook. What the hook has opened stays open
    then, and everything that follows would be a part of it.
    """
    if tracker.compiled is not None:
        return False  # no hook is on the stack while a compiled function runs
    frame: Any = sys._getframe(3)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_HOOKS):
            return False
        frame = frame.f_back
    return True


def start_over(tracker: Tracker) -> None:
    """Close what the calling thread's tracker has open, and let it forget all. Raises nothing."""
    tracker.shared.gate.is_open = True
    try:
        if tracker.copies is not None:
            tracker.copies.over()
        for phase in list(_open(tracker)):
            _close(phase)
        _leave()
    except Exception as error:
        record_error("torch", error)
    passes = tracker.passes
    tracker.__init__(tracker.shared, passes.numbers)  # type: ignore[misc]


def finish(tracker: Tracker) -> None:
    """The session ends: nothing is held any more. Raises nothing."""
    try:
        if tracker.has_failed:
            start_over(tracker)
            return
        if tracker.open is not None:
            break_off(tracker)
        if tracker.copies is not None:
            tracker.copies.over()
        tracker.passes.end_all()
    except BaseException as error:
        tracker.failed(error)


def _open(tracker: Tracker) -> Iterator[Phase]:
    """What may be open, inner ones first, each with what is around it."""
    passes, bare = tracker.passes, tracker.bare
    tail = passes.tails.tail
    iterations = [tracker.iteration, bare.iteration, tail.iteration if tail else None]
    if passes.training is not None and passes.training.lone is not None:
        iterations.append(passes.training.lone.iteration)
    inner: list[Any] = [CONTEXT.get().get(SCOPE_KEY), tracker.open, tracker.step, tracker.backward]
    for iteration in filter(None, iterations):
        inner += [*iteration.kids, iteration.micro, iteration.step]
    inner += bare.open_phases()
    for some in (passes.evaluation, passes.training, tail.own if tail else None):
        if some is not None:
            inner += [*some.held, some.scope]
    for each in inner:
        above = each
        while isinstance(above, Phase):
            yield above
            above = above._above


def _close(phase: Phase) -> None:
    if phase._end:
        return
    phase._until = phase._until or now()
    if phase._stamps is not None:
        for stamp in phase._stamps:
            stamp.release()
        phase._stamps = None
    phase.finish()


def _leave() -> None:
    """Let the innermost scope that is not ours be current, where one of ours is."""
    context = CONTEXT.get()
    current = found = context.get(SCOPE_KEY)
    while isinstance(current, Phase):
        current = current._above
    if current is not found:
        changed: dict[str, Any] = {**context, SCOPE_KEY: current}
        if isinstance(context.get(SPAN_KEY), Phase):
            changed[SPAN_KEY] = current
        CONTEXT.set(Context(changed))
