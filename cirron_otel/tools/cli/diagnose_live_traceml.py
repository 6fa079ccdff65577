"""`cirron-otel diagnose --live --rules traceml`: print the verdicts on a running job."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..present.formatting import clock_time, printable
from . import output
from .diagnose_text import verdict_lines
from .follow import Followed

if TYPE_CHECKING:
    from ...core.analysis.verdicts.live import Change, LiveRun
    from ...core.analysis.verdicts.thresholds import Thresholds
    from ...core.analysis.verdicts.verdict import Verdict
    from ...core.run.followed_run import FollowedRun
    from ...core.spool.reader import SpoolReader


def live_verdicts(
    reader: SpoolReader,
    wanted: str | None,
    limits: Thresholds,
    *,
    as_json: bool,
    is_failure: Callable[[Verdict], bool],
) -> Followed:
    """Return the verdicts on the run `wanted`, or else the last one; changes are printed."""
    from ...core.analysis.verdicts.live import LiveRun

    return _PrintedVerdicts(LiveRun(reader, wanted, limits), as_json=as_json, is_failure=is_failure)


class _PrintedVerdicts:
    """Prints the verdicts that appear, change and go."""

    def __init__(
        self, live: LiveRun, *, as_json: bool, is_failure: Callable[[Verdict], bool]
    ) -> None:
        self._live, self._as_json, self._is_failure = live, as_json, is_failure
        self._verdicts: list[Verdict] = []
        self._run: str | None = None

    @property
    def followed(self) -> FollowedRun:
        """The run that is followed."""
        return self._live.followed

    def poll(self, now_ns: int) -> bool | None:
        """Print the changes; return whether a verdict is a failure, or None without a run."""
        from ...core.analysis.verdicts.live import changes_of

        diagnosis, run = self._live.poll(now_ns), self.followed.run
        if diagnosis is None or run is None:
            return None
        if run.id != self._run:
            self._run, self._verdicts = run.id, []
            if not self._as_json:
                output.result(f"run {printable(run.name)}")
        for change, verdict in changes_of(self._verdicts, diagnosis.verdicts):
            self._print(now_ns, change, verdict, diagnosis.steps)
        output.flush()
        self._verdicts = diagnosis.verdicts
        return any(map(self._is_failure, diagnosis.verdicts))

    def _print(self, now_ns: int, change: Change, verdict: Verdict, steps: int) -> None:
        if self._as_json:
            self._event({
                "time_ns": now_ns, "event": change, "steps": steps, "verdict": verdict.to_json(),
            })  # fmt: skip
            return
        lines = [f"{verdict.kind}"] if change == "gone" else list(verdict_lines(verdict))
        output.result(f"{clock_time(now_ns)}  {change:<8}  {lines[0]}")
        for line in lines[1:]:
            output.result(f"{'':20}{line}")

    def end(self, now_ns: int) -> None:
        """Print that the run has ended."""
        if self._as_json:
            self._event({"time_ns": now_ns, "event": "ended"})
        else:
            last = ", ".join(each.kind for each in self._verdicts)
            output.result(f"{clock_time(now_ns)}  the run has ended: {last}")
        output.flush()

    def _event(self, event: dict[str, object]) -> None:
        run = self.followed.run
        named = None if run is None else {"id": run.id, "name": run.name}
        output.result(json.dumps({"run": named, **event}))
