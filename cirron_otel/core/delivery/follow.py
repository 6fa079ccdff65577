"""Export a spool over OTLP, either continuously as it grows, or once."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path

from ...errors import TargetError
from ..records.problems import ReadingProblem
from ..spool.lease import Lease, claim
from ..spool.ledger import Ledger
from ..spool.reader import SpoolReader
from ..spool.state import unwritable
from ..targets.otlp.config import OtlpConfig, target_key
from ..translator.own.encode import SEGMENTED, Options
from .delivery_stats import ExportStats
from .errors import StoppedError
from .follow_work import FollowOptions, FollowSession, Listing
from .foreground import ForegroundDelivery
from .indexed import FollowIndex

POLL_SECONDS = 0.2


class Follower:
    """Exports to an endpoint the unsent batches of every owner whose lease is free.

    A batch that does not name its session waits on disk until the scopes that it refers to are
    recorded, but no longer than `undecided_seconds`. Cursors record which batches were accepted,
    so that an export continues after a restart; a request that was in flight may arrive twice. If
    several processes export a spool to the same target, only one of them works at a time; when it
    ends, another one takes over.
    """

    def __init__(
        self,
        source: str,
        config: OtlpConfig,
        options: Options,
        stats: ExportStats,
        *,
        stop: threading.Event,
        say: Callable[[str], None],
        terms: FollowOptions | None = None,
    ) -> None:
        """Find the spool; `say` receives messages for the user.

        Raises InputError if there is no spool at `source`.
        """
        self._reader = SpoolReader(source, on_finding=self._found)
        self._paths = self._reader.paths
        self._config, self._options, self._stats = config, options, stats
        self._stop, self._say, self._terms = stop, say, terms or FollowOptions()
        self._key = target_key(config)
        self._broken: set[str] = set()
        self._listing = Listing(self._reader, is_noted=self._terms.is_noted)
        self._is_said = False
        self._at_work: FollowSession | None = None

    def run(self) -> None:
        """Export until `stop` is set. Raises TargetError and EndpointError."""
        lease = self._lease()
        while lease is None and not self._stop.wait(POLL_SECONDS):
            lease = self._lease()
        if lease is None:
            return
        with contextlib.suppress(StoppedError), lease, self._work() as work:
            while not self._stop.is_set():
                if not work.round():
                    work.delivery.wait(POLL_SECONDS)

    def note(self, names: Iterable[str]) -> None:
        """Add batches sealed in this spool, from any thread; this avoids reading the directory."""
        self._listing.note(names)

    def once(self) -> None:
        """Send the batches that no other process is sending, without waiting for scopes.

        Raises StoppedError and the errors of `run`.
        """
        lease = self._lease()
        if lease is not None:
            with lease, self._work() as work:
                work.round(is_last=True)

    def request_room(self) -> None:
        """Request room in the spool, from any thread; see `Schedule.request_room`."""
        if (work := self._at_work) is not None:
            work.delivery.request_room()

    def unsent(self) -> int:
        """Return the number of batches that the endpoint has not received yet."""
        return unsent(self._reader, self._key, self._broken)

    def left(self) -> list[str] | None:
        """Return the batches that may be unsent; None if no export is running. For any thread."""
        work = self._at_work
        return None if work is None else work.left()

    def _lease(self) -> Lease | None:
        lease = claim(self._paths, f"follow {self._key}")
        if lease is None and not self._is_said:
            self._is_said = True
            self._say(f"another export of this spool to {self._config.shown_endpoint} is running")
        return lease

    def _found(self, finding: ReadingProblem) -> None:
        if finding.name not in self._broken and finding.code != "torn":
            self._broken.add(finding.name)
            self._stats.skip(finding)

    @contextlib.contextmanager
    def _work(self) -> Iterator[FollowSession]:
        path = self._paths.state / f"follow-{self._key}.sqlite"
        with contextlib.ExitStack() as stack:
            try:
                index = _index_at(path)
                stack.callback(index.close, commit=False)
                target = self._terms.make_target(self._config, self._options, index, self._stats)
                stack.callback(target.close)
                delivery = ForegroundDelivery(
                    self._paths,
                    target,
                    self._stats,
                    stop=self._stop,
                    patience=self._terms.patience,
                    say=self._say,
                    backoff=self._terms.backoff,
                    on_failure=self._terms.on_failure,
                    letters=self._terms.letters,
                )
                stack.callback(delivery.close)
                is_segmented = self._options.layout == SEGMENTED
                stack.callback(self._end_work)
                self._at_work = FollowSession(
                    self._reader,
                    self._listing,
                    index,
                    delivery,
                    self._stats,
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
    """Open the index of a continuous export. A damaged index is rebuilt from the spool."""
    try:
        # SQLite gives its other files the mode of this file.
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


def unsent(reader: SpoolReader, key: str, broken: Container[str]) -> int:
    """Count the batches of a spool that no readable cursor records as received by the target."""
    with contextlib.closing(Ledger(reader.paths, key)) as ledger:
        return len(ledger.lacking(name for name in reader.names() if name not in broken))
