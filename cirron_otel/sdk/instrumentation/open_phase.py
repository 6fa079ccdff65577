"""Open and close phases in the current scope, for frameworks without a tracker of their own."""

from __future__ import annotations

from typing import Any

from ..session.errors import record_error
from ..tracing.clock import now
from ..tracing.phase import Phase, begin, leave
from ..tracing.state import CONTEXT, state
from .iteration import current_scope
from .recording import is_recording
from .training_loop import current_loop


def open_phase(framework: str, name: str, attrs: dict[str, Any] | None = None) -> Phase | None:
    """Open a phase below the current scope, or below the open micro step of a loop.

    Returns None if nothing is recorded. Raises nothing.
    """
    try:
        if not state.recording or not is_recording():
            return None
        context = CONTEXT.get()
        parent = current_scope(context)
        loop = current_loop()
        step = None if loop is None else loop.step
        is_micro = step is not None and step.micro is not None and parent is step.step
        if is_micro and step is not None:
            parent = step.micro
        phase = Phase.__new__(Phase)
        phase._before = 0
        begin(phase, name, None, attrs, parent, context, now(), is_micro, enters=True)
        return phase
    except Exception as error:
        record_error(framework, error)
        return None


def close_phase(framework: str, phase: Phase | None, error: BaseException | None = None) -> None:
    """Close a phase that `open_phase` returned. Raises nothing."""
    if phase is None:
        return
    try:
        leave(phase, error)
        loop = current_loop()
        if loop is not None:
            loop.add(phase)
        else:
            phase.finish()
        parent: Any = phase._above
        is_counted = loop is not None and loop.step is not None and loop.step.owns(parent)
        if not is_counted and parent._inside is not None:
            parent._inside.ended(phase, phase._until)
    except Exception as problem:
        record_error(framework, problem)


def drop_phase(framework: str, phase: Phase | None) -> None:
    """Close a phase and discard it; its children move to its parent. Raises nothing."""
    if phase is None:
        return
    try:
        leave(phase)
        phase.drop()
        phase.finish()
    except Exception as problem:
        record_error(framework, problem)
