"""Turn the scalars that a program logs into marks.

docs/loggers.md defines the rules.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any

from ...session.errors import record_error
from ...tracing.mark import mark
from ...tracing.state import CONTEXT, SCOPE_KEY, state
from ..logged_values import is_passed_on, is_passed_on_value

Scalar = tuple[str, Any, Any]
"""The name, the value and the step of a logged scalar; the step is None if it has none."""

_PLAIN = frozenset({int, float, bool})
_SPECIAL_DEVICES = frozenset({"meta"})


class _Seen(threading.local):
    """The values that this thread has logged in its innermost open scope."""

    def __init__(self) -> None:
        self.depth = 0
        """The number of calls to loggers that are open."""
        self.scope: Any = None
        """The id of the scope."""
        self.values: dict[str, tuple[Any, set[str]]] = {}
        """The last value of each name, and the loggers that it was logged to."""


_seen = _Seen()


def logging_call(
    logger: str,
    call: Callable[[], Any],
    scalars: Callable[[], Iterable[Scalar]],
    link: Callable[[], None],
) -> Any:
    """Make a call to a logger, then mark the scalars in it; return the call's result.

    `link` connects the logger's run with the session. It is called once the session is open. A call
    inside another call adds no marks, and neither does a call that raises.
    """
    if not state.recording:
        return call()
    seen = _seen
    seen.depth += 1
    try:
        result = call()
    finally:
        seen.depth -= 1
    if not seen.depth:
        try:
            mark_all(logger, scalars())
        except Exception as error:
            record_error(logger, error)
        try:
            link()
        except Exception as error:
            record_error(logger, error)
    return result


def number_of(value: Any) -> Any:
    """Return `value` if it is one number, else None. A tensor on a device is not read.

    A scalar of TensorFlow becomes one of numpy.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, (str, bytes)):
        return None
    if callable(getattr(value, "numpy", None)) and not hasattr(value, "item"):
        value = value.numpy()
    if callable(getattr(value, "item", None)) and hasattr(value, "dtype"):
        size = 1
        for length in getattr(value, "shape", ()):
            size *= int(length)
        device = getattr(getattr(value, "device", None), "type", "cpu")
        kind = getattr(value.dtype, "kind", "f")
        return value if size == 1 and device not in _SPECIAL_DEVICES and kind in "biuf" else None
    return value if isinstance(value, Real) else None


def mark_all(logger: str, scalars: Iterable[Scalar]) -> None:
    """Mark the numbers that a logger got, except those that are marked already.

    The hooks of a trainer may have marked them, or another logger may have got them.
    """
    if is_passed_on():
        return
    for name, given, step in scalars:
        try:
            value = number_of(given)
            if value is None or is_passed_on_value(name, given):
                continue
            if _is_new(logger, name, value):
                if step is None:
                    mark(name, value)
                else:
                    mark(name, value, step=step)
        except Exception as error:  # a value that cannot be read costs only its own mark
            record_error(logger, error)


def _is_new(logger: str, name: str, value: Any) -> bool:
    """Return False if another logger got the same value, under the same name, in this scope."""
    seen = _seen
    scope = (CONTEXT.get().get(SCOPE_KEY) or state.session)._id
    if scope != seen.scope:
        seen.scope = scope
        seen.values = {}
    before = seen.values.get(name)
    key = _key(value)
    if before is not None and logger not in before[1] and _is_key(before[0], value, key):
        before[1].add(logger)
        return False
    seen.values[name] = key, {logger}
    return True


def _key(value: Any) -> Any:
    """Return an object that identifies a value without keeping a tensor alive or reading it."""
    if type(value) in _PLAIN:
        try:
            return repr(float(value))
        except OverflowError:
            return value
    if getattr(getattr(value, "device", None), "type", "cpu") == "cpu":
        return repr(float(value.item() if hasattr(value, "item") else value))
    if getattr(value, "is_leaf", False) and getattr(value, "requires_grad", False):
        # A weak reference to a parameter would prevent its conversion (`tensor_references`).
        return id(value), getattr(value, "_version", 0)
    return weakref.ref(value)


def _is_key(before: Any, value: Any, key: Any) -> bool:
    return before() is value if isinstance(before, weakref.ref) else before == key
