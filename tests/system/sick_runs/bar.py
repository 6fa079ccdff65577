"""The outcomes that the continuous integration expects: one small case of each family.

`python -m tests.system.sick_runs --write-bar` writes them anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from .building import Family
from .families import FAMILIES
from .scored import FindingsOf, scored
from .scoring import OUTCOMES, Outcome

BAR: Final = Path(__file__).with_name("bar.json")
_SEEDS: Final = 3


def small_seed(family: Family) -> int:
    """Return the seed of the smallest of the first cases; a sick one if there is any."""
    cases = [family.build(seed) for seed in range(_SEEDS)]
    case = min(cases, key=lambda each: (each.is_healthy, each.plan.ranks * each.plan.units))
    return case.seed


def outcomes(findings_of: FindingsOf, families: Sequence[Family] = FAMILIES) -> dict[str, Outcome]:
    """Return the outcome of one small case of each family."""
    return {
        family.name: found.outcome
        for family in families
        for found in scored(family, [small_seed(family)], findings_of)
    }


def read_bar() -> dict[str, Outcome]:
    """Return the expected outcomes."""
    bar: dict[str, Outcome] = json.loads(BAR.read_text())
    return bar


def write_bar(found: Mapping[str, Outcome]) -> None:
    """Replace the expected outcomes."""
    BAR.write_text(json.dumps(found, indent=1) + "\n")


def worse(bar: Mapping[str, Outcome], found: Mapping[str, Outcome]) -> dict[str, str]:
    """Return the families whose outcome is worse than expected, or that have no expected one.

    `right first` is better than `right second`, and this better than the others, which are equal.
    """
    changes = {}
    for name, outcome in found.items():
        if name not in bar:
            changes[name] = f"{outcome}, none expected: run with --write-bar"
        elif _rank(outcome) > _rank(bar[name]):
            changes[name] = f"{outcome} instead of {bar[name]}"
    return changes


def _rank(outcome: Outcome) -> int:
    return min(OUTCOMES.index(outcome), OUTCOMES.index("wrong"))
