"""One tracker for each thread, and for each asyncio task if tasks train."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

from ...tracing.phase import LoaderPassSpan, Step
from ...tracing.state import CONTEXT, SCOPE_KEY
from .kinds import LOAD
from .recovery import finish
from .torch_state import TorchState
from .tracker import Tracker


class Trackers(threading.local):
    """The trackers of all threads; the attribute `t` is the calling thread's tracker."""

    def __init__(self, torch_state: TorchState) -> None:
        self._torch_state = torch_state
        self.t = Tracker(torch_state)
        self._sentinel = _Sentinel(self.t)
        torch_state.trackers.add(self.t)
        torch_state.threads_changed()
        torch_state.use_task_trackers = self._use_task_trackers

    def _use_task_trackers(self) -> None:
        """Switch to one tracker for each task, since an event loop runs in the calling thread."""
        thread_tracker = self.t
        self._torch_state.has_tasks = True
        self.__class__ = TaskTrackers
        task = _current_task()
        if task is not None:
            self._tasks()[task] = thread_tracker

    def _tasks(self) -> Any:
        """Return the trackers of the calling thread's tasks."""
        tasks = self.__dict__.get("tasks")
        if tasks is None:
            tasks = self.__dict__["tasks"] = weakref.WeakKeyDictionary()
        return tasks

    def __reduce__(self) -> Any:
        """Pickle as an object that records nothing, for classes pickled by value (cloudpickle)."""
        return _InertTrackers, ()

    def renew(self) -> None:
        """Give the calling thread a new tracker, which is outside of any loop."""
        self._sentinel._tracker = self.t = Tracker(self._torch_state)
        self._torch_state.trackers.add(self.t)
        self._torch_state.threads_changed()


class TaskTrackers(Trackers):
    """The trackers of a program in which a hook ran in an event loop.

    Other programs keep using `Trackers`, in which finding a tracker is one attribute access.
    """

    @property
    def t(self) -> Tracker:
        """The tracker whose step or pass is open in the current context, or else the task's."""
        thread_tracker: Tracker = self.__dict__["t"]
        if asyncio._get_running_loop() is None:
            return thread_tracker
        context = CONTEXT.get()
        last: Tracker = self.__dict__.get("last", thread_tracker)
        if context is last.context:
            return last
        tasks = self._tasks()
        tracker = self.__dict__["last"] = _enclosing_tracker(
            context, [thread_tracker, *tasks.values()]
        ) or _of_task(thread_tracker, tasks)
        return tracker

    @t.setter
    def t(self, tracker: Tracker) -> None:
        self.__dict__["t"] = tracker
        self.__dict__.pop("last", None)


def _current_task() -> Any:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _enclosing_tracker(context: Any, trackers: list[Tracker]) -> Tracker | None:
    """Return the tracker that opened the innermost open step or pass around `context`."""
    scope = context.get(SCOPE_KEY)
    while scope is not None and scope._depth:
        if isinstance(scope, (Step, LoaderPassSpan)) and not scope._until:
            return next((each for each in trackers if each.has_open(scope)), None)
        scope = scope._above
    return None


def _of_task(thread_tracker: Tracker, tasks: Any) -> Tracker:
    """Return the current task's tracker, creating it if necessary; without a task, the thread's."""
    task = _current_task()
    if task is None:
        return thread_tracker
    tracker: Tracker | None = tasks.get(task)
    if tracker is None:
        tracker = tasks[task] = Tracker(thread_tracker.torch_state, thread_tracker.passes.numbers)
        thread_tracker.torch_state.trackers.add(tracker)
        weakref.finalize(task, _task_over, tracker).atexit = False
    return tracker


def _task_over(tracker: Tracker) -> None:
    tracker.torch_state.trackers.discard(tracker)
    finish(tracker)


class _InertTrackers:
    """Replaces the trackers in another process. It behaves as if a fetch were always open."""

    class t:  # noqa: N801 - in the place of Trackers.t
        """A tracker with an open phase."""

        inside, is_plain = LOAD, False
        called, compiled, stepping = 0, None, None


class _Sentinel:
    """Finishes the tracker of a thread when the thread ends."""

    __slots__ = ("_tracker",)

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def __del__(self) -> None:
        tracker = self._tracker
        tracker.torch_state.trackers.discard(tracker)
        tracker.torch_state.threads_changed()
        finish(tracker)
