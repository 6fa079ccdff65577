"""The diagnosis of a run that is still being recorded, from a bounded part of its batches.

`LiveRun.poll` reads the new batches of a spool. It keeps the names of the last ones, enough for a
window, and indexes only these. The caller decides when to poll; nothing here waits.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from ...run.opening import open_run
from ...run.relations import ABSENT, rows
from ...run.run import Run as FiguresOfRun
from ...spool.journal import open_scopes
from ...spool.owner import is_alive, owner_of, owners
from ...spool.reader import BatchFile, SpoolReader
from ..run_batch import outline_of
from ..run_selection import choose_run
from ..runs import Run
from .diagnosis import Diagnosis, diagnose
from .recent_batches import RecentBatches
from .thresholds import Thresholds
from .verdict import Verdict
from .window import Stall

Change = Literal["appeared", "changed", "gone"]


@dataclass(slots=True)
class _LiveSession:
    """A session of the followed run."""

    owner: str | None = None
    ranks: set[int | None] = field(default_factory=set)
    is_ended: bool = False


@dataclass(slots=True)
class _RankProgress:
    """The last step of a rank, and when it was first seen, ns."""

    end_ns: int
    seen_ns: int


class LiveRun:
    """A run that is followed in the spool to which it is recorded."""

    def __init__(self, reader: SpoolReader, wanted: str | None, limits: Thresholds) -> None:
        """Follow the run `wanted`, or else the last one; a run may begin later."""
        self._reader, self._wanted, self._limits = reader, wanted, limits
        self.run: Run | None = None
        self._sessions: dict[str, _LiveSession] = {}
        self._foreign: set[str] = set()
        """Sessions of other runs."""
        self._seen: set[str] = set()
        self._recent = RecentBatches(round(limits["window.steps"]))
        self._progress: dict[int | None, _RankProgress] = {}

    @property
    def has_ended(self) -> bool:
        """Whether every session of the run has ended, or its process has died."""
        return bool(self._sessions) and all(map(self._is_over, self._sessions.values()))

    def _is_over(self, session: _LiveSession) -> bool:
        if session.is_ended:
            return True
        prefix = session.owner
        is_local = prefix is not None and prefix in owners(self._reader.paths)
        return is_local and not is_alive(self._reader.paths, prefix or "")

    def poll(self, now_ns: int) -> Diagnosis | None:
        """Read the new batches; return the diagnosis, or None if the run has no batch yet.

        Raises UsageError if the wanted name or id is ambiguous, InputError if the spool cannot be
        read, and TargetError if there is no disk space.
        """
        for batch in self._new_batches():
            self._add(batch)
        names = self._recent.names()
        if self.run is None or not names:
            return None
        reader = SpoolReader(self._reader.paths.root, only=names)
        with open_run(reader, reader) as run:
            stalls = list(self._stalls(run, now_ns))
            window = run.window(self._limits, self.run.world_size, stalls)
            return diagnose(window, self._limits)

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
        outline = outline_of(batch.data)
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
        self._recent.add(batch.name, outline.steps)

    def _choose(self) -> None:
        """Choose the run, or update its sessions, after a new session has appeared."""
        is_bound = self.run is not None and not self.has_ended
        wanted = self.run.id if is_bound and self.run is not None else self._wanted
        run = choose_run(SpoolReader(self._reader.paths.root), wanted).run
        if run is None:
            return
        if self.run is None or run.id != self.run.id:
            self._sessions.clear()
            self._recent.clear()
            self._progress.clear()
        self.run = run
        for session in run.sessions:
            self._sessions.setdefault(session, _LiveSession())
        self._foreign -= set(run.sessions)

    def _stalls(self, run: FiguresOfRun, now_ns: int) -> Iterator[Stall]:
        """Yield the silence of each rank that is still running.

        It counts from the poll that saw the rank's last step, since clocks of hosts differ, or for
        the first poll from the end of that step.
        """
        durations: dict[int | None, list[int]] = {}
        for rank, end_ns, ns in _ends(run):
            durations.setdefault(rank, []).append(ns)
            progress = self._progress.get(rank)
            if progress is None:
                self._progress[rank] = _RankProgress(end_ns, min(end_ns, now_ns))
            elif end_ns > progress.end_ns:
                progress.end_ns, progress.seen_ns = end_ns, now_ns
        running = self._running_ranks()
        for rank, steps in durations.items():
            if rank in running:
                silent_ns = max(now_ns - self._progress[rank].seen_ns, 0)
                scopes = tuple(self._open_scopes(running[rank]))
                yield Stall(rank, silent_ns, round(statistics.median(steps)), scopes)

    def _running_ranks(self) -> dict[int | None, str | None]:
        """Return the owner of each rank with a session that has not ended."""
        running: dict[int | None, str | None] = {}
        for session in self._sessions.values():
            if not self._is_over(session):
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
        known = {session.owner for session in self._sessions.values()}
        return any(
            prefix not in known and is_alive(paths, prefix) and not self._has_batches(prefix)
            for prefix in owners(paths)
        )

    def _has_batches(self, prefix: str) -> bool:
        return any(owner_of(name) == prefix for name in self._seen)


def _ends(run: FiguresOfRun) -> Iterator[tuple[int | None, int, int]]:
    """Yield the rank, the end and the duration of each unit, those of a rank by their start."""
    for units, _ in run.recording.unit_blocks():
        for rank, start_ns, ns in rows(units, "rank", "start_ns", "ns"):
            yield None if rank == ABSENT else rank, start_ns + ns, ns


def changes_of(
    before: Iterable[Verdict], after: Iterable[Verdict]
) -> Iterator[tuple[Change, Verdict]]:
    """Yield the differences of two diagnoses by kind of verdict: first those that are gone."""
    old, new = ({each.kind: each for each in verdicts} for verdicts in (before, after))
    for kind, verdict in old.items():
        if kind not in new:
            yield "gone", verdict
    for kind, verdict in new.items():
        previous = old.get(kind)
        if previous is None:
            yield "appeared", verdict
        elif _identity(previous) != _identity(verdict):
            yield "changed", verdict


def _identity(verdict: Verdict) -> tuple[str, list[int], str | None]:
    return verdict.severity, sorted(verdict.ranks), verdict.phase
