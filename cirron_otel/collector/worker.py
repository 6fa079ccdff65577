"""The collector's second process: from the intake journal to the spool, and on from there.

It is told over its standard input: the options, pickled, then lines of JSON: `{"until": [segment,
offset]}`, how far the journal is on disk, and `{"finish": seconds}`. The end of the input is a
finish, too: the process that receives is gone. On its standard output it says, a line of JSON each,
how far it has come and what it counted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import signal
import sys
import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO

from ..errors import CirronOtelError, TargetError
from ..receiver.journal_files import Position, intake_directory
from ..receiver.seen import Seen
from ..receiver.translation import GROUP_BYTES, Done, Translation
from ..spool.paths import target_spool
from ..spool.state import lock_named, make_state
from ..spool.writer import SpoolWriter
from .logs import Logging
from .walking import secrets_of

if TYPE_CHECKING:
    from .options import CollectorOptions
    from .senders import Senders

logger = logging.getLogger(__name__)

_LINGER_S = 0.1
"""So long a small group waits for more: a batch is a file, and costs one."""
_TROUBLE_S = 1.0
_IDLE_S = 1.0
_PREDECESSOR_S = 60.0
_FORGET_EVERY_S = 600.0


class Worker:
    """What the process does."""

    def __init__(self, options: CollectorOptions, senders: Senders | None = None) -> None:
        """Become the consumer of the journal. Raises TargetError where another process stays it."""
        self._options = options
        self._paths = target_spool(options.spool.directory)
        make_state(self._paths.state)
        directory = intake_directory(self._paths.state)
        self._lock = _consumer_lock(directory)
        self._writer = SpoolWriter(options.spool.directory, options.spool.max_bytes)
        seen = Seen(directory / "seen.sqlite")
        self._translation = Translation(directory, self._writer, seen)
        self._senders = senders
        self._inbox: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._until: Position | None = None
        self._finish_by: float | None = None
        self._forget_at = 0.0

    def tell(self, message: dict[str, Any]) -> None:
        """What came over the standard input; from any thread."""
        self._inbox.put(message)

    def run(self) -> None:
        """Work until it is told to finish."""
        if self._senders is not None:
            self._senders.start(self._paths)
        worked = self._attempt(self._recovered)
        while True:
            self._listen(0.0 if worked or self._finish_by is not None else _IDLE_S)
            worked = self._attempt(self._work)
            if self._finish_by is not None and not worked:
                break
        self._end()

    # --- the journal ----------------------------------------------------------------------------

    def _listen(self, seconds: float) -> None:
        """Take what was said, and wait for it for so long."""
        with contextlib.suppress(Empty):
            message = self._inbox.get(timeout=seconds) if seconds else self._inbox.get_nowait()
            while True:
                if "until" in message:
                    self._until = Position(*message["until"])
                if "finish" in message:
                    self._finish_by = time.monotonic() + float(message["finish"])
                message = self._inbox.get_nowait()

    def _recovered(self) -> bool:
        done = self._translation.recover()
        if done is not None:
            self._done(done)
        return False

    def _work(self) -> bool:
        done = self._translation.work(self._until)
        if done is None:
            self._forget()
            return False
        self._done(done)
        return True

    def _attempt(self, what: Any) -> bool:
        """Whether something was done. What a disk is in the way of is tried again."""
        try:
            return bool(what())
        except CirronOtelError as error:
            logger.warning("%s", error, extra={"fields": {"cause": "spool"}, "cause": "spool"})
            say({"trouble": str(error)})
            if self._finish_by is not None and time.monotonic() > self._finish_by:
                return False
            time.sleep(_TROUBLE_S)
            return self._finish_by is not None

    def _done(self, done: Done) -> None:
        if self._senders is not None:
            self._senders.stored(done.names)
        counts, self._translation.counts = (
            dict(self._translation.counts),
            type(self._translation.counts)(),
        )
        say({"position": list(done.position), "counts": counts, **self._standing()})
        if done.size < GROUP_BYTES // 4 and self._finish_by is None:
            time.sleep(_LINGER_S)

    def _standing(self) -> dict[str, Any]:
        return {"senders": self._senders.stats()} if self._senders is not None else {}

    def _forget(self) -> None:
        now = time.monotonic()
        if now >= self._forget_at:
            self._forget_at = now + _FORGET_EVERY_S
            kept_ns = int(self._options.dedup.hours * 3600e9)
            self._translation.forget(time.time_ns() - kept_ns)
            if self._senders is not None:
                self._senders.retain()
        say({"idle": True, **self._standing()})

    def _end(self) -> None:
        if self._senders is not None:
            left = max((self._finish_by or 0.0) - time.monotonic(), 0.0)
            self._senders.finish(left)
            say({**self._standing()})
        self._translation.close()
        os.close(self._lock)


def _consumer_lock(directory: Any) -> int:
    """Held as long as the process lives: one that a killed collector left may still be at it."""
    directory.mkdir(mode=0o700, exist_ok=True)
    path = directory / "consumer.lock"
    deadline = time.monotonic() + _PREDECESSOR_S
    while (lock := lock_named(path)) is None:
        if time.monotonic() > deadline:
            raise TargetError(f"{path} is locked: another collector translates this journal")
        time.sleep(0.05)
    return lock


def say(message: dict[str, Any]) -> None:
    """A line to the process that receives; nobody may be there any more."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def listen(worker: Worker, source: BinaryIO) -> None:
    """Hand on what is said, until nobody is there to say more."""
    for line in source:
        worker.tell(json.loads(line))
    worker.tell({"finish": worker._options.drain_s})


def main() -> None:
    """The process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that receives says when
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    source = sys.stdin.buffer
    options: CollectorOptions = pickle.load(source)  # noqa: S301 - our parent wrote it
    with Logging(options.logs, secrets_of(options)):
        try:
            from .senders import Senders  # noqa: PLC0415 - brings libraries of its own

            worker = Worker(options, Senders(options))
        except CirronOtelError as error:
            say({"failed": str(error)})
            sys.exit(1)
        say({"ready": True})
        threading.Thread(target=listen, args=(worker, source), daemon=True).start()
        worker.run()
    os._exit(0)  # the thread that listens may still wait


if __name__ == "__main__":
    main()
