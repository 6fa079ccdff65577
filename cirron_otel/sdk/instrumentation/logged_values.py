"""Values that a framework passes to its loggers, and that its hooks have marked already.

The hooks of a framework mark the values that it logs. A logger of the framework may pass the same
values to a library that is hooked as well, or that marks them itself. Such a library calls
`is_passed_on` and then marks nothing.
"""

from __future__ import annotations

import threading
from typing import Self


class _Depth(threading.local):
    def __init__(self) -> None:
        self.value = 0


_depth = _Depth()


def is_passed_on() -> bool:
    """Return whether this thread passes values to loggers that are marked already."""
    return _depth.value > 0


class PassedOn:
    """A context in which values are passed to loggers; may be entered again inside itself."""

    __slots__ = ()

    def __enter__(self) -> Self:
        _depth.value += 1
        return self

    def __exit__(self, *_: object) -> None:
        _depth.value -= 1


passed_on = PassedOn()
"""The context, which has no state of its own."""
