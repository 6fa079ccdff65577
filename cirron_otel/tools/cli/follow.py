"""Follows a running job in its spool, or in the database of a collector, until it ends."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from ...core.durations import SECOND_NS
from ...errors import UsageError
from ..present.formatting import printable
from . import output
from .sources import shown_source

if TYPE_CHECKING:
    from ...core.run.followed_run import FollowedRun
    from ...core.spool.reader import SpoolReader

_DATABASES: Final = ("sqlite", "postgresql")
_OVERLAP_NS: Final = 60 * SECOND_NS
POLL_S: Final = 1.0
"""The seconds between two looks at the spool, as between the flushes of a session."""


class Followed(Protocol):
    """A conclusion on a followed run, of which changes are printed."""

    @property
    def followed(self) -> FollowedRun:
        """The run that is followed."""

    def poll(self, now_ns: int) -> bool | None:
        """Print the changes; return whether there is a failure, or None without a run."""

    def end(self, now_ns: int) -> None:
        """Print that the run has ended."""


def follow(
    source: str,
    source_format: str | None,
    wanted: str | None,
    begin: Callable[[SpoolReader], Followed],
) -> tuple[bool, int]:
    """Follow a run until it ends; return whether there was a failure, and the exit code.

    `begin` starts to follow the run `wanted` of a spool. Raises UsageError if the source is neither
    a spool nor a database, and the errors of reading it.
    """
    from ...core.analysis.run_selection import ALL
    from ...core.temporary import temporary_folder
    from ..convert.formats import is_spool
    from ..convert.tables import source_with_prefix

    if wanted == ALL:
        raise UsageError("--live follows one run: name it with --run, or leave --run out")
    if is_spool(source, source_format):
        return _followed(Path(source), begin, refresh=None)
    match = source_with_prefix(source)
    if match is None or match[0] not in _DATABASES:
        raise UsageError(
            f"--live follows a spool or a database, and {printable(shown_source(source))} is"
            " neither: name the directory into which a job or a collector records, or the URL of"
            " the collector's storage"
        )
    with temporary_folder() as folder:
        return _followed(folder, begin, refresh=_StorageCopy(source, folder).refresh)


def _followed(
    spool: Path, begin: Callable[[SpoolReader], Followed], refresh: Callable[[], None] | None
) -> tuple[bool, int]:
    from ...core.spool.reader import SpoolReader

    if refresh is not None:
        refresh()
    reader = SpoolReader(spool)
    has_failed = _until_end(begin(reader), refresh)
    output.skipped(reader.findings, reader.skipped)
    return has_failed, 1 if reader.skipped else 0


def _until_end(live: Followed, refresh: Callable[[], None] | None) -> bool:
    """Poll until the run ends; return whether there was a failure."""
    has_failed = is_waiting = False
    while True:
        is_last = live.followed.has_ended and not live.followed.awaits_process()
        if refresh is not None:
            refresh()
        is_failure = live.poll(time.time_ns())
        if is_failure is None and not is_waiting:
            is_waiting = True
            output.message("the spool has no run yet: waiting for one")
        has_failed = has_failed or bool(is_failure)
        if is_last:
            live.end(time.time_ns())
            return has_failed
        time.sleep(POLL_S)


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
