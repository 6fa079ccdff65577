"""Forked children: they start with empty buffers and open their own session if they trace.

A child opens its session at its first scope or mark, so a child that traces nothing costs nothing.
DataLoader workers trace nothing unless the options request it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from ..tracing import buffers as buf
from ..tracing import unwinding
from ..tracing.scope import NO_SESSION, drops
from ..tracing.state import state
from .errors import record_error
from .provider import is_in_worker
from .session import clear_scopes


class _Forks:
    def __init__(self) -> None:
        self.is_registered = False
        self.after: Callable[[], None] | None = None


_forks = _Forks()


def watch_forks(after: Callable[[], None]) -> None:
    """Call `after` in every child that is forked from now on."""
    _forks.after = after
    if not _forks.is_registered:
        _forks.is_registered = True
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    try:
        buf.reset_after_fork()
        drops.too_deep = 0
        state.session, state.segments, state.special = NO_SESSION, None, False
        buf.hooks.wake = buf.hooks.first = _nothing
        clear_scopes()
        unwinding.forget()
        if _forks.after is not None:
            _forks.after()
    except Exception as error:
        record_error("fork", error)


def revive_later(revive: Callable[[], None]) -> None:
    """Let the child open its session with its first record."""

    def first() -> None:
        buf.hooks.first = _nothing
        if is_in_worker():
            state.recording = False
            return
        try:
            revive()
        except Exception as error:
            record_error("fork", error)

    buf.hooks.first = first


def finish_with_process(end: Callable[[], object]) -> None:
    """Call `end` when a multiprocessing child ends: it exits without running `atexit` handlers."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing import util  # noqa: PLC0415 - only in such processes

        util.Finalize(None, end, exitpriority=100)


def _nothing() -> None:
    pass
