"""`cirron-otel diagnose --live`: print the verdicts on a running job as they change."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...core.durations import SECOND_NS
from ...errors import UsageError
from ..present.formatting import clock_time, printable
from . import output
from .diagnose_text import verdict_lines
from .sources import shown_source

if TYPE_CHECKING:
    from ...core.analysis.verdicts.live import Change, LiveRun
    from ...core.analysis.verdicts.thresholds import Thresholds
    from ...core.analysis.verdicts.verdict import Verdict

_DATABASES = ("sqlite", "postgresql")
_OVERLAP_NS = 60 * SECOND_NS
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

    Raises UsageError if the source is neither a spool nor a database, and the errors of reading it.
    """
    from ...core.analysis.run_selection import ALL
    from ...core.temporary import temporary_folder
    from ..convert.sources import is_spool
    from ..convert.tables import source_with_prefix

    if wanted == ALL:
        raise UsageError("--live follows one run: name it with --run, or leave --run out")
    request = _Request(wanted, limits, as_json, is_failure)
    if is_spool(source, source_format):
        return _followed(Path(source), request, refresh=None)
    match = source_with_prefix(source)
    if match is None or match[0] not in _DATABASES:
        raise UsageError(
            f"--live follows a spool or a database, and {printable(shown_source(source))} is"
            " neither: name the directory into which a job or a collector records, or the URL of"
            " the collector's storage"
        )
    with temporary_folder() as folder:
        return _followed(folder, request, refresh=_StorageCopy(source, folder).refresh)


class _Request(NamedTuple):
    """The run to follow, and the form of the output."""

    wanted: str | None
    limits: Thresholds
    as_json: bool
    is_failure: Callable[[Verdict], bool]


def _followed(
    spool: Path, request: _Request, refresh: Callable[[], None] | None
) -> tuple[bool, int]:
    from ...core.analysis.verdicts.live import LiveRun
    from ...core.spool.reader import SpoolReader

    if refresh is not None:
        refresh()
    reader = SpoolReader(spool)
    live = LiveRun(reader, request.wanted, request.limits)
    has_failed = _Follower(live, request, refresh).follow()
    output.skipped(reader.findings, reader.skipped)
    return has_failed, 1 if reader.skipped else 0


class _StorageCopy:
    """A spool with the batches of a database, to which new ones are added."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder

    def refresh(self) -> None:
        """Copy the batches that were created since the last copied one, or shortly before it.

        They arrive in another order than they were created in. Raises the errors of reading the
        database, and TargetError if there is no disk space.
        """
        from ...core.spool.paths import parse_name
        from ...core.spool.reader import SpoolReader
        from ...core.targets.sql.source import copy_to_spool
        from ...core.targets.sql.store import Select

        since_ns = None
        if (self._folder / "spool").is_dir():
            names = map(parse_name, SpoolReader(self._folder).names())
            created = max((parsed[0] for parsed in names if parsed is not None), default=None)
            since_ns = None if created is None else max(created - _OVERLAP_NS, 0)
        copy_to_spool(self._url, self._folder, Select(since_ns=since_ns))


class _Follower:
    """Polls a run, and prints how its verdicts change."""

    def __init__(
        self, live: LiveRun, request: _Request, refresh: Callable[[], None] | None
    ) -> None:
        self._live, self._refresh = live, refresh
        self._as_json, self._is_failure = request.as_json, request.is_failure
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

        if self._refresh is not None:
            self._refresh()
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
