"""Record one call of a traced estimator's method."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from types import FunctionType, MethodType
from typing import Any

from ...session.errors import record_error
from ...session.run_details import add_hyperparameters
from ...tracing.hidden_frames import strip
from ...tracing.mark import SUMMARY, mark
from ...tracing.scope import Scope
from ..logged_values import is_number
from ..recording import is_recording
from .wrapping import Member, add_parts, find, members

NAME = "sklearn"
FITS = frozenset({"fit", "partial_fit", "fit_transform", "fit_predict"})
_ABSENT = object()


class EstimatorCall:
    """An open call of a traced estimator's method, or of a function of cross-validation."""

    __slots__ = ("estimator", "method", "outer", "rounds", "scope", "token")

    def __init__(self, method: str, estimator: Any, outer: EstimatorCall | None) -> None:
        self.method, self.estimator, self.outer = method, estimator, outer
        self.scope: Any = None
        self.token: Any = None
        self.rounds: Any = None
        """The boosting rounds (`boosting.Rounds`) of the call; None if it has no rounds."""


current: ContextVar[EstimatorCall | None] = ContextVar("cirron-otel-sklearn", default=None)
"""The innermost call that is open in this context."""


def begin(method: str, estimator: Any, args: Any, kwargs: Any) -> EstimatorCall | None:
    """Open the scope of a call. Returns None if the call is part of another, or on an error."""
    call = None
    try:
        if not is_recording():
            return None
        outer = current.get()
        around = outer
        while around is not None:
            if around.estimator is estimator:
                return None
            around = around.outer
        member = find(estimator)
        if member is None:
            return None
        add_parts(estimator)
        attrs = _attributes(estimator, member, args, kwargs)
        index = None
        if method == "partial_fit":
            index, member.calls = member.calls, member.calls + 1
        call = EstimatorCall(method, estimator, outer)
        call.scope = Scope(method, index, **attrs)
        if outer is None and method in FITS and member.is_wrapped and not member.is_announced:
            _announce(estimator, member)
        call.scope.__enter__()
        call.token = current.set(call)
    except Exception as error:
        record_error(NAME, error)
    return call if call is not None and call.token is not None else None


def end(call: EstimatorCall, error: BaseException | None = None) -> None:
    """Close the scope of a call; `error` is the exception that leaves it."""
    try:
        if call.rounds is not None:
            call.rounds.end(error)
        current.reset(call.token)
    except Exception as problem:
        record_error(NAME, problem)
    kind = None if error is None else type(error)
    call.scope.__exit__(kind, error, None)


def _attributes(estimator: Any, member: Member, args: Any, kwargs: Any) -> dict[str, Any]:
    attrs: dict[str, Any] = {"estimator": type(estimator).__name__}
    if member.step is not None:
        attrs["step"] = member.step
    data = args[0] if args else kwargs.get("X")
    if data is not None:
        try:
            shape = getattr(data, "shape", None)
            if type(shape) is not tuple:
                if isinstance(data, (list, tuple)):
                    attrs["n_samples"] = len(data)
                return attrs
            if shape and type(shape[0]) is int:
                attrs["n_samples"] = shape[0]
                if len(shape) == 2 and type(shape[1]) is int:
                    attrs["n_features"] = shape[1]
        except Exception as error:
            record_error(NAME, error)
    return attrs


def _announce(estimator: Any, member: Member) -> None:
    """Record the parameters of a wrapped estimator as the run's configuration."""
    member.is_announced = True
    try:
        values = estimator.get_params(deep=True)
        simple = {key: each if _is_simple(each) else _text(each) for key, each in values.items()}
        add_hyperparameters({type(estimator).__name__: simple})
    except Exception as error:
        record_error(NAME, error)


def _is_simple(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple, dict, set, range)) and len(value) <= 100:
        return repr(value)
    return type(value).__name__


Finished = Callable[[EstimatorCall, Any], None]
"""Called with a call and its result, before its scope ends."""


def run(
    method: str, function: Any, estimator: Any, args: Any, kwargs: Any, finished: Finished
) -> Any:
    """Call a method and return its result. If the call is recorded, it runs in a scope."""
    call = begin(method, estimator, args, kwargs)
    if call is None:
        return function(estimator, *args, **kwargs)
    try:
        result = function(estimator, *args, **kwargs)
    except BaseException as error:
        end(call, error)
        raise
    try:
        finished(call, result)
    except Exception as error:
        record_error(NAME, error)
    end(call)
    return result


class TracedMethod:
    """Replaces a method of a class: a descriptor that returns what the original returns.

    Only for a traced object, the method is one that records the call.
    """

    def __init__(self, cls: type, name: str, finished: Finished) -> None:
        self.original = vars(cls).get(name, _ABSENT)
        self._cls, self._name, self._finished = cls, name, finished
        self._last: tuple[Any, Any] = (None, None)
        """The function that the original returned last, and the function that records it."""

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        original = self.original
        if type(original) is FunctionType:
            if obj is None:
                return original
            if id(obj) not in members or find(obj) is None:
                return MethodType(original, obj)
            return MethodType(self._traced(original), obj)
        if original is _ABSENT:
            bound = getattr(super(self._cls, owner if obj is None else obj), self._name)
        else:
            get = getattr(type(original), "__get__", None)
            bound = original if get is None else get(original, obj, owner)
        if obj is None or type(bound) is not MethodType or id(obj) not in members:
            return bound
        if bound.__self__ is not obj or find(obj) is None:  # a class method
            return bound
        return MethodType(self._traced(bound.__func__), obj)

    def _traced(self, function: Any) -> Any:
        last, replacement = self._last
        if last is function:
            return replacement
        name, finished = self._name, self._finished

        @functools.wraps(function)
        def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return run(name, function, self, args, kwargs, finished)
            except BaseException as error:
                strip(error)
                raise

        self._last = (function, traced)
        return traced

    def __reduce__(self) -> Any:
        """Pickle as the original, if the class is pickled by value."""
        import operator  # noqa: PLC0415

        original = self.original
        if original is _ABSENT:
            original = getattr(super(self._cls, self._cls), self._name)
        return operator.getitem, ((original,), 0)


def finished(call: EstimatorCall, result: Any) -> None:
    """Record the results of a call as summary marks."""
    if call.method == "score":
        _mark_score(call, result)
    elif call.method in FITS:
        _mark_fit(call)


def _mark_score(call: EstimatorCall, result: Any) -> None:
    around = call.outer
    while around is not None:
        if around.method == "score":
            return  # the score of the estimator around this one
        around = around.outer
    if is_number(result):  # a class of the program may return something else
        mark("score", result, kind=SUMMARY)


def _mark_fit(call: EstimatorCall) -> None:
    attributes = getattr(call.estimator, "__dict__", {})
    results = attributes.get("cv_results_")
    if isinstance(results, dict):
        _mark_search(attributes, results)
        return
    if call.rounds is not None:
        call.rounds.mark_best(call.estimator)
        return
    for name in ("n_iter_", "loss_", "best_loss_", "inertia_", "oob_score_"):
        value = attributes.get(name)
        if is_number(value):
            mark(name.rstrip("_"), value, kind=SUMMARY)


def _mark_search(attributes: dict[str, Any], results: dict[str, Any]) -> None:
    for name, values in results.items():
        if name.startswith(("mean_test_", "mean_train_")):
            for candidate, value in enumerate(values):
                mark(name, value, kind=SUMMARY, candidate=candidate)
    for name in ("best_score_", "best_index_"):
        value = attributes.get(name)
        if value is not None:
            mark(name.rstrip("_"), value, kind=SUMMARY)
