"""Record the tasks that scikit-learn runs through joblib, in this process or in workers.

A task runs in the context of the call that created it. In another process it opens a session,
linked to that of the process that created it.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...session.errors import record_error
from ...tracing.hidden_frames import hidden, strip
from ...tracing.mark import SUMMARY, mark
from ...tracing.scope import Scope
from ...tracing.state import CONTEXT
from ..patches import Patches
from ..recording import is_recording
from .calls import NAME, EstimatorCall, current, end
from .wrapping import add, find, parts

FOLD = "fold"
_FOLDS = frozenset({"_fit_and_score", "_fit_and_predict", "_incremental_fit_estimator"})
"""The functions of scikit-learn that fit and evaluate an estimator on a split of the data."""
_VALIDATION = "sklearn.model_selection._validation"
_MOST_DEPTH = 4
_MOST_FRAMES = 4
"""The most frames between a function of cross-validation and the next one, or joblib."""

Place = tuple[Any, ...]
"""The way to an estimator: the argument's position or name, then attributes and indexes."""
Found = tuple[Place, str | None]
"""The place of a traced estimator among a task's arguments, and its name in a composition."""


def hook_joblib(patches: Patches, module: Any, opener: Callable[[], Any]) -> None:
    """Hook `joblib.parallel`; `opener` returns a function that opens a session in a worker.

    Raises AttributeError if joblib is not as expected.
    """

    def around(original: Any, parallel: Any, args: Any, kwargs: Any) -> Any:
        batch = None
        try:
            if len(args) == 1 and not kwargs and is_recording():
                kind = SizedTaskBatch if hasattr(args[0], "__len__") else TaskBatch
                batch = kind(args[0], opener())
        except Exception as error:
            record_error(NAME, error)
        if batch is None:
            return original(parallel, *args, **kwargs)
        try:
            batch.begin()
            result = original(parallel, batch)
        except BaseException as error:
            batch.end(error)
            raise
        batch.end(None)
        return result

    patches.wrap(module.Parallel, "__call__", around)


class TaskBatch:
    """The tasks of one call of `joblib.Parallel`."""

    def __init__(self, iterable: Iterable[Any], opening: Any) -> None:
        self._items, self._opening = iter(iterable), opening
        self._first: list[Any] = []
        self._call: EstimatorCall | None = None
        self._outer = current.get()
        self._context = CONTEXT.get()
        self._folds = 0

    def begin(self) -> None:
        """Fetch the first task; if a function of cross-validation made it, open its scope.

        Raises what the program's iterator raises.
        """
        for item in self._items:
            self._first.append(item)
            break
        try:
            self._open()
        except Exception as error:
            record_error(NAME, error)

    def _open(self) -> None:
        if not self._first:
            return
        _, args, kwargs = self._first[0]
        if self._outer is not None and hasattr(type(self._outer.estimator), "_run_search"):
            return
        name = _validation()
        if name and any(True for _ in _traced(args, kwargs)):
            call = EstimatorCall(name, None, self._outer)
            call.scope = Scope(name, estimator=type(args[0]).__name__)
            call.scope.__enter__()
            call.token = current.set(call)
            self._call = self._outer = call
            self._context = CONTEXT.get()

    def end(self, error: BaseException | None) -> None:
        """Close the scope, if there is one."""
        if self._call is not None:
            end(self._call, error)

    def __iter__(self) -> Iterator[Any]:
        """Return the tasks, those with traced estimators replaced by ones that are recorded."""
        try:
            for item in itertools.chain(self._first, self._items):
                yield self._task(item)
        except BaseException as error:
            strip(error)
            raise

    def _task(self, item: Any) -> Any:
        try:
            function, args, kwargs = item
            found = list(_traced(args, kwargs))
            if not found:
                return item
            fold = None
            if getattr(getattr(function, "function", function), "__name__", "") in _FOLDS:
                fold = _fold(args, kwargs, self._folds)
                self._folds += 1
            task = Task(function, fold, found, self._outer, self._context, self._opening)
        except Exception as error:
            record_error(NAME, error)
            return item
        return task, args, kwargs


class SizedTaskBatch(TaskBatch):
    """The tasks of a call that gets a list: joblib prints their number."""

    def __init__(self, items: Any, opening: Any) -> None:
        super().__init__(items, opening)
        self._length = len(items)

    def __len__(self) -> int:
        return self._length


