"""Record the boosting rounds of XGBoost and LightGBM inside a recorded call, as steps."""

from __future__ import annotations

import functools
from typing import Any

from ...session.errors import record_error
from ...tracing.hidden_frames import strip
from ...tracing.mark import SUMMARY, mark
from ...tracing.scope import Scope
from ...tracing.state import CONTEXT
from ..iteration import current_scope, opened_manually
from ..patches import Patches
from .calls import FITS, NAME, EstimatorCall, current

STEP = "step"


class Rounds:
    """The rounds of one call of `fit`. The values of the evaluation sets are marks on the steps."""

    __slots__ = ("_count", "_step")

    def __init__(self) -> None:
        self._count = 0
        self._step: Any = None

    def begin(self) -> None:
        """Close the open round and open the next."""
        self.end()
        if opened_manually(current_scope(CONTEXT.get()), (STEP, "batch")):
            return
        self._step = Scope(STEP, self._count)
        self._count += 1
        self._step.__enter__()

    def end(self, error: BaseException | None = None) -> None:
        """Close the open round, if there is one."""
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None if error is None else type(error), error, None)

    def drop(self) -> None:
        """Discard the open round: a callback stopped the training before it."""
        step = self._step
        if step is not None:
            self._count -= 1
            step.drop()
            self.end()

    def mark_best(self, estimator: Any) -> None:
        """Record the best round, if the training was stopped early."""
        attributes = getattr(estimator, "__dict__", {})
        best, score = attributes.get("_best_iteration"), None  # of LightGBM; 0: no early stop
        if hasattr(estimator, "get_booster"):
            booster = estimator.get_booster()
            best, score = booster.attr("best_iteration"), booster.attr("best_score")
            best = None if best is None else int(best)
        elif not best:
            return
        if best is not None:
            mark("best_iteration", best, kind=SUMMARY)
        if score is not None:
            mark("best_score", float(score), kind=SUMMARY)


def _rounds() -> Rounds | None:
    """Return the rounds of the innermost recorded call, if that is a fit."""
    call: EstimatorCall | None = current.get()
    if call is None or call.method not in FITS:
        return None
    if call.rounds is None:
        call.rounds = Rounds()
    return call.rounds  # type: ignore[no-any-return]


def hook_xgboost(patches: Patches, module: Any) -> None:
    """Hook `xgboost.callback`. Raises AttributeError if it is not as expected."""
    patches.wrap(module.CallbackContainer, "before_iteration", _before)
    patches.wrap(module.CallbackContainer, "after_iteration", _after)


def _before(original: Any, container: Any, args: Any, kwargs: Any) -> Any:
    rounds = None
    try:
        rounds = _rounds()
        if rounds is not None:
            rounds.begin()
    except Exception as error:
        record_error(NAME, error)
    is_over = original(container, *args, **kwargs)
    try:
        if rounds is not None and is_over:
            rounds.drop()
    except Exception as error:
        record_error(NAME, error)
    return is_over


def _after(original: Any, container: Any, args: Any, kwargs: Any) -> Any:
    result = original(container, *args, **kwargs)
    try:
        rounds = _rounds()
        if rounds is not None:
            for data, metrics in container.history.items():
                for metric, values in metrics.items():
                    if values and isinstance(values[-1], float):
                        mark(f"{data}-{metric}", values[-1])
            rounds.end()
    except Exception as error:
        record_error(NAME, error)
    return result


def hook_lightgbm(patches: Patches, module: Any) -> None:
    """Hook `lightgbm.engine`. Raises AttributeError if it is not as expected."""
    booster = module.Booster
    patches.wrap(booster, "update", _update)
    patches.wrap(booster, "eval_train", _evaluation)
    patches.wrap(booster, "eval_valid", _evaluation)
    train = module.train

    @functools.wraps(train)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = train(*args, **kwargs)
            try:
                rounds = _rounds()
                if rounds is not None:
                    rounds.end()
            except Exception as error:
                record_error(NAME, error)
            return result
        except BaseException as error:
            strip(error)
            raise

    patches.replace_function([module], "train", call)


def _update(original: Any, booster: Any, args: Any, kwargs: Any) -> Any:
    try:
        rounds = _rounds()
        if rounds is not None:
            rounds.begin()
    except Exception as error:
        record_error(NAME, error)
    return original(booster, *args, **kwargs)


def _evaluation(original: Any, booster: Any, args: Any, kwargs: Any) -> Any:
    results = original(booster, *args, **kwargs)
    try:
        if _rounds() is not None:
            for data, metric, value, *_ in results:
                mark(f"{data}-{metric}", value)
    except Exception as error:
        record_error(NAME, error)
    return results
