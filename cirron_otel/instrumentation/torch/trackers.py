"""A tracker for every thread; if asyncio tasks train, for every task."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

from ...sdk.phase import LoaderPassSpan, Step
from ...sdk.state import CONTEXT, SCOPE_KEY
from .kinds import LOAD
from .recovery import finish
from .shared import Shared
from .tracker import Tracker


class Trackers(threading.local):
    """The calling thread's tracker, as `t`."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.t = Tracker(shared)
        self._sentinel = _Sentinel(self.t)
        shared.trackers.add(self.t)
        shared.threads_changed()
        shared.divide = self._divide

    def _divide(self) -> None:
        """An event loop runs in the calling thread, and its tasks may train side by side."""
        own = self.t
        self._shared.has_tasks = True
        self.__class__ = ByTask
        task = _current_task()
        if task is not None:
            self._tasks()[task] = own

    def _tasks(self) -> Any:
        """The calling thread's tasks that have a tracker."""
        tasks = self.__dict__.get("tasks")
        if tasks is None:
            tasks = self.__dict__["tasks"] = weakref.WeakKeyDictionary()
        return tasks

    def __reduce__(self) -> Any:
        """A class that was pickled by value, by cloudpickle for one, records nothing elsewhere."""
        return _Nobodys, ()

    def renew(self) -> None:
        """The calling thread is in no loop."""
        self._sentinel._tracker = self.t = Tracker(self._shared)
        self._shared.trackers.add(self.t)
        self._shared.threads_changed()


class ByTask(Trackers):
    """The trackers of a program in which a hook ran in an event loop.

    A program without one keeps the class above, in which finding a tracker is one attribute.
    """

    @property
    def t(self) -> Tracker:
        """The tracker whose step or pass is open in the current context, else the task's own."""
        own: Tracker = self.__dict__["t"]
        if asyncio._get_running_loop() is None:
            return own
        context = CONTEXT.get()
        last: Tracker = self.__dict__.get("last", own)
        if context is last.context:
            return last
        tasks = self._tasks()
        found = self.__dict__["last"] = _around(context, [own, *tasks.values()]) or _of_task(
            own, tasks
        )
        return found

    @t.setter
    def t(self, tracker: Tracker) -> None:
        self.__dict__["t"] = tracker
        self.__dict__.pop("last", None)


def _current_task() -> Any:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _around(context: Any, trackers: list[Tracker]) -> Tracker | None:
    """The tracker that has opened the innermost step or pass around `context`, if that is open."""
    scope = context.get(SCOPE_KEY)
    while scope is not None and scope._depth:
        if isinstance(scope, (Step, LoaderPassSpan)) and not scope._until:
            return next((each for each in trackers if each.has_open(scope)), None)
        scope = scope._above
    return None


def _of_task(own: Tracker, tasks: Any) -> Tracker:
    """The current task's tracker, made if there is none; outside of a task the thread's."""
    task = _current_task()
    if task is None:
        return own
    found: Tracker | None = tasks.get(task)
    if found is None:
        found = tasks[task] = Tracker(own.shared, own.passes.numbers)
        own.shared.trackers.add(found)
        weakref.finalize(task, _task_over, found).atexit = False
    return found


def _task_over(tracker: Tracker) -> None:
    tracker.shared.trackers.discard(tracker)
    finish(tracker)


class _Nobodys:
    """Stands for the trackers in another process: as if a fetch was always open."""

    class t:  # noqa: N801 - in the place of Trackers.t
        """A tracker that is in something already."""

        inside, is_plain = LOAD, False


class _Sentinel:
    """Dies with its thread."""

    __slots__ = ("_tracker",)

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def __del__(self) -> None:
        tracker = self._tracker
        tracker.shared.trackers.discard(tracker)
        tracker.shared.threads_changed()
        finish(tracker)
