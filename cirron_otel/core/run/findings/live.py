"""The findings on a run that is still being recorded, from the last units of each rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from ...durations import SECOND_NS
from ...spool.reader import SpoolReader
from ..accounts import BY_RULE, OVERRIDING, AccountNames
from ..figures.ledger import Ledger
from ..followed_run import COUNTED, FollowedRun
from ..stall import Stall
from .choices import Choices
from .conclude import Status, conclude, headline_of, status_of
from .facts import Facts
from .finding import Finding
from .last_units import of_last_units
from .run_facts import facts_of
from .thresholds import Limits

UNITS: Final = 200
"""The number of the last units of each rank in a window."""
_FEWEST: Final = 20
"""While a job is running, prices are reported from so many units on, or from a full window on."""
_UNFINISHED: Final = frozenset({"START_UP", "WARM_UP", "COMPILATION"})
"""The kinds about the start, which are reported after the end: until then, their share falls."""
_DIFFERENT: Final = 1.5
_NOTICEABLE: Final = 0.05
"""A price has changed if the share differs by this factor and by this amount."""
Change = Literal["appeared", "changed", "ended"]


@dataclass(frozen=True, slots=True)
class LiveConclusion:
    """The conclusion on the last units of a running job."""

    findings: list[Finding]
    status: Status
    headline: str
    unit: str
    """The name of a unit."""
    units: int
    """The number of units in the window, of the rank with the most."""
    ledger: Ledger | None
    """The time of the window by account."""


class LiveFindings:
    """The findings on a followed run."""

    def __init__(
        self, reader: SpoolReader, wanted: str | None, choices: Choices, units: int = UNITS
    ) -> None:
        """Follow the run `wanted`, or else the last one; a run may begin later.

        `units` is the number of the last units of each rank that are assessed.
        """
        self.followed = FollowedRun(reader, wanted, units, choices.accounts)
        self._choices, self._units = choices, units
        self._facts: Facts | None = None
        self._state: object = None

    def poll(self, now_ns: int) -> LiveConclusion | None:
        """Read the new batches; return the conclusion, or None if the run has no batch yet.

        Raises UsageError if the wanted name or id is ambiguous, InputError if the spool cannot be
        read, and TargetError if there is no disk space.
        """
        followed = self.followed
        if not followed.read_new() or followed.run is None:
            return None
        state = followed.run.id, followed.state
        if self._facts is None or state != self._state:
            self._facts, self._state = self._read(now_ns), state
        limits = self._choices.limits
        accounts = self._choices.accounts
        stalls = [each for each in followed.stalls(now_ns) if is_stall(each, limits, accounts)]
        facts = replace(self._facts, stalls=stalls)
        counted, _ = self._choices.divided(conclude(facts, limits))
        findings = list(_reported(facts, counted, min(_FEWEST, self._units)))
        return LiveConclusion(
            findings,
            status_of(findings),
            headline_of(findings, facts),
            facts.unit,
            _units_of(facts),
            facts.ledger,
        )

    def _read(self, now_ns: int) -> Facts:
        followed = self.followed
        world_size = None if followed.run is None else followed.run.world_size
        with followed.opened() as run:
            followed.note_progress(run, now_ns)
            facts = facts_of(run, unit=run.recording.unit_name, world_size=world_size)
        running = followed.running_ranks()
        if running:
            facts = replace(facts, state="running")
        recent = followed.recent
        if recent.has_all and _units_of(facts) <= self._units:
            return facts
        dropped = recent.dropped if facts.unit in COUNTED else {}
        return of_last_units(facts, self._units, running, dropped)


def is_stall(stall: Stall, limits: Limits, accounts: AccountNames = BY_RULE) -> bool:
    """Return whether the silence of a rank is longer than its work explains."""
    is_work = any(accounts.account_of(name) in OVERRIDING for name in stall.scopes)
    least_ns = limits["stalled.work_seconds" if is_work else "stalled.seconds"] * SECOND_NS
    usual_ns = max(limits["stalled.factor"] * stall.median_step_ns, stall.longest_cycle_ns)
    return stall.median_step_ns > 0 and stall.silent_ns >= max(usual_ns, least_ns)


def _units_of(facts: Facts) -> int:
    lanes = [] if facts.ledger is None else facts.ledger.lanes
    return max((len(each.ns) * each.size for each in lanes), default=0)


def _reported(facts: Facts, findings: Iterable[Finding], fewest: int) -> Iterator[Finding]:
    """Yield the findings that can be judged from a window, without notices that have a price.

    While the job is running, a price needs `fewest` units.
    """
    is_running = facts.state == "running"
    has_few = _units_of(facts) < fewest
    for each in findings:
        if each.severity == "failure":
            yield each
        elif each.cost_ns is not None:
            is_unknown = is_running and (has_few or each.kind in _UNFINISHED)
            if each.severity != "notice" and not is_unknown:
                yield each
        elif not is_running or (each.kind, each.severity) != ("INCOMPLETE", "notice"):
            yield each


class Changes:
    """The findings that were reported, by id, for comparison with the current ones."""

    def __init__(self) -> None:
        """Start without findings."""
        self._reported: dict[str, Finding] = {}

    def of(self, findings: Sequence[Finding]) -> Iterator[tuple[Change, Finding]]:
        """Yield the changes since the last call: first the findings that have ended.

        A finding changes with its severity, or if its share is noticeably different from the
        reported one.
        """
        current = {each.id: each for each in findings}
        for id_ in [each for each in self._reported if each not in current]:
            yield "ended", self._reported.pop(id_)
        for id_, finding in current.items():
            previous = self._reported.get(id_)
            if previous is None or has_changed(previous, finding):
                self._reported[id_] = finding
                yield "appeared" if previous is None else "changed", finding


def has_changed(before: Finding, after: Finding) -> bool:
    """Return whether a finding has another severity, or a noticeably different price.

    The price is compared as a share, since the cost grows with the window until it is full.
    """
    low, high = sorted((before.share or 0.0, after.share or 0.0))
    is_different = high >= _DIFFERENT * low and high - low >= _NOTICEABLE
    return before.severity != after.severity or is_different
