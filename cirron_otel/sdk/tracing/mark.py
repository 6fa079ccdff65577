"""`mark`: a named value on the innermost open scope."""

from __future__ import annotations

from typing import Any

from ..session.errors import record_error
from .buffers import hooks, limits, local
from .clock import now
from .coerce import coerce, hold
from .state import CONTEXT, SCOPE_KEY, state

_EVERY = 1023
POINT, SUMMARY = "point", "summary"

_get = CONTEXT.get


class SampleAttributes(dict[str, Any]):
    """The attributes of a mark that the sampler made; by this type it differs from other marks."""

    __slots__ = ()


def mark(name: str, value: Any, *, kind: str = POINT, **attrs: Any) -> None:
    """Attach `value` to the innermost open scope, else to the session, else to `root`.

    `kind` is `point` (one of a series) or `summary` (the final value of its scope). Numbers, bools,
    and strings (256 bytes) are kept unchanged; scalars of numpy and torch become numbers. Any other
    value is counted and logged once; nothing is raised (Cirron's concepts page, "Marks", "Error
    handling").
    """
    try:
        at = now()
        if not state.recording:
            return
        type_ = type(value)
        if type_ is not float and type_ is not int:
            value = coerce(value)
        scope = _get().get(SCOPE_KEY) or state.session
        if not scope._depth and not scope._id:
            scope = outside()
        buffers = local.b
        ring = buffers.marks
        if len(ring) >= limits.marks_checked:
            check_room(buffers, len(ring))
        if attrs:
            hold(attrs)
        ring.append((scope, name, value, at, kind, attrs))
        scope._overhead += now() - at
    except Exception as error:
        record_error("mark", error)


def outside() -> Any:
    """Return the scope for a mark made outside of a session; a forked child may open one."""
    hooks.first()
    return state.session


def check_room(buffers: Any, waiting: int) -> None:
    """Wake the flush thread occasionally; drop and count the oldest mark of a full buffer."""
    if not waiting & _EVERY:
        hooks.wake()
    if waiting < limits.marks:
        return
    try:
        buffers.marks.popleft()
    except IndexError:
        return
    buffers.dropped_marks += 1
