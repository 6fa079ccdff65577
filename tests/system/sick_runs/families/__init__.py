"""All families of cases."""

from __future__ import annotations

from typing import Final

from ..building import Family
from .ends_and_values import ends, values
from .healthy import healthy
from .in_all_units import in_scopes, in_units
from .in_some_units import in_some_units, on_some_ranks
from .thresholds import at_thresholds
from .trainings import trainings

FAMILIES: Final[tuple[Family, ...]] = (
    *in_units(), *in_scopes(), *in_some_units(), *on_some_ranks(), *ends(), *values(), *healthy(),
    *trainings(),
)  # fmt: skip
"""All families; none is changed after its first score."""
AT_THRESHOLDS: Final[tuple[Family, ...]] = at_thresholds()
"""The set of cases at the thresholds: their status must be the same in nine of ten seeds."""
