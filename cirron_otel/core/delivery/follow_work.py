"""The continuous export of one spool: select the batches that can be sent now."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...errors import CirronOtelError, InputError
from ..placement.batch_outline import BatchOutline, read_outline
from ..records.problems import ReadingProblem
from ..spool.dead_letters import DeadLetters
from ..spool.ledger import by_owner
from ..spool.owner import NONE, known_owners
from ..spool.reader import SpoolReader
from ..targets.otlp.config import OtlpConfig
from ..translator.own.encode import Options
from .backlog import Backlog
from .delivery_stats import ExportStats
from .foreground import ForegroundDelivery
from .indexed import FollowIndex, IndexedTarget
from .retry_policy import Backoff

UNDECIDED_SECONDS = 60.0
"""The maximum time in seconds that a batch waits until the session of its records is known."""
_SEND_SECONDS = 0.5
"""How long to send before new batches are queued, so that a long lane does not delay others."""
_AGAIN_SECONDS = 5.0
"""How long to wait before requesting again the leases that other processes hold."""
MOST_AT_ONCE = 2_000
"""The maximum number of batches without an owner to queue before new batches are considered."""


MOST_NOTED = 10_000
"""The maximum number of names that `note` keeps until `take`. Above it, the directory is read."""
_REREAD_S = 5.0
"""How long until a directory that seems unchanged is read again: some file systems do not store
exact modification times.
"""
_SHARE = 50.0
"""Reading the directory may take up to one fiftieth of the time."""
_NOTED_SHARE = 1000.0
"""If `note` is called, reading may take only up to one thousandth of the time."""
_GRAIN_NS = 10**9
"""Changes that are closer together than this may result in the same modification time."""


MakeTarget = Callable[[OtlpConfig, Options, FollowIndex, ExportStats], IndexedTarget]


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """The options of a continuous export."""

    undecided_seconds: float = UNDECIDED_SECONDS
    patience: float | None = None
    """How long the endpoint may be unavailable, in seconds; None means no limit."""
    backoff: Backoff | None = None
    clock: Callable[[], float] = time.monotonic
    is_noted: bool = False
    """Whether `Follower.note` is called for the batches that this process seals."""
    make_target: MakeTarget = IndexedTarget
    tries_on: bool = False
    """Whether to retry even if the endpoint refuses everything, as it does for a wrong key."""
    on_failure: Callable[[CirronOtelError], None] = lambda _: None
    """Receives the failures that are retried."""
    letters: DeadLetters | None = None
    """The endpoint's dead letters."""


class Listing:
    """Lists the batches of a growing spool without reading the directory for each new batch.

    The process that seals batches passes their names to `note`. But other processes may write into
    the same directory, and a batch that was sealed earlier may be renamed into place later. So the
    directory is also read after it has changed, but rarely, so that a large directory costs little
    per batch.
    """

    def __init__(self, reader: SpoolReader, *, is_noted: bool = False) -> None:
        """Prepare the listing. `is_noted` means that `note` is called for most new batches."""
        self.present: set[str] = set()
        """The batches in the directory, according to the last reading and to `note`."""
        self._reader, self._is_noted = reader, is_noted
        self._noted: deque[str] = deque()
        self._is_full = False
        """Whether `note` has discarded names."""
        self._read_at = self._due_at = float("-inf")
        self._seen_ns = -1

    def note(self, names: Iterable[str]) -> None:
        """Add the names of sealed batches, from any thread."""
        if len(self._noted) < MOST_NOTED:
            self._noted.extend(names)
        else:
            self._is_full = True

    def noted(self) -> list[str] | None:
        """Return what `take` will return, from any thread; None if some names were discarded."""
        while not self._is_full:
            with contextlib.suppress(RuntimeError):  # another thread changed it
                return list(self._noted)
        return None

    def take(self) -> list[str]:
        """Return the names of the batches that are new since the last call."""
        new = []
        for _ in range(len(self._noted)):
            name = self._noted.popleft()
            if name not in self.present:
                self.present.add(name)
                new.append(name)
        return new

    def is_due(self) -> bool:
        """Return whether the directory must be read now."""
        now = time.monotonic()
        if self._is_full:
            return True
        if now < self._due_at:
            return False
        return now - self._read_at >= _REREAD_S or self._has_changed()

    def _has_changed(self) -> bool:
        modified_ns = self._modified_ns()
        return modified_ns != self._seen_ns or modified_ns >= time.time_ns() - _GRAIN_NS

    def _modified_ns(self) -> int:
        try:
            return self._reader.paths.spool.stat().st_mtime_ns
        except OSError:
            return time.time_ns()

    def read(self) -> list[str]:
        """Read the directory; return the new names, in order.

        Raises InputError if the directory cannot be read.
        """
        begun = self._read_at = time.monotonic()
        self._seen_ns, self._is_full = self._modified_ns(), False
        names = list(self._reader.names())
        new = [name for name in names if name not in self.present]
        self.present = set(names)
        took = time.monotonic() - begun
        if self._is_noted:
            self._due_at = begun + max(took * _NOTED_SHARE, _REREAD_S)
        else:
            self._due_at = begun + took * _SHARE
        return new


