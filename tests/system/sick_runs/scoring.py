"""Scores the findings about a case against its truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from .case import Case
from .truth import NOTICE, Expected

Finding = Mapping[str, Any]
"""A finding as a JSON object of a report."""
Outcome = Literal["right first", "right second", "wrong", "silent", "false alarm"]
OUTCOMES: Final[tuple[Outcome, ...]] = (
    "right first", "right second", "wrong", "silent", "false alarm",
)  # fmt: skip
_OVERLAP: Final = 0.5


def outcome(expected: Sequence[Expected], findings: Sequence[Finding]) -> Outcome:
    """Return the outcome of a case. The findings are in the order of the report.

    Notices do not count. `right first`: the first finding is the first expected one, or there is
    none in a healthy run. `right second`: the second finding is. `wrong`: neither is. `silent`:
    there is none. `false alarm`: there is a finding about a healthy run.
    """
    warnings = [each for each in findings if each["severity"] != NOTICE]
    if not expected:
        return "false alarm" if warnings else "right first"
    if not warnings:
        return "silent"
    if is_right(expected[0], warnings[0]):
        return "right first"
    return "right second" if any(is_right(expected[0], e) for e in warnings[:2]) else "wrong"


def is_right(expected: Expected, finding: Finding) -> bool:
    """Return whether a finding has the kind, and the phase and the ranks that are expected."""
    if finding["kind"] not in expected.kinds:
        return False
    if expected.phase is not None and expected.phase not in (finding["phase"], finding["scope"]):
        return False
    if expected.moving:
        return bool(finding["moving"])
    return expected.ranks is None or sorted(finding["ranks"]) == sorted(expected.ranks)


def is_placed(expected: Expected, finding: Finding) -> bool:
    """Return whether a finding has the expected units: most of them, or their distance."""
    if expected.every is not None and abs((finding["every"] or 0) - expected.every) > 1:
        return False
    if expected.units is None:
        return True
    wanted, found = _numbers(expected.units), _numbers(finding["steps"])
    return len(wanted & found) >= _OVERLAP * len(wanted | found)


def has_right_status(result: Result) -> bool:
    """Return whether there is a warning if one is expected, and none otherwise."""
    if result.error is not None:
        return False
    has_warning = any(each["severity"] != NOTICE for each in result.findings)
    return has_warning is not result.case.is_healthy


def _numbers(intervals: Sequence[Sequence[int]]) -> set[int]:
    return {number for first, last in intervals for number in range(first, last + 1)}


@dataclass(slots=True)
class Result:
    """The score of a case."""

    case: Case
    outcome: Outcome
    findings: Sequence[Finding]
    error: str | None = None
    """The exception that the analysis raised."""
    is_placed: bool | None = None
    """Whether a right finding has the expected units; None if that was not checked."""
    price_ratio: float | None = None
    """The share of a right finding / the planted price."""
    has_both: bool | None = None
    """Whether both causes were found; None if there are not two."""


def result(case: Case, findings: Sequence[Finding], error: str | None = None) -> Result:
    """Return the score of a case."""
    found = Result(case, outcome(case.expected, findings), findings, error)
    if error is not None:
        found.outcome = "wrong"
        return found
    warnings = [each for each in findings if each["severity"] != NOTICE]
    if case.expected and found.outcome in ("right first", "right second"):
        first = case.expected[0]
        right = next(each for each in warnings if is_right(first, each))
        if first.units is not None or first.every is not None:
            found.is_placed = is_placed(first, right)
        if first.price and right["share"] is not None:
            found.price_ratio = right["share"] / first.price
    if len(case.expected) > 1:
        found.has_both = all(
            any(is_right(wanted, each) for each in warnings) for wanted in case.expected
        )
    return found


@dataclass(slots=True)
class Score:
    """The outcomes of the cases of a family, or of all."""

    outcomes: Counter[str] = field(default_factory=Counter)
    cases: int = 0

    def add(self, result: Result) -> None:
        """Add a case."""
        self.outcomes[result.outcome] += 1
        self.cases += 1

    @property
    def right_first(self) -> float:
        """The share of cases whose first finding is right."""
        return self.outcomes["right first"] / self.cases if self.cases else 0.0

    @property
    def right_second(self) -> float:
        """The share of cases whose first or second finding is right."""
        second = self.outcomes["right first"] + self.outcomes["right second"]
        return second / self.cases if self.cases else 0.0
