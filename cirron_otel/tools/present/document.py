"""The document of a run: its conclusion, its ledger and its figures (docs/report.schema.json).

All output on a run is rendered from this document: the text, the page, `--json`, and the closing
words of `cirron-otel run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...core.run.findings.finding import Finding, by_severity
from .open_scopes import OpenScope
from .unit_figures import PhaseRow, ScopeRow, UnitFigures

if TYPE_CHECKING:
    from ...core.analysis.run_report import RunReport
    from ...core.analysis.run_selection import ChosenRun
    from ...core.analysis.summary import SessionSummary
    from ...core.records.problems import ReadingProblem
    from ...core.run.findings.facts import State
    from .ledger_rows import LedgerRows

SCHEMA_VERSION: Final = 2
"""The version of the JSON document; it changes if a key is removed or changes its meaning."""
RULES_VERSION: Final = 1
"""The version of the rules of the findings."""


@dataclass(slots=True)
class RunFacts:
    """The name and the extent of a run."""

    id: str | None = None
    name: str | None = None
    """None if the recording names no run, or if several runs are shown together."""
    first_ns: int | None = None
    last_ns: int | None = None
    """The extent of the ledger, or of all spans if there is no ledger, Unix ns."""
    ranks: list[int] = field(default_factory=list)
    world_size: int | None = None
    """The number of ranks that the run should have; None if it is not recorded."""
    script: str | None = None

    @property
    def duration_ns(self) -> int | None:
        """The time from the first start to the last end, ns."""
        if self.first_ns is None or self.last_ns is None:
            return None
        return self.last_ns - self.first_ns

    def to_json(self) -> dict[str, Any]:
        """Return the facts as a JSON object."""
        return {**asdict(self), "duration_ns": self.duration_ns}


@dataclass(slots=True)
class NotAssessed:
    """A kind of finding that the recording does not allow to assess."""

    kind: str
    reason: str
    remedy: str | None = None


@dataclass(slots=True)
class Setting:
    """One value of an attribute of the configuration."""

    name: str
    value: Any
    ranks: list[int | None]
    """The ranks that have this value."""


@dataclass(slots=True)
class Document:
    """The document of a run."""

    source: str
    """The source, without credentials."""
    run: RunFacts
    state: State
    status: str
    """`failed`, `critical`, `warning` or `healthy`."""
    headline: str
    findings: list[Finding]
    """The most severe first."""
    ignored: list[Finding]
    """The findings that the user ignores: they do not count for the status and the headline."""
    not_assessed: list[NotAssessed]
    thresholds: Mapping[str, Any]
    ledger: LedgerRows | None
    """None if the run has no units."""
    units: UnitFigures | None
    """None if the run has no units."""
    phases: list[PhaseRow]
    """The parts of the units of all ranks."""
    scopes: list[ScopeRow]
    """The scopes by name, of a recording without units."""
    open_scopes: list[OpenScope]
    """The scopes that are open, of a run that is running."""
    configuration: list[Setting]
    """How the training is configured, by attribute."""
    figures: RunReport
    """The figures of the ranks, and the marks, the memory, the failures and the drops."""
    sessions: list[SessionSummary]
    skipped: list[ReadingProblem]
    """The records that could not be read."""

    @property
    def has_problem(self) -> bool:
        """Whether the status is other than `healthy`."""
        return self.status != "healthy"

    def setting(self, name: str) -> Any:
        """Return an attribute of the configuration; None if it is unknown, or ranks differ."""
        values = [each.value for each in self.configuration if each.name == name]
        return values[0] if len(values) == 1 else None

    @property
    def scope_names(self) -> set[str]:
        """The recorded names of the phases and the scopes, which findings may have."""
        found = (
            {"epoch"} | {each.name for each in self.phases} | {each.name for each in self.scopes}
        )
        if self.units is not None:
            found.add(self.units.name)
        if self.ledger is not None:
            found |= {name for each in self.ledger.accounts for name, _ in each.parts}
        names = {name for each in (*self.findings, *self.ignored)
                 for name in (each.phase, each.scope)}  # fmt: skip
        return found.union(name for name in names if name is not None)

    def head(self) -> dict[str, Any]:
        """Return the conclusion as a JSON object, without the figures that support it."""
        return {
            "schema_version": SCHEMA_VERSION,
            "rules_version": RULES_VERSION,
            "source": self.source,
            "run": self.run.to_json(),
            "state": self.state,
            "status": self.status,
            "headline": self.headline,
            "findings": [each.to_json() for each in self.findings],
            "ignored": [each.to_json() for each in self.ignored],
            "not_assessed": [asdict(each) for each in self.not_assessed],
            "thresholds": dict(self.thresholds),
            "price": None if self.ledger is None else self.ledger.price(),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the document as a JSON object; times in ns."""
        figures = self.figures
        return {
            **self.head(),
            "ledger": None if self.ledger is None else self.ledger.to_json(),
            "units": None if self.units is None else self.units.to_json(),
            "phases": [each.to_json() for each in self.phases],
            "scopes": [each.to_json() for each in self.scopes],
            "open_scopes": [asdict(each) for each in self.open_scopes],
            "slowest": [asdict(each) for each in figures.slowest_steps],
            "spans": figures.spans,
            "summarised_units": figures.summarised_steps,
            "ranks": [each.to_json() for each in figures.ranks],
            "configuration": [asdict(each) for each in self.configuration],
            "failures": [each.to_json() for each in figures.failures],
            "replicas": None if figures.replicas is None else figures.replicas.to_json(),
            "drops": [asdict(each) for each in figures.drops],
            "metrics": [asdict(each) for each in figures.metrics],
            "marks": [asdict(each) for each in figures.marks],
            "marks_left_out": figures.marks_left_out,
            "gpu": [asdict(each) for each in figures.gpu],
            "memory": figures.memory.to_json(),
            "sessions": [_without(asdict(each), "marks", "snapshots") for each in self.sessions],
            "skipped": [each.to_json() for each in self.skipped],
        }


