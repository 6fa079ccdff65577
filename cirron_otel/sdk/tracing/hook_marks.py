"""Marks of the hooks that a program may make itself: `loss` and `grad_norm`.

The hooks append them with attributes of the type `HookAttributes`. The flush thread decides which
of them are recorded (`flush.hook_marks`).
"""

from __future__ import annotations

from itertools import product
from typing import Any, Final

from ...semconv import MICRO_STEP
from .buffers import limits, local
from .clock import now
from .mark import POINT, check_room, outside
from .phase import STEPS, Phase
from .state import CONTEXT, SCOPE_KEY, state

_UNITS: Final = (*STEPS, MICRO_STEP)

_get = CONTEXT.get


class HookAttributes(dict[str, Any]):
    """The attributes of a mark of the hooks. They are always empty; the fields are for the flush
    thread.
    """

    __slots__ = ("in_step", "is_first", "is_scaled")

    def __init__(self, *, is_first: bool, in_step: bool = True, is_scaled: bool = False) -> None:
        super().__init__()
        self.is_first = is_first
        """Whether the mark is the first one of its unit. A later mark of the unit is recorded only
        if its value is not finite."""
        self.in_step = in_step
        """Whether a step was open when the mark was made."""
        self.is_scaled = is_scaled
        """Whether a scale makes some values infinite, so that only finite values are recorded."""


_ATTRIBUTES: Final = {
    key: HookAttributes(is_first=key[0], in_step=key[1], is_scaled=key[2])
    for key in product((False, True), repeat=3)
}


def attributes_of(*, is_first: bool, in_step: bool, is_scaled: bool = False) -> HookAttributes:
    """Return the attributes with these fields, which all such marks share."""
    return _ATTRIBUTES[is_first, in_step, is_scaled]


def hook_mark(name: str, value: Any, attributes: HookAttributes, begun: int) -> int:
    """Attach a float, or a `Deferred`, to the innermost open scope, as `mark` does.

    The hook began at `begun`, monotonic ns. Return its time, ns, which counts for the scope around
    a phase: phases have no marks of their own with the SDK's time.
    """
    at = now()
    scope = _get().get(SCOPE_KEY) or state.session
    if not scope._depth and not scope._id:
        scope = outside()
    buffers = local.b
    ring = buffers.marks
    if len(ring) >= limits.marks_checked:
        check_room(buffers, len(ring))
    ring.append((scope, name, value, at, POINT, attributes))
    outer = scope._above if type(scope) is Phase else scope
    took_ns = now() - begun
    outer._overhead += took_ns
    return took_ns


def unit_of(scope: Any) -> Any:
    """Return the innermost step, batch or micro step that contains `scope`; None without one."""
    while scope._depth:
        name = scope._name
        if type(name) is str and name in _UNITS:
            return scope
        scope = scope._above
    return None