def _validation() -> str:
    """Return the name of the function of cross-validation that calls joblib; empty if none does."""
    frame, name, gap = sys._getframe(4), "", 0
    while frame.f_back is not None and gap < _MOST_FRAMES:
        gap += 1
        if frame.f_globals.get("__name__") == _VALIDATION:
            function = frame.f_code.co_name
            if function.startswith("_"):
                break  # a fold of an outer function
            name, gap = (name if function.startswith("<") else function), 0
        frame = frame.f_back
    return name


def _fold(args: Any, kwargs: Any, index: int) -> dict[str, Any]:
    """Return the index and the attributes of a fold's scope."""
    attrs: dict[str, Any] = {"estimator": type(args[0]).__name__}
    split, candidate = kwargs.get("split_progress"), kwargs.get("candidate_progress")
    if split is not None:
        index = split[0]
    if candidate is not None:
        attrs["candidate"] = candidate[0]
        for key, value in (kwargs.get("parameters") or {}).items():
            is_simple = value is None or isinstance(value, (bool, int, float, str))
            attrs[f"params.{key}"] = value if is_simple else type(value).__name__
    return {"index": index, "attrs": attrs}


def _traced(args: Any, kwargs: Any) -> Iterator[Found]:
    for key, value in [*enumerate(args), *kwargs.items()]:
        if hasattr(value, "fit") and not isinstance(value, type):
            yield from _below(value, (key,))


def _below(estimator: Any, place: Place) -> Iterator[Found]:
    member = find(estimator)
    if member is not None:
        yield place, member.step
    elif len(place) < _MOST_DEPTH:
        for where, _, part in parts(estimator):
            yield from _below(part, (*place, where))


def _at(place: Place, args: Any, kwargs: Any) -> Any:
    value = args[place[0]] if isinstance(place[0], int) else kwargs[place[0]]
    for attribute, index in place[1:]:
        value = getattr(value, attribute)
        value = value if index is None else value[index][1]
    return value


class Task:
    """A function that joblib calls, with the call that it belongs to."""

    def __init__(
        self, function: Any, fold: Any, found: list[Found], outer: Any, context: Any, opening: Any
    ) -> None:
        self._function, self._fold, self._found = function, fold, found
        self._outer, self._context, self._opening = outer, context, opening
        self._process = os.getpid()

    def __reduce__(self) -> Any:
        """Pickle for a worker process, which has no context of this one."""
        return _in_worker, (self._function, self._fold, self._found, self._opening, self._process)

    @hidden
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        around = _Around(self)
        try:
            around.enter(args, kwargs)
        except Exception as error:
            record_error(NAME, error)
        try:
            result = self._function(*args, **kwargs)
        except BaseException as error:
            strip(error)
            around.leave(error)
            raise
        around.finished(result)
        around.leave(None)
        return result


def _in_worker(function: Any, fold: Any, found: list[Found], opening: Any, process: int) -> Task:
    task = Task(function, fold, found, None, None, opening)
    task._process = process
    return task


class _Around:
    """The state of one run of a task."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._scope: Any = None
        self._tokens: list[tuple[Any, Any]] = []

    def enter(self, args: Any, kwargs: Any) -> None:
        """Enter the call's context, or open this process' session; open the scope of a fold."""
        task = self._task
        if task._process != os.getpid():
            if task._opening is not None:
                task._opening(_worker_number())
            for place, step in task._found:
                add(_at(place, args, kwargs), step)
        elif task._context is not None and task._context is not CONTEXT.get():
            self._tokens.append((CONTEXT, CONTEXT.set(task._context)))
        if current.get() is not task._outer:
            self._tokens.append((current, current.set(task._outer)))
        if task._fold is not None and is_recording():
            self._scope = Scope(FOLD, task._fold["index"], **task._fold["attrs"])
            self._scope.__enter__()

    def finished(self, result: Any) -> None:
        """Record the scores of a fold."""
        try:
            if self._scope is not None and isinstance(result, dict):
                for part in ("test", "train"):
                    scores = result.get(f"{part}_scores")
                    scores = scores if isinstance(scores, dict) else {"score": scores}
                    for name, value in scores.items():
                        if value is not None:
                            mark(f"{part}_{name}", value, kind=SUMMARY)
        except Exception as error:
            record_error(NAME, error)

    def leave(self, error: BaseException | None) -> None:
        """Close the scope, and restore the thread's context."""
        if self._scope is not None:
            self._scope.__exit__(None if error is None else type(error), error, None)
        try:
            for variable, token in reversed(self._tokens):
                variable.reset(token)
        except Exception as problem:
            record_error(NAME, problem)


def _worker_number() -> int:
    """Return the number of this worker process, from its name."""
    digits = re.search(r"(\d+)$", multiprocessing.current_process().name)
    return int(digits.group()) - 1 if digits else 0
