"""`cirron-otel diagnose --live`: print the verdicts on a running job as they change."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...errors import UsageError
from . import output
from .diagnose_text import verdict_lines
from .text import clock_time, printable

if TYPE_CHECKING:
    from ...core.analysis.verdicts.live import Change, LiveRun
    from ...core.analysis.verdicts.thresholds import Thresholds
    from ...core.analysis.verdicts.verdict import Verdict

POLL_S = 1.0
"""The seconds between two looks at the spool, as between the flushes of a session."""


def follow(
    source: str,
    source_format: str | None,
    wanted: str | None,
    limits: Thresholds,
    *,
    as_json: bool,
    is_failure: Callable[[Verdict], bool],
) -> tuple[bool, int]:
    """Follow a run until it ends; return whether a verdict was a failure, and the exit code.

    Raises UsageError if the source is not a spool.
    """
    from ...core.analysis.run_selection import ALL
    from ...core.analysis.verdicts.live import LiveRun
    from ...core.spool.reader import SpoolReader
    from ..convert.sources import is_spool

    if not is_spool(source, source_format):
        raise UsageError(
            f"--live follows a spool, and {printable(source)} is none: name the directory into"
            " which a job or a collector records"
        )
    if wanted == ALL:
        raise UsageError("--live follows one run: name it with --run, or leave --run out")
    reader = SpoolReader(source)
    live = LiveRun(reader, wanted, limits)
    has_failed = _Follower(live, as_json, is_failure).follow()
    output.skipped(reader.findings, reader.skipped)
    return has_failed, 1 if reader.skipped else 0


class _Follower:
    """Polls a run, and prints how its verdicts change."""

    def __init__(self, live: LiveRun, as_json: bool, is_failure: Callable[[Verdict], bool]) -> None:
        self._live, self._as_json, self._is_failure = live, as_json, is_failure
        self._verdicts: list[Verdict] = []
        self._run: str | None = None
        self._is_waiting = False

    def follow(self) -> bool:
        """Poll until the run ends; return whether a verdict was a failure."""
        has_failed = False
        while True:
            is_last = self._live.has_ended and not self._live.awaits_process()
            has_failed = self._poll() or has_failed
            if is_last:
                self._print_end()
                return has_failed
            time.sleep(POLL_S)

    def _poll(self) -> bool:
        from ...core.analysis.verdicts.live import changes_of

        now_ns = time.time_ns()
        diagnosis = self._live.poll(now_ns)
        if diagnosis is None or self._live.run is None:
            if not self._is_waiting:
                self._is_waiting = True
                output.message("the spool has no run yet: waiting for one")
            return False
        if self._live.run.id != self._run:
            self._run, self._verdicts = self._live.run.id, []
            if not self._as_json:
                output.result(f"run {printable(self._live.run.name)}")
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

    def _print_end(self) -> None:
        if self._as_json:
            self._event({"time_ns": time.time_ns(), "event": "ended"})
        else:
            last = ", ".join(each.kind for each in self._verdicts)
            output.result(f"{clock_time(time.time_ns())}  the run has ended: {last}")
        output.flush()

    def _event(self, event: dict[str, object]) -> None:
        run = self._live.run
        named = None if run is None else {"id": run.id, "name": run.name}
        output.result(json.dumps({"run": named, **event}))
