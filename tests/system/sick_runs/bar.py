"""The outcomes that the continuous integration expects: one small case of each family.

`python -m tests.system.sick_runs --write-bar` writes them anew. Each has a digest of its case, so
that a case cannot change unnoticed after its first score.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from .building import Family
from .case import Case
from .families import FAMILIES
from .scored import FindingsOf, findings_about
from .scoring import OUTCOMES, Outcome, result

BAR: Final = Path(__file__).with_name("bar.json")
_SEEDS: Final = 3


class Scored(NamedTuple):
    """The outcome of a case, and a digest of the case."""

    outcome: Outcome
    digest: str


def small_case(family: Family) -> Case:
    """Return the smallest of the first cases; a sick one if there is any."""
    cases = [family.build(seed) for seed in range(_SEEDS)]
    return min(cases, key=lambda each: (each.is_healthy, each.plan.ranks * each.plan.units))


def digest_of(case: Case) -> str:
    """Return a digest of the size, the drawn parameters and the truth of a case."""
    truth = [case.parameters, [each.to_json() for each in (*case.expected, *case.planted)]]
    return hashlib.sha256(json.dumps(truth, sort_keys=True).encode()).hexdigest()[:12]


def scores(findings_of: FindingsOf, families: Sequence[Family] = FAMILIES) -> dict[str, Scored]:
    """Return the outcome of one small case of each family."""
    found = {}
    for family in families:
        case = small_case(family)
        outcome = result(case, findings_about(case, findings_of)).outcome
        found[family.name] = Scored(outcome, digest_of(case))
    return found


def read_bar() -> dict[str, Scored]:
    """Return the expected outcomes."""
    return {name: Scored(*each) for name, each in json.loads(BAR.read_text()).items()}


def write_bar(found: Mapping[str, Scored]) -> None:
    """Replace the expected outcomes."""
    lines = (f" {json.dumps(name)}: {json.dumps(each)}" for name, each in found.items())
    BAR.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def worse(bar: Mapping[str, Scored], found: Mapping[str, Scored]) -> dict[str, str]:
    """Return the families that are worse than expected, have another case, or are not expected.

    `right first` is better than `right second`, and this better than the others, which are equal.
    """
    changes = {}
    for name in bar.keys() | found.keys():
        if name not in bar:
            changes[name] = "not expected: run with --write-bar"
        elif name not in found:
            changes[name] = "the family is gone"
        elif found[name].digest != bar[name].digest:
            changes[name] = "its case has changed"
        elif _rank(found[name].outcome) > _rank(bar[name].outcome):
            changes[name] = f"{found[name].outcome} instead of {bar[name].outcome}"
    return changes


def _rank(outcome: Outcome) -> int:
    return min(OUTCOMES.index(outcome), OUTCOMES.index("wrong"))
