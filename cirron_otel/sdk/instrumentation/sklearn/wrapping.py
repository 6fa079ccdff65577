"""`wrap`: request that the calls of an estimator are recorded.

The estimator itself is not changed: a table lists the objects that are traced. While a session is
open, the methods of their classes look their object up in that table. docs/sklearn.md defines the
rules. The import of this module installs the hooks of the open session.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from ...session.errors import record_error, report_problem
from ..base import request

METHODS = (
    "fit", "partial_fit", "predict", "predict_proba", "predict_log_proba", "decision_function",
    "transform", "inverse_transform", "fit_transform", "fit_predict", "score", "score_samples",
)  # fmt: skip
"""The methods that are recorded, each in a scope of its name."""

_LISTS = ("steps", "transformer_list", "transformers", "transformers_", "estimators")
"""Attributes of a composition: lists of tuples, a name and an estimator."""
_ONE = ("final_estimator", "final_estimator_")
_OF_SEARCH = ("estimator", "best_estimator_")

_PLACES = frozenset({*_LISTS, *_ONE, *_OF_SEARCH, "named_estimators_"})

T = TypeVar("T")


class Member:
    """A traced estimator."""

    __slots__ = ("calls", "is_announced", "is_wrapped", "reference", "step")

    def __init__(self, estimator: Any, step: str | None, *, is_wrapped: bool) -> None:
        """`step` is its name in the composition that it belongs to.

        Raises TypeError if a weak reference to the estimator is impossible.
        """
        key = id(estimator)
        self.reference = weakref.ref(estimator, lambda _: members.pop(key, None))
        self.step = step
        self.is_wrapped = is_wrapped
        """Whether the program wrapped it; otherwise it is part of a wrapped one, or a clone."""
        self.is_announced = False
        """Whether its parameters are recorded as the run's configuration."""
        self.calls = 0
        """The number of calls of `partial_fit`."""


members: dict[int, Member] = {}
"""The traced estimators by their ids."""


class ClassTracer(Protocol):
    """The interface of a session's hooks that this module uses."""

    def trace_class(self, cls: type) -> None:
        """Let the methods of a class record the calls of traced estimators. Raises nothing."""


_tracers: list[ClassTracer] = []


def use_tracer(tracer: ClassTracer) -> None:
    """Trace the classes of the estimators that are known, and of those that follow."""
    _tracers[:] = [tracer]
    for member in list(members.values()):
        estimator = member.reference()
        if estimator is not None:
            tracer.trace_class(type(estimator))


def forget_tracer(tracer: ClassTracer) -> None:
    """Undo `use_tracer`."""
    if tracer in _tracers:
        _tracers.clear()


def find(estimator: Any) -> Member | None:
    """Return the entry of a traced estimator."""
    member = members.get(id(estimator))
    return member if member is not None and member.reference() is estimator else None


def add(estimator: Any, step: str | None = None, *, is_wrapped: bool = False) -> Member:
    """Trace an estimator from now on. Raises TypeError if it has no weak references."""
    member = find(estimator)
    if member is None:
        member = members[id(estimator)] = Member(estimator, step, is_wrapped=is_wrapped)
        for tracer in _tracers:
            tracer.trace_class(type(estimator))
    elif step is not None:
        member.step = step
    member.is_wrapped = member.is_wrapped or is_wrapped
    return member


def _is_estimator(value: Any) -> bool:
    if id(value) in members:
        return True
    return value is not None and not isinstance(value, (str, type)) and hasattr(value, "fit")


def parts(estimator: Any) -> Iterator[tuple[tuple[str, int | None], str | None, Any]]:
    """Return the estimators that a composition or a search consists of.

    Each item is the place (attribute and index), the name in the composition, and the estimator.
    """
    attributes = getattr(estimator, "__dict__", None)
    if attributes is None or _PLACES.isdisjoint(attributes):
        return
    names: set[str] = set()
    for attribute in _LISTS:
        values = attributes.get(attribute)
        if type(values) is list:
            for index, item in enumerate(values):
                if type(item) is not tuple or len(item) < 2 or not _is_estimator(item[1]):
                    continue
                if attribute != "transformers_":
                    names.add(item[0])
                elif item[0] not in names:
                    continue  # it replaces "passthrough"
                yield (attribute, index), str(item[0]), item[1]
    named = attributes.get("named_estimators_")
    if named is not None:
        for name, value in dict(named).items():
            if _is_estimator(value):
                yield ("named_estimators_", None), str(name), value
    for attribute in _ONE:
        value = attributes.get(attribute)
        if _is_estimator(value):
            yield (attribute, None), "final_estimator", value
    if hasattr(type(estimator), "_run_search"):
        for attribute in _OF_SEARCH:
            value = attributes.get(attribute)
            if _is_estimator(value):
                yield (attribute, None), None, value


def add_parts(estimator: Any) -> None:
    """Trace the estimators that a traced one consists of."""
    for _, step, part in parts(estimator):
        if id(part) not in members or members[id(part)].reference() is not part:
            add(part, step)
        elif step is not None:
            members[id(part)].step = step


def wrap(estimator: T) -> T:
    """Record the calls of an estimator, and of the estimators that it consists of.

    Returns the estimator itself, which stays as it is: its type, its parameters and its pickle do
    not change. Its clones are recorded, too. An object without `fit`, `predict` or `transform` is
    returned unchanged. Raises nothing.
    """
    try:
        if not isinstance(estimator, type) and any(hasattr(estimator, name) for name in METHODS):
            add(estimator, is_wrapped=True)
            add_parts(estimator)
    except TypeError as error:
        report_problem("wrap", f"{type(estimator).__name__} cannot be wrapped: {error}")
    except Exception as error:
        record_error("wrap", error)
    return estimator


request(__name__)