class FollowSession:
    """The export of a spool to one target by the process that holds the lease for it."""

    def __init__(
        self,
        reader: SpoolReader,
        listing: Listing,
        index: FollowIndex,
        delivery: ForegroundDelivery,
        stats: ExportStats,
        broken: set[str],
        terms: FollowOptions,
        is_segmented: bool,
    ) -> None:
        self._reader, self._listing = reader, listing
        self._index, self.delivery, self._stats = index, delivery, stats
        self._broken, self._terms, self._is_segmented = broken, terms, is_segmented
        self._left: set[str] = set(listing.present)
        """The names of batches that may still have to be sent."""
        self._since: dict[str, float] = {}
        """When each batch was first found to be undecided, by the batch's name."""
        self._again_at = float("-inf")
        self._is_begun = False
        """Whether `_left` is complete."""
        self._is_more = False
        """Whether the last round left batches that can be sent now."""

    def round(self, *, is_last: bool = False) -> bool:
        """Send the batches that can be sent now.

        With `is_last`, send all batches, without waiting for the scopes that they refer to. Returns
        whether the next round can start immediately.
        """
        self._take_up(is_last)
        if is_last:
            self.delivery.finish()
        elif self.delivery.send(_SEND_SECONDS, tries_on=self._terms.tries_on):
            self._is_more = True
        self._left |= self.delivery.lost
        self.delivery.lost.clear()
        self._release()
        return self._is_more

    def _take_up(self, is_last: bool) -> None:
        """Queue the batches that can be sent."""
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
            if self.delivery.claim(owner) is not None:
                self._work_at(owner, names, new, is_read, is_last)
        self._is_begun = True

    def left(self) -> list[str] | None:
        """Return the batches that may be unsent; None if they are not known. For any thread."""
        if not self._is_begun or (noted := self._listing.noted()) is None:
            return None
        while True:
            with contextlib.suppress(RuntimeError):  # another thread changed it
                return [*{*self._left, *noted, *self.delivery.names()}]

    def _read(self) -> None:
        self._left.update(self._listing.read())
        present = self._listing.present
        self._left &= present
        self._broken &= present
        for name in self._since.keys() - present:
            del self._since[name]
        self._index.forget(present)

    def _is_lease_due(self) -> bool:
        """Whether it is time to request the leases of other processes again."""
        return bool(self._left) and time.monotonic() >= self._again_at

    def _is_late(self) -> bool:
        now = self._terms.clock()
        return any(self._is_over(since, now) for since in self._since.values())

    def _is_over(self, since: float, now: float) -> bool:
        return now - since > self._terms.undecided_seconds

    def _owned(self) -> dict[str, list[str]]:
        """Group the remaining batches by owner, in order."""
        self._again_at = time.monotonic() + _AGAIN_SECONDS
        self._left -= self._broken
        known = known_owners(self._reader.paths) if self._left else set()
        return by_owner(sorted(self._left), known)

    def _work_at(
        self, owner: str, names: list[str], new: list[str], is_read: bool, is_last: bool
    ) -> None:
        """Queue the batches of an owner.

        New batches without an owner come first if they do not depend on other batches, so that an
        earlier backlog does not delay them.
        """
        backlog = self.delivery.backlogs[owner]
        undone = backlog.cursor.undone(names)
        self._left.difference_update(names)
        self._left.update(undone)
        self._is_begun = True
        if is_read and owner != NONE:
            known = known_owners(self._reader.paths)
            present = by_owner(self._listing.present, known).get(owner, ())
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
        """Release the backlogs that have nothing to send and no undecided batches."""
        for owner, backlog in list(self.delivery.backlogs.items()):
            if not (backlog.waiting or backlog.cursor.waiting & self._since.keys()):
                self.delivery.release(owner)

    def _observe(self, names: list[str]) -> None:
        for name in names:
            if name not in self._index and name not in self._broken:
                batch = self._light(name)
                if batch is not None:
                    self._index.observe_once(name, batch)

    def _light(self, name: str) -> BatchOutline | None:
        file = self._reader.read(name)
        if file is None:
            return None
        try:
            return read_outline(file.data)
        except InputError as error:
            self._broken.add(name)
            self._stats.skip(ReadingProblem(name, "not-json", str(error)))
            return None

    def _decided_alone(self, names: Iterable[str]) -> list[str]:
        """Return the batches among `names` that do not depend on other batches, in order."""
        decided = []
        for name in sorted(names):
            batch = self._light(name)
            if batch is not None and (batch.is_foreign or batch.session is not None):
                if name not in self._index:
                    self._index.observe_once(name, batch)
                decided.append(name)
        return decided

    def _decided(self, names: list[str], most: int, is_last: bool) -> list[str]:
        """Return up to `most` batches among `names` that can be sent now."""
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
        # Commit before sending: the trace of a batch must not depend on the result.
        self._index.commit()
        self.delivery.take(backlog, names, are_first=are_first)
        self._left.difference_update(names)

    def _is_decided(self, name: str, is_last: bool) -> bool:
        """Return whether a batch can be sent now; if so, count its records into segments."""
        batch = self._light(name)
        if batch is None:
            return name not in self._broken  # the batch disappeared, which the delivery reports
        if not is_last and self._index.undecided(batch):
            now = self._terms.clock()
            if not self._is_over(self._since.setdefault(name, now), now):
                return False
        self._since.pop(name, None)
        if self._is_segmented:
            self._index.count_once(name, batch)
        return True
