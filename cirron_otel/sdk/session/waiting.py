"""A session that opens with the first record.

It is used in processes that do not call `profile()`. `cirron-otel run` and
`opentelemetry-instrument` affect every Python child process, including launchers, shell helpers,
and package managers, but only a process that trains or opens a scope should record a session. Until
then only the hooks are installed; there is no thread and no file.
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
from .process_session import ProcessSession
from .provider import is_in_worker
from .starting import Joining

_NO_HOOKS = {"frameworks": "none", "capture": "none"}


class Waiting:
    """The state before the session opens: the options and the hooks."""

    def __init__(self, resolved: Resolved, joining: Joining) -> None:
        """Install no hooks yet."""
        self._resolved, self.joining = resolved, joining
        self._is_opening = False
        self.hooks = Instrumentation(resolved.config)
        self.hooks.before_loading = self.open
        self.hooks.opens_worker = _not_yet
        self.hooks.process = ProcessSession()

    def open(self) -> None:
        """Open the session now, unless one is open or this is a DataLoader worker."""
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
                active.profiler = open_profiler(self._resolved, self.joining, self.hooks)
                active.profiler.is_automatic = True
                if active.profiler.runtime is None:
                    self.give_up()  # the spool cannot be created: nothing is recorded
            finally:
                self._is_opening = False
                if buf.hooks.first == self.open:
                    buf.hooks.first = _nothing

    def give_up(self) -> None:
        """Remove the hooks, because another session opens or no session will. Raises nothing."""
        if buf.hooks.first == self.open:
            buf.hooks.first = _nothing
        self.hooks.before_loading = None
        self.hooks.remove()

    def begin_again(self) -> None:
        """Restart in a forked child; a thread that the child lacks may hold the lock."""
        active.lock = threading.RLock()
        self._is_opening = False
        self.joining.begun = now()


def wait_for_session(
    begun: int | None = None, provider: TracerProvider | None = None, *, hooks: bool = True
) -> bool:
    """Install the hooks, and open the session of this process with the first record.

    `begun` is the start of the session by `time.monotonic_ns`, and `provider` the provider to work
    in. Without `hooks`, no framework is hooked, regardless of the options. A call to `profile()`
    replaces the waiting session. Returns False if a session is already open or waiting, or if
    tracing is off. Raises nothing.
    """
    try:
        with active.lock:
            if active.profiler is not None or active.waiting is not None:
                return False
            resolved = resolve(
                None, instance={} if hooks else {"frameworks": "none", "capture": "none"}
            )
            if not resolved.config.enabled:
                return False
            joining = Joining(provider=provider, begun=begun, environment_first=True)
            state.recording = True  # the previous session may have stopped the recording
            waiting = active.waiting = Waiting(resolved, joining)
            waiting.hooks.install()
            buf.hooks.first = waiting.open
            buf.discard_ids()
        _watch_forks()
    except Exception as error:
        record_error("profile", error)
        return False
    return True


active.wait = wait_for_session


def stop_waiting() -> None:
    """Stop waiting: no session opens automatically any more. Raises nothing."""
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
