"""`cirron-otel diagnose --live`: print the findings on a running job as they change."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..present.formatting import clock_time, printable
from . import output
from .follow import Followed

if TYPE_CHECKING:
    from ...core.run.findings.choices import Choices
    from ...core.run.findings.finding import Finding
    from ...core.run.findings.live import Change, LiveConclusion, LiveFindings
    from ...core.run.followed_run import FollowedRun
    from ...core.spool.reader import SpoolReader


def live_findings(
    reader: SpoolReader,
    wanted: str | None,
    choices: Choices,
    units: int | None,
    *,
    as_json: bool,
    is_failure: Callable[[Finding], bool],
) -> Followed:
    """Return the findings on the run `wanted`, or else the last one, which are printed on change.

    `units` is the number of the last units of each rank that are assessed; None for the default.
    """
    from ...core.run.findings.live import UNITS, LiveFindings

    live = LiveFindings(reader, wanted, choices, UNITS if units is None else units)
    return _PrintedFindings(live, as_json=as_json, is_failure=is_failure)


class _PrintedFindings:
    """Prints the findings that appear, change and end."""

    def __init__(
        self, live: LiveFindings, *, as_json: bool, is_failure: Callable[[Finding], bool]
    ) -> None:
        from ...core.run.findings.live import Changes

        self._live, self._as_json, self._is_failure = live, as_json, is_failure
        self._changes = Changes()
        self._run: str | None = None
        self._last: LiveConclusion | None = None

    @property
    def followed(self) -> FollowedRun:
        """The run that is followed."""
        return self._live.followed

    def poll(self, now_ns: int) -> bool | None:
        """Print the changes; return whether a finding is a failure, or None without a run."""
        from ...core.run.findings.live import Changes

        conclusion, run = self._live.poll(now_ns), self.followed.run
        if conclusion is None or run is None:
            return None
        if run.id != self._run:
            self._run, self._changes = run.id, Changes()
            if not self._as_json:
                output.result(f"run {printable(run.name)}")
        for change, finding in self._changes.of(conclusion.findings):
            self._print(now_ns, change, finding, conclusion)
        output.flush()
        self._last = conclusion
        return any(map(self._is_failure, conclusion.findings))

    def _print(
        self, now_ns: int, change: Change, finding: Finding, conclusion: LiveConclusion
    ) -> None:
        from ..present.findings_text import finding_parts, place
        from ..present.ledger_rows import ledger_rows

        if self._as_json:
            self._event(now_ns, change, units=conclusion.units, finding=finding.to_json())
            return
        unit = printable(conclusion.unit)
        if change == "ended":
            where = place(finding, unit)
            title = f"{finding.kind}: {where}" if where else finding.kind
            output.result(f"{clock_time(now_ns)} ended: {title}")
            return
        output.result(f"{clock_time(now_ns)} {change}:")
        ledger = ledger_rows(conclusion.ledger)
        if ledger is not None:
            ledger.is_window = True
        output.show_parts(finding_parts(finding, unit, ledger=ledger))

    def end(self, now_ns: int) -> None:
        """Print that the run has ended, with the status and the headline of the last units."""
        from ..present.findings_text import severity_word

        last = self._last
        if self._as_json:
            status, headline = (None, None) if last is None else (last.status, last.headline)
            self._event(now_ns, "run_ended", status=status, headline=headline)
        else:
            text = "" if last is None else f": {severity_word(last.status)}: {last.headline}"
            output.result(f"{clock_time(now_ns)} the run has ended{printable(text)}")
        output.flush()

    def _event(self, now_ns: int, event: str, **more: Any) -> None:
        run = self.followed.run
        named = None if run is None else {"id": run.id, "name": run.name}
        output.result(json.dumps({"run": named, "time_ns": now_ns, "event": event, **more}))
