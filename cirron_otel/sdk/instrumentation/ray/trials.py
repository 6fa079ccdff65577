"""The trials of a tuning: scopes in the driver, which may overlap."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

from ...session.errors import record_error
from ...session.joining import inject
from ...session.run_details import hyperparameter_attributes
from ...tracing.scope import Scope
from ..patches import Patches
from .handover import ATTRIBUTE
from .runs import NAME

TRIAL = "trial"
ERROR = "ERROR"
_ENDED = ("TERMINATED", ERROR)


class _OpenTrial:
    """A trial that has not ended: its scope is current only in a context of its own."""

    def __init__(self, trial: Any) -> None:
        attributes = hyperparameter_attributes(trial.config or {})
        self.scope = Scope(TRIAL, id=str(trial.trial_id), **attributes)
        self.context = contextvars.copy_context()
        self.context.run(self.scope.__enter__)
        self.error: BaseException | None = None
        self.status: str | None = None
        """The last status with which a process of the trial ended."""

    def end(self) -> None:
        if self.status is not None:
            self.scope.set_attribute("status", self.status)
        error = self.error if self.status == ERROR else None
        kind = type(error) if error is not None else None
        self.context.run(self.scope.__exit__, kind, error, None)


class TrialHooks:
    """Replaces methods of `Trial` and of the controller that runs trials."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._running = 0
        self._open: dict[str, _OpenTrial] = {}

    def trial(self, trial: Any, info: Any) -> None:
        """Hook `Trial`, and the message that carries a trial's id to its process."""
        self._patches.wrap(info, "__init__", self._inform)
        self._patches.wrap(trial, "set_status", self._set_status)
        self._patches.wrap(trial, "handle_error", self._handle_error)

    def controller(self, controller: Any) -> None:
        """Hook `TuneController`: the decision of a scheduler or a stopper to end a trial."""
        self._patches.wrap(controller, "_process_trial_result", self._process)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Record the trials of a tuning while the block runs."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self.end_all()

    def end_all(self) -> None:
        """Close the scopes of trials that have not ended. Raises nothing."""
        while self._open:
            _, trial = self._open.popitem()
            try:
                trial.end()
            except Exception as error:
                record_error(NAME, error)

    def _inform(self, original: Any, info: Any, args: Any, kwargs: Any) -> Any:
        original(info, *args, **kwargs)
        try:
            trial = args[0] if args else kwargs["trial"]
            if self._running:
                opened = self._open.get(trial.trial_id)
                if opened is None:
                    opened = self._open[trial.trial_id] = _OpenTrial(trial)
                failures = int(trial.run_metadata.num_failures)
                handed = {
                    "variables": dict(opened.context.run(inject, environ=True)),
                    "failures": failures,
                }
                setattr(info, ATTRIBUTE, handed)
        except Exception as error:
            record_error(NAME, error)

    def _set_status(self, original: Any, trial: Any, args: Any, kwargs: Any) -> Any:
        before = trial.status
        result = original(trial, *args, **kwargs)
        try:
            opened = self._open.get(trial.trial_id)
            if opened is not None and trial.status in _ENDED:
                opened.status = str(trial.status)
                failures = int(trial.run_metadata.num_failures)
                if failures:
                    opened.scope.set_attribute("failures", failures)
                # Ray sets ERROR, and then PENDING, before it tries again.
                is_retried = before == "RUNNING" and trial.should_recover()
                if trial.status != ERROR or not is_retried:
                    del self._open[trial.trial_id]
                    opened.end()
        except Exception as error:
            record_error(NAME, error)
        return result

    def _handle_error(self, original: Any, trial: Any, args: Any, kwargs: Any) -> Any:
        try:
            error = args[0] if args else kwargs.get("exc")
            opened = self._open.get(trial.trial_id)
            if opened is not None and isinstance(error, BaseException):
                cause = getattr(error, "cause", None)
                opened.error = cause if isinstance(cause, BaseException) else error
        except Exception as problem:
            record_error(NAME, problem)
        return original(trial, *args, **kwargs)

    def _process(self, original: Any, controller: Any, args: Any, kwargs: Any) -> Any:
        was_done = True
        try:
            trial, result = args[0], args[1]
            was_done = bool(result.get("done")) or "__duplicate__" in result
        except Exception as error:
            record_error(NAME, error)
        decision = original(controller, *args, **kwargs)
        try:
            opened = self._open.get(trial.trial_id)
            if not was_done and opened is not None and (trial.last_result or {}).get("done"):
                opened.scope.set_attribute("stopped", True)
        except Exception as error:
            record_error(NAME, error)
        return decision
