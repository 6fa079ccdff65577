"""The number of examples that a property test draws.

`make test` draws the same examples each time, at most `FIXED` for each test, or the smaller number
that the test passes. `make fuzz` selects the profile `drawn`, with which each test draws new
examples, and as many as it asks for.
"""

from __future__ import annotations

from hypothesis import settings

FIXED = 100
DRAWN = "drawn"
"""The name of Hypothesis' profile with which `make fuzz` runs."""


def examples(count: int, fixed: int = FIXED) -> int:
    """Return `count` if new examples are drawn, else at most `fixed`."""
    return count if is_drawn() else min(count, fixed)


def is_drawn() -> bool:
    """Return whether each test draws new examples, as in `make fuzz`."""
    return settings.get_current_profile_name() == DRAWN
