"""The marks of imported DGRR traces (docs/dgrr.md), as far as runs are compared by them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

TRACE_STEP: Final = "dgrr.step"
"""The name of a mark that is a record of a trace; its value is the loss."""
TRACE_NUMBERS: Final = ("grad_w", "grad_b", "w_after", "b_after")
"""The attributes with doubles that runs are compared by, in causal order."""
_PACKED: Final = struct.Struct("<4d")
_NOT_FINITE: Final = frozenset({"nan", "inf", "-inf"})


class TraceStep(NamedTuple):
    """A step of a trace."""

    step_id: int
    numbers: bytes
    """The doubles of `TRACE_NUMBERS`, little-endian."""


def trace_step(loss: object, attributes: object) -> TraceStep | None:
    """Return a step by its mark; None if the mark is not the importer's.

    `loss` is the mark's value, or else its `value_nonfinite`.
    """
    if _double(loss) is None or not isinstance(attributes, Mapping):
        return None
    step_id = attributes.get("step_id")
    numbers = [_double(attributes.get(name)) for name in TRACE_NUMBERS]
    if type(step_id) is not int or step_id < 0 or None in numbers:
        return None
    return TraceStep(step_id, _PACKED.pack(*numbers))


def trace_numbers(packed: bytes) -> tuple[float, ...]:
    """Return the doubles of `TRACE_NUMBERS`."""
    return _PACKED.unpack(packed)


def _double(value: object) -> float | None:
    if isinstance(value, str):
        return float(value) if value in _NOT_FINITE else None
    return value if isinstance(value, float) else None
