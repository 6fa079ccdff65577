"""Exporting a spool over OTLP as it grows, or what is left of it, whoever wrote it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, TargetError
from ..exporter.backlog import Backlog
from ..exporter.config import OtlpConfig, target_key
from ..exporter.otlp import Backoff, StoppedError
from ..spool.delivered import cursor_of
from ..spool.findings import Finding
from ..spool.lease import Lease, claim
from ..spool.owner import group_of, known_owners
from ..spool.reader import SpoolReader
from ..spool.state import unwritable
from ..translator.encode import SEGMENTED, Options
from .courier import Courier
from .export_report import ExportReport
from .indexed import FollowIndex, IndexedTarget
from .light import LightBatch, light

UNDECIDED_SECONDS = 60.0
"""How long a batch waits until it is known whose session its records belong to."""
POLL_SECONDS = 0.2
_LOOK_AGAIN_SECONDS = 5.0
"""A directory that looks as it did is read again after that, and leases are asked for again."""


MakeTarget = Callable[[OtlpConfig, Options, FollowIndex, ExportReport], IndexedTarget]


@dataclass(frozen=True, slots=True)
class Terms:
    """How a spool is followed."""

    undecided_seconds: float = UNDECIDED_SECONDS
    patience: float | None = None
    """How long the endpoint may not be ready, in seconds; None: for ever."""
    backoff: Backoff | None = None
    clock: Callable[[], float] = time.monotonic
    make_target: MakeTarget = IndexedTarget


class Follower:
    """Exports what an endpoint has not, of every owner whose lease is to be had.

    A batch whose records do not say their session waits, on disk where it stands, until the scopes
    it refers to are recorded, but not for ever. What the endpoint has is kept in cursors, so that a
    restart goes on where this stopped; a request that was in flight may come twice. Of several
    that follow a spool to one target, one is at it, and the next when that ends.
    """

    def __init__(
        self,
        source: str,
        config: OtlpConfig,
        options: Options,
        report: ExportReport,
        *,
        stop: threading.Event,
        say: Callable[[str], None],
        terms: Terms | None = None,
    ) -> None:
        """Find the spool; `say` is given what people should know. Raises InputError."""
        self._reader = SpoolReader(source, on_finding=self._found)
        self._paths = self._reader.paths
        self._config, self._options, self._report = config, options, report
        self._stop, self._say, self._terms = stop, say, terms or Terms()
        self._key = target_key(config)
        self._broken: set[str] = set()
        self._is_said = False

    def run(self) -> None:
        """Go on until `stop` is set. Raises TargetError and EndpointError."""
        lease = self._lease()
        while lease is None and not self._stop.wait(POLL_SECONDS):
            lease = self._lease()
        if lease is None:
            return
        with contextlib.suppress(StoppedError), lease, self._work() as work:
            while not self._stop.is_set():
                work.round()
                self._stop.wait(POLL_SECONDS)

    def once(self) -> None:
        """Send what is there, decided or not, but what other processes send.

        Raises as `run`, and StoppedError.
        """
        lease = self._lease()
        if lease is not None:
            with lease, self._work() as work:
                work.round(is_last=True)

    def unsent(self) -> int:
        """How many batches the endpoint does not have."""
        return unsent(self._reader, self._key, self._broken)

    def _lease(self) -> Lease | None:
        lease = claim(self._paths, f"follow {self._key}")
        if lease is None and not self._is_said:
            self._is_said = True
            self._say(f"another export of this spool to {self._config.shown_endpoint} is running")
        return lease

    def _found(self, finding: Finding) -> None:
        if finding.name not in self._broken and finding.code != "torn":
            self._broken.add(finding.name)
            self._report.skip(finding)

    @contextlib.contextmanager
    def _work(self) -> Iterator[_Work]:
        path = self._paths.state / f"follow-{self._key}.sqlite"
        with contextlib.ExitStack() as stack:
            try:
                index = _index_at(path)
                stack.callback(index.close, commit=False)
                target = self._terms.make_target(self._config, self._options, index, self._report)
                stack.callback(target.close)
                courier = Courier(
                    self._paths,
                    target,
                    self._report,
                    stop=self._stop,
                    patience=self._terms.patience,
                    say=self._say,
                    backoff=self._terms.backoff,
                )
                stack.callback(courier.close)
                is_segmented = self._options.layout == SEGMENTED
                yield _Work(self._reader, index, courier, self._broken, self._terms, is_segmented)
            except sqlite3.OperationalError as error:
                raise TargetError(f"cannot use {path}: {error}; free some space") from None


def _index_at(path: Path) -> FollowIndex:
    """The index of an export that goes on; one that is damaged is made anew from the spool."""
    try:
        # SQLite gives its other files the mode of this one.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        return FollowIndex(path)
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _index_at(path)


class _Work:
    """The work of the one that follows."""

    def __init__(
        self,
        reader: SpoolReader,
        index: FollowIndex,
        courier: Courier,
        broken: set[str],
        terms: Terms,
        is_segmented: bool,
    ) -> None:
        self._reader, self._index, self._courier = reader, index, courier
        self._broken, self._terms, self._is_segmented = broken, terms, is_segmented
        self._settled: set[str] = set()
        """Batches with which nothing is to be done any more."""
        self._since: dict[str, float] = {}
        """When a batch was first seen to be undecided."""
        self._looked_at = float("-inf")
        self._seen_ns = -1

    def round(self, *, is_last: bool = False) -> None:
        """Send what can be sent now; `is_last`: nothing is waited for."""
        if not (is_last or self._has_changed() or self._is_late()):
            return
        owned = self._look()
        for owner, names in owned.items():
            is_settled = all(name in self._settled for name in names)
            if not is_settled and self._courier.claim(owner) is not None:
                self._observe(names)
        self._index.forget_resolved()
        for owner, backlog in list(self._courier.backlogs.items()):
            names = owned.get(owner, [])
            backlog.cursor.forget(set(names))
            self._send(backlog, names, is_last)
            if not any(name in self._since for name in names):
                self._courier.release(owner)

    def _has_changed(self) -> bool:
        """Whether the directory may hold something new, or another may have released a lease."""
        try:
            modified_ns = self._reader.paths.spool.stat().st_mtime_ns
        except OSError:
            return True
        # A change within the clock's grain of the last look would not be seen.
        is_same = modified_ns == self._seen_ns and modified_ns < time.time_ns() - 10**9
        now = time.monotonic()
        if is_same and now - self._looked_at < _LOOK_AGAIN_SECONDS:
            return False
        self._seen_ns, self._looked_at = modified_ns, now
        return True

    def _is_late(self) -> bool:
        now = self._terms.clock()
        return any(self._is_over(since, now) for since in self._since.values())

    def _is_over(self, since: float, now: float) -> bool:
        return now - since > self._terms.undecided_seconds

    def _look(self) -> dict[str, list[str]]:
        """By owner: the batches of the spool, in order."""
        owned: dict[str, list[str]] = {}
        names = list(self._reader.names())
        known = known_owners(self._reader.paths)
        for name in names:
            owned.setdefault(group_of(name, known), []).append(name)
        present = set(names)
        self._settled &= present
        self._broken &= present
        for name in self._since.keys() - present:
            del self._since[name]
        self._index.forget(present)
        return owned

    def _observe(self, names: list[str]) -> None:
        for name in names:
            if name not in self._index and name not in self._broken:
                batch = self._light(name)
                if batch is not None:
                    self._index.observe_once(name, batch)

    def _light(self, name: str) -> LightBatch | None:
        file = self._reader.read(name)
        if file is None:
            return None
        try:
            return light(file.data)
        except InputError as error:
            self._broken.add(name)
            self._courier.skip(Finding(name, "not-json", str(error)))
            return None

    def _send(self, backlog: Backlog, names: list[str], is_last: bool) -> None:
        decided = []
        for name in names:
            if name in self._settled or name in self._broken:
                continue
            if name in backlog.cursor:
                self._settled.add(name)
            elif self._is_decided(name, is_last):
                decided.append(name)
        backlog.cursor.waiting = {name for name in names if name in self._since}
        # Before it is sent: where a batch stands must not depend on how sending it ends.
        self._index.commit()
        self._courier.send(backlog, decided)
        self._settled.update(decided)

    def _is_decided(self, name: str, is_last: bool) -> bool:
        """Whether a batch is to be sent now; it is counted then."""
        batch = self._light(name)
        if batch is None:
            return name not in self._broken  # gone: the courier says so
        if not is_last and self._index.undecided(batch):
            now = self._terms.clock()
            if not self._is_over(self._since.setdefault(name, now), now):
                return False
        self._since.pop(name, None)
        if self._is_segmented:
            self._index.count_once(name, batch)
        return True


def unsent(reader: SpoolReader, key: str, broken: Container[str]) -> int:
    """How many batches of a spool a target does not have, by the cursors that can be read."""
    known = known_owners(reader.paths)
    owned: dict[str, list[str]] = {}
    for name in reader.names():
        if name not in broken:
            owned.setdefault(group_of(name, known), []).append(name)
    count = 0
    for owner, names in owned.items():
        try:
            with contextlib.closing(cursor_of(reader.paths, key, owner)) as cursor:
                count += len(cursor.undone(names))
        except (InputError, TargetError):
            count += len(names)
    return count
