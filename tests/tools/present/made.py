"""Documents made by hand: ledgers, findings and figures of small runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cirron_otel.core.analysis.breakdown import STEP, UNATTRIBUTED, Breakdown
from cirron_otel.core.analysis.mark_series import MarkSeries
from cirron_otel.core.analysis.rank_report import RankReport
from cirron_otel.core.analysis.run_report import RunReport
from cirron_otel.core.analysis.summary import SessionSummary
from cirron_otel.core.run.figures.ledger import Lane, Ledger
from cirron_otel.core.run.findings.finding import Advice, Finding
from cirron_otel.tools.present.document import (
    Conclusion,
    Document,
    NotAssessed,
    document_of,
)
from cirron_otel.tools.present.ledger_rows import ledger_rows
from cirron_otel.tools.present.open_scopes import OpenScope
from cirron_otel.tools.present.unit_figures import (
    ScopeRow,
    phase_rows,
    unit_figures,
)
from tests.kit.phase_times import PhaseTimes, TimedBreakdown

MS = 10**6
S = 10**9
FIRST_NS = 1_795_197_733 * S
PHASES = {"data_load": 20 * MS, "forward": 30 * MS, "backward": 40 * MS, "optimizer_step": 8 * MS}
_ACCOUNTS = {
    "data_load": "input",
    "forward": "forward",
    "backward": "backward",
    "optimizer_step": "optimizer",
}


def lane(rank: int | None, phases: Mapping[str, int], units: int, extent_ns: int) -> Lane:
    """A lane whose units take the same time, with 2 ms in no phase and 1 ms between units."""
    times = {_ACCOUNTS.get(name, name): np.full(units, ns) for name, ns in phases.items()}
    times |= {"unattributed": np.full(units, 2 * MS), "between_units": np.full(units, MS)}
    used = sum(int(each.sum()) for each in times.values())
    unit_ns = sum(phases.values()) + 2 * MS
    start = FIRST_NS + np.arange(units) * (unit_ns + MS)
    return Lane(
        rank, None, start, np.full(units, unit_ns), np.arange(units), np.zeros(units, np.int64),
        times, np.zeros(units, np.int64), np.full(units, -1),
        outside={"start_up": extent_ns - used},
        parts={(_ACCOUNTS.get(name, name), name): ns * units for name, ns in phases.items()},
    )  # fmt: skip


def breakdown(phases: Mapping[str, int], units: int, unit: str = STEP) -> Breakdown:
    """The units of a rank by phase."""
    found = TimedBreakdown(
        PhaseTimes(unit, [sum(phases.values()) + 2 * MS] * units),
        [PhaseTimes(name, [ns] * units) for name, ns in phases.items()],
        PhaseTimes(UNATTRIBUTED, [2 * MS] * units),
    )
    return found.figures()


def figures(
    ranks: Sequence[int | None],
    phases: Mapping[str, int] = PHASES,
    units: int = 200,
    unit: str = STEP,
    **more: Any,
) -> RunReport:
    """The figures of ranks with equal units."""
    found = breakdown(phases, units, unit)
    ns = found.steps.total_ns + units * MS
    speed = units * 1e9 / ns if ns else None
    reports = [
        RankReport(rank, 5 * units, FIRST_NS, FIRST_NS + 25 * S, found, speed) for rank in ranks
    ]
    together = breakdown(phases, units * len(ranks), unit)
    return RunReport(
        sum(each.spans for each in reports), reports, [], together=together if units else None,
        **more,
    )  # fmt: skip


def ledger(
    ranks: Sequence[int | None], phases: Mapping[str, int] = PHASES, units: int = 200
) -> Ledger:
    """A ledger of ranks with equal units."""
    lanes = [lane(rank, phases, units, 25 * S) for rank in ranks]
    return Ledger(FIRST_NS, FIRST_NS + 25 * S, lanes, [])


def session(state: str = "closed", error: str | None = None) -> SessionSummary:
    """A session."""
    return SessionSummary("5" * 32, state, error)  # type: ignore[arg-type]


INPUT_BOUND = Finding(
    "INPUT_BOUND", "critical", 4 * S, 0.16, "Steps wait 20 ms for each batch of data_load.",
    share_low=0.15, phase="data_load",
    evidence={"units": 200},
    advice=[
        Advice("Load batches in more workers: DataLoader(num_workers=4).", 3 * S),
        Advice("Decode the samples once, ahead of the training."),
    ],
)  # fmt: skip
STRAGGLER = Finding(
    "COMPUTE_STRAGGLER", "warning", 2 * S, 0.08, "Rank 1 is slower than rank 0 in forward.",
    ranks=[1], hosts=["b"], steps=[(20, 40), (60, 60)], phase="forward",
    advice=[Advice("Compare the hardware of the hosts.", 2 * S)],
)  # fmt: skip
FAILED = Finding(
    "FAILED", "failure", 12 * S, 0.24, "Rank 1 failed at or after step 100: ValueError: no batch.",
    ranks=[1], steps=[(100, 100)],
    evidence={"victims": [0]},
    advice=[Advice("Look at the traceback of rank 1.")],
)  # fmt: skip
JITTER = Finding("RANK_JITTER", "notice", None, None, "The ranks differ by 3 % from step to step.")


def document(
    findings: Sequence[Finding] = (),
    status: str = "healthy",
    headline: str = "most of the time is backward",
    ranks: Sequence[int | None] = (0,),
    *,
    units: int = 200,
    unit: str = STEP,
    state: Any = "ended",
    has_ledger: bool = True,
    scopes: Sequence[ScopeRow] = (),
    open_scopes: Sequence[OpenScope] = (),
    sessions: Sequence[SessionSummary] = (),
    errors: int = 0,
    **more: Any,
) -> Document:
    """A document of a run whose units are equal."""
    found = figures(ranks, units=units, unit=unit, **more)
    of_run = ledger(ranks, units=units) if units and has_ledger else None
    remedy = "record the configuration with ci.config(...)"
    return document_of(
        ".cirron",
        None,
        found,
        ledger_rows(of_run),
        unit_figures(found, of_run, unit, errors=errors),
        Conclusion(
            findings, status, headline, state,
            [NotAssessed("CPU_CONTENTION", "no context switches are recorded", remedy)],
            {"INPUT_BOUND": {"warning": 0.05, "critical": 0.2}},
        ),
        sessions=sessions,
        phases=phase_rows(found.together),
        scopes=scopes,
        open_scopes=open_scopes,
    )  # fmt: skip


def loss(*values: float) -> MarkSeries:
    """A series of losses."""
    return MarkSeries(
        "loss", 0, len(values), str(values[0]), str(values[-1]), len(values), min(values),
        max(values),
    )  # fmt: skip
