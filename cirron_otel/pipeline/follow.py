"""Exporting a spool over OTLP as it grows, or what is left of it, whoever wrote it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import EndpointError, InputError, TargetError
from ..exporter.backlog import Backlog
from ..exporter.config import OtlpConfig, target_key
from ..exporter.otlp import Backoff, StoppedError
from ..spool.dead_letters import DeadLetters
from ..spool.delivered import cursor_of
from ..spool.findings import Finding
from ..spool.lease import Lease, claim
from ..spool.owner import NONE, group_of, known_owners
from ..spool.reader import SpoolReader
from ..spool.state import unwritable
from ..translator.encode import SEGMENTED, Options
from .courier import Courier
from .export_report import ExportReport
from .indexed import FollowIndex, IndexedTarget
from .light import LightBatch, light
from .listing import Listing

UNDECIDED_SECONDS = 60.0
"""How long a batch waits until it is known whose session its records belong to."""
POLL_SECONDS = 0.2
_SEND_SECONDS = 0.5
"""After sending for so long, new batches are taken up: their lanes must not wait for a long one."""
_AGAIN_SECONDS = 5.0
"""Leases that others hold are asked for again after that."""
MOST_AT_ONCE = 2_000
"""Batches without an owner that are put in line before new ones have their turn."""


MakeTarget = Callable[[OtlpConfig, Options, FollowIndex, ExportReport], IndexedTarget]


@dataclass(frozen=True, slots=True)
class Terms:
    """How a spool is followed."""

    undecided_seconds: float = UNDECIDED_SECONDS
    patience: float | None = None
    """How long the endpoint may not be ready, in seconds; None: for ever."""
    backoff: Backoff | None = None
    clock: Callable[[], float] = time.monotonic
    is_noted: bool = False
    """Whether `Follower.note` is called for the batches that this process seals."""
    make_target: MakeTarget = IndexedTarget
    tries_on: bool = False
    """Whether to go on with an endpoint that refuses everything, as with a wrong key."""
    on_failure: Callable[[EndpointError], None] = lambda _: None
    """Given the failures that are tried again."""
    letters: DeadLetters | None = None
    """The endpoint's dead letters."""


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
        self._listing = Listing(self._reader, is_noted=self._terms.is_noted)
        self._is_said = False
        self._at_work: _Work | None = None

    def run(self) -> None:
        """Go on until `stop` is set. Raises TargetError and EndpointError."""
        lease = self._lease()
        while lease is None and not self._stop.wait(POLL_SECONDS):
            lease = self._lease()
        if lease is None:
            return
        with contextlib.suppress(StoppedError), lease, self._work() as work:
            while not self._stop.is_set():
                if not work.round():
                    self._stop.wait(POLL_SECONDS)

    def note(self, names: Iterable[str]) -> None:
        """Batches were sealed in this spool; from any thread. They need not be looked for."""
        self._listing.note(names)

    def once(self) -> None:
        """Send what is there, decided or not, but what other processes send.

        Raises as `run`, and StoppedError.
        """
        lease = self._lease()
        if lease is not None:
            with lease, self._work() as work:
                work.round(is_last=True)

    def press(self) -> None:
        """Ask for room in the spool, from any thread; see Schedule."""
        if (work := self._at_work) is not None:
            work.press()

    def unsent(self) -> int:
        """How many batches the endpoint does not have."""
        return unsent(self._reader, self._key, self._broken)

    def left(self) -> list[str] | None:
        """The batches that the endpoint may lack; from any thread. None while nothing is sent."""
        work = self._at_work
        return None if work is None else work.left()

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
                    on_failure=self._terms.on_failure,
                    letters=self._terms.letters,
                )
                stack.callback(courier.close)
                is_segmented = self._options.layout == SEGMENTED
                stack.callback(self._end_work)
                self._at_work = _Work(
                    self._reader,
                    self._listing,
                    index,
                    courier,
                    self._broken,
                    self._terms,
                    is_segmented,
                )
                yield self._at_work
            except sqlite3.OperationalError as error:
                raise TargetError(f"cannot use {path}: {error}; free some space") from None

    def _end_work(self) -> None:
        self._at_work = None


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
        listing: Listing,
        index: FollowIndex,
        courier: Courier,
        broken: set[str],
        terms: Terms,
        is_segmented: bool,
    ) -> None:
        self._reader, self._listing = reader, listing
        self._index, self._courier = index, courier
        self._broken, self._terms, self._is_segmented = broken, terms, is_segmented
        self._left: set[str] = set(listing.present)
        """Batches with which something may still be to be done."""
        self._since: dict[str, float] = {}
        """When a batch was first seen to be undecided."""
        self._again_at = float("-inf")
        self._is_begun = False
        """Whether it is known which batches are left."""
        self._is_more = False
        """Whether the last round left batches that can be sent."""

    def round(self, *, is_last: bool = False) -> bool:
        """Send what can be sent now; `is_last`: send everything, and wait for no parents.

        Returns whether the next round has something to do at once.
        """
        self._take_up(is_last)
        if is_last:
            self._courier.finish()
        elif self._courier.send(_SEND_SECONDS, tries_on=self._terms.tries_on):
            self._is_more = True
        self._left |= self._courier.lost
        self._courier.lost.clear()
        self._release()
        return self._is_more

    def _take_up(self, is_last: bool) -> None:
        """Put in line what can be sent."""
        new = self._listing.take()
        self._left.update(new)
        is_read = is_last or self._listing.is_due()
        if is_read:
            self._read()
        elif not (new or self._is_more or self._is_late() or self._is_lease_due()):
            return
        owned = self._owned()
        self._is_more = False
        for owner, names in owned.items():
            if self._courier.claim(owner) is not None:
                self._work_at(owner, names, new, is_read, is_last)
        self._is_begun = True

    def press(self) -> None:
        """Ask for room in the spool, from any thread; see Schedule."""
        self._courier.press()

    def left(self) -> list[str] | None:
        """The batches that may not be sent yet; from any thread. None before that is known."""
        if not self._is_begun or (noted := self._listing.noted()) is None:
            return None
        while True:
            with contextlib.suppress(RuntimeError):  # it was changed meanwhile
                return [*{*self._left, *noted, *self._courier.names()}]

    def _read(self) -> None:
        self._left.update(self._listing.read())
        present = self._listing.present
        self._left &= present
        self._broken &= present
        for name in self._since.keys() - present:
            del self._since[name]
        self._index.forget(present)

    def _is_lease_due(self) -> bool:
        """Whether it is time to ask again for leases that others held."""
        return bool(self._left) and time.monotonic() >= self._again_at

    def _is_late(self) -> bool:
        now = self._terms.clock()
        return any(self._is_over(since, now) for since in self._since.values())

    def _is_over(self, since: float, now: float) -> bool:
        return now - since > self._terms.undecided_seconds

    def _owned(self) -> dict[str, list[str]]:
        """By owner: the batches that are left, in order."""
        self._again_at = time.monotonic() + _AGAIN_SECONDS
        self._left -= self._broken
        owned: dict[str, list[str]] = {}
        known = known_owners(self._reader.paths) if self._left else set()
        for name in sorted(self._left):
            owned.setdefault(group_of(name, known), []).append(name)
        return owned

    def _work_at(
        self, owner: str, names: list[str], new: list[str], is_read: bool, is_last: bool
    ) -> None:
        """Put an owner's batches in line. New ones without an owner that say where their records
        stand come first: an earlier backlog does not keep them waiting.
        """
        backlog = self._courier.backlogs[owner]
        undone = backlog.cursor.undone(names)
        self._left.difference_update(names)
        self._left.update(undone)
        self._is_begun = True
        if is_read and owner != NONE:
            known = known_owners(self._reader.paths)
            present = (name for name in self._listing.present if group_of(name, known) == owner)
            backlog.cursor.forget(set(present))
        if owner == NONE and len(undone) > len(new) > 0:
            first = self._decided_alone(set(undone).intersection(new))
            self._take(backlog, first, are_first=True)
            undone = [name for name in undone if name in self._left]
        self._observe(undone)
        self._index.forget_resolved()
        most = MOST_AT_ONCE if owner == NONE and not is_last else len(undone)
        decided = self._decided(undone, most, is_last)
        backlog.cursor.waiting = {name for name in undone if name in self._since}
        self._take(backlog, decided)

    def _release(self) -> None:
        """Let others send what nothing of which is waited for."""
        for owner, backlog in list(self._courier.backlogs.items()):
            if not (backlog.waiting or backlog.cursor.waiting & self._since.keys()):
                self._courier.release(owner)

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

    def _decided_alone(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that need nothing of other batches, in order."""
        found = []
        for name in sorted(names):
            batch = self._light(name)
            if batch is not None and (batch.is_foreign or batch.session is not None):
                if name not in self._index:
                    self._index.observe_once(name, batch)
                found.append(name)
        return found

    def _decided(self, names: list[str], most: int, is_last: bool) -> list[str]:
        """Up to `most` of `names` that are to be sent now."""
        decided: list[str] = []
        for name in names:
            if name in self._broken:
                continue
            if len(decided) >= most:
                self._is_more = True
                break
            if self._is_decided(name, is_last):
                decided.append(name)
        return decided

    def _take(self, backlog: Backlog, names: list[str], *, are_first: bool = False) -> None:
        # Before they are sent: where a batch stands must not depend on how sending it ends.
        self._index.commit()
        self._courier.take(backlog, names, are_first=are_first)
        self._left.difference_update(names)

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
