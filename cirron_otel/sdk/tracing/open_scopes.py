"""The innermost open scope of another thread, read without a lock, and its protection.

A thread's buffers contain its scopes in the order in which they were entered. Its last scope, or
the nearest ancestor of that scope which is open and was entered in the same thread, is therefore
the innermost open one. The scopes that the flush thread has taken are gone from the buffers, so it
notes the last one in `Buffers.newest`.
"""

from __future__ import annotations

from typing import Any

from . import buffers as buf
from .clock import now
from .enclosing import EnclosingSpan
from .phase import STEPS
from .scope import NO_SESSION
from .state import state

_UNITS = frozenset((*STEPS, "epoch"))
_ATTEMPTS = 8


class PinnedScope:
    """The scope that a mark is being prepared for.

    The flush does not seal it, nor the scopes around it, so the mark is listed in its record.
    """

    def __init__(self) -> None:
        self.scope: Any = None

    def held(self, ended: list[Any]) -> set[Any]:
        """Return the scopes among `ended` that must not be sealed yet."""
        scope = self.scope
        if scope is None:
            return set()
        chain = set()
        while scope._depth and scope is not NO_SESSION:
            chain.add(scope)
            scope = scope._above
        return chain.intersection(ended)


pinned = PinnedScope()


def is_open(scope: Any) -> bool:
    """Return whether a scope is entered and not left.

    A phase may be left before it ends, and so may a scope whose exception is being recorded.
    """
    extras = scope._extras
    return not (end_of(scope) or (extras is not None and extras.left_ns))


def open_in(buffers: Any) -> list[Any]:
    """Return the open scopes of a thread that its last scope is inside, the innermost first."""
    try:
        scope = buffers.scopes[-1]
    except IndexError:
        scope = buffers.newest
    found = []
    while scope is not None and scope is not NO_SESSION and scope is not state.session:
        if not scope._depth:
            break
        if type(scope) is EnclosingSpan:
            scope = scope.scope
            continue
        if scope._id and scope._thread == buffers.ident and is_open(scope):
            found.append(scope)
        scope = scope._above
    return found


class TrainingThread:
    """The thread that trains, as far as the open scopes show it.

    It is a thread in which a `step`, `batch` or `epoch` is open; else one in which any scope is
    open. Among several, it is the last choice, else the thread that opened the session, else the
    thread that has had a scope open for the longest time.
    """

    def __init__(self, opened_in: int) -> None:
        """`opened_in` is the id of the thread that opened the session."""
        self._opened_in = self.ident = opened_in

    def innermost(self) -> Any:
        """Return the innermost scope that is open in the training thread, else the session."""
        best: tuple[tuple[bool, bool, bool, int], int, Any] | None = None
        for buffers in tuple(buf.registry):
            scopes = [] if buffers.dead else open_in(buffers)
            if not scopes:
                continue
            ident = buffers.ident
            rank = (
                any(type(each._name) is str and each._name in _UNITS for each in scopes),
                ident == self.ident,
                ident == self._opened_in,
                -scopes[-1]._start,
            )
            if best is None or rank > best[0]:
                best = rank, ident, scopes[0]
        if best is None:
            return state.session
        self.ident = best[1]
        return best[2]

    def pin(self) -> tuple[Any, int]:
        """Pin the innermost scope; return it with a time (monotonic ns) at which it was that.

        If the thread enters and leaves scopes so fast that none is innermost for long enough, the
        session is pinned.
        """
        for _ in range(_ATTEMPTS):
            scope = pinned.scope = self.innermost()
            at = now()
            # The flush looks at the pin after it has seen that a scope has ended. If the scope is
            # still open here, the flush sees the pin.
            if self.innermost() is scope:
                return scope, at
        scope = pinned.scope = state.session
        return scope, now()


def end_of(scope: Any) -> int:
    """Return the end of a scope (monotonic ns), 0 while it is open."""
    end: int = scope._end or getattr(scope, "_until", 0)
    return end
