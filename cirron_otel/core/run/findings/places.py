"""Sentences on the lines of the program in which the time of an account goes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..figures.places import PlaceCount
from .assessment import Assessment, locate
from .finding import Finding

_FEWEST: Final = 5
"""The minimum number of samples of an account."""
_MOST_OF: Final = 0.5
_LISTED: Final = 5


def add_place(assessment: Assessment, finding: Finding, account: str) -> None:
    """Add the place of most of an account's samples to a finding; else change nothing.

    It is a line, or else a function.
    """
    counts = assessment.facts.places.get(account, ())
    if account == "input":
        # Without it, the program waits for a worker, whose lines are unknown.
        counts = [each for each in counts if " of " in each.place]
    total = sum(each.samples for each in counts)
    if total < _FEWEST:
        return
    found = next(
        (each for some in (counts, _by_function(counts)) for each in some[:1]
         if each.samples >= _MOST_OF * total), None,
    )  # fmt: skip
    locate(finding, places=[[*each] for each in counts[:_LISTED]], samples=total)
    if found is not None:
        finding.sentence += (
            f" Most of its samples ({found.samples:,} of {total:,}) are in {found.place}."
        )


def _by_function(counts: Iterable[PlaceCount]) -> list[PlaceCount]:
    sums: dict[str, int] = {}
    for place, samples in counts:
        file, _, rest = place.rpartition(":")
        name = f"{file} {rest.partition(' ')[2]}"
        sums[name] = sums.get(name, 0) + samples
    return [
        PlaceCount(*each) for each in sorted(sums.items(), key=lambda each: (-each[1], each[0]))
    ]
