"""Recover from an error in the hooks: close the open scopes as they are, and start over.

The error, for example a KeyboardInterrupt inside a hook, may have interrupted a change, so the
state of the tracker is discarded. Recorded scopes are retained, with their parents.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opentelemetry.context.context import Context

from ...session.errors import record_error
from ...tracing.clock import now
from ...tracing.phase import Phase
from ...tracing.state import CONTEXT, SCOPE_KEY, SPAN_KEY
from .unclosed_phases import end_open_phases

if TYPE_CHECKING:
    from .tracker import Tracker

_HOOKS = __name__.rpartition(".")[0]


def is_abandoned(tracker: Tracker, depth: int = 3) -> bool:
    """Return whether the open scopes are abandoned: no hook that could close them is on the stack.

    The hook that calls this function does not count: `depth` is the number of frames up to the
    hook's caller. If a KeyboardInterrupt is raised inside a hook, the scopes that the hook opened
    stay open, and all later scopes would become part of them.
    """
    if tracker.compiled is not None:
        return False  # no hook is on the stack while a compiled function runs
    frame: Any = sys._getframe(depth)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_HOOKS):
            return False
        frame = frame.f_back
    return True


def start_over(tracker: Tracker) -> None:
    """Close the open scopes of the calling thread's tracker and reset it. Raises nothing."""
    tracker.torch_state.gate.is_open = True
    try:
        if tracker.copies is not None:
            tracker.copies.over()
        for phase in list(_open(tracker)):
            _close(phase)
        _leave()
    except Exception as error:
        record_error("torch", error)
    passes, loop = tracker.passes, tracker.loop
    tracker.__init__(tracker.torch_state, passes.numbers)  # type: ignore[misc]
    if loop is not None:
        loop.step = None
        tracker.loop = loop


def finish(tracker: Tracker) -> None:
    """Close all open scopes of a tracker, because the session ends. Raises nothing."""
    try:
        if tracker.has_failed:
            start_over(tracker)
            return
        if tracker.open is not None:
            end_open_phases(tracker)
        if tracker.copies is not None:
            tracker.copies.over()
        tracker.passes.end_all()
    except BaseException as error:
        tracker.failed(error)


def _open(tracker: Tracker) -> Iterator[Phase]:
    """Yield the scopes that may be open, inner ones first, each followed by its ancestors."""
    passes, loaderless = tracker.passes, tracker.loaderless
    unfinished = passes.pass_ends.unfinished
    iterations = [
        tracker.iteration,
        loaderless.iteration,
        unfinished.iteration if unfinished else None,
    ]
    if passes.training is not None and passes.training.first_batch is not None:
        iterations.append(passes.training.first_batch.iteration)
    inner: list[Any] = [CONTEXT.get().get(SCOPE_KEY), tracker.open, tracker.step, tracker.backward]
    for iteration in filter(None, iterations):
        inner += [*iteration.children, iteration.micro, iteration.step]
    inner += loaderless.open_phases()
    for loader_pass in (
        passes.evaluation,
        passes.training,
        unfinished.training if unfinished else None,
    ):
        if loader_pass is not None:
            inner += [*loader_pass.held, loader_pass.scope]
    for each in inner:
        parent_scope = each
        while isinstance(parent_scope, Phase):
            yield parent_scope
            parent_scope = parent_scope._above


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
    """If a scope of the hooks is current, make the innermost scope of the program current."""
    context = CONTEXT.get()
    current = innermost = context.get(SCOPE_KEY)
    while isinstance(current, Phase):
        current = current._above
    if current is not innermost:
        changed: dict[str, Any] = {**context, SCOPE_KEY: current}
        if isinstance(context.get(SPAN_KEY), Phase):
            changed[SPAN_KEY] = current
        CONTEXT.set(Context(changed))
