"""Exceptions and signals that end the program: set ERROR on open scopes, up to the session.

An exception that the program catches sets no status here. The scopes whose `with` block it leaves,
and the phases whose call raised, get their status when they exit.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

from opentelemetry.trace import StatusCode
from opentelemetry.trace.status import Status

from ..tracing.scope import NO_SESSION, Scope
from ..tracing.state import CONTEXT, SCOPE_KEY
from ..tracing.unwinding import passed_by

KILLED = "killed: "
"""Prefix of the status message of a scope that a signal ended."""

_FLOW = (StopIteration, StopAsyncIteration)


def cause_of(error: BaseException | None) -> Exception | None:
    """Return the failure that `error` reports to the interpreter; None if it reports none.

    `sys.exit(1)` in an exception handler ends the program because of the handled exception.
    """
    if isinstance(error, SystemExit) and error.code not in (None, 0):
        error = error.__context__
    return error if isinstance(error, Exception) and not isinstance(error, _FLOW) else None


def fail(session: Scope, error: BaseException | None) -> None:
    """Set ERROR and record the exception on all open scopes, because it ends the session."""
    cause = cause_of(error)
    if cause is None:
        return
    for scope in (*passed_by(cause), *_open_in(session)):
        if not _has_failed(scope):
            scope._fail(cause)


def terminate(session: Scope, number: int, frame: FrameType | None) -> None:
    """Set ERROR on open scopes, and add an event with the stack: a signal ends the process."""
    name = signal.Signals(number).name
    message = f"{KILLED}the process was ended by {name}"
    stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
    event = {
        "exception.type": name,
        "exception.message": message.removeprefix(KILLED),
        "exception.stacktrace": stack,
    }
    for scope in _open_in(session):
        if not _has_failed(scope):
            scope.add_event("exception", event)
            scope.set_status(Status(StatusCode.ERROR, message))


def unreported(hook: Any) -> BaseException | None:
    """Return the exception that ended the program, if `hook` was replaced as `sys.excepthook`.

    An interactive interpreter also sets `sys.last_value`, but continues.
    """
    if sys.excepthook == hook or hasattr(sys, "ps1"):
        return None
    return getattr(sys, "last_value", None)


def _open_in(session: Scope) -> Iterator[Any]:
    """Yield the open scopes of this context, innermost first, and then the session."""
    scope: Any = CONTEXT.get().get(SCOPE_KEY)
    chain = []
    while scope is not None and scope is not NO_SESSION and scope._depth:
        chain.append(scope)
        scope = scope._above
    if scope is session:
        yield from chain
    yield session


def _has_failed(scope: Any) -> bool:
    extras = scope._extras
    return bool(scope._end) or (
        extras is not None and extras.status.status_code is StatusCode.ERROR
    )
