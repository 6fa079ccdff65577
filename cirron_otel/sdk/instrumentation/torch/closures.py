"""Find the closure of an optimizer's step, and replace it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

REPLACEABLE = frozenset({FunctionType, MethodType, functools.partial})
"""The types of closures that a function may replace; an optimizer may use attributes of others."""


def closure_of(
    optimizer: Any, args: Any, kwargs: Any
) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
    """Return the closure of an optimizer's step, and a function that puts another in its place.

    The closure is None if there is none.
    """
    if kwargs.get("closure") is not None:
        return kwargs["closure"], lambda other: (args, {**kwargs, "closure": other})
    kind: Any = type(optimizer)
    if len(args) > 1 and _second_parameter(kind) == "closure":
        return args[1], lambda other: ((args[0], other, *args[2:]), kwargs)
    return None, lambda _: (args, kwargs)


@functools.lru_cache(64)
def _second_parameter(kind: Any) -> str:
    """Return the name of the first parameter after `self` of an optimizer's `step`; "" if none."""
    return next(iter([*inspect.signature(kind.step).parameters][1:]), "")