def _without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The conclusion on a run, which the rules of the findings draw."""

    findings: Sequence[Finding]
    status: str
    headline: str
    state: State
    not_assessed: Sequence[NotAssessed] = ()
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    ignored: Sequence[Finding] = ()


def document_of(
    source: str,
    chosen: ChosenRun | None,
    figures: RunReport,
    ledger: LedgerRows | None,
    units: UnitFigures | None,
    conclusion: Conclusion,
    *,
    sessions: Sequence[SessionSummary] = (),
    phases: Sequence[PhaseRow] = (),
    scopes: Sequence[ScopeRow] = (),
    open_scopes: Sequence[OpenScope] = (),
    configuration: Sequence[Setting] = (),
    skipped: Sequence[ReadingProblem] = (),
) -> Document:
    """Return the document of a run.

    `source` has no credentials. `scopes` are those of a recording without units, and `open_scopes`
    those of a running process.
    """
    return Document(
        source=source,
        run=_facts(chosen, figures, ledger, open_scopes),
        state=conclusion.state,
        status=conclusion.status,
        headline=conclusion.headline,
        findings=by_severity(conclusion.findings),
        ignored=by_severity(conclusion.ignored),
        not_assessed=list(conclusion.not_assessed),
        thresholds=conclusion.thresholds,
        ledger=ledger,
        units=units,
        phases=list(phases),
        scopes=list(scopes),
        open_scopes=list(open_scopes),
        configuration=list(configuration),
        figures=figures,
        sessions=list(sessions),
        skipped=list(skipped),
    )


def _facts(
    chosen: ChosenRun | None,
    figures: RunReport,
    ledger: LedgerRows | None,
    open_scopes: Sequence[OpenScope],
) -> RunFacts:
    starts = [each.first_ns for each in figures.ranks if each.first_ns is not None]
    if ledger is not None:
        starts = [ledger.first_ns]
    # The session of a running process has no record yet, but a start.
    starts += [each.start_ns for each in open_scopes if each.start_ns is not None]
    ends = [each.last_ns for each in figures.ranks if each.last_ns is not None]
    run = None if chosen is None else chosen.run
    return RunFacts(
        id=None if run is None else run.id,
        name=None if run is None else run.name,
        first_ns=min(starts, default=None),
        last_ns=max(ends, default=None) if ledger is None else ledger.last_ns,
        ranks=sorted(each.rank for each in figures.ranks if each.rank is not None),
        world_size=None if chosen is None else chosen.world_size,
        script=None if run is None else run.script,
    )
