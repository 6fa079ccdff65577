"""A run that is still being recorded, of which a bounded part is read.

`FollowedRun.read_new` reads the new batches of a spool. It keeps the names of the last ones, enough
for a window of units, and only these are reduced. The caller decides when to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ..analysis.run_batch import CLOSED, STEP_NAMES, outline_of_rows
from ..analysis.run_selection import choose_run
from ..analysis.runs import Run as ListedRun
from ..records.rows import IndexedBatch, rows_of
from ..spool.journal import open_scopes
from ..spool.owner import is_alive, owner_of, owners
from ..spool.reader import BatchFile, SpoolReader
from .accounts import BY_RULE, AccountNames
from .figures.medians import median_of
from .opening import open_run
from .recent_batches import RecentBatches
from .relations import known
from .run import Run
from .shapes.producers import REQUEST
from .stall import Stall

COUNTED: Final = frozenset({*STEP_NAMES, REQUEST})
"""The names of the units that are counted as batches are read."""
_MOST_FAILED: Final = 100
"""The maximum number of batches with the end of a failed session that are kept for their sake."""


@dataclass(slots=True)
class _LiveSession:
    """A session of the followed run."""

    owner: str | None = None
    ranks: set[int | None] = field(default_factory=set)
    is_ended: bool = False


@dataclass(slots=True)
class _RankProgress:
    """The last units of a rank, and when the last one was first seen, ns."""

    end_ns: int
    seen_ns: int
    median_ns: int = 0
    longest_cycle_ns: int = 0


class FollowedRun:
    """A run that is followed in the spool to which it is recorded."""

    def __init__(
        self,
        reader: SpoolReader,
        wanted: str | None,
        window: int,
        accounts: AccountNames = BY_RULE,
    ) -> None:
        """Follow the run `wanted`, or else the last one; a run may begin later.

        `window` is the number of units of each rank that are needed. `accounts` has the accounts
        of scopes by their names.
        """
        self._reader, self._wanted, self._accounts = reader, wanted, accounts
        self.run: ListedRun | None = None
        self._sessions: dict[str, _LiveSession] = {}
        self._foreign: set[str] = set()
        """Sessions of other runs."""
        self._seen: set[str] = set()
        self.recent = RecentBatches(window)
        self._failed: set[str] = set()
        """Batches with the end of a session that failed; they stay part of the run."""
        self._progress: dict[int | None, _RankProgress] = {}

    @property
    def has_ended(self) -> bool:
        """Whether every session of the run has ended, or its process has died."""
        return bool(self._sessions) and not self._running()

    def _running(self) -> dict[str, _LiveSession]:
        """Return the sessions that have not ended, by id."""
        paths = self._reader.paths
        local = set(owners(paths))

        def is_dead(prefix: str | None) -> bool:
            return prefix in local and not is_alive(paths, prefix or "")

        return {
            key: each for key, each in self._sessions.items()
            if not each.is_ended and not is_dead(each.owner)
        }  # fmt: skip

    def read_new(self) -> bool:
        """Read the new batches; return whether the run has a batch.

        Raises UsageError if the wanted name or id is ambiguous, and InputError if the spool cannot
        be read.
        """
        for batch in self._new_batches():
            self._add(batch)
        ranks = {rank for each in self._sessions.values() for rank in each.ranks}
        self.recent.release(ranks.difference(self.running_ranks()))
        return self.run is not None and bool(self.recent.names())

    @property
    def state(self) -> tuple[frozenset[str], frozenset[str]]:
        """The names of the batches to read, and the sessions that have not ended."""
        return self.recent.names() | self._failed, frozenset(self._running())

    def opened(self) -> AbstractContextManager[Run]:
        """Open the run of the last batches. Raises the errors of `open_run`."""
        names = self.recent.names() | self._failed
        reader = SpoolReader(self._reader.paths.root, only=names)
        return open_run(reader, reader, accounts=self._accounts)

    def _new_batches(self) -> Iterator[BatchFile]:
        """Yield the batches that were not read yet, one at a time."""
        names = list(self._reader.names())
        new = [name for name in names if name not in self._seen]
        self._seen = set(names)
        for name in new:
            batch = self._reader.read(name)
            if batch is not None:
                yield batch

    def _add(self, batch: BatchFile) -> None:
        """Add a batch to the recent ones if it belongs to the run."""
        rows = rows_of(batch.data)
        outline = outline_of_rows(rows, batch.data)
        key = outline.session
        if key is None or key in self._foreign:
            return
        if key not in self._sessions:
            self._choose()
            if key not in self._sessions:
                self._foreign.add(key)
                return
        session = self._sessions[key]
        session.owner = owner_of(batch.name)
        session.ranks |= outline.ranks
        session.is_ended = session.is_ended or outline.status is not None
        if outline.status not in (None, CLOSED) and len(self._failed) < _MOST_FAILED:
            self._failed.add(batch.name)
        self.recent.add(batch.name, outline.steps or _requests_in(rows))

    def _choose(self) -> None:
        """Choose the run, or update its sessions, after a new session has appeared."""
        is_bound = self.run is not None and not self.has_ended
        wanted = self.run.id if is_bound and self.run is not None else self._wanted
        run = choose_run(SpoolReader(self._reader.paths.root), wanted).run
        if run is None:
            return
        if self.run is None or run.id != self.run.id:
            self._sessions.clear()
            self.recent.clear()
            self._failed.clear()
            self._progress.clear()
        self.run = run
        for session in run.sessions:
            self._sessions.setdefault(session, _LiveSession())
        self._foreign -= set(run.sessions)

    def note_progress(self, run: Run, now_ns: int) -> None:
        """Note the last unit of each rank of the opened run.

        The silence of a rank counts from the moment at which its last unit was first noted, since
        the clocks of hosts differ, or for the first call from the end of that unit.
        """
        starts: dict[int | None, list[np.ndarray]] = {}
        durations: dict[int | None, list[np.ndarray]] = {}
        for units, _ in run.recording.unit_blocks():
            for token in np.unique(units["rank"]).tolist():
                is_own, rank = units["rank"] == token, known(token)
                starts.setdefault(rank, []).append(units["start_ns"][is_own])
                durations.setdefault(rank, []).append(units["ns"][is_own])
        for rank, blocks in starts.items():
            start, ns = np.concatenate(blocks), np.concatenate(durations[rank])
            end_ns = int((start + ns).max())
            progress = self._progress.get(rank)
            if progress is None:
                progress = self._progress[rank] = _RankProgress(end_ns, min(end_ns, now_ns))
            elif end_ns > progress.end_ns:
                progress.end_ns, progress.seen_ns = end_ns, now_ns
            progress.median_ns = round(median_of(ns))
            cycles = np.diff(np.sort(start))
            progress.longest_cycle_ns = int(cycles.max()) if len(cycles) else 0

    def stalls(self, now_ns: int) -> list[Stall]:
        """Return the silence of each rank that is still running, as of `note_progress`."""
        running, stalls = self.running_ranks(), []
        for rank, each in self._progress.items():
            if rank in running:
                silent_ns = max(now_ns - each.seen_ns, 0)
                scopes = tuple(self._open_scopes(running[rank]))
                stalls.append(Stall(rank, silent_ns, each.median_ns, scopes, each.longest_cycle_ns))
        return stalls

    def running_ranks(self) -> dict[int | None, str | None]:
        """Return the owner of each rank with a session that has not ended."""
        running: dict[int | None, str | None] = {}
        for session in self._running().values():
            running.update(dict.fromkeys(session.ranks or {None}, session.owner))
        return running

    def _open_scopes(self, owner: str | None) -> Iterator[str]:
        """Yield the names of the open scopes of a process, in order of their start."""
        if owner is None:
            return
        records = open_scopes(self._reader.paths, owner)
        for record in sorted(records, key=lambda each: each.get("start_ns") or 0):
            if isinstance(name := record.get("name"), str):
                yield name

    def awaits_process(self) -> bool:
        """Return whether a live process of the spool has not written a batch yet."""
        paths = self._reader.paths
        with_session = {session.owner for session in self._sessions.values()}
        return any(
            prefix not in with_session and is_alive(paths, prefix) and not self._has_batches(prefix)
            for prefix in owners(paths)
        )

    def _has_batches(self, prefix: str) -> bool:
        return any(owner_of(name) == prefix for name in self._seen)


def _requests_in(rows: IndexedBatch) -> dict[int | None, int]:
    """Return the number of requests in a batch without steps, by rank."""
    requests: dict[int | None, int] = {}
    for span in rows.spans:
        if span.name == REQUEST:
            requests[span.rank] = requests.get(span.rank, 0) + 1
    return requests
