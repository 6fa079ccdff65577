"""A session that opens with the first thing that is recorded.

For processes in which nobody calls `profile()`: `cirron-otel run` and `opentelemetry-instrument`
reach every Python process below them, launchers, shells' helpers and package managers among them,
and only those that train, or open a scope, are to leave a session. Until then the hooks are there
and nothing else: no thread, no file.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from opentelemetry.sdk.trace import TracerProvider

from ...core.config.resolve import Resolved, resolve
from ..instrumentation.installing import Instrumentation
from ..tracing import buffers as buf
from ..tracing.clock import now
from ..tracing.state import state
from .errors import record_error
from .handle import active
from .opening import open_profiler
from .provider import is_in_worker
from .starting import Joining


class Waiting:
    """What is there before the session: the options, and the hooks."""

    def __init__(self, resolved: Resolved, joining: Joining) -> None:
        """Nothing is hooked yet."""
        self._resolved, self._joining = resolved, joining
        self._is_opening = False
        self.hooks = Instrumentation(resolved.config)
        self.hooks.before_loading = self.open
        self.hooks.opens_worker = _not_yet

    def open(self) -> None:
        """Open the session now, unless there is one, or this is a worker of a DataLoader."""
        if active.waiting is not self:
            return
        if is_in_worker():
            state.recording = False
            active.waiting = None
            self.give_up()
            return
        with active.lock:
            if active.waiting is not self or self._is_opening:
                return
            self._is_opening = True
            try:
                active.profiler = open_profiler(self._resolved, self._joining, self.hooks)
                if active.profiler.runtime is None:
                    self.give_up()  # there is no place for a session: nothing is to be recorded
            finally:
                self._is_opening = False
                if buf.hooks.first == self.open:
                    buf.hooks.first = _nothing

    def give_up(self) -> None:
        """Another session opens, or none: take the hooks off. Raises nothing."""
        if buf.hooks.first == self.open:
            buf.hooks.first = _nothing
        self.hooks.before_loading = None
        self.hooks.remove()

    def begin_again(self) -> None:
        """In a forked child, which began just now; a thread that is not here may hold the lock."""
        active.lock = threading.RLock()
        self._is_opening = False
        self._joining.begun = now()


def wait_for_session(
    begun: int | None = None, provider: TracerProvider | None = None, *, hooks: bool = True
) -> bool:
    """Hook what there is, and open the session of this process with the first thing recorded.

    `begun` is when the session began, by `time.monotonic_ns`; `provider` is the one to work in;
    without `hooks` no framework is hooked, whatever the options say.
    `profile()` takes its place. False where one is open or waits already, or tracing is off.
    Raises nothing.
    """
    try:
        with active.lock:
            if active.profiler is not None or active.waiting is not None:
                return False
            resolved = resolve(None, instance={} if hooks else {"frameworks": "none"})
            if not resolved.config.enabled:
                return False
            joining = Joining(provider=provider, begun=begun, environment_first=True)
            waiting = active.waiting = Waiting(resolved, joining)
            waiting.hooks.install()
            buf.hooks.first = waiting.open
            buf.discard_ids()
        _watch_forks()
    except Exception as error:
        record_error("profile", error)
        return False
    return True


def stop_waiting() -> None:
    """Open no session of its own accord any more. Raises nothing."""
    with active.lock:
        waiting, active.waiting = active.waiting, None
        if waiting is not None:
            waiting.give_up()


class _Forks:
    is_watched = False


def _watch_forks() -> None:
    if not _Forks.is_watched:
        _Forks.is_watched = True
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    if active.waiting is not None:
        active.waiting.begin_again()


def _not_yet(_: Any) -> Any:
    return _nothing


def _nothing() -> None:
    pass
