"""`scope`: the hot path. An object with slots that is an OpenTelemetry span.

Entering takes one id, one context-variable set, and a clock reading; leaving takes a clock reading
and one reset. There is no lock and no I/O. Design and figures: docs/adr/0005.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable
from os import urandom
from types import TracebackType
from typing import Any, Self, TypeVar

from opentelemetry.context.context import Context
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan, Span, StatusCode
from opentelemetry.trace.status import Status

from ..flush.json_attributes import text_of
from ..session.errors import record_error
from .buffers import local
from .clock import now
from .coerce import hold
from .decorators import wrap_calls
from .enclosing import EnclosingSpan, enclosing_of
from .otel_span import RecordedScope
from .state import CONTEXT, SCOPE_KEY, SPAN_KEY, state
from .traces import UNIT_DEPTH, Trace

logger = logging.getLogger("cirron_otel")

MAX_DEPTH = 64
"""Scopes below this depth are not recorded (Cirron's concepts page, "Scope tree")."""

_get = CONTEXT.get
_set = CONTEXT.set
_reset = CONTEXT.reset

F = TypeVar("F", bound=Callable[..., Any])


class Scope(RecordedScope):
    """A named span of time: a context manager (sync and async), a decorator, an OTel span.

    `name` describes the work, `index` is its number among scopes of that name, and `attrs` are the
    user's attributes. Its parent is the innermost open scope of this context, or else the session.
    An exception inside the scope is recorded and propagates unchanged.
    """

    __slots__ = ()

    _inside: Any = None
    """In an instrumentation's step, collects the intervals in which the step's children ran."""
    _folded: Any = None
    """The phases of a step that have no record yet; only `phase.Step` uses it."""
    _is_detailed: bool | None = None
    """Whether the inside of a step is certain to be retained; only `phase.Step` uses it."""
    _rest: int | None = None
    """The `unattributed_ns` of a step; only `phase.Step` uses it."""

    def __init__(self, name: str, index: int | None = None, **attrs: Any) -> None:
        self._name = name
        self._index = index
        self._attrs = attrs
        if attrs:
            try:
                hold(attrs)
            except Exception as error:
                record_error("attributes", error)
        self._start = self._end = self._overhead = self._id = 0
        self._extras = self._token = None

    def __enter__(self) -> Self:
        """Open the scope; it is the current span from now on."""
        try:
            begun = now()
            if self._start:
                return self._open_again()  # type: ignore[no-any-return]
            if not state.recording:
                self._start = begun
                return self
            context = _get()
            parent: Scope = context.get(SCOPE_KEY) or state.session
            self._above = parent
            self._depth = depth = parent._depth + 1
            buffers = local.b
            for self._id in buffers.ids:
                break
            else:
                self._id = buffers.next_id()
                # A forked child may have opened its session just now.
                context = _get()
                self._above = parent = context.get(SCOPE_KEY) or state.session
                self._depth = depth = parent._depth + 1
            if depth > UNIT_DEPTH and depth <= MAX_DEPTH and context.get(SPAN_KEY) is parent:
                self._trace = parent._trace
            elif not self._place(context, parent):
                return self._open_unrecorded(begun)
            self._thread = buffers.ident
            self._token = _set(Context({**context, SPAN_KEY: self, SCOPE_KEY: self}))
            if state.special:
                self._notify_start(context)
            self._start = start = now()
            buffers.put(self)
            parent._overhead += start - begun
            return self
        except Exception as error:
            return self._not_entered(error)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the scope. An exception is recorded and propagates."""
        try:
            end = now()
            token = self._token
            if token is None:
                self._leave_again(error)
                return
            if error is not None:
                self._fail(error, end)
            self._token = None
            try:  # noqa: SIM105 - contextlib.suppress costs a fifth of this method
                _reset(token)
            except (ValueError, RuntimeError):
                pass  # left in a context other than its own: a generator closed elsewhere
            if state.special:
                self._notify_end(end)
            elif not self._end:
                self._end = end
            parent = self._above
            parent._overhead += now() - end
            if parent._inside is not None:
                parent._inside.ended(self, end)
            if parent._end:
                self._left_late(parent)
        except Exception as problem:
            self._not_left(problem)

    async def __aenter__(self) -> Self:
        """Open the scope in `async with`."""
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the scope in `async with`."""
        self.__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        """Decorate a function, coroutine function or generator: a new scope for each call."""
        try:
            return wrap_calls(function, self.again)
        except Exception as error:
            record_error("decorator", error)
            return function

    def again(self) -> Scope:
        """Return an unopened copy of this scope."""
        another = Scope(self._name, self._index)
        another._attrs = self.attrs.copy()
        return another

    def suspend(self) -> None:
        """Stop being the current span but stay open: a generator yields to its consumer."""
        token, self._token = self._token, None
        if token is not None:
            self.more.inside = _get()
            with contextlib.suppress(ValueError, RuntimeError):
                _reset(token)

    def resume(self) -> None:
        """Become the current span again, along with the spans that were open inside the scope."""
        if self._start and not self._end and self._id:
            inside, self.more.inside = self.more.inside, None
            if inside is None:
                inside = Context({**_get(), SPAN_KEY: self, SCOPE_KEY: self})
            self._token = _set(inside)

    def drop(self) -> None:
        """Discard the scope because the buffers are full; its children move to its parent."""
        self._id = 0

    # --- rare cases -----------------------------------------------------------------------------

    def _place(self, context: Any, parent: Scope, *, again: bool = False) -> bool:
        """Determine the trace of a scope if it may differ from its parent's trace.

        Returns False if the scope must not be recorded. `again` means that the caller has already
        counted the unit.
        """
        if self._depth > MAX_DEPTH:
            return False
        current = context.get(SPAN_KEY)
        if isinstance(current, Scope) and current is not parent and current._id and current._start:
            # `use_span(scope)`: the caller passed the span, not the context, to another thread.
            self._above = parent = current
            self._depth = current._depth + 1
            if self._depth > MAX_DEPTH:
                return False
        elif current is not None and current is not parent and isinstance(current, Span):
            span_context = current.get_span_context()
            if (
                span_context is not INVALID_SPAN_CONTEXT
                and span_context.is_valid
                and current is not parent
            ):
                return self._join(current, span_context, parent)
        segments = state.segments
        if parent is NO_SESSION or segments is None:
            if parent is NO_SESSION:
                self._trace = Trace(urandom(16), is_apart=True)
            else:
                self._trace = parent._trace
        elif self._depth > UNIT_DEPTH or parent._trace.is_apart:
            self._trace = parent._trace
        else:
            if not again:
                segments.tick -= 1
            if segments.tick >= 0:
                self._trace = segments.trace
            else:
                unit_id = f"{self._id:016x}{parent._trace.low}"
                self._trace = segments.choose(unit_id, parent.id or "", parent._trace)
        return True

    def _join(self, current: Any, span_context: Any, parent: Scope) -> bool:
        """Become a child of a span of another library, in the trace of that span."""
        enclosing = enclosing_of(current)
        if enclosing is not None:
            self._above, self._depth = enclosing, enclosing._depth + 1
            self._trace = enclosing._trace
            return True
        trace_id = span_context.trace_id.to_bytes(16, "big")
        if trace_id == parent._trace.trace_id:
            self._trace = parent._trace
        else:
            self._trace = Trace(
                trace_id, int(span_context.trace_flags), span_context.trace_state, is_apart=True
            )
        extras = self.more
        extras.is_rooted, extras.otel_parent = True, span_context
        return True

    def _open_unrecorded(self, begun: int) -> Self:
        drops.too_deep += 1
        if drops.too_deep == 1:
            logger.warning(
                "cirron-otel: scope %r is nested deeper than %d levels: it and the scopes inside it"
                " are not recorded", self._name, MAX_DEPTH,
            )  # fmt: skip
        self._id, self._start = 0, begun
        return self

    def _not_entered(self, error: Exception) -> Self:
        """Handle an SDK error on entry: the scope is not recorded; its children move to its parent.

        The token, if there is one, is retained because the exit needs it.
        """
        self._id = 0
        record_error("scope", error)
        return self

    def _not_left(self, error: Exception) -> None:
        token, self._token = self._token, None
        if token is not None:
            with contextlib.suppress(ValueError, RuntimeError):
                _reset(token)
        self._end = self._end or self._start
        record_error("scope", error)

    def _open_again(self) -> Any:
        """Enter a scope that was used before: each `with` block records a separate scope."""
        entries: list[tuple[Scope, Any]] = self.__dict__.setdefault("entries", [])
        if self._token is not None:
            # The scope is open: from now on, `_leave_again` also handles its exit.
            entries.append((self, self._token))
            self._token = None
        inner = self.again()
        result = inner.__enter__()
        entries.append((inner, inner._token))
        return result

    def _leave_again(self, error: BaseException | None) -> None:
        """Leave the scope that was entered last, in this context if that can be determined."""
        entries: list[tuple[Scope, Any]] = self.__dict__.get("entries", [])
        if not entries:
            return
        current = _get().get(SCOPE_KEY)
        at = len(entries) - 1
        for number, (scope, _) in enumerate(entries):
            if scope is current:
                at = number
        scope, scope._token = entries.pop(at)
        if scope._token is not None:
            scope.__exit__(None, error, None)

    def _fail(self, error: BaseException, at: int = 0) -> None:
        """Record an exception that left the scope at `at` (monotonic ns; 0: now, or its end)."""
        if not isinstance(error, Exception):
            return  # sys.exit, Ctrl-C, or a cancelled task is not an error of the scope
        try:
            if at:
                self.more.left_ns = at
            self.record_exception(error, escaped=True)
            self.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {text_of(error)}"))
            state.failed(self, error, at)
        except Exception as problem:
            record_error("exception", problem)

    def _left_late(self, parent: Any) -> None:
        """Make an open scope current again: the parent was left before this scope.

        Tasks and other threads are exempt: their context continues below the span in which they
        were created, as OpenTelemetry specifies.
        """
        if type(parent) is EnclosingSpan:
            parent = parent.scope
        asyncio = sys.modules.get("asyncio")
        is_over = not parent._depth
        is_apart = asyncio is not None and asyncio._get_running_loop() is not None
        context = _get()
        if context.get(SCOPE_KEY) is not parent:
            return
        if not is_over and (is_apart or parent._thread != self._thread):
            return
        left, span = parent, None
        while parent._end and parent._depth:
            span = _span_around(parent)
            parent = parent._above.scope if type(parent._above) is EnclosingSpan else parent._above
        keys = [SCOPE_KEY, SPAN_KEY] if context.get(SPAN_KEY) is left else [SCOPE_KEY]
        changed: dict[str, Any] = {k: v for k, v in context.items() if k not in keys}
        if not parent._end and parent is not NO_SESSION:
            changed |= dict.fromkeys(keys, parent)
            if span is not None and SPAN_KEY in keys:
                changed[SPAN_KEY] = span
        _set(Context(changed))

    def _notify_start(self, context: Any) -> None:
        self._start = now()
        try:
            state.observe_start(self, context)
        except Exception as problem:
            record_error("on_start", problem)

    def _notify_end(self, end: int) -> None:
        try:
            state.observe_end(self, end)
        except Exception as problem:
            record_error("on_end", problem)
        if not self._end:
            self._end = end


def _span_around(scope: Any) -> Any:
    """Return the span directly around a scope if it is a span of another library."""
    if type(scope._above) is EnclosingSpan:
        return scope._above.span
    extras = scope._extras
    if extras is None or extras.otel_parent is None:
        return None
    return NonRecordingSpan(extras.otel_parent)


class _Drops:
    """Numbers of scopes that were not recorded, by cause."""

    def __init__(self) -> None:
        self.too_deep = 0


drops = _Drops()


def no_session() -> Scope:
    """Return the placeholder parent for scopes outside of a session; it has no id."""
    scope = Scope("")
    scope._depth, scope._trace = 0, Trace(bytes(16), 0, is_apart=True)
    scope._above = scope
    return scope


NO_SESSION = no_session()
state.session = NO_SESSION
